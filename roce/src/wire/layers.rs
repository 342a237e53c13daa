//! The layers of a frame, from Ethernet to the BTH, and the telemetry between them.

use super::constants::{ETHERNET_LENGTH, UDP, UDP_LENGTH};
use crate::Discard;
use core::ops::Range;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    pub const fn header_length(self) -> usize {
        match self {
            Self::V4 => 20,
            Self::V6 => 40,
        }
    }
}

/// Offsets of a frame's layers; `end` is the end of its IP packet. Telemetry ([`InsertedTelemetry`]) may be before IP, between IP and UDP,
/// and between UDP and BTH. Frames with telemetry need one more pass ([`below_bth`](super::format::below_bth)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layers {
    pub family: Family,
    pub ip: usize,
    pub udp: usize,
    pub bth: usize,
    pub end: usize,
    pub carried: Option<InsertedTelemetry>,
}

/// Telemetry below a packet's BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InsertedTelemetry {
    IntMd,
    Ifa,
    /// Range of the option's data.
    Ioam(u16, u16),
    Aecn(u16, u16),
    /// Length of the tag, bytes.
    Csig(u8),
}

impl InsertedTelemetry {
    /// Returns the range of the telemetry: the data of the option or the tag, or all bytes between UDP and BTH.
    #[expect(clippy::arithmetic_side_effects, reason = "`Layers` lie within a frame, in their order")]
    pub fn span(self, layers: &Layers) -> Range<usize> {
        match self {
            Self::IntMd | Self::Ifa => layers.udp + UDP_LENGTH..layers.bth,
            Self::Ioam(from, to) | Self::Aecn(from, to) => from.into()..to.into(),
            // After the TPID, before IP's EtherType.
            Self::Csig(length) => layers.ip - usize::from(length)..layers.ip - 2,
        }
    }
}

#[inline]
pub(super) fn chunk<const N: usize>(frame: &[u8], at: usize) -> Result<&[u8; N], Discard> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).ok_or(Discard::Truncated)
}

impl Layers {
    /// Layers of a frame that is not a RoCEv2 packet.
    pub const NONE: Self = Self { family: Family::V4, ip: 0, udp: 0, bth: 0, end: 0, carried: None };

    /// Returns the UDP destination port.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the offsets are within a frame")]
    pub fn port(&self, frame: &[u8]) -> Result<u16, Discard> {
        Ok(u16::from_be_bytes(*chunk(frame, self.udp + 2)?))
    }

    /// Returns the bytes that the UDP length and checksum do not include: IFA's metadata.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the BTH is behind UDP")]
    pub const fn outside_udp(&self) -> usize {
        match self.carried {
            Some(InsertedTelemetry::Ifa) => self.bth - self.udp - UDP_LENGTH,
            _ => 0,
        }
    }

    /// Returns the offset of a VLAN tag's control information.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the lengths of two tags are added")]
    pub const fn vlan(&self) -> Option<usize> {
        let tag = match self.carried {
            Some(InsertedTelemetry::Csig(length)) => length as usize,
            _ => 0,
        };
        if self.ip > ETHERNET_LENGTH + tag { Some(ETHERNET_LENGTH) } else { None }
    }

    /// Returns the bytes between the IP header and UDP.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "UDP is behind the IP header")]
    pub const fn before_udp(&self) -> usize {
        self.udp - self.ip - self.family.header_length()
    }

    /// Returns the bytes between UDP and the BTH.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "the BTH is behind UDP")]
    pub const fn after_udp(&self) -> usize {
        self.bth - self.udp - UDP_LENGTH
    }

    /// Verifies the checksum of the IPv4 header, and that of UDP if the sender wrote one. RoCEv2 senders set it to 0 over IPv4 and IPv6,
    /// because the ICRC covers more.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`end` is within the frame and behind the BTH; the sum of a frame's 16-bit and 32-bit words fits"
    )]
    pub fn verify_checksums(&self, frame: &[u8]) -> Result<(), Discard> {
        if self.family == Family::V4 && fold(sum(&frame[self.ip..self.ip + 20])) != 0xffff {
            return Err(Discard::IpHeader);
        }
        if self.has_udp_checksum(frame) && self.udp_sum(frame) != 0xffff {
            return Err(Discard::UdpHeader);
        }
        Ok(())
    }

    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the frame has a UDP header"
    )]
    fn has_udp_checksum(&self, frame: &[u8]) -> bool {
        frame[self.udp + 6..self.udp + UDP_LENGTH] != [0, 0]
    }

    /// Returns the sum that a correct UDP checksum completes to 0xffff.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`end` is within the frame and behind the BTH; the sum of a frame's 16-bit and 32-bit words fits"
    )]
    fn udp_sum(&self, frame: &[u8]) -> u16 {
        let addresses = match self.family {
            Family::V4 => &frame[self.ip + 12..self.ip + 20],
            Family::V6 => &frame[self.ip + 8..self.ip + 40],
        };
        let content = self.udp + UDP_LENGTH + self.outside_udp();
        let pseudo = u64::from(UDP) + (self.end - content + UDP_LENGTH) as u64 + sum(addresses);
        fold(pseudo + sum(&frame[self.udp..self.udp + UDP_LENGTH]) + sum(&frame[content..self.end]))
    }

    /// Lets `write` change what the UDP checksum covers, and updates the checksum by the change (RFC 1624). Linux computes one for packets
    /// that it splits off a large datagram. `write` returns the bytes by which the packet has grown behind the UDP header.
    #[inline(always)]
    pub fn keep_udp_checksum(
        &self,
        frame: &mut [u8],
        write: impl FnOnce(&mut [u8]) -> Option<usize>,
    ) -> Option<usize> {
        if !self.has_udp_checksum(frame) {
            return write(frame);
        }
        let before = self.udp_sum(frame);
        let growth = write(frame)?;
        self.update_udp_checksum(frame, before, growth);
        Some(growth)
    }

    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the frame has room for what has grown; the sum of three words fits"
    )]
    fn update_udp_checksum(&self, frame: &mut [u8], before: u16, growth: usize) {
        let grown = Self { bth: self.bth + growth, end: self.end + growth, ..*self };
        let after = grown.udp_sum(frame);
        let place = self.udp + 6..self.udp + UDP_LENGTH;
        let checksum = u64::from(fold(sum(&frame[place.clone()])));
        // The sum has both representations of 0, but a checksum of 0 would mean none.
        let checksum = match fold(checksum + u64::from(before) + u64::from(!after)) {
            0 => 0xffff,
            checksum => checksum,
        };
        frame[place].copy_from_slice(&checksum.to_be_bytes());
    }

    /// Makes the UDP checksum correct, if the sender wrote one.
    pub fn correct_udp_checksum(&self, frame: &mut [u8]) {
        if self.has_udp_checksum(frame) {
            self.update_udp_checksum(frame, 0xffff, 0);
        }
    }
}

/// Adds 16-bit words, two at a time; folding yields the same sum. Missing bytes at the end count as 0 (RFC 1071).
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the sum of a frame's words fits into 64 bits; the rest is less than a word"
)]
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let (words, last) = bytes.as_chunks::<4>();
    let words: u64 = words.iter().map(|&word| u64::from(u32::from_be_bytes(word))).sum();
    let mut rest = [0; 4];
    rest[..last.len()].copy_from_slice(last);
    words + u64::from(u32::from_be_bytes(rest))
}

/// Folds a sum to 16 bits in one's complement.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "halves of 64 bits are added")]
pub(super) const fn fold(mut sum: u64) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}
