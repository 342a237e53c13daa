//! A datagram socket: no connection, no order, no retransmission. It has a [`Port`] on each device that it uses for a peer.
//!
//! No thread handles messages for the program: datagrams from the kernel are read when the program next calls the library.

use super::introduction::{Introduction, Source};
use super::kernel::Kernel;
use super::port::{LONGEST, Port, ReceivedDatagram};
use super::queue::Queue;
use super::{Pollable, SocketState};
use crate::abi::*;
use crate::ibverbs::{ibv_create_ah, ibv_destroy_ah};
use crate::rdmacm::address;
use crate::rdmacm::device::{Device, device_of, route};
use crate::rdmacm::errno::{Errno, made};
use crate::rdmacm::queue_pair::default_domain;
use libc::{POLLIN, POLLOUT};
use std::collections::{BTreeMap, VecDeque};
use std::ffi::{c_int, c_short};
use std::net::{IpAddr, SocketAddr};

/// Maximum number of known peers. A new peer replaces another, which introduces itself again later.
const MAX_PEERS: usize = 1024;
/// Maximum number of datagrams from the kernel that are queued for the program. The kernel queues further ones, and drops the excess.
const MAX_KERNEL_DATAGRAMS: usize = 64;

pub(super) struct Datagrams {
    pub(super) kernel: Kernel,
    /// Numbers of datagrams to send and to receive for which a new port has room.
    pub(super) places: (u32, u32),
    ports: Vec<Port>,
    peers: BTreeMap<SocketAddr, Peer>,
    /// The default destination.
    connected: Option<SocketAddr>,
    queued: VecDeque<QueuedDatagram>,
}

/// A datagram that the program has not read.
enum QueuedDatagram {
    /// A datagram in the memory of the port with this index.
    InPort(usize, ReceivedDatagram),
    /// A datagram from the kernel.
    FromKernel(SocketAddr, Vec<u8>),
}

struct Peer {
    /// Index of the peer's port.
    port: usize,
    /// Our address, as the peer receives it.
    source: SocketAddr,
    /// Address of the peer's device.
    destination: IpAddr,
    /// QPN of the peer, once it has introduced itself.
    qpn: Option<u32>,
    handle: Option<AddressHandle>,
}

struct AddressHandle(*mut ibv_ah);

// SAFETY: any thread may use a handle of libibverbs.
unsafe impl Send for AddressHandle {}

impl Drop for AddressHandle {
    fn drop(&mut self) {
        // SAFETY: created by `Peer::find`, and destroyed once; a posted request has a copy.
        unsafe { ibv_destroy_ah(self.0) };
    }
}

impl Peer {
    /// Returns the address handle and the QPN for datagrams to the peer, if both are known. Starts to resolve the peer's Ethernet address
    /// if it is not.
    fn find(&mut self, device: &Device) -> Option<(*mut ibv_ah, u32)> {
        let qpn = self.qpn?;
        if self.handle.is_none() {
            let known = device.gids().contains(self.destination)
                || device.poll_resolution(self.destination) == Ok(true);
            self.handle = known.then(|| self.handle(device)).and_then(Result::ok);
        }
        self.handle.as_ref().map(|handle| (handle.0, qpn))
    }

    fn handle(&self, device: &Device) -> Result<AddressHandle, Errno> {
        let mut attributes = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
        attributes.grh.dgid = ibv_gid { raw: address::gid(self.destination) };
        let ours = device.gid_index(self.source.ip());
        attributes.grh.sgid_index =
            ours.or_else(|_| device.gid_index(device.address_towards(self.destination)?))?;
        attributes.grh.hop_limit = 64;
        // SAFETY: the domain exists as long as the process; the peer is resolved, so the call does not block.
        made(unsafe { ibv_create_ah(default_domain(device)?, &mut attributes) }).map(AddressHandle)
    }
}

impl Datagrams {
    pub(super) fn new(domain: c_int, places: (u32, u32)) -> Result<Self, Errno> {
        Ok(Self {
            kernel: Kernel::new(domain)?,
            places,
            ports: Vec::new(),
            peers: BTreeMap::new(),
            connected: None,
            queued: VecDeque::new(),
        })
    }

    /// Returns whether there is no port yet, so that the numbers of datagrams may change.
    pub(super) fn has_no_port(&self) -> bool {
        self.ports.is_empty()
    }

    pub(super) fn connect(&mut self, to: SocketAddr) -> Result<(), Errno> {
        self.kernel.connect(to)?;
        self.find_device(to)?;
        self.connected = Some(to);
        Ok(())
    }

    /// Returns our address for a peer: the socket's own, or the one that the kernel chooses.
    fn source(&self, to: IpAddr) -> Result<SocketAddr, Errno> {
        let name = || self.kernel.name().ok_or(Errno(libc::ENOTCONN));
        let mut own = name()?;
        if own.port() == 0 {
            // Binding lets the kernel choose a port.
            self.kernel.bind(own)?;
            own = name()?;
        }
        if own.ip().is_unspecified() {
            own.set_ip(address::kernel_source(to)?);
        }
        Ok(own)
    }

    /// Chooses the device for a peer, unless the peer is known.
    fn find_device(&mut self, to: SocketAddr) -> Result<(), Errno> {
        if self.peers.contains_key(&to) {
            return Ok(());
        }
        let source = self.source(to.ip())?;
        let (device, _, destination) = route(to.ip())?;
        let device = device_of(source.ip()).unwrap_or(device);
        let port = self.ports.iter().position(|port| std::ptr::eq(port.device, device));
        let port = match port {
            Some(port) => port,
            None => {
                self.ports.push(Port::new(device, self.places.0, self.places.1)?);
                self.ports.len() - 1
            }
        };
        if self.peers.len() >= MAX_PEERS {
            let other = self.peers.keys().find(|peer| Some(**peer) != self.connected).copied();
            other.and_then(|other| self.peers.remove(&other));
        }
        self.peers.insert(to, Peer { port, source, destination, qpn: None, handle: None });
        Ok(())
    }

    /// Sends a message through the kernel, after our introduction.
    fn introduce(&self, to: SocketAddr, data: Option<&[u8]>) -> Result<(), Errno> {
        let peer = self.peers.get(&to).ok_or(Errno(libc::ENOTCONN))?;
        let qpn = self.ports[peer.port].qpn();
        let introduction = Introduction { qpn, ip: peer.source.ip(), has_data: data.is_some() };
        let (header, length) = introduction.write();
        self.kernel.send(to, [&header[..length], data.unwrap_or_default()])
    }

    /// Handles the messages of peers that the kernel has received.
    fn receive_from_kernel(&mut self) {
        let mut message = [0; Introduction::MAX + LONGEST];
        for _ in self.queued.len()..MAX_KERNEL_DATAGRAMS {
            let Some((length, from)) = self.kernel.receive(&mut message) else { return };
            let message = &message[..length];
            let Some((introduction, header)) = Introduction::read(message, from.ip()) else { continue };
            if self.find_device(from).is_err() {
                continue;
            }
            if let Some(peer) = self.peers.get_mut(&from) {
                peer.qpn = Some(introduction.qpn);
            }
            if introduction.has_data {
                // If our introduction is lost, the peer introduces itself again.
                let _ = self.introduce(from, None);
                self.queued.push_back(QueuedDatagram::FromKernel(from, message[header..].to_vec()));
            }
        }
    }

    /// Sends a datagram. Returns `None` if there is no room for it yet.
    pub(super) fn send(&mut self, to: Option<SocketAddr>, data: &[u8]) -> Option<Result<usize, Errno>> {
        let Some(to) = to.or(self.connected) else { return Some(Err(Errno(libc::EDESTADDRREQ))) };
        self.send_to(to, data).transpose()
    }

    fn send_to(&mut self, to: SocketAddr, data: &[u8]) -> Result<Option<usize>, Errno> {
        self.find_device(to)?;
        if self.peers.get(&to).is_some_and(|peer| peer.qpn.is_none()) {
            self.receive_from_kernel();
        }
        let peer = self.peers.get_mut(&to).ok_or(Errno(libc::ENOTCONN))?;
        let (header, length) = Source(peer.source).write();
        if data.len() > LONGEST - length {
            return Err(Errno(libc::EMSGSIZE));
        }
        let port = &mut self.ports[peer.port];
        let Some((ah, qpn)) = peer.find(port.device) else {
            return self.introduce(to, Some(data)).map(|()| Some(data.len()));
        };
        if !port.has_room() {
            return Ok(None);
        }
        // SAFETY: the handle is the peer's own; the posted request has a copy.
        unsafe { port.send([&header[..length], data], ah, qpn) }?;
        Ok(Some(data.len()))
    }

    /// Copies the oldest datagram, truncated to the available room. Returns the number of bytes and the sender, or `None` if there is no
    /// datagram.
    pub(super) fn receive(&mut self, into: &mut [u8], peek: bool) -> Option<(usize, SocketAddr)> {
        let result = match self.queued.front()? {
            QueuedDatagram::FromKernel(from, data) => {
                let length = data.len().min(into.len());
                into[..length].copy_from_slice(&data[..length]);
                (length, *from)
            }
            QueuedDatagram::InPort(port, received) => {
                let port = &self.ports[*port];
                let (source, header) = port.source(*received)?;
                (port.read(*received, header, into), source.0)
            }
        };
        if !peek && let Some(QueuedDatagram::InPort(port, received)) = self.queued.pop_front() {
            self.ports[port].repost(received);
        }
        Some(result)
    }

    /// Returns whether all datagrams have been sent.
    pub(super) fn all_left(&self) -> bool {
        self.ports.iter().all(Port::all_left)
    }

    /// Returns the events of `poll` that are ready.
    pub(super) fn ready(&mut self) -> c_short {
        self.process();
        let input = if self.queued.is_empty() { 0 } else { POLLIN };
        if self.ports.iter().all(Port::has_room) { input | POLLOUT } else { input }
    }
}

impl Pollable for Datagrams {
    fn of(inner: &mut SocketState) -> Result<&mut Self, Errno> {
        inner.datagrams().ok_or(Errno(libc::ENOTCONN))
    }

    fn process(&mut self) {
        for (index, port) in self.ports.iter_mut().enumerate() {
            port.poll(|received| self.queued.push_back(QueuedDatagram::InPort(index, received)));
        }
        if self.queued.is_empty() {
            self.receive_from_kernel();
        }
    }

    fn queues(&mut self) -> impl Iterator<Item = &mut Queue> {
        self.ports.iter_mut().map(|port| &mut port.queue)
    }

    fn descriptor(&self) -> c_int {
        self.kernel.descriptor()
    }
}
