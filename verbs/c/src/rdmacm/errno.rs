//! Errors as librdmacm returns them: -1 and `errno`.

use crate::errno::catch_panic;
use std::ffi::c_int;
use std::io;

pub(crate) use crate::errno::{Errno, INVALID, UNSUPPORTED, at, count, injected, out, set};

/// Returns the `errno` of this thread's last call.
pub(crate) fn last() -> Errno {
    Errno(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO))
}

/// Runs the body of a function that returns 0, or -1 with `errno` set.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    count(|| body().map(|()| 0))
}

/// Runs the body of a function that returns a length, or -1 with `errno` set.
pub(crate) fn size(body: impl FnOnce() -> Result<usize, Errno>) -> isize {
    catch_panic(body).map_or_else(
        |errno| {
            set(errno);
            -1
        },
        |size| size as isize,
    )
}

/// Converts the result of a verb that returns 0 or an error number.
pub(crate) fn verb(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(Errno(result)) }
}

/// Converts the result of a verb that returns an object, or null with `errno` set.
pub(crate) fn made<T>(object: *mut T) -> Result<*mut T, Errno> {
    if object.is_null() { Err(last()) } else { Ok(object) }
}
