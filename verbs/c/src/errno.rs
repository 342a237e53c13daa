//! From our errors to rdma-core's `errno` values, and from panics to errors: nothing unwinds into the program.

use crate::cancel::Deferred;
use crate::reserve;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use verbs::Error;
use verbs::errors::{ControlError, PostError, ResolveError};

/// An error number, positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// The device's core has stopped.
pub(crate) const ENDED: Errno = Errno(libc::EIO);

/// Runs a verb's body. A panic is a defect of ours: it becomes `EIO`, and its message is on standard error.
pub(crate) fn guarded<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _whole = Deferred::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)))
}

pub(crate) fn set(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// For verbs that return 0 or an error number.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match guarded(body) {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno.0
        }
    }
}

/// For verbs that return a count or 0, or -1 with `errno` set.
pub(crate) fn count(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    guarded(body).unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// For verbs that create what they return, or return null with `errno` set. Without memory they return `ENOMEM` and change nothing.
pub(crate) fn created<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    object(|| {
        reserve::complete()?;
        body()
    })
}

/// For verbs that return what exists, or null with `errno` set.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    guarded(body).unwrap_or_else(|errno| {
        set(errno);
        std::ptr::null_mut()
    })
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            // The program receives ENOMEM, which does not contain the remedy.
            Error::Control(ControlError::Limit { .. }) => tracing::error!("{error}"),
            _ => tracing::warn!("{error}"),
        }
        Self::quietly(error)
    }
}

impl Errno {
    /// Converts an error that is no fault of the program's, without a line in the log.
    pub(crate) fn quietly(error: Error) -> Self {
        Self(match error {
            Error::Port { .. } | Error::NoAddress { .. } => libc::ENODEV,
            Error::Control(error) => return error.into(),
            Error::CoreStopped(_) | Error::Random(_) => libc::EIO,
            Error::Resolve(ResolveError::NoAnswer { .. }) => libc::ETIMEDOUT,
            Error::Resolve(ResolveError::NoRoute { .. }) => libc::ENETUNREACH,
            Error::Resolve(ResolveError::Exhausted { errno, .. }) => errno,
            Error::Descriptor(error) => error.raw_os_error().unwrap_or(libc::EMFILE),
            Error::Resolve(ResolveError::Busy { .. }) => libc::EAGAIN,
            Error::Resolve(ResolveError::Stopped(_)) => libc::EIO,
            Error::OutOfMemory { .. } => libc::ENOMEM,
            Error::Raw { .. } => libc::EOPNOTSUPP,
            _ => libc::EINVAL,
        })
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl From<ControlError> for Errno {
    fn from(error: ControlError) -> Self {
        Self(match error {
            ControlError::Limit { .. } => libc::ENOMEM,
            ControlError::NumbersRest { .. } => libc::EAGAIN,
            ControlError::CqBusy { .. } | ControlError::RegionBusy { .. } => libc::EBUSY,
            _ => libc::EINVAL,
        })
    }
}

impl From<PostError> for Errno {
    fn from(error: PostError) -> Self {
        tracing::debug!("{error}");
        Self(match error {
            PostError::QueueFull { .. } => libc::ENOMEM,
            _ => libc::EINVAL,
        })
    }
}

/// Returns the object behind a pointer from the program; null is `EINVAL`.
///
/// # Safety
/// The pointer is null or leads to a live `T` that is changed only through interior mutability.
pub(crate) unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(INVALID)
}

/// Returns the place for a result; null is `EINVAL`.
///
/// # Safety
/// The pointer is null or leads to a `T` that nothing else uses meanwhile.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As rdma-core: what the system refuses keeps its number.
    #[test]
    fn exhausted_descriptors_are_emfile() {
        let descriptor = Error::Descriptor(std::io::Error::from_raw_os_error(libc::EMFILE));
        let (address, port, errno) = ([10, 0, 0, 2].into(), "eth0".to_owned(), libc::EMFILE);
        let resolve = Error::Resolve(ResolveError::Exhausted { address, port, errno });
        for error in [descriptor, resolve] {
            assert_eq!(Errno::quietly(error), Errno(libc::EMFILE));
        }
    }
}
