//! A request packet, and the context that executes it.

use crate::qp::{Context, Identity};
use crate::wire::Bth;
use crate::{Access, SrqNumber};

/// The rights that the queue pair grants its peer.
#[derive(Clone, Copy, Debug)]
pub(in crate::qp::reliable) struct Rights {
    pub(in crate::qp::reliable) access: Access,
    pub(in crate::qp::reliable) mtu: u32,
}

/// Request packet, and the context of its execution.
pub(in crate::qp) struct Arrival<'a, 'b, M> {
    pub(in crate::qp) memory: &'a mut M,
    pub(in crate::qp) context: &'a mut Context<'b>,
    pub(in crate::qp) identity: &'a Identity,
    pub(in crate::qp) rights: Rights,
    pub(in crate::qp) bth: Bth,
    /// Shared receive queue that the packet names, at an XRC target.
    pub(in crate::qp) srq: Option<SrqNumber>,
    pub(in crate::qp) is_marked: bool,
    pub(in crate::qp) payload: &'a [u8],
}

impl<M> Arrival<'_, '_, M> {
    pub(super) const fn length(&self) -> u32 {
        self.payload.len() as u32
    }

    /// Returns whether the sender runs DCTCP, which needs an acknowledgement at each change of the mark.
    pub(super) const fn wants_exact_echo(&self) -> bool {
        self.bth.congestion & Bth::EXACT_ECHO != 0
    }
}
