//! Management datagrams, which connection managers exchange over queue pair 1.
//!
//! ```
//! # use ferroce_verbs::{Device, Error};
//! fn receive(device: &Device) -> Result<(), Error> {
//!     let port = device.open_management()?;
//!     // To be called when the port's descriptor is readable.
//!     while let Some((sender, datagram)) = port.receive()? {
//!         println!("{sender}: {datagram:?}");
//!     }
//!     Ok(())
//! }
//! ```

use crate::channel::event_fd;
use crate::device::{Inner, gid_at};
use crate::{Device, Error};
use datapath::engine::{CoreState, MAD_UDP_SOURCE};
use datapath::event_fd::EventFd;
use datapath::neighbour::GidTable;
use datapath::siblings::Siblings;
use roce::Qpn;
use roce::qp::Modify;
use roce::wire::{Mac, Mtu, Path};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

pub use crate::cm::machine::message::Sent;
pub use datapath::engine::{MAD_LENGTH, Mad};

/// A device's open queue pair 1. Each received datagram makes its descriptor readable.
#[derive(Debug)]
pub struct ManagementPort {
    device: Arc<Inner>,
    event_fd: Arc<EventFd>,
}

impl Device {
    /// Opens queue pair 1.
    ///
    /// # Errors
    /// Returns an error if it is already open, the process has no file descriptor left, or the core has stopped.
    pub fn open_management(&self) -> Result<ManagementPort, Error> {
        let event_fd = event_fd(libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE)?;
        let of_core = event_fd.clone();
        if !self.inner.engine.call(move |state, _| state.open_management(of_core))? {
            return Err(Error::Management);
        }
        if let Some(siblings) = self.inner.engine.siblings() {
            siblings.manage(true);
        }
        Ok(ManagementPort { device: self.inner.clone(), event_fd })
    }
}

impl ManagementPort {
    /// Sends a datagram from `source` to a peer, without waiting. If this peer sent the last received datagram, the frame is sent to the
    /// Ethernet source address of that one. Any other address is resolved first.
    ///
    /// `source` is an address of the device, or was one when the connection began: a connection can end in order after its address was
    /// removed. The unspecified address selects [the device's address for the peer](GidTable::towards).
    ///
    /// # Errors
    /// Returns an error if the peer cannot be reached, the addresses are of different families, too many datagrams are queued, or the core
    /// has stopped. Also returns an error if `source` is unspecified and the device has no address of the peer's family.
    pub fn send(&self, source: IpAddr, to: IpAddr, mad: Mad) -> Result<Sent, Error> {
        let info = &self.device.info;
        let gids = self.gids();
        let source = if source.is_unspecified() { gid_at(&gids, gids.towards(to))? } else { source };
        if source.is_ipv4() != to.is_ipv4() {
            let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Error::Family { port: info.port.clone(), family, peer: to });
        }
        let Some(destination_mac) = self.resolve_mac(to)? else { return Ok(Sent::Resolving) };
        let path = Path { destination_mac, udp_source: MAD_UDP_SOURCE, ..info.path(source, to, 0) };
        let taken = self.device.engine.call(move |state, _| state.send_mad(path, mad))?;
        // The frame is sent at the end of the turn that accepted the datagram. After another turn, the process may exit.
        self.device.engine.call(|_, _| ())?;
        if taken { Ok(Sent::Done) } else { Err(Error::Management) }
    }

    /// Returns the device's current addresses.
    #[must_use]
    pub fn gids(&self) -> GidTable {
        self.device.engine.gids()
    }

    /// Returns the device's current largest path MTU.
    #[must_use]
    pub fn path_mtu(&self) -> Mtu {
        self.device.path_mtu()
    }

    /// Returns whether the device's core has stopped.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.device.engine.check().is_err()
    }

    fn resolve_mac(&self, to: IpAddr) -> Result<Option<Mac>, Error> {
        let engine = &self.device.engine;
        if let Some(mac) = engine.call(move |state, _| state.sender_mac(to))? {
            return Ok(Some(mac));
        }
        match engine.look_up(to)? {
            Some(mac) => Ok(Some(mac)),
            None => Ok(engine.call(move |state, _| state.neighbours.last_known(to))?),
        }
    }

    /// Returns whether the Ethernet address of a peer, or of the router to it, is resolved. If not, starts to resolve it without waiting. A
    /// spoofed address that no host has does not resolve.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, there is no route, or the core has stopped.
    pub fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Error> {
        Ok(self.device.engine.look_up(peer)?.is_some())
    }

    /// Returns the other processes on the device's Linux interface, which share its queue pair 1. `None` without an interface.
    #[must_use]
    pub fn siblings(&self) -> Option<&Siblings> {
        self.device.engine.siblings()
    }

    /// Moves a queue pair of this device to the error state, because its connection has ended.
    ///
    /// # Errors
    /// Returns an error if there is no such queue pair, or the core has stopped.
    pub fn end(&self, qpn: Qpn) -> Result<(), Error> {
        let end = move |state: &mut CoreState, now| state.endpoint.modify_qp(now, qpn, Modify::Error);
        Ok(self.device.engine.call(end)??)
    }

    /// Returns the oldest received datagram and its sender.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn receive(&self) -> Result<Option<(IpAddr, Mad)>, Error> {
        // The counter may be 0.
        let _ = self.event_fd.take();
        Ok(self.device.engine.call(|state, _| state.receive_mad())?)
    }
}

impl AsRawFd for ManagementPort {
    fn as_raw_fd(&self) -> RawFd {
        self.event_fd.as_raw_fd()
    }
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        if let Some(siblings) = self.siblings() {
            siblings.manage(false);
        }
        // A stopped core has closed queue pair 1.
        let _ = self.device.engine.call(|state, _| state.close_management());
    }
}
