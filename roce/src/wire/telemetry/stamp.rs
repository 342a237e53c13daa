//! Finds the INT header of a frame, and writes the record of a switch.

use super::int::{HopRecord, IntHeader, RECORD_LENGTH, WORD_LENGTH};
use crate::Discard;
use crate::wire::constants::{BTH_LENGTH, ICRC_LENGTH};
use crate::wire::format::Numbers;
use crate::wire::inband;
use crate::wire::layers::{Layers, chunk};
use crate::wire::opcode::Opcode;

/// Writes a switch's `record` into a telemetry request, or a data packet with an INT header, if there is room. Counts the hop, and XORs
/// `switch_id` (12 bits) into the path id, and updates the UDP checksum. No other byte changes. Returns whether it was written.
pub fn stamp(frame: &mut [u8], switch_id: u16, record: HopRecord) -> bool {
    let Ok(layers) = Layers::locate(frame, Numbers::DEFAULT) else { return false };
    let Ok(place) = find(frame, &layers) else { return false };
    let write = |frame: &mut [u8]| write(frame, place, switch_id, record).then_some(0);
    layers.keep_udp_checksum(frame, write).is_some()
}

/// Writes a record as [`stamp`] does, to the header that [`find`] has found.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`find` found the word and `room` records within the frame, and `hops` is below `room`"
)]
pub(in crate::wire) fn write(
    frame: &mut [u8],
    place: (usize, IntHeader),
    switch_id: u16,
    record: HopRecord,
) -> bool {
    let (word_at, int) = place;
    let Some(next) = int.stamped(switch_id) else { return false };
    let record_at = word_at + WORD_LENGTH + usize::from(int.hops()) * RECORD_LENGTH;
    frame[word_at..word_at + WORD_LENGTH].copy_from_slice(&next.pack());
    frame[record_at..record_at + RECORD_LENGTH].copy_from_slice(&record.pack());
    true
}

/// Returns the offset and content of the INT word of a telemetry request or data packet whose length fits the word.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`locate` found the BTH within the frame; the room is at most 15 records"
)]
pub(in crate::wire) fn find(frame: &[u8], layers: &Layers) -> Result<(usize, IntHeader), Discard> {
    let word_at = layers.bth + BTH_LENGTH;
    let [opcode, flags, _, _, congestion] = *chunk(frame, layers.bth)?;
    let is_probe = opcode == Opcode::TELEMETRY_REQUEST.0 && flags & 0x3f == 0;
    if !is_probe && !inband::is_flagged(opcode, congestion) {
        return Err(Discard::Opcode);
    }
    let int = IntHeader::unpack(*chunk(frame, word_at)?).ok_or(Discard::Telemetry)?;
    let end = word_at + WORD_LENGTH + int.room_bytes() + ICRC_LENGTH;
    let fits = if is_probe { layers.end == end } else { layers.end >= end };
    if fits { Ok((word_at, int)) } else { Err(Discard::Telemetry) }
}
