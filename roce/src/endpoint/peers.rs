//! Index of queue pairs and address handles by their peer, so that no frame requires a search of all of them.

use crate::Qpn;
use crate::qp::{Peer, QueuePair};
use crate::wire::Mac;
use alloc::collections::BTreeSet;
use core::net::IpAddr;
use core::ops::Bound::{Excluded, Included};

/// Sender of packets to a peer, by the slot in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Sender {
    QueuePair(u32),
    AddressHandle(u16),
}

impl Sender {
    const FIRST: Self = Self::QueuePair(0);
    const LAST: Self = Self::AddressHandle(u16::MAX);
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct IndexEntry {
    peer: Option<Peer>,
    /// Direct responses of switches affect the queue pair.
    uses_direct_responses: bool,
}

impl IndexEntry {
    pub(super) fn of(qp: &QueuePair) -> Self {
        Self { peer: qp.peer(), uses_direct_responses: qp.uses_direct_responses() }
    }

    /// Returns the address and number of the peer, if direct responses about packets to it affect this queue pair.
    fn direct_response_key(&self) -> Option<(IpAddr, u32)> {
        let peer = self.peer.filter(|_| self.uses_direct_responses)?;
        Some((peer.address, peer.qpn.get()))
    }
}

/// Queue pairs and address handles of an endpoint, by their peers.
#[derive(Debug, Default)]
pub(super) struct PeerIndex {
    /// All senders, by the address of the peer and the Ethernet address of packets to it.
    senders: BTreeSet<(IpAddr, Mac, Sender)>,
    /// Queue pairs that direct responses affect, by address and number of the peer, and by slot.
    direct_response_users: BTreeSet<(IpAddr, u32, u32)>,
}

impl PeerIndex {
    pub(super) fn update(&mut self, slot: u32, before: IndexEntry, after: IndexEntry) {
        if before == after {
            return;
        }
        // A queue pair may have stopped using direct responses by itself; it is still in the index.
        if let Some(Peer { address, mac, qpn }) = before.peer {
            self.direct_response_users.remove(&(address, qpn.get(), slot));
            self.forget(address, mac, Sender::QueuePair(slot));
        }
        if let Some(Peer { address, mac, .. }) = after.peer {
            self.add(address, mac, Sender::QueuePair(slot));
        }
        if let Some((address, qpn)) = after.direct_response_key() {
            self.direct_response_users.insert((address, qpn, slot));
        }
    }

    pub(super) fn add(&mut self, address: IpAddr, mac: Mac, sender: Sender) {
        self.senders.insert((address, mac, sender));
    }

    pub(super) fn forget(&mut self, address: IpAddr, mac: Mac, sender: Sender) {
        self.senders.remove(&(address, mac, sender));
    }

    /// Changes to `mac` the Ethernet address of packets to the peer at `address`, for one sender that uses another. Returns the sender;
    /// `None` if there is none.
    pub(super) fn redirect(&mut self, address: IpAddr, mac: Mac) -> Option<Sender> {
        let least = (address, Mac([0; 6]), Sender::FIRST);
        let most = (address, Mac([0xff; 6]), Sender::LAST);
        let [before, behind] = [Sender::FIRST, Sender::LAST].map(|sender| (address, mac, sender));
        let below = self.senders.range((Included(least), Excluded(before)));
        let found = below.chain(self.senders.range((Excluded(behind), Included(most)))).next().copied();
        let (_, old, sender) = found?;
        self.forget(address, old, sender);
        self.add(address, mac, sender);
        Some(sender)
    }

    pub(super) fn has(&self, address: IpAddr) -> bool {
        let least = (address, Mac([0; 6]), Sender::FIRST);
        self.senders.range(least..).next().is_some_and(|&(found, ..)| found == address)
    }

    /// Returns the slot of a queue pair that direct responses about packets to queue pair `destination` at `address` affect.
    pub(super) fn direct_response_user(&self, address: IpAddr, destination: Qpn) -> Option<u32> {
        let name = (address, destination.get());
        let (found, qpn, slot) = *self.direct_response_users.range((name.0, name.1, 0)..).next()?;
        ((found, qpn) == name).then_some(slot)
    }
}
