//! Address handles: prepared headers of datagrams, which a program creates before it sends any.

use super::Endpoint;
use super::peers::Sender;
use crate::wire::Path;
use crate::{AddressId, ControlError, PdId};

impl Endpoint {
    /// Creates an address handle for datagrams of `pd` along `path`.
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the path's addresses are of different families, or the limit of address handles is reached.
    pub fn create_address(&mut self, pd: PdId, path: &Path) -> Result<AddressId, ControlError> {
        let address = self.shared.addresses.create(pd, path)?;
        self.peers.add(path.destination, path.destination_mac, Sender::AddressHandle(address.slot()));
        Ok(address)
    }

    /// Destroys an address handle. Datagrams posted with it that were not sent fail.
    ///
    /// # Errors
    /// Returns [`ControlError::NoAddress`] if the handle does not exist.
    pub fn destroy_address(&mut self, address: AddressId) -> Result<(), ControlError> {
        let (ip, mac) = self.shared.addresses.destroy(address).ok_or(ControlError::NoAddress)?;
        self.peers.forget(ip, mac, Sender::AddressHandle(address.slot()));
        Ok(())
    }
}
