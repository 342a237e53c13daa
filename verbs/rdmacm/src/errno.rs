//! Errors as librdmacm reports them: -1 and `errno`. Nothing unwinds into the program.

use crate::cancel::Deferred;
use std::ffi::c_int;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);

pub(crate) fn set(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Returns the `errno` of this thread's last call.
pub(crate) fn last() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Runs a function's body. A panic is a defect of ours and becomes `EIO`.
fn guarded<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _whole = Deferred::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)))
}

/// Runs a function's body: 0, or -1 with `errno` set.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// For functions that return a number, or -1 with `errno` set.
pub(crate) fn number(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    size(|| body().map(|number| number as usize)) as c_int
}

/// For functions that return a length, or -1 with `errno` set.
pub(crate) fn size(body: impl FnOnce() -> Result<usize, Errno>) -> isize {
    match guarded(body) {
        Ok(size) => size as isize,
        Err(errno) => {
            set(errno);
            -1
        }
    }
}

/// For calls of libibverbs that return 0 or an error number.
pub(crate) fn verb(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(if result > 0 { Errno(result) } else { last() }) }
}

/// For calls that return an object, or null with `errno` set.
pub(crate) fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(last()) } else { Ok(object) }
}

/// Returns the object behind a pointer from the program; null is `EINVAL`.
///
/// # Safety
/// The pointer is null or leads to a live `T` that nothing else uses meanwhile.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(INVALID)
}
