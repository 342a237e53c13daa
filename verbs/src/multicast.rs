//! Multicast groups of datagram queue pairs.

use crate::service::Datagrams;
use crate::{Error, QueuePair};
use std::net::IpAddr;

impl<S: Datagrams> QueuePair<S> {
    /// Receives a copy of each datagram to `group`, an address of 224.0.0.0/4 or ff00::/8, and joins the group at the port's Linux
    /// interface. Datagrams to a group have the destination QPN [`GROUP_QPN`](crate::wire::GROUP_QPN), and the address handle of the
    /// group's address. Attaching again has no effect.
    ///
    /// # Errors
    /// Returns an error if a queue pair of [`Any`](crate::service::Any) service is not of datagrams, the address is not a group's, a limit
    /// is reached (1024 groups, 64 queue pairs in one group), or the interface cannot join.
    pub fn attach(&mut self, group: IpAddr) -> Result<(), Error> {
        if self.groups.iter().any(|(known, _)| *known == group) {
            return Ok(());
        }
        let qpn = self.qpn();
        self.device.engine.call(move |state, _| state.endpoint.attach(qpn, group))??;
        match self.device.engine.join(group) {
            Ok(membership) => self.groups.push((group, membership)),
            Err(error) => {
                self.device.engine.call(move |state, _| state.endpoint.detach(qpn, group))??;
                return Err(Error::Multicast { group, reason: error.to_string() });
            }
        }
        Ok(())
    }

    /// Stops receiving datagrams to `group`, and leaves the group at the interface.
    ///
    /// # Errors
    /// Returns an error if the queue pair is not attached to the group, or the core has stopped.
    pub fn detach(&mut self, group: IpAddr) -> Result<(), Error> {
        let qpn = self.qpn();
        self.device.engine.call(move |state, _| state.endpoint.detach(qpn, group))??;
        self.groups.retain(|(known, _)| *known != group);
        Ok(())
    }
}
