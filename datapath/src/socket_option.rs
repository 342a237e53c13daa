//! Socket options that the standard library does not support (setsockopt(2), getsockopt(2)).

use std::ffi::c_int;
use std::io;
use std::os::fd::AsRawFd;

/// Sets an option. `value` must have the option's type, and every pointer in it must be valid.
pub(crate) fn set<T: ?Sized>(socket: &impl AsRawFd, level: c_int, name: c_int, value: &T) -> io::Result<()> {
    let length = size_of_val(value) as libc::socklen_t;
    // SAFETY: `value` is `length` readable bytes. The only option with a pointer in its value is a filter, whose program the caller keeps
    // alive.
    let result = unsafe {
        libc::setsockopt(socket.as_raw_fd(), level, name, std::ptr::from_ref(value).cast(), length)
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Returns the value of an option of type `int`.
///
/// # Errors
/// Returns the kernel's error, for example if the descriptor is not a socket.
pub(crate) fn number(socket: &impl AsRawFd, level: c_int, name: c_int) -> io::Result<c_int> {
    let mut value: c_int = 0;
    let mut length = size_of::<c_int>() as libc::socklen_t;
    // SAFETY: `value` has `length` bytes.
    let result =
        unsafe { libc::getsockopt(socket.as_raw_fd(), level, name, (&raw mut value).cast(), &mut length) };
    if result == 0 { Ok(value) } else { Err(io::Error::last_os_error()) }
}
