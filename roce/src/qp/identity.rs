//! The properties of a queue pair that never change.

use super::{Capabilities, QpInit};
use crate::wire::Service;
use crate::{CqId, PdId, Qpn, SrqId, XrcdId};

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

/// Queue of a queue pair's receive requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receives {
    Own,
    Shared(SrqId),
    /// None: an XRC initiator receives no messages.
    Never,
    /// XRC target: the shared receive queue of this domain that a message names.
    XrcTarget(XrcdId),
}

impl Receives {
    /// Returns the service of the packets of a reliable queue pair.
    pub(crate) const fn service(self) -> Service {
        match self {
            Self::Own | Self::Shared(_) => Service::Rc,
            Self::Never | Self::XrcTarget(_) => Service::Xrc,
        }
    }
}
