//! What the state machine needs of its device.

use super::message::{Mad, Sent};
use crate::Error;
use datapath::siblings::Siblings;
use std::net::IpAddr;

/// The effects that the machine has outside itself.
pub(crate) trait World {
    /// Sends a message, without a wait.
    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Error>;
    /// Returns whether a peer's Ethernet address is known; asks for it if not.
    fn finds(&self, peer: IpAddr) -> Result<bool, Error>;
    /// Returns whether an address is the device's.
    fn is_own(&self, address: IpAddr) -> bool;
    /// Takes a queue pair to the error state.
    fn end(&self, qpn: u32);
    /// An unpredictable number.
    fn random(&self) -> Result<u32, Error>;
    /// The other processes of the interface.
    fn siblings(&self) -> Option<&Siblings>;
}
