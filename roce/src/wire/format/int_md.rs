//! P4 INT-MD v2.1 over UDP: a shim and a header between UDP and the BTH. Each switch pushes its metadata after the header, so the newest is
//! first.

use super::words::{add, from_kbps, grow, lengthen, to_kbps, word, write_words};
use super::{HopReading, Hops, Numbers, PortState};
use crate::Discard;
use crate::wire::constants::{ROCE_PORT, UDP_LENGTH};
use crate::wire::layers::{Layers, chunk};
use cc::Counter;

const SHIM_LENGTH: usize = 4;
const HEADER_LENGTH: usize = 12;
/// Length of shim and header, bytes.
pub const INSERTED: usize = SHIM_LENGTH + HEADER_LENGTH;

/// Shim: type 1 (INT-MD), NPT 1 (the last 16 bits are UDP's original destination port).
const SHIM: u8 = 1 << 4 | 1 << 2;
const NPT_AND_TYPE: u8 = 0xfc;

const VERSION: u32 = 2 << 28;
/// E: a switch found no hops left.
const HOPS_EXCEEDED: u32 = 1 << 26;
/// M: a switch found no room.
const MTU_EXCEEDED: u32 = 1 << 25;
const REMAINING: u32 = 0xff;

/// Node id, queue occupancy, egress timestamp.
const INSTRUCTIONS: u16 = 1 << 15 | 1 << 12 | 1 << 10;
/// Ferroce's domain, with two instructions: 0, txBytes; 1, the link's rate.
const DOMAIN: u16 = 0x4652;
const DOMAIN_INSTRUCTIONS: u16 = 1 << 15 | 1 << 14;
/// Length of the metadata of each switch, bytes: {node 32, queue id 8, occupancy 24 in bytes, egress time 64 in ns, txBytes 32, kbit/s 32}.
pub const HOP_LENGTH: usize = 24;
const HOP_WORDS: u32 = HOP_LENGTH as u32 / 4;
/// Second and third word of the header.
const INSTRUCTION_WORDS: [u32; 2] =
    [(INSTRUCTIONS as u32) << 16 | DOMAIN as u32, (DOMAIN_INSTRUCTIONS as u32) << 16];

/// Returns the length of shim, header and metadata at `at`, bytes. The caller must have found the UDP port of INT.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the length is 8 bits of words behind an offset in the packet"
)]
pub fn length(packet: &[u8], at: usize) -> Result<usize, Discard> {
    let [kind, words, port @ ..] = *chunk::<SHIM_LENGTH>(packet, at)?;
    let length = SHIM_LENGTH + usize::from(words) * 4;
    if kind & NPT_AND_TYPE != SHIM || u16::from_be_bytes(port) != ROCE_PORT {
        return Err(Discard::NotRoce);
    }
    if length < INSERTED || at + length > packet.len() { Err(Discard::Truncated) } else { Ok(length) }
}

/// Implements [`Format::insert`](super::Format::insert).
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the sender's own packet has INSERTED bytes of room"
)]
pub(in crate::wire) fn insert(frame: &mut [u8], layers: &Layers, numbers: Numbers) {
    let at = layers.udp + UDP_LENGTH;
    frame.copy_within(INSERTED..INSERTED + at, 0);
    lengthen(frame, layers, INSERTED);
    add(frame, layers.udp + 4, INSERTED);
    frame[layers.udp + 2..layers.udp + 4].copy_from_slice(&numbers.int_port().to_be_bytes());
    let [port_high, port_low] = ROCE_PORT.to_be_bytes();
    let shim = [SHIM, (HEADER_LENGTH / 4) as u8, port_high, port_low];
    frame[at..at + SHIM_LENGTH].copy_from_slice(&shim);
    let first = VERSION | HOP_WORDS << 8 | u32::from(super::HOPS);
    write_words(
        &mut frame[at + SHIM_LENGTH..at + INSERTED],
        [first, INSTRUCTION_WORDS[0], INSTRUCTION_WORDS[1]],
    );
}

/// Inserts a switch's metadata. Returns the new length of the packet; `None`, with E or M set, if there is no room.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the headers were checked to be there, and the room is checked first"
)]
pub(in crate::wire) fn stamp(
    frame: &mut [u8],
    length: usize,
    layers: &Layers,
    port: &PortState,
) -> Option<usize> {
    let at = layers.udp + UDP_LENGTH;
    let header = at + SHIM_LENGTH;
    let first = request_word(&frame[at..layers.bth])?;
    let is_full = usize::from(frame[at + 1]) + HOP_LENGTH / 4 > usize::from(u8::MAX);
    let lacks = match first & REMAINING {
        0 => HOPS_EXCEEDED,
        _ if is_full || length + HOP_LENGTH > frame.len() => MTU_EXCEEDED,
        _ => 0,
    };
    if lacks != 0 {
        write_words(&mut frame[header..header + 4], [first | lacks]);
        return None;
    }
    grow(frame, length, at + INSERTED, HOP_LENGTH, layers);
    add(frame, layers.udp + 4, HOP_LENGTH);
    frame[at + 1] += HOP_WORDS as u8;
    write_words(&mut frame[header..header + 4], [first - 1]);
    let queue = u32::try_from(port.queue).unwrap_or(u32::MAX).min(0xff_ffff);
    let (high, low) = ((port.time >> 32) as u32, port.time as u32);
    let metadata = [u32::from(port.switch), queue, high, low, port.tx_bytes as u32, to_kbps(port.rate)];
    write_words(&mut frame[at + INSERTED..at + INSERTED + HOP_LENGTH], metadata);
    Some(length + HOP_LENGTH)
}

/// Returns the header's first word, if it requests known values.
fn request_word(bytes: &[u8]) -> Option<u32> {
    let first = word(bytes, 1)?;
    let is_ours = first >> 28 == VERSION >> 28
        && first >> 8 & 0x1f == HOP_WORDS
        && [word(bytes, 2)?, word(bytes, 3)?] == INSTRUCTION_WORDS;
    is_ours.then_some(first)
}

pub(in crate::wire) fn read(bytes: &[u8]) -> Option<Hops> {
    request_word(bytes)?;
    let (metadata, rest) = bytes.get(INSERTED..)?.as_chunks::<HOP_LENGTH>();
    if !rest.is_empty() {
        return None;
    }
    let mut hops = Hops::default();
    for hop in metadata.iter().rev() {
        let time = u64::from(word(hop, 2)?) << 32 | u64::from(word(hop, 3)?);
        let bandwidth = from_kbps(word(hop, 5)?);
        let reading = HopReading {
            bandwidth,
            time: Counter::of::<64, 1>(time),
            // A switch that does not know the domain writes all ones.
            tx_bytes: bandwidth.and(Some(Counter::of::<32, 1>(word(hop, 4)?.into()))),
            queue: u64::from(word(hop, 1)? & 0xff_ffff),
        };
        hops.push(word(hop, 0)?, reading);
    }
    Some(hops)
}
