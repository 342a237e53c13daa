//! Converts errors to rdma-core's `errno` values, and panics to errors, so that no panic unwinds into the program.

use crate::cancel::Deferred;
use crate::memory_reserve;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use verbs::Error;
use verbs::errors::{ControlError, PostError, ResolveError};
use verbs::fault::{self, Verb};

/// A positive error number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

pub(crate) const INVALID: Errno = Errno(libc::EINVAL);
pub(crate) const UNSUPPORTED: Errno = Errno(libc::EOPNOTSUPP);
pub(crate) const BUSY: Errno = Errno(libc::EBUSY);
/// The core of the device has stopped.
pub(crate) const ENDED: Errno = Errno(libc::EIO);

/// Counts a call of a verb, at its entry point. Returns an error if the call must fail because of an injected fault.
#[inline]
pub(crate) fn injected(verb: Verb) -> Result<(), Errno> {
    fault::check(verb).map_err(|errno| Errno(errno.number()))
}

/// Runs the body of a verb. A panic is a bug in this library: it becomes `EIO`, and its message is written to standard error.
pub(crate) fn catch_panic<R>(body: impl FnOnce() -> Result<R, Errno>) -> Result<R, Errno> {
    let _whole = Deferred::new();
    catch_unwind(AssertUnwindSafe(body)).unwrap_or(Err(Errno(libc::EIO)))
}

pub(crate) fn set(errno: Errno) {
    // SAFETY: the location is this thread's own.
    unsafe { *libc::__errno_location() = errno.0 };
}

/// Runs the body of a verb that returns 0 or an error number.
pub(crate) fn status(body: impl FnOnce() -> Result<(), Errno>) -> c_int {
    match catch_panic(body) {
        Ok(()) => 0,
        Err(errno) => {
            set(errno);
            errno.0
        }
    }
}

/// Runs the body of a verb that returns a count or 0, or -1 with `errno` set.
pub(crate) fn count(body: impl FnOnce() -> Result<c_int, Errno>) -> c_int {
    catch_panic(body).unwrap_or_else(|errno| {
        set(errno);
        -1
    })
}

/// Runs the body of a verb that returns a new object, or null with `errno` set. Returns `ENOMEM` without running it if memory is short.
pub(crate) fn created<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    object(|| {
        memory_reserve::complete()?;
        body()
    })
}

/// Runs the body of a verb that returns an existing object, or null with `errno` set.
pub(crate) fn object<T>(body: impl FnOnce() -> Result<*mut T, Errno>) -> *mut T {
    catch_panic(body).unwrap_or_else(|errno| {
        set(errno);
        std::ptr::null_mut()
    })
}

impl From<Error> for Errno {
    fn from(error: Error) -> Self {
        match error {
            // The program receives only ENOMEM, without the remedy.
            Error::Control(ControlError::Limit { .. }) => tracing::error!("{error}"),
            _ => tracing::warn!("{error}"),
        }
        Self::without_log(error)
    }
}

impl Errno {
    /// Converts an error to its number without a log line.
    pub(crate) fn without_log(error: Error) -> Self {
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
            Error::Injected { errno, .. } => errno.number(),
            Error::Raw { .. } | Error::Format { .. } => libc::EOPNOTSUPP,
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
            ControlError::NumbersQuarantined { .. } => libc::EAGAIN,
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
            PostError::Injected { errno } => errno,
            _ => libc::EINVAL,
        })
    }
}

/// Returns the object to which a program's pointer refers, or `EINVAL` for null.
///
/// # Safety
/// The caller must pass null, or a pointer to a live `T` that is changed only through interior mutability.
pub(crate) unsafe fn at<'a, T>(pointer: *const T) -> Result<&'a T, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_ref() }.ok_or(INVALID)
}

/// Returns the program's place for a result, or `EINVAL` for null.
///
/// # Safety
/// The caller must pass null, or a pointer to a `T` that nothing else uses during `'a`.
pub(crate) unsafe fn out<'a, T>(pointer: *mut T) -> Result<&'a mut T, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe { pointer.as_mut() }.ok_or(INVALID)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in rdma-core, an error of the system keeps its number.
    #[test]
    fn exhausted_descriptors_are_emfile() {
        let descriptor = Error::Descriptor(std::io::Error::from_raw_os_error(libc::EMFILE));
        let (address, port, errno) = ([10, 0, 0, 2].into(), "eth0".to_owned(), libc::EMFILE);
        let resolve = Error::Resolve(ResolveError::Exhausted { address, port, errno });
        for error in [descriptor, resolve] {
            assert_eq!(Errno::without_log(error), Errno(libc::EMFILE));
        }
    }
}
