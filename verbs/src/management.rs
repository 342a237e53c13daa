//! Management datagrams: what connection managers say to each other over queue pair 1.

use crate::device::Inner;
use crate::{Device, DeviceInfo, Error};
use datapath::engine::{MAD_UDP_SOURCE, Mad, Station};
use datapath::event_fd::EventFd;
use datapath::siblings::Siblings;
use roce::Qpn;
use roce::qp::Modify;
use roce::wire::{Mac, Path};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

/// A device's queue pair 1, while somebody uses it. Its descriptor becomes readable with each datagram.
#[derive(Debug)]
pub struct ManagementPort {
    device: Arc<Inner>,
    bell: Arc<EventFd>,
}

/// What became of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Sent {
    /// It is on its way. It may be lost: who sends asks again.
    Left,
    /// Its receiver's Ethernet address has been asked for, and the datagram is gone: send it again in a moment.
    Asking,
}

impl Device {
    /// Opens queue pair 1.
    ///
    /// # Errors
    /// Returns an error if it is open already, the process has no descriptor left, or the core has stopped.
    pub fn open_management(&self) -> Result<ManagementPort, Error> {
        let bell = EventFd::new(libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE);
        let bell = Arc::new(bell.map_err(|error| Error::Descriptor(error.to_string()))?);
        let rings = bell.clone();
        if !self.inner.engine.call(move |station, _| station.open_management(rings))? {
            return Err(Error::Management);
        }
        if let Some(siblings) = self.inner.engine.siblings() {
            siblings.manage(true);
        }
        Ok(ManagementPort { device: self.inner.clone(), bell })
    }
}

impl ManagementPort {
    /// Sends a datagram from the address with index `gid` to a peer, without a wait. Who sent the datagram that was received last
    /// is answered the way that it came; anybody else's Ethernet address must be known, or is asked for.
    ///
    /// # Errors
    /// Returns an error if the peer can't be reached, there is no such GID, too many wait, or the core has stopped.
    pub fn send(&self, gid: usize, to: IpAddr, mad: Mad) -> Result<Sent, Error> {
        let info = &self.device.info;
        let count = info.gids.len();
        let source = *info.gids.get(gid).ok_or(Error::GidIndex { index: gid, count })?;
        if source.is_ipv4() != to.is_ipv4() {
            let family = if to.is_ipv4() { "IPv4" } else { "IPv6" };
            return Err(Error::Family { port: info.port.clone(), family, peer: to });
        }
        let Some(destination_mac) = self.way_to(to)? else { return Ok(Sent::Asking) };
        let path = Path { destination_mac, udp_source: MAD_UDP_SOURCE, ..info.path(source, to, 0) };
        let taken = self.device.engine.call(move |station, _| station.send_mad(path, mad))?;
        // It leaves at the end of the turn that took it, and this is another turn: the process may end now.
        self.device.engine.call(|_, _| ())?;
        if taken { Ok(Sent::Left) } else { Err(Error::Management) }
    }

    pub(crate) fn info(&self) -> &DeviceInfo {
        &self.device.info
    }

    fn way_to(&self, to: IpAddr) -> Result<Option<Mac>, Error> {
        let engine = &self.device.engine;
        if let Some(mac) = engine.call(move |station, _| station.way_back(to))? {
            return Ok(Some(mac));
        }
        match engine.look_up(to)? {
            Some(mac) => Ok(Some(mac)),
            None => Ok(engine.call(move |station, _| station.neighbours.last_known(to))?),
        }
    }

    /// Whether a peer's Ethernet address, or that of the router on the way to it, is known; asks for it where it isn't, without
    /// a wait. Whoever invents the address that a datagram comes from never gets so far.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, there is no route, or the core has stopped.
    pub fn finds(&self, peer: IpAddr) -> Result<bool, Error> {
        Ok(self.device.engine.look_up(peer)?.is_some())
    }

    /// The other processes of the device's interface, where it is on one: all have the interface's queue pair 1.
    #[must_use]
    pub fn siblings(&self) -> Option<&Siblings> {
        self.device.engine.siblings()
    }

    /// Takes a queue pair of this device to the error state, by its number: its connection has ended.
    ///
    /// # Errors
    /// Returns an error if there is no such queue pair, or the core has stopped.
    pub fn end(&self, qpn: Qpn) -> Result<(), Error> {
        let end = move |station: &mut Station, now| station.endpoint.modify_qp(now, qpn, Modify::Error);
        Ok(self.device.engine.call(end)??)
    }

    /// The oldest datagram that came, and who sent it.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn receive(&self) -> Result<Option<(IpAddr, Mad)>, Error> {
        // Nothing to read is as well.
        let _ = self.bell.take();
        Ok(self.device.engine.call(|station, _| station.receive_mad())?)
    }
}

impl AsRawFd for ManagementPort {
    fn as_raw_fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

impl Drop for ManagementPort {
    fn drop(&mut self) {
        if let Some(siblings) = self.siblings() {
            siblings.manage(false);
        }
        // A core that has stopped has closed it.
        let _ = self.device.engine.call(|station, _| station.close_management());
    }
}
