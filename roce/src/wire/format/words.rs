//! Words and lengths in a frame.

use crate::wire::layers::{Family, Layers, fold, sum};
use cc::Rate;

/// Inserts `by` bytes at `at` in a packet of `length` bytes, and updates the IP length.
#[expect(clippy::arithmetic_side_effects, reason = "the caller has room for both")]
pub(in crate::wire) fn grow(frame: &mut [u8], length: usize, at: usize, by: usize, layers: &Layers) {
    frame.copy_within(at..length, at + by);
    lengthen(frame, layers, by);
}

/// Adds `by` to the length in the IP header, and updates the IPv4 checksum.
#[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "`Layers` lie within a frame")]
pub(in crate::wire) fn lengthen(frame: &mut [u8], layers: &Layers, by: usize) {
    match layers.family {
        Family::V4 => {
            add(frame, layers.ip + 2, by);
            let header = &mut frame[layers.ip..layers.ip + 20];
            header[10..12].fill(0);
            let checksum = !fold(sum(header));
            header[10..12].copy_from_slice(&checksum.to_be_bytes());
        }
        Family::V6 => add(frame, layers.ip + 4, by),
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "both bytes are in a header that was located"
)]
pub(in crate::wire) fn add(frame: &mut [u8], at: usize, by: usize) {
    let value = u16::from_be_bytes([frame[at], frame[at + 1]]).wrapping_add(by as u16);
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[expect(clippy::arithmetic_side_effects, reason = "the index is below that of a frame's last byte")]
pub(in crate::wire) fn word(bytes: &[u8], index: usize) -> Option<u32> {
    bytes.get(index * 4..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
}

/// Writes 32-bit words to the start of `into`, which must have room for them.
pub(in crate::wire) fn write_words<const N: usize>(into: &mut [u8], words: [u32; N]) {
    for (to, word) in into.as_chunks_mut().0.iter_mut().zip(words) {
        *to = word.to_be_bytes();
    }
}

/// Converts a rate to kbit/s, as INT-MD and IOAM express it.
pub(in crate::wire) fn to_kbps(rate: Rate) -> u32 {
    u32::try_from(rate.as_bps() / 1000).unwrap_or(u32::MAX - 1)
}

/// Converts kbit/s to a rate; `None` if none was written.
pub(in crate::wire) fn from_kbps(kbps: u32) -> Option<Rate> {
    match kbps {
        0 | u32::MAX => None,
        kbps => Some(Rate::from_bps(u64::from(kbps) * 1000)),
    }
}
