//! Frames in wire format on simulated links.

use super::nic::Nic;
use super::packet_pool::LinkPacket;
use super::port::mix;
use super::setup::Setup;
use crate::classes::ClassId;
use crate::direct::DirectResponder;
use crate::forgery::{forge, has_vendor_opcode};
use crate::load::LoadMeter;
use crate::random::Random;
use crate::switch::write;
use cc::Instant;
use datapath::io::PacketBuf;
use roce::wire::format::{PortState, Request, csig};
use roce::wire::{MAX_FEEDBACK, MAX_OVERHEAD, Numbers, Subscription, mark_ce, traffic_class};
use std::ops::{Deref, DerefMut};

/// A frame in a reusable buffer.
#[derive(Clone, Debug, Default)]
pub(super) struct Frame {
    bytes: Box<[u8]>,
    length: usize,
    /// Number of the destination host.
    destination: u32,
    /// Hash of the five-tuple.
    hash: u64,
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl PacketBuf for Frame {
    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "a frame is no longer than its buffer");
        self.length = len;
    }
}

impl Frame {
    /// Returns the whole buffer, at least `capacity` bytes.
    pub(super) fn room(&mut self, capacity: usize) -> &mut [u8] {
        if self.bytes.len() < capacity {
            self.bytes = vec![0; capacity].into_boxed_slice();
        }
        &mut self.bytes
    }

    pub(super) fn written(&mut self, length: usize) {
        self.length = length;
        self.destination = Nic::addressed(self);
        self.hash = five_tuple(&self.bytes[..length]);
    }
}

/// Returns the hash with which switches choose among equal paths. The last bits of IPv4 and IPv6 addresses distinguish hosts.
fn five_tuple(frame: &[u8]) -> u64 {
    const IPV6: [u8; 2] = [0x86, 0xdd];
    const HOP_BY_HOP: u8 = 0;
    const UDP: u8 = 17;
    /// Bytes of IFA's header, which precedes UDP.
    const IFA: usize = 4;
    // CSIG's tag precedes the EtherType of IP. Its fields change from packet to packet.
    let tpid = Numbers::DEFAULT.csig_tpid();
    let ethertype = frame.get(12..14).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    let tag = match ethertype.wrapping_sub(tpid) {
        0 => csig::COMPACT,
        1 => csig::WIDE,
        _ => 0,
    };
    let frame = frame.get(tag..).unwrap_or_default();
    let byte = |at: usize| frame.get(at).copied().unwrap_or_default();
    let word =
        |at: usize| frame.get(at..).and_then(|rest| rest.first_chunk::<4>()).copied().unwrap_or_default();
    let (source, destination, udp) = if frame.get(12..14) == Some(&IPV6) {
        let options = if byte(20) == HOP_BY_HOP { (usize::from(byte(55)) + 1) * 8 } else { 0 };
        let protocol = if options > 0 { byte(54) } else { byte(20) };
        (word(34), word(50), 54 + options + if protocol == UDP { 0 } else { IFA })
    } else {
        (word(26), word(30), 34 + if byte(23) == UDP { 0 } else { IFA })
    };
    let [source, destination] = [source, destination].map(|word| u64::from(u32::from_be_bytes(word)));
    let port = u64::from(u16::from_be_bytes([byte(udp), byte(udp + 1)]));
    mix(source << 32 | destination) ^ mix(port)
}

impl LinkPacket for Frame {
    const HAS_CONNECTIONS: bool = true;

    fn frame(&mut self) -> Option<&mut [u8]> {
        Some(self)
    }

    fn size(&self) -> u32 {
        self.length as u32
    }

    fn way(&self, _: &Setup, _: &[u64]) -> (u32, u64) {
        (self.destination, self.hash)
    }

    fn class(&self, setup: &Setup) -> ClassId {
        match setup.second_class {
            Some(second) if traffic_class(self).is_some_and(|class| class >> 2 == second.dscp) => {
                ClassId::Second
            }
            _ => ClassId::Ordinary,
        }
    }

    fn is_looked_at(&self) -> bool {
        true
    }

    fn mark(&mut self) -> bool {
        mark_ce(self)
    }

    fn stamp(&mut self, state: &PortState) {
        if let Some(request) = Request::find(self, Numbers::DEFAULT) {
            write(self, request, state);
        }
    }

    fn stamp_as_linux(&mut self, state: &PortState) {
        if let Some(request) = Request::find(self, Numbers::DEFAULT) {
            request.stamp_as_linux(self, state);
        }
    }

    fn has_vendor_opcode(&self) -> bool {
        has_vendor_opcode(self)
    }

    fn forge(&mut self, random: &mut Random) -> bool {
        forge(self, random)
    }

    fn subscription(
        &self,
        responder: &mut DirectResponder,
        now: Instant,
        waiting: u64,
    ) -> Option<Subscription> {
        responder.subscription(now, self, waiting)
    }

    fn answer(
        &mut self,
        responder: &DirectResponder,
        now: Instant,
        subscription: &Subscription,
        load: (&LoadMeter, u64),
    ) -> bool {
        let room = self.room(MAX_OVERHEAD + MAX_FEEDBACK);
        let Some(length) = responder.answer(now, subscription, load, room) else { return false };
        self.written(length);
        true
    }

    fn expiring_flow(&self) -> Option<u32> {
        None
    }

    /// Returns the length and a hash of the headers up to the BTH of IPv4. The bytes after the headers are undefined, because no memory is
    /// copied.
    fn digest(&self) -> [u64; 2] {
        const HEADERS: usize = 54;
        let step = |hash: u64, word: u64| (hash ^ word).wrapping_mul(0x0000_0100_0000_01b3);
        let (words, rest) = self[..self.len().min(HEADERS)].as_chunks();
        let words = words.iter().map(|word| u64::from_le_bytes(*word));
        let hash = words.chain(rest.iter().map(|&byte| byte.into())).fold(0xcbf2_9ce4_8422_2325, step);
        [self.length as u64, hash]
    }
}
