//! Peers whose Ethernet address may have changed, and the replacement of that address.

use super::Endpoint;
use super::peers::Sender;
use crate::wire::Mac;
use core::net::IpAddr;

impl Endpoint {
    /// Limit of the queue pairs and address handles that one call of [`Self::redirect`] changes.
    pub const REDIRECTS: usize = 1024;

    /// Returns an address to which packets may not arrive: a request was not answered in time, or a peer repeated an answered request. The
    /// caller that resolved its Ethernet address should do so again, and pass the result to [`redirect`](Self::redirect). Each address is
    /// returned once, until it is suspected again; at most 64 are pending.
    pub fn poll_suspected(&mut self) -> Option<IpAddr> {
        self.shared.events.pop_suspected()
    }

    /// Returns the oldest change of a queue pair's congestion control that was not returned yet: its telemetry ended, or returned. At most
    /// 64 are pending; further ones are dropped.
    pub fn poll_congestion_change(&mut self) -> Option<crate::CongestionChange> {
        self.shared.events.pop_change()
    }

    /// Changes the Ethernet address of all packets to `peer`, of queue pairs and address handles.
    ///
    /// Visits only those that use another one, and changes at most [`Self::REDIRECTS`] of them. Returns how many it changed; after
    /// [`Self::REDIRECTS`], call it again.
    pub fn redirect(&mut self, peer: IpAddr, mac: Mac) -> usize {
        for changed in 0..Self::REDIRECTS {
            match self.peers.redirect(peer, mac) {
                None => return changed,
                Some(Sender::QueuePair(place)) => {
                    if let Some(slot) = self.qps.at_mut(place) {
                        slot.qp.redirect(peer, mac);
                    }
                }
                Some(Sender::AddressHandle(place)) => self.shared.addresses.redirect(place, peer, mac),
            }
        }
        Self::REDIRECTS
    }
}
