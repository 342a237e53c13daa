//! The properties of a queue pair that never change.

use super::{Capabilities, QpInit};
use crate::wire::Service;
use crate::{CqId, PdId, Qpn, SrqId, XrcdId};

/// The properties of a queue pair that never change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Identity {
    pub(crate) qpn: Qpn,
    pub(crate) pd: PdId,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) signal_all: bool,
    pub(crate) receives: Receives,
    pub(crate) capabilities: Capabilities,
}

impl Identity {
    pub(crate) const fn new(qpn: Qpn, init: &QpInit, receives: Receives) -> Self {
        let QpInit { pd, send_cq, recv_cq, capabilities, signal_all, .. } = *init;
        Self { qpn, pd, send_cq, recv_cq, signal_all, receives, capabilities }
    }
}

/// The queue that a queue pair takes its receive requests from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    /// The queue pair's own queue.
    Own,
    /// One that it shares.
    Shared(SrqId),
    /// An XRC initiator takes no messages.
    Never,
    /// An XRC target: whichever queue of the domain a message names.
    Named(XrcdId),
}

impl Receives {
    /// Of a reliable queue pair: the service of its packets.
    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Own | Self::Shared(_) => Service::Rc,
            Self::Never | Self::Named(_) => Service::Xrc,
        }
    }
}
