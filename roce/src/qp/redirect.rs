//! The peer's Ethernet address changes under a connection.

use super::paths::Paths;
use super::queue_pair::Connection;
use super::service::AnyQueuePair;
use super::unreliable::Unreliable;
use super::{Books, QueuePair};
use crate::wire::Mac;
use core::net::IpAddr;

impl Connection {
    fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let is_new = self.template.redirect(peer, mac);
        if is_new {
            self.path.destination_mac = mac;
        }
        is_new
    }
}

impl Paths {
    fn redirect(&mut self, peer: IpAddr, mac: Mac) {
        for template in self.templates() {
            template.redirect(peer, mac);
        }
    }
}

impl QueuePair {
    fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let is_new = self.connection.as_mut().is_some_and(|connection| connection.redirect(peer, mac));
        if let Some(paths) = self.paths.as_deref_mut().filter(|_| is_new) {
            paths.redirect(peer, mac);
        }
        is_new
    }

    /// The peer did not answer in time: it may be elsewhere.
    #[cold]
    pub(super) fn doubt_path(&self, books: &mut Books<'_>) {
        if let Some(connection) = &self.connection {
            books.events.doubt(connection.path.destination);
        }
    }
}

impl Unreliable {
    fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        self.connection_mut().is_some_and(|connection| connection.redirect(peer, mac))
    }
}

impl AnyQueuePair {
    /// What leaves for `peer` goes to this Ethernet address from now on. Tells whether that is new.
    pub(crate) fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        match self {
            Self::Reliable(qp) => qp.redirect(peer, mac),
            Self::Unreliable(qp) => qp.redirect(peer, mac),
        }
    }
}
