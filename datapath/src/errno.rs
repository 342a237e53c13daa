//! Results of system calls.

use std::ffi::c_int;
use std::io;

/// Checks the result of a system call and returns it.
///
/// # Errors
/// Returns the error of the calling thread's last system call if `result` is negative.
pub(crate) fn check(result: c_int) -> io::Result<c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}
