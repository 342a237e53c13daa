//! IPv6's hop-by-hop options (RFC 8200 4.2, 4.3), as far as telemetry needs them.

use super::words::lengthen;
use super::{Numbers, ioam};
use crate::Discard;
use crate::wire::layers::{InsertedTelemetry, Layers, chunk};

/// IPv6 next header of the hop-by-hop header.
pub const PROTOCOL: u8 = 0;

/// Bytes of the header before the first option.
pub const HEADER_LENGTH: usize = 2;

const PAD_1: u8 = 0;
const PAD_N: u8 = 1;
/// Bits of an option's type for a node that does not know it: 0 means skip it.
const UNKNOWN: u8 = 0xc0;

/// Returns the length of the header at `at`, and the first telemetry in it.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "each length has 8 bits; `at` stays below the end that was checked"
)]
pub fn options(
    packet: &[u8],
    at: usize,
    numbers: Numbers,
) -> Result<(usize, Option<InsertedTelemetry>), Discard> {
    let [_, units] = *chunk(packet, at)?;
    let length = (usize::from(units) + 1) * 8;
    let end = at + length;
    let header = packet.get(..end).ok_or(Discard::Truncated)?;
    let (mut at, mut carried) = (at + HEADER_LENGTH, None);
    while at < end {
        let kind = header[at];
        if kind == PAD_1 {
            at += 1;
            continue;
        }
        let data = at + 2;
        let [_, option] = *chunk(header, at).map_err(|_| Discard::IpHeader)?;
        let next = data + usize::from(option);
        let content = header.get(data..next).ok_or(Discard::IpHeader)?;
        // The header has at most 2048 bytes, directly after that of IPv6.
        let span = (data as u16, next as u16);
        carried = carried.or(match kind {
            ioam::OPTION if ioam::is_trace(content) => Some(InsertedTelemetry::Ioam(span.0, span.1)),
            kind if kind == numbers.aecn_option() => Some(InsertedTelemetry::Aecn(span.0, span.1)),
            PAD_N => None,
            kind if kind & UNKNOWN == 0 => None,
            _ => return Err(Discard::IpHeader),
        });
        at = next;
    }
    Ok((length, carried))
}

/// Moves the Ethernet and IPv6 headers of a packet at `gap` to the front, and inserts a hop-by-hop header of `gap` bytes after them.
/// Returns that header without its first two bytes, zeroed.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the sender's own packet has `gap` bytes of room"
)]
pub fn open<'a>(frame: &'a mut [u8], layers: &Layers, gap: usize) -> &'a mut [u8] {
    let at = layers.ip + layers.family.header_length();
    frame.copy_within(gap..gap + at, 0);
    lengthen(frame, layers, gap);
    let next = core::mem::replace(&mut frame[layers.ip + 6], PROTOCOL);
    let header = &mut frame[at..at + gap];
    header.fill(0);
    header[0] = next;
    header[1] = (gap / 8 - 1) as u8;
    &mut header[HEADER_LENGTH..]
}

/// Fills `bytes` with one PadN option.
pub fn pad(bytes: &mut [u8]) {
    if let [kind, length, rest @ ..] = bytes {
        (*kind, *length) = (PAD_N, rest.len() as u8);
    }
}
