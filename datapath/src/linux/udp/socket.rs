//! The UDP sockets of a port.

use super::identification::Identifications;
use super::rebuild::EthernetAddresses;
use super::receive_socket::ReceiveSocket;
use super::sending::{Outgoing, sendable};
use super::support::{self, AddressFamily};
use crate::fork::CloseOnFork;
use crate::io::{Burst, PacketBuf, PortCounters};
use crate::linux::Interface;
use crate::linux::datagrams::{Front, InPlaceFrames, free};
use crate::neighbour::{Address, addresses_of};
use roce::wire::{IcrcAmender, Mac, ROCE_PORT};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// Sending sockets of an address family, each with its own source port. The network spreads packets over equal-cost paths by their ports.
const SENDERS: usize = 4;

/// A sending socket and its port.
type BoundSocket = (CloseOnFork, u16);

/// The sending sockets of both address families.
#[derive(Debug, Default)]
struct Senders {
    v4: Vec<BoundSocket>,
    v6: Vec<BoundSocket>,
}

impl Senders {
    /// Returns the socket and the source port from which a frame is sent: those of the frame's source port, if there is such a socket, else
    /// those selected by its lowest bits. Returns `None` for a frame that no UDP socket can send.
    fn of(&self, frame: &[u8]) -> Option<(RawFd, u16)> {
        let headers = sendable(frame)?;
        let senders = if headers.outer(frame)?.source.is_ipv4() { &self.v4 } else { &self.v6 };
        let wanted = headers.source_port(frame);
        let same = senders.iter().find(|(_, port)| *port == wanted);
        let (socket, port) = same.or_else(|| senders.get(usize::from(wanted) % SENDERS))?;
        Some((socket.as_raw_fd(), *port))
    }
}

/// UDP sockets of an interface that send and receive RoCEv2 packets as frames.
///
/// The kernel chooses routes and neighbours. So frames have stand-in Ethernet addresses: the interface's own, and one for all peers.
#[derive(Debug)]
pub struct UdpSockets {
    ethernet: EthernetAddresses,
    interface: Interface,
    addresses: Vec<Address>,
    receivers: Vec<ReceiveSocket>,
    /// The socket whose datagrams are being delivered, or were last.
    at: usize,
    /// Whether some, but not all, frames of the first datagram have been delivered.
    is_resumed: bool,
    identifications: Identifications,
    amender: IcrcAmender,
    front: Front,
    senders: Senders,
    sends_large: bool,
    any: CloseOnFork,
}

impl UdpSockets {
    /// Opens sockets for frames of at most `max_frame` bytes. Needs no privilege since Linux 5.7.
    ///
    /// # Errors
    /// Returns the kernel's error: `EADDRINUSE` if another program or user has UDP port 4791.
    pub fn open(interface: &Interface, own: Mac, peer: Mac, max_frame: usize) -> io::Result<Self> {
        let mut receivers = Vec::new();
        let mut senders = Senders::default();
        for (family, sockets) in [(AddressFamily::V4, &mut senders.v4), (AddressFamily::V6, &mut senders.v6)]
        {
            match support::receiver(family, interface.index, ROCE_PORT) {
                Ok(socket) => receivers.push(ReceiveSocket::new(socket)),
                // This kernel has no IPv6.
                Err(error) if error.raw_os_error() == Some(libc::EAFNOSUPPORT) => continue,
                Err(error) => return Err(error),
            }
            for _ in 0..SENDERS {
                let (socket, port) = support::sender(family, interface.index)?;
                sockets.push((socket.into(), port));
            }
        }
        let descriptors: Vec<_> = receivers.iter().map(ReceiveSocket::descriptor).collect();
        Ok(Self {
            ethernet: EthernetAddresses { own, peer },
            interface: interface.clone(),
            addresses: addresses_of(interface.index)?,
            any: support::any_of(&descriptors)?.into(),
            receivers,
            at: 0,
            is_resumed: false,
            identifications: Identifications::new(),
            amender: IcrcAmender::default(),
            front: Front::new(max_frame),
            senders,
            sends_large: true,
        })
    }

    /// Returns a descriptor that is readable while a datagram is queued in the kernel.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.any.as_raw_fd()
    }

    /// Returns the counts of dropped frames.
    pub fn counters(&mut self) -> PortCounters {
        let mut counters = self.front.counters;
        counters.ring_full = self.receivers.iter().map(|receiver| u64::from(receiver.dropped())).sum();
        counters
    }

    /// Receives the queued datagrams, unless earlier ones are left. Returns true if there are datagrams for
    /// [`receive_in_place`](Self::receive_in_place).
    #[inline]
    pub fn fill(&mut self) -> bool {
        if self.has_in_place() {
            return true;
        }
        // Alternates between the address families.
        for _ in 0..self.receivers.len() {
            self.at = if self.at + 1 >= self.receivers.len() { 0 } else { self.at + 1 };
            if self.receivers.get_mut(self.at).is_some_and(ReceiveSocket::fill) {
                return true;
            }
        }
        false
    }

    /// Returns true if a received datagram is left.
    #[inline]
    #[must_use]
    pub fn has_in_place(&self) -> bool {
        self.receivers.get(self.at).is_some_and(ReceiveSocket::is_filled)
    }

    /// Appends received frames to `into`, as many as it has room for. `alloc` returns buffers of at least `max_frame` bytes.
    pub fn receive<B: PacketBuf>(&mut self, into: &mut Burst<B>, alloc: impl FnMut() -> Option<B>) {
        self.fill();
        self.receive_in_place(into, alloc, |_| false);
    }

    /// Passes the frames of received datagrams to `take`, as [`PacketIo::receive_in_place`](crate::io::PacketIo::receive_in_place) does.
    #[inline]
    pub fn receive_in_place<B: PacketBuf>(
        &mut self,
        others: &mut Burst<B>,
        alloc: impl FnMut() -> Option<B>,
        take: impl FnMut(&[u8]) -> bool,
    ) {
        let mut in_place = InPlaceFrames::new(others, alloc, take);
        while in_place.wants_more()
            && self.has_in_place()
            && self.deliver_front(&mut |frame| in_place.offer(frame))
        {}
    }

    /// Passes the frames of the first datagram to `take` until `take` refuses one. Returns true if all were passed.
    fn deliver_front(&mut self, take: &mut impl FnMut(&[u8]) -> bool) -> bool {
        let Self { receivers, at, ethernet, addresses, identifications, front, is_resumed, .. } = self;
        let Some(receiver) = receivers.get_mut(*at) else { return false };
        let Some(place) = receiver.front() else { return false };
        let all = place.pass((*ethernet, addresses), (identifications, *is_resumed), front, take);
        *is_resumed = !all;
        if all {
            receiver.release();
        }
        all
    }

    /// Sends frames from the front of `from`, as many as the kernel accepts now. The others stay, in order.
    pub fn transmit<B: PacketBuf>(&mut self, from: &mut Burst<B>) {
        while let Some(first) = from.first() {
            let Some((socket, port)) = self.senders.of(first) else {
                // ARP and other frames that UDP sockets cannot send. The kernel sends its own.
                self.front.counters.refused += 1;
                free(from, 1);
                continue;
            };
            let Self { senders, amender, .. } = self;
            let is_next = |frame: &[u8]| senders.of(frame).is_some_and(|(_, its)| its == port);
            let sending = Outgoing::new(from, port, self.sends_large, amender, is_next);
            match sending.send(socket, self.interface.index, from) {
                Ok(sent) => free(from, sent),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => return,
                    Some(libc::EINVAL | libc::EIO | libc::EMSGSIZE | libc::EOPNOTSUPP)
                        if sending.first() > 1 =>
                    {
                        self.send_singly(socket, port, from);
                    }
                    _ => {
                        self.front.counters.refused += 1;
                        free(from, 1);
                    }
                },
            }
        }
    }

    /// Sends the first frame as a single packet after the kernel refused a large datagram. If the kernel accepts the packet, it does not
    /// support segmentation.
    #[cold]
    fn send_singly<B: PacketBuf>(&mut self, socket: RawFd, port: u16, from: &mut Burst<B>) {
        let mut is_first = true;
        let sending =
            Outgoing::new(from, port, false, &mut self.amender, |_| std::mem::replace(&mut is_first, false));
        if sending.send(socket, self.interface.index, from).is_ok() {
            self.sends_large = false;
            tracing::warn!("{}: {}", self.interface.name, support::NO_LARGE);
        } else {
            self.front.counters.refused += 1;
        }
        free(from, 1);
    }
}

impl AsRawFd for UdpSockets {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor()
    }
}
