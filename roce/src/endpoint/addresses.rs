//! Address handles: the paths of datagrams, which a program creates before it sends any.

use super::Endpoint;
use super::peers::Sender;
use crate::wire::Path;
use crate::{AddressId, ControlError, PdId};

impl Endpoint {
    /// Makes an address handle: the way that datagrams of `pd` take.
    ///
    /// # Errors
    /// Returns an error if the path's addresses are of different families, or there is one handle too many.
    pub fn create_address(&mut self, pd: PdId, path: &Path) -> Result<AddressId, ControlError> {
        let address = self.commons.addresses.create(pd, path)?;
        self.peers.add(path.destination, path.destination_mac, Sender::AddressHandle(address.place()));
        Ok(address)
    }

    /// Forgets an address handle. Datagrams that wait to go there fail.
    ///
    /// # Errors
    /// Returns an error if there is none of this name.
    pub fn destroy_address(&mut self, address: AddressId) -> Result<(), ControlError> {
        let (ip, mac) = self.commons.addresses.destroy(address).ok_or(ControlError::NoAddress)?;
        self.peers.forget(ip, mac, Sender::AddressHandle(address.place()));
        Ok(())
    }
}
