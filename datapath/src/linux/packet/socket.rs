//! The socket: opened, sent to and received from.

use super::ring::{ReceiveRing, RingSlot};
use super::sending::Sending;
use super::split::{BadDatagram, Received};
use super::support;
use crate::fork::Own;
use crate::io::{Burst, PacketBuf, PortCounters};
use crate::linux::Interface;
use crate::{socket_filter, socket_option};
use std::io;
use std::os::fd::{AsRawFd, RawFd};

/// The settings that open a packet socket.
#[derive(Clone, Copy, Debug)]
pub struct SocketConfig {
    /// The longest frame in bytes, Ethernet header and tag included.
    pub max_frame: usize,
    /// Slots of the receive ring, of 64 KiB each.
    pub slots: usize,
    /// Bypasses the queueing discipline when sending.
    pub qdisc_bypass: bool,
    /// Receives frames for all addresses.
    pub promiscuous: bool,
}

/// A packet socket of an interface that sends and receives large datagrams.
#[derive(Debug)]
pub struct PacketSocket {
    ring: ReceiveRing,
    socket: Own,
    interface: String,
    max_frame: usize,
    /// The frame of the ring's front that is handed on next.
    next: usize,
    /// Large datagrams leave.
    sends_large: bool,
    bypasses: bool,
    counters: PortCounters,
}

impl PacketSocket {
    /// Opens a socket that receives all frames of the interface but those that this host sends.
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
        // The kernel's own TCP segments of 64 KiB are copied into the ring, too, although nothing here takes them.
        socket_filter::attach(&socket, &mut socket_filter::limit_others(config.max_frame as u32))?;
        let ring = ReceiveRing::new(&socket, config.slots)?;
        support::bind(&socket, interface.index)?;
        if config.promiscuous {
            support::receive_all_addresses(&socket, interface.index)?;
        }
        Ok(Self {
            ring,
            socket: socket.into(),
            interface: interface.name.clone(),
            max_frame: config.max_frame,
            next: 0,
            sends_large,
            bypasses,
            counters: PortCounters::default(),
        })
    }

    /// Returns a descriptor that is readable while a frame waits.
    #[must_use]
    pub fn descriptor(&self) -> RawFd {
        self.socket.as_raw_fd()
    }

    /// Returns true if the kernel takes large datagrams.
    #[must_use]
    pub const fn sends_large(&self) -> bool {
        self.sends_large
    }

    /// Returns the counts of what was dropped.
    pub fn counters(&mut self) -> PortCounters {
        self.counters.ring_full += u64::from(support::ring_drops(&self.socket));
        self.counters
    }

    /// Appends received frames to `into`, as many as wait and fit, in buffers of [`max_frame`](SocketConfig::max_frame) bytes at least.
    #[inline]
    pub fn receive<B: PacketBuf>(&mut self, into: &mut Burst<B>, mut alloc: impl FnMut() -> Option<B>) {
        while !into.is_full()
            && let Some(slot) = self.ring.front()
        {
            let mut split = Split { next: &mut self.next, counters: &mut self.counters };
            if !split.hand_on(&slot, self.max_frame, into, &mut alloc) {
                return;
            }
            self.next = 0;
            self.ring.release();
        }
    }

    /// Sends from the front of `from` what the kernel takes now; the rest stays, in order.
    #[inline]
    pub fn transmit<B: PacketBuf>(&mut self, from: &mut Burst<B>) {
        while !from.is_empty() {
            let sending = Sending::new(from, self.sends_large);
            match sending.send(self.descriptor(), from) {
                Ok(sent) => free(from, sent),
                Err(error) => match self.refused(&error, sending.first()) {
                    Disposition::Again => {}
                    Disposition::Later => return,
                    Disposition::Uncut => {
                        if !self.sends_first_alone(from) {
                            return;
                        }
                    }
                    Disposition::Lost => {
                        self.counters.refused += sending.first() as u64;
                        free(from, sending.first());
                    }
                },
            }
        }
    }

    /// What becomes of a datagram of so many frames that the kernel refused.
    #[cold]
    fn refused(&mut self, error: &io::Error, frames: usize) -> Disposition {
        match error.raw_os_error() {
            Some(libc::ENOBUFS) if frames > 1 && self.bypasses => Disposition::Uncut,
            Some(libc::EINVAL | libc::EOPNOTSUPP) if frames > 1 => {
                self.sends_large = false;
                tracing::warn!("{}: {}", self.interface, support::NO_LARGE);
                Disposition::Again
            }
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM | libc::EINTR) => Disposition::Later,
            // An interface that went down leaves its error to the next call, which may come when it is up again.
            Some(libc::ENETDOWN) if support::take_error(&self.socket) => Disposition::Again,
            _ => Disposition::Lost,
        }
    }

    /// Sends the first frame singly, after the kernel has dropped a datagram for want of room, or because the device cannot cut it: Linux
    /// cuts only what does not bypass the queueing discipline. If it leaves, there is room. Returns false if it stays.
    #[cold]
    fn sends_first_alone<B: PacketBuf>(&mut self, from: &mut Burst<B>) -> bool {
        let first = &from[..1];
        if Sending::new(first, false).send(self.descriptor(), first).is_err() {
            return false;
        }
        free(from, 1);
        self.bypasses = false;
        let off: libc::c_int = 0;
        let set = socket_option::set(&*self.socket, libc::SOL_PACKET, libc::PACKET_QDISC_BYPASS, &off);
        // Then only frames can leave.
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

/// What becomes of a datagram that the kernel refused.
enum Disposition {
    /// It is sent in another way.
    Again,
    /// It is sent when there is room.
    Later,
    /// There is no room, or the device cannot cut it.
    Uncut,
    /// It is dropped.
    Lost,
}

/// The parts of a socket that its ring's slot does not borrow.
struct Split<'a> {
    next: &'a mut usize,
    counters: &'a mut PortCounters,
}

impl Split<'_> {
    /// Copies the frames of a slot from the next one on. Returns true if there is none left, and false if there is no room or no buffer.
    fn hand_on<B: PacketBuf>(
        &mut self,
        slot: &RingSlot<'_>,
        max_frame: usize,
        into: &mut Burst<B>,
        alloc: &mut impl FnMut() -> Option<B>,
    ) -> bool {
        let received = match Received::parse(slot.vnet, slot.bytes, slot.length, slot.tag) {
            Ok(received) => received,
            Err(why) => {
                let is_other = matches!(why, BadDatagram::Type(_));
                let count =
                    if is_other { &mut self.counters.not_udp } else { &mut self.counters.malformed };
                *count += 1;
                return true;
            }
        };
        while *self.next < received.count() {
            if into.is_full() {
                return false;
            }
            match received.frame(*self.next).filter(|frame| frame.length() <= max_frame) {
                None => self.counters.not_whole += 1,
                Some(frame) => {
                    let Some(mut buffer) = alloc() else { return false };
                    buffer.set_len(frame.length());
                    frame.write(&mut buffer);
                    into.push(buffer);
                }
            }
            *self.next += 1;
        }
        true
    }
}

/// Frees the first `count` buffers.
fn free<B: PacketBuf>(from: &mut Burst<B>, count: usize) {
    if count == from.len() {
        return B::free_all(from);
    }
    let mut sent: Burst<B> = from.drain(..count).collect();
    B::free_all(&mut sent);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::{PacketIo, pair};
    use crate::linux::packet::{Segmentation, VnetHeader};

    /// Returns the counts after a socket whose longest frame has 100 bytes received this.
    fn counted(vnet: VnetHeader, bytes: &[u8], length: usize) -> PortCounters {
        let (mut port, _other) = pair(4, 2048);
        let (mut next, mut counters, mut into) = (0, PortCounters::default(), Burst::new());
        let slot = RingSlot { vnet, bytes, length, tag: None };
        let mut split = Split { next: &mut next, counters: &mut counters };
        assert!(split.hand_on(&slot, 100, &mut into, &mut || port.alloc()));
        assert!(into.is_empty());
        counters
    }

    #[test]
    fn each_datagram_without_a_frame_is_counted_by_its_reason() {
        let none = PortCounters::default();
        let tcp = VnetHeader { segmentation: Segmentation::Other(1), ..VnetHeader::FRAME };
        let frame = [0; 200];
        assert_eq!(counted(tcp, &frame, 200), PortCounters { not_udp: 1, ..none });
        assert_eq!(counted(VnetHeader::of_datagram(34, 50), &frame, 200), PortCounters { malformed: 1, ..none });
        assert_eq!(counted(VnetHeader::FRAME, &frame, 200), PortCounters { not_whole: 1, ..none });
        assert_eq!(counted(VnetHeader::FRAME, &frame[..60], 61), PortCounters { not_whole: 1, ..none });
    }
}
