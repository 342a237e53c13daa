//! The packet socket of a port.

use super::ring::ReceiveRing;
use super::sending::Sending;
use super::support;
use crate::clock::Clock;
use crate::fork::CloseOnFork;
use crate::io::{Burst, PacketBuf, PortCounters};
use crate::linux::Interface;
use crate::linux::datagrams::{Front, InPlaceFrames, SinglePeers, free};
use crate::{socket_filter, socket_option};
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};

/// Settings of a packet socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// The longest frame in bytes, with Ethernet header and tag.
    pub max_frame: usize,
    /// Least slots of the receive ring; at most 240 are used without CAP_NET_ADMIN.
    pub slots: usize,
    /// Whether sent frames bypass the queueing discipline.
    pub qdisc_bypass: bool,
    /// Whether the port receives frames for all addresses.
    pub promiscuous: bool,
}

/// A packet socket of an interface that sends and receives large datagrams.
#[derive(Debug)]
pub struct PacketSocket {
    ring: ReceiveRing,
    socket: CloseOnFork,
    interface: String,
    front: Front,
    single_peers: SinglePeers,
    /// Read only while a peer is observed.
    clock: Clock,
    sends_large: bool,
    bypasses: bool,
}

impl PacketSocket {
    /// Opens a socket that receives all frames of the interface except those that this host sends.
    ///
    /// # Errors
    /// Returns the kernel's error: `EPERM` without CAP_NET_RAW.
    pub fn open(interface: &Interface, config: &SocketConfig) -> io::Result<Self> {
        let sends_large = support::sends_large()?;
        let socket = support::packet_socket()?;
        let set = |option, value: libc::c_int| socket_option::set(&socket, libc::SOL_PACKET, option, &value);
        set(libc::PACKET_VERSION, libc::tpacket_versions::TPACKET_V2 as libc::c_int)?;
        set(libc::PACKET_IGNORE_OUTGOING, 1)?;
        let bypasses = config.qdisc_bypass && set(libc::PACKET_QDISC_BYPASS, 1).is_ok();
        // Without the filter, the ring would receive the kernel's own TCP segments of 64 KiB, which this process does not use.
        socket_filter::attach(&socket, &mut socket_filter::limit_others(config.max_frame as u32))?;
        let ring = ReceiveRing::new(&socket, config.slots, config.max_frame)?;
        support::bind(&socket, interface.index)?;
        if config.promiscuous {
            socket_option::receive_all_addresses(&socket, interface.index)?;
        }
        Ok(Self {
            ring,
            socket: socket.into(),
            interface: interface.name.clone(),
            front: Front::new(config.max_frame),
            single_peers: SinglePeers::default(),
            clock: Clock::new(),
            sends_large,
            bypasses,
        })
    }

    /// Returns a descriptor that is readable while a frame is in the ring.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns true if the kernel accepts large datagrams.
    #[must_use]
    pub const fn sends_large(&self) -> bool {
        self.sends_large
    }

    /// Returns the counts of dropped frames.
    pub fn counters(&mut self) -> PortCounters {
        let counters = &mut self.front.counters;
        counters.ring_full += u64::from(support::ring_drops(&self.socket));
        *counters
    }

    /// Appends received frames to `into`, as many as it has room for. `alloc` returns buffers of at least
    /// [`max_frame`](SocketConfig::max_frame) bytes.
    #[inline]
    pub fn receive<B: PacketBuf>(&mut self, into: &mut Burst<B>, alloc: impl FnMut() -> Option<B>) {
        self.receive_in_place(into, alloc, |_| false);
    }

    /// Returns true if a datagram is in the ring.
    #[inline]
    #[must_use]
    pub fn has_in_place(&self) -> bool {
        self.ring.is_filled()
    }

    /// Passes the frames of the datagrams in the ring to `take`, each only during the call, until at least a burst was taken. A datagram is
    /// passed completely. Copies the frames that `take` refuses to `others`, as [`receive`](Self::receive) does, while it has room and
    /// `alloc` returns buffers.
    #[inline]
    pub fn receive_in_place<B: PacketBuf>(
        &mut self,
        others: &mut Burst<B>,
        alloc: impl FnMut() -> Option<B>,
        take: impl FnMut(&[u8]) -> bool,
    ) {
        let mut in_place = InPlaceFrames::new(others, alloc, take);
        while in_place.wants_more() && self.deliver_front(&mut |frame| in_place.offer(frame)) {}
    }

    /// Passes the frames of the front slot to `take` until `take` refuses one. Returns true if there may be more frames.
    #[inline]
    fn deliver_front(&mut self, take: &mut impl FnMut(&[u8]) -> bool) -> bool {
        let Some(slot) = self.ring.front(&*self.socket) else { return false };
        let all = if slot.is_cut_datagram() {
            // The kernel had no room for more of its bytes than fit into a slot.
            self.front.counters.ring_full += 1;
            true
        } else {
            self.front.pass(slot, |_, _| {}, take)
        };
        if all {
            self.ring.release();
        }
        all
    }

    /// Sends frames from the front of `from`, as many as the kernel accepts now. The others stay, in order.
    #[inline]
    pub fn transmit<B: PacketBuf>(&mut self, from: &mut Burst<B>) {
        while !from.is_empty() {
            let sending =
                if self.sends_large { Sending::new(from, &self.single_peers) } else { Sending::singly(from) };
            match sending.send(self.descriptor(), from) {
                Ok(sent) => {
                    if !self.single_peers.is_empty() {
                        sending.record(self.clock.now(), sent, &mut self.single_peers);
                    }
                    free(from, sent);
                }
                Err(error) => match self.refused(&error, sending.first()) {
                    Disposition::Retry => {}
                    Disposition::Wait => return,
                    Disposition::SendSingly => {
                        if !self.send_first_singly(from) {
                            return;
                        }
                    }
                    Disposition::Drop => {
                        self.front.counters.refused += sending.first() as u64;
                        free(from, sending.first());
                    }
                },
            }
        }
    }

    /// Records that packets to `peer` may be lost. It may be a peer that loses large datagrams.
    #[cold]
    pub fn suspect(&mut self, peer: IpAddr) {
        self.single_peers.suspect(self.clock.now(), peer, &self.interface);
    }

    /// Decides how to treat a datagram of `frames` frames that the kernel refused.
    #[cold]
    fn refused(&mut self, error: &io::Error, frames: usize) -> Disposition {
        match error.raw_os_error() {
            Some(libc::ENOBUFS) if frames > 1 && self.bypasses => Disposition::SendSingly,
            Some(libc::EINVAL | libc::EOPNOTSUPP) if frames > 1 => {
                self.sends_large = false;
                tracing::warn!("{}: {}", self.interface, support::NO_LARGE);
                Disposition::Retry
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Disposition::Wait,
            // An interface that went down leaves its error to the next call, which may be after it came up again.
            Some(libc::ENETDOWN) if support::take_error(&self.socket) => Disposition::Retry,
            _ => Disposition::Drop,
        }
    }

    /// Sends the first frame singly after ENOBUFS. That error means that the kernel has no room, or that the device cannot segment: Linux
    /// segments only datagrams that do not bypass the queueing discipline. If the frame is sent, there is room, so the bypass is switched
    /// off. Returns false if the frame stays.
    #[cold]
    fn send_first_singly<B: PacketBuf>(&mut self, from: &mut Burst<B>) -> bool {
        let first = &from[..1];
        if Sending::singly(first).send(self.descriptor(), first).is_err() {
            return false;
        }
        free(from, 1);
        self.bypasses = false;
        let off: libc::c_int = 0;
        let set = socket_option::set(&*self.socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &off);
        // With the bypass still on, only single frames can be sent.
        self.sends_large &= set.is_ok();
        tracing::info!("{}: the device does not cut large datagrams, so Linux does", self.interface);
        true
    }
}

impl AsRawFd for PacketSocket {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor()
    }
}

/// Treatment of a datagram that the kernel refused.
enum Disposition {
    /// Send it again at once, after a setting or state changed.
    Retry,
    /// Keep it until there is room.
    Wait,
    /// Send its frames singly: the kernel has no room, or the device cannot segment it.
    SendSingly,
    Drop,
}
