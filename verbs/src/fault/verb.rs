//! The verbs that can fail on demand.

use std::fmt;

/// Defines the verbs with their names.
macro_rules! verbs {
    ($($verb:ident $name:literal,)*) => {
        /// A verb that can fail on demand. Its name is that of the function of libibverbs without `ibv_`, or that of librdmacm.
        ///
        /// Variants of a function count as the function: `ibv_create_qp_ex` as `create_qp`, `ibv_wr_complete` as `post_send`,
        /// `ibv_start_poll` as `poll_cq`.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        #[non_exhaustive]
        pub enum Verb {
            $($verb,)*
        }

        impl Verb {
            /// Every verb.
            pub const ALL: &[Self] = &[$(Self::$verb,)*];

            /// Returns the verb's name.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => $name,)*
                }
            }
        }
    };
}

verbs! {
    OpenDevice "open_device",
    QueryDevice "query_device",
    QueryPort "query_port",
    QueryGid "query_gid",
    AllocPd "alloc_pd",
    RegMr "reg_mr",
    CreateCompChannel "create_comp_channel",
    CreateCq "create_cq",
    CreateSrq "create_srq",
    CreateQp "create_qp",
    ModifyQp "modify_qp",
    CreateAh "create_ah",
    PostSend "post_send",
    PostRecv "post_recv",
    PostSrqRecv "post_srq_recv",
    PollCq "poll_cq",
    ReqNotifyCq "req_notify_cq",
    GetCqEvent "get_cq_event",
    RdmaCreateEventChannel "rdma_create_event_channel",
    RdmaCreateId "rdma_create_id",
    RdmaBindAddr "rdma_bind_addr",
    RdmaListen "rdma_listen",
    RdmaResolveAddr "rdma_resolve_addr",
    RdmaResolveRoute "rdma_resolve_route",
    RdmaCreateQp "rdma_create_qp",
    RdmaConnect "rdma_connect",
    RdmaAccept "rdma_accept",
}

impl Verb {
    /// Returns the verb of this name, which may begin with `ibv_`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        let name = name.strip_prefix("ibv_").unwrap_or(name);
        Self::ALL.iter().copied().find(|verb| verb.name() == name)
    }

    /// Returns a bit for the verb, different for each.
    pub(super) const fn bit(self) -> u32 {
        const { assert!(Self::ALL.len() <= u32::BITS as usize, "each verb has a bit") };
        1 << self as u32
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
