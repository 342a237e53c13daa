//! Plain packets, as most are: of a reliable connection over IPv4, without tag, mark, options, telemetry or UDP checksum. All offsets are
//! constant, so they are recognised, checked and read in few steps. [`parse`](super::parse) handles other packets, and returns the same for
//! a plain one.

use super::constants::{BTH_LENGTH, ICRC_LENGTH};
use super::header::{Bth, Operation};
use super::icrc;
use super::layers::Layers;
use super::opcode::{Opcode, Reader};
use super::parse::{payload, read_bth};
use crate::{Discard, Qpn};

const IP: usize = 14;
const UDP: usize = IP + 20;
const BTH: usize = UDP + 8;
const HEAD: usize = BTH + BTH_LENGTH;

/// Plain packet whose checksums are not verified yet.
#[derive(Clone, Copy)]
pub(crate) struct FastPathPacket<'a> {
    head: &'a [u8; HEAD],
    /// Frame up to the end of its IP packet.
    frame: &'a [u8],
    layers: Layers,
}

impl<'a> FastPathPacket<'a> {
    /// Returns the packet in `frame` if it is plain.
    #[inline(always)]
    pub(crate) fn of(frame: &'a [u8]) -> Option<Self> {
        let layers = Layers::locate_plain(frame)?;
        let frame = frame.get(..layers.end)?;
        let head: &[u8; HEAD] = frame.first_chunk()?;
        let is_marked = head[IP + 1] & 3 == 3;
        let has_checksum = [head[UDP + 6], head[UDP + 7]] != [0, 0];
        // Compares the service, the transport version, and the byte that switches and telemetry write.
        let is_usual = head[BTH] < 32 && head[BTH + 1] & 0x0f == 0 && head[BTH + 4] == 0;
        (is_usual && !is_marked && !has_checksum).then_some(Self { head, frame, layers })
    }

    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`at` is a constant, or below `UDP`, and four bytes of the head follow it"
    )]
    fn word(&self, at: usize) -> u32 {
        let head = self.head;
        u32::from_be_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]])
    }

    #[inline(always)]
    pub(crate) fn destination(&self) -> Qpn {
        Qpn::new(self.word(BTH + 4))
    }

    /// Returns both IPv4 addresses, source first.
    #[inline(always)]
    pub(crate) fn addresses(&self) -> [u32; 2] {
        [self.word(IP + 12), self.word(IP + 16)]
    }

    #[inline(always)]
    pub(crate) fn udp_source(&self) -> u16 {
        (self.word(UDP) >> 16) as u16
    }

    #[inline(always)]
    pub(crate) fn partition_key(&self) -> u16 {
        self.word(BTH) as u16
    }

    /// Verifies the checksums, then reads BTH, extension headers and payload.
    ///
    /// # Errors
    /// Returns the [`Discard`] reason of the first check that fails, as [`parse`](super::parse) does.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`locate_plain` found room for a head and an ICRC; the sum of five 32-bit words fits into 64 bits"
    )]
    pub(crate) fn read(&self) -> Result<(Bth, Operation, &'a [u8]), Discard> {
        let sum: u64 = (IP..UDP).step_by(4).map(|at| u64::from(self.word(at))).sum();
        let sum = (sum & 0xffff_ffff) + (sum >> 32);
        let sum = (sum & 0xffff) + (sum >> 16);
        if (sum & 0xffff) + (sum >> 16) != 0xffff {
            return Err(Discard::IpHeader);
        }
        let (rest, found) = self.frame[HEAD..].split_last_chunk::<ICRC_LENGTH>().ok_or(Discard::Truncated)?;
        let packet = &self.frame[IP..self.frame.len() - ICRC_LENGTH];
        let icrc = icrc::short(packet).unwrap_or_else(|| icrc::compute(self.frame, &self.layers, 0));
        if icrc != u32::from_le_bytes(*found) {
            return Err(Discard::Icrc);
        }
        let bytes = self.head.last_chunk().ok_or(Discard::Truncated)?;
        let opcode = Opcode(bytes[0]);
        let (bth, pad) = read_bth(bytes)?;
        let shape = opcode.shape().ok_or(Discard::Opcode)?;
        let mut reader = Reader(rest);
        let operation = reader.operation(opcode.0)?;
        Ok((bth, operation, payload(shape.payload, pad, reader.0)?))
    }
}
