//! Finds queue pairs by their peer, so that no frame makes the endpoint search through all of them.

use crate::Qpn;
use crate::qp::{Peer, QueuePair};
use alloc::collections::BTreeSet;
use core::net::IpAddr;

/// What the index knows of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Known {
    peer: Option<Peer>,
    /// It acts on direct responses.
    hears_switches: bool,
}

impl Known {
    /// What a queue pair's state says now.
    pub(super) fn of(qp: &QueuePair) -> Self {
        Self { peer: qp.peer(), hears_switches: qp.hears_switches() }
    }

    /// The name of the peer, if direct responses about packets to it concern this queue pair.
    fn heard_name(&self) -> Option<(IpAddr, u32)> {
        let peer = self.peer.filter(|_| self.hears_switches)?;
        Some((peer.address, peer.qpn.get()))
    }
}

/// The queue pairs of an endpoint, by their peers. A queue pair is named by its place in the table.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Queue pairs that act on direct responses, by the address and number of the queue pair that they send to.
    hearers: BTreeSet<(IpAddr, u32, u32)>,
}

impl Peers {
    /// The queue pair at `place` was `before` and is `after`.
    pub(super) fn update(&mut self, place: u32, before: Known, after: Known) {
        if before == after {
            return;
        }
        // A queue pair that stopped to listen by itself is still in the index.
        if let Some(Peer { address, qpn, .. }) = before.peer {
            self.hearers.remove(&(address, qpn.get(), place));
        }
        if let Some((address, qpn)) = after.heard_name() {
            self.hearers.insert((address, qpn, place));
        }
    }

    /// The place of a queue pair that acts on direct responses about packets to queue pair `destination` at `address`.
    pub(super) fn hearer(&self, address: IpAddr, destination: Qpn) -> Option<u32> {
        let name = (address, destination.get());
        let (found, qpn, place) = *self.hearers.range((name.0, name.1, 0)..).next()?;
        ((found, qpn) == name).then_some(place)
    }
}
