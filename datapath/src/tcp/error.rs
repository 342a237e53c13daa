//! Errors of pacing TCP.

use std::io;
use thiserror::Error;

const NEEDS: &str = "CAP_BPF,CAP_PERFMON,CAP_NET_ADMIN,CAP_NET_RAW";

/// Reasons why TCP cannot be paced here, with the remedy.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum TcpError {
    #[error("{what}: the kernel does not permit it; {}", crate::capabilities::remedy(NEEDS))]
    Privilege { what: &'static str },
    #[error("{what}: this kernel lacks it; {remedy}")]
    Lacks { what: &'static str, remedy: &'static str },
    #[error("congestion control {name}: another `ferroce tcp` paces this network namespace; end it first")]
    Taken { name: String },
    #[error("{what}: {source}")]
    System { what: &'static str, source: io::Error },
}

impl TcpError {
    /// Returns a function that converts an error of a system call. `remedy` is for kernels that do not support the call.
    pub(super) fn of(what: &'static str, remedy: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Privilege { what },
            // 524 is ENOTSUPP, which user-space headers do not define.
            Some(libc::ENOSYS | libc::EINVAL | libc::EOPNOTSUPP | libc::ENOENT | 524) => {
                Self::Lacks { what, remedy }
            }
            _ => Self::System { what, source },
        }
    }
}
