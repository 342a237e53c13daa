//! Unsupported functions: vendor options, and `rdma_notify`. Each returns `EOPNOTSUPP`.

use crate::rdmacm::errno::{UNSUPPORTED, set};

/// Defines functions with any arguments: the C calling convention lets a callee ignore them.
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
    rdma_get_remote_ece
    rdma_notify
    rdma_reject_ece
    rdma_set_local_ece
}
