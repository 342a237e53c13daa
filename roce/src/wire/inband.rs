//! HPCC telemetry in data packets: the INT header of rtgwg-00 Figure 4 between BTH and extension headers.

use super::constants::BTH_LENGTH;
use super::header::{Bth, Service};
use super::opcode::Opcode;
use super::telemetry::{HopRecord, IntHeader, RECORD_LENGTH, WORD_LENGTH};
use crate::Discard;

/// Hops that a data packet has room for: inside a data center a path is rarely longer (rtgwg-00 6.1).
pub const IN_BAND_ROOM: u8 = 5;

/// Bytes that in-band telemetry adds to a data packet.
pub const MAX_IN_BAND: usize = WORD_LENGTH + IN_BAND_ROOM as usize * RECORD_LENGTH;

/// Hops that a probe to a datagram queue pair has room for. An answer of five records and a seal is not longer than such a probe.
const DATAGRAM_ROOM: u8 = 8;

pub(super) const fn empty(opcode: Opcode) -> IntHeader {
    let is_probe = opcode.0 == Opcode::DATAGRAM_TELEMETRY_REQUEST.0;
    IntHeader::with_room(if is_probe { DATAGRAM_ROOM } else { IN_BAND_ROOM })
}

/// In-band telemetry of a data packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InBand<'a> {
    /// Hops, path and room.
    pub int: IntHeader,
    room: &'a [u8],
}

impl InBand<'_> {
    /// Returns the records that switches wrote, in path order.
    pub fn records(&self) -> impl Iterator<Item = HopRecord> {
        self.int.records(self.room)
    }
}

/// Returns whether an INT header follows this BTH. In an Acknowledge the flag means that feedback follows.
#[inline]
pub(super) fn is_flagged(opcode: u8, congestion: u8) -> bool {
    congestion & Bth::TELEMETRY != 0 && is_data(Opcode(opcode))
}

/// Returns whether packets with this opcode may carry an INT header: all of connected services but Acknowledges, and probes to datagram
/// queue pairs.
#[inline]
pub(super) fn is_data(opcode: Opcode) -> bool {
    matches!(opcode.service(), Some(Service::Rc | Service::Uc | Service::Xrc)) && !opcode.is_acknowledge()
        || opcode == Opcode::DATAGRAM_TELEMETRY_REQUEST
}

/// Returns how many bytes of `rest`, which follows the BTH, are outside the ICRC because switches change them.
#[inline]
pub(super) fn excluded_length(bth: &[u8; BTH_LENGTH], rest: &[u8]) -> Result<usize, Discard> {
    if bth[0] == Opcode::TELEMETRY_REQUEST.0 {
        return Ok(rest.len());
    }
    if !is_flagged(bth[0], bth[4]) {
        return Ok(0);
    }
    Ok(length_of(rest)?.1)
}

/// Returns the INT header at the start of `rest`, and its length with the room.
fn length_of(rest: &[u8]) -> Result<(IntHeader, usize), Discard> {
    let word = rest.first_chunk().ok_or(Discard::Telemetry)?;
    let int = IntHeader::unpack(*word).ok_or(Discard::Telemetry)?;
    let length = WORD_LENGTH.saturating_add(int.room_bytes());
    if length <= rest.len() { Ok((int, length)) } else { Err(Discard::Telemetry) }
}

/// Splits the INT header from the front of `rest`, if the BTH announces one.
pub(super) fn split<'a>(
    opcode: u8,
    congestion: u8,
    rest: &'a [u8],
) -> Result<(Option<InBand<'a>>, &'a [u8]), Discard> {
    if !is_flagged(opcode, congestion) {
        return Ok((None, rest));
    }
    let (int, length) = length_of(rest)?;
    let (header, rest) = rest.split_at_checked(length).ok_or(Discard::Telemetry)?;
    let room = header.get(WORD_LENGTH..).ok_or(Discard::Telemetry)?;
    int.check(room)?;
    Ok((Some(InBand { int, room }), rest))
}
