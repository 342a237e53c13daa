//! Peers whose Ethernet address has changed: by whom that is suspected, and what follows.

use super::Endpoint;
use crate::wire::Mac;
use core::net::IpAddr;

impl Endpoint {
    /// An address for which packets leave that may not arrive: a request was not answered in time, or a peer asked again for what it
    /// had been answered. Whoever found its Ethernet address should ask for it again, and tell what comes of it by
    /// [`redirect`](Self::redirect). Each is told once, until it is suspected again; at most 64 wait.
    pub fn poll_doubted(&mut self) -> Option<IpAddr> {
        self.commons.events.pop_doubt()
    }

    /// From now on all that leaves for `peer`, of queue pairs and by address handles, goes to this Ethernet address. Looks at all of them;
    /// tells how many had another one.
    pub fn redirect(&mut self, peer: IpAddr, mac: Mac) -> usize {
        let mut changed = self.commons.addresses.redirect(peer, mac);
        for index in 0..self.qps.len() {
            let slot = self.qps.at_mut(index);
            changed += usize::from(slot.is_some_and(|slot| slot.qp.redirect(peer, mac)));
        }
        changed
    }
}
