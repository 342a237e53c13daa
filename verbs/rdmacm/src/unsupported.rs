//! What there is not: multicast, vendors' options, and sockets over RDMA. Each refuses with
//! `EOPNOTSUPP`.

use crate::errno::{UNSUPPORTED, set};
use std::ffi::c_int;

/// Functions with any arguments: the C calling convention lets a callee ignore them.
macro_rules! refuse {
    ($($name:ident)*) => { $(
        #[doc = "Refuses."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name() -> isize {
            set(UNSUPPORTED);
            -1
        }
    )* };
}

refuse! {
    raccept
    rbind
    rclose
    rconnect
    rdma_get_remote_ece
    rdma_join_multicast
    rdma_join_multicast_ex
    rdma_leave_multicast
    rdma_notify
    rdma_reject_ece
    rdma_set_local_ece
    rfcntl
    rgetpeername
    rgetsockname
    rgetsockopt
    riomap
    riounmap
    riowrite
    rlisten
    rread
    rreadv
    rrecv
    rrecvfrom
    rrecvmsg
    rselect
    rsend
    rsendmsg
    rsendto
    rsetsockopt
    rshutdown
    rsocket
    rwrite
    rwritev
}

/// `rpoll(3)`: of plain descriptors, since there are no sockets over RDMA here.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rpoll(watched: *mut libc::pollfd, count: libc::nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the program's own array, passed on.
    unsafe { libc::poll(watched, count, timeout) }
}
