//! Peers whose Ethernet address has changed: the suspicion, and what follows from it.

use super::Endpoint;
use super::peers::Sender;
use crate::wire::Mac;
use core::net::IpAddr;

impl Endpoint {
    /// Queue pairs and address handles that one call of [`Self::redirect`] changes at most.
    pub const REDIRECTS: usize = 1024;

    /// An address for which packets leave that may not arrive: a request was not answered in time, or a peer repeated an answered request.
    /// The caller that found its Ethernet address should resolve it again, and report the result by [`redirect`](Self::redirect). Each is
    /// returned once, until it is suspected again; at most 64 wait.
    pub fn poll_doubted(&mut self) -> Option<IpAddr> {
        self.commons.events.pop_doubt()
    }

    /// Returns the oldest change of a queue pair's congestion control that was not returned yet: its telemetry ended, or came back. At most
    /// 64 wait, more are dropped.
    pub fn poll_congestion_change(&mut self) -> Option<crate::CongestionChange> {
        self.commons.events.pop_change()
    }

    /// Sends all packets for `peer`, of queue pairs and by address handles, to this Ethernet address from now on.
    ///
    /// Looks only at those that send to another one, and changes at most [`Self::REDIRECTS`] of them. Returns how many it changed: after
    /// as many as that, call again.
    pub fn redirect(&mut self, peer: IpAddr, mac: Mac) -> usize {
        for changed in 0..Self::REDIRECTS {
            match self.peers.redirect(peer, mac) {
                None => return changed,
                Some(Sender::QueuePair(place)) => {
                    if let Some(slot) = self.qps.at_mut(place) {
                        slot.qp.redirect(peer, mac);
                    }
                }
                Some(Sender::AddressHandle(place)) => self.commons.addresses.redirect(place, peer, mac),
            }
        }
        Self::REDIRECTS
    }
}
