//! The invariant CRC (IBA A17.3.3).

use super::constants::{BTH_LENGTH, ICRC_LENGTH, ROCE_PORT, UDP, UDP_LENGTH};
use super::layers::{Family, Layers};
use crc32fast::Hasher;

/// Register of the CRC after eight bytes of ones, which replace a link header (IBA A17.3.3).
const LINK_HEADER: u32 = !0x2144_df1c;

/// Bytes of the BTH up to the masked reserved byte, inclusive.
const BTH_MASKED: usize = 5;

/// Least number of bytes that carry-less multiplication folds at a time; CPUs with wider multiplication fold 64 or 128. From the second
/// length on, it folds four at once. Remaining bytes at the end cost extra.
const FOLD: usize = 16;
const MIN_FOUR_FOLDS: usize = 128;
/// Length of an Acknowledge, rounded up to whole folds.
const MIN_PACKET: usize = 48;
const HALF: usize = MIN_FOUR_FOLDS / 2;
const ON_STACK: usize = 2 * MIN_FOUR_FOLDS;

/// Returns the ICRC of a packet (IBA 9.2, A17.3.3), to be stored least significant byte first.
///
/// Bytes that routers and switches may change are computed as ones. The `excluded` bytes after the BTH, and telemetry around UDP, are
/// omitted. So is their share of the IP and UDP lengths.
///
/// The first bytes are copied to the stack and masked there, after as many zeros as fill whole folds. Zeros do not change an empty
/// register. XORing the initial value into the first four bytes has the same effect as starting with it.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`Layers` lie within the frame, with an ICRC behind the BTH"
)]
pub(super) fn compute(frame: &[u8], layers: &Layers, excluded: usize) -> u32 {
    let plain = layers.carried.is_none() && layers.before_udp() == 0;
    if layers.family == Family::V4
        && plain
        && excluded == 0
        && let Some(icrc) = short(&frame[layers.ip..layers.end - ICRC_LENGTH])
    {
        return icrc;
    }
    complete(frame, layers, excluded)
}

/// Returns the ICRC of the most frequent packets, IPv4 of at most [`MIN_FOUR_FOLDS`] bytes with nothing excluded; `None` for others. All
/// offsets are constant, and 16 bytes are masked at a time.
#[inline(never)]
pub(super) fn short(packet: &[u8]) -> Option<u32> {
    match packet.len() {
        HALF..=MIN_FOUR_FOLDS => Some(fold::<MIN_FOUR_FOLDS, HALF>(packet)),
        MIN_PACKET..HALF => Some(fold::<MIN_FOUR_FOLDS, MIN_PACKET>(packet)),
        HEAD..MIN_PACKET => Some(fold::<MIN_PACKET, HEAD>(packet)),
        _ => None,
    }
}

/// Returns the ICRC of any packet.
#[inline(never)]
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`Layers` lie within the frame, and `excluded` bytes between BTH and ICRC; headers and less than a fold fit ON_STACK"
)]
fn complete(frame: &[u8], layers: &Layers, excluded: usize) -> u32 {
    let plain = layers.carried.is_none() && layers.before_udp() == 0;
    // The headers on one side of the excluded bytes, the rest on the other.
    let transport = layers.bth..layers.bth + if excluded > 0 { BTH_LENGTH } else { BTH_MASKED };
    let rest = &frame[transport.end + excluded..layers.end - ICRC_LENGTH];
    let headers = layers.family.header_length() + UDP_LENGTH + transport.len();
    // A short packet is one piece. A long one is two: the head, with the remaining bytes, and whole folds.
    let (head, end) = match headers + rest.len() {
        short @ ..=ON_STACK => (short, short.next_multiple_of(FOLD).max(MIN_FOUR_FOLDS)),
        _ => {
            let head = headers + rest.len() % FOLD;
            (head, head)
        }
    };
    let mut stack = [0; ON_STACK];
    let copy = &mut stack[end - head..end];
    let rest = if plain && excluded == 0 {
        // The packet is in one piece.
        let (begin, rest) = frame[layers.ip..layers.end - ICRC_LENGTH].split_at(head);
        copy.copy_from_slice(begin);
        rest
    } else {
        let (first, second) = copy.split_at_mut(headers);
        let (begin, rest) = rest.split_at(second.len());
        match plain {
            true => first.copy_from_slice(&frame[layers.ip..transport.end]),
            false => copy_around(first, frame, layers, transport.end),
        }
        second.copy_from_slice(begin);
        rest
    };
    mask(copy, layers, excluded);
    for (byte, bits) in copy.iter_mut().zip(LINK_HEADER.to_le_bytes()) {
        *byte ^= bits;
    }
    // The hasher expects the complement of the register.
    let mut hasher = Hasher::new_with_initial(!0);
    hasher.update(&stack[..end]);
    if !rest.is_empty() {
        hasher.update(rest);
    }
    hasher.finalize()
}

/// Masked part of an IPv4 packet: IP header, UDP header, five bytes of BTH.
const SHORT_HEAD: usize = 20 + UDP_LENGTH + BTH_MASKED;

/// Bytes that are masked at once; no packet is shorter.
const HEAD: usize = 36;
const _: () = assert!(SHORT_HEAD <= HEAD);
/// Mask that is ORed: ones for the fields that routers may change.
#[expect(clippy::indexing_slicing, reason = "an index out of range would not compile")]
const CHANGED: [u8; HEAD] = {
    let mut bytes = [0; HEAD];
    let places = [1, 8, 10, 11, 26, 27, 32];
    let mut n = 0;
    while n < places.len() {
        bytes[places[n]] = 0xff;
        n += 1;
    }
    bytes
};
/// Mask that is then XORed: the share of the link header.
const LINK: [u8; HEAD] = {
    let [a, b, c, d] = LINK_HEADER.to_le_bytes();
    let mut bytes = [0; HEAD];
    (bytes[0], bytes[1], bytes[2], bytes[3]) = (a, b, c, d);
    bytes
};

/// Returns the ICRC of an IPv4 packet of `M` to 2 `M` bytes, at most `N`. Two copies of `M` bytes, which may overlap, cost less than one of
/// variable length.
#[inline(always)]
#[expect(clippy::arithmetic_side_effects, reason = "the packet has at most N bytes")]
fn fold<const N: usize, const M: usize>(packet: &[u8]) -> u32 {
    let mut stack = [0; N];
    let copy = &mut stack[N - packet.len()..];
    if let (Some(into), Some(from)) = (copy.first_chunk_mut::<M>(), packet.first_chunk()) {
        *into = *from;
    }
    if let (Some(into), Some(from)) = (copy.last_chunk_mut::<M>(), packet.last_chunk()) {
        *into = *from;
    }
    if let Some(head) = copy.first_chunk_mut::<HEAD>() {
        for ((byte, changed), link) in head.iter_mut().zip(CHANGED).zip(LINK) {
            *byte = (*byte | changed) ^ link;
        }
    }
    let mut hasher = Hasher::new_with_initial(!0);
    hasher.update(&stack);
    hasher.finalize()
}

/// Copies IP header, UDP header and BTH as they were before telemetry was inserted.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`Layers` lie within the frame, in their order; the offsets are in headers of a known length"
)]
fn copy_around(into: &mut [u8], frame: &[u8], layers: &Layers, end: usize) {
    let length = layers.family.header_length();
    let (network, rest) = into.split_at_mut(length);
    let (udp, transport) = rest.split_at_mut(UDP_LENGTH);
    network.copy_from_slice(&frame[layers.ip..layers.ip + length]);
    udp.copy_from_slice(&frame[layers.udp..layers.udp + UDP_LENGTH]);
    transport.copy_from_slice(&frame[layers.bth..end]);
    let (protocol_at, length_at) = match layers.family {
        Family::V4 => (9, 2),
        Family::V6 => (6, 4),
    };
    network[protocol_at] = UDP;
    shorten(network, length_at, layers.before_udp() + layers.after_udp());
    udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
    udp[4..6].copy_from_slice(&((layers.end - layers.bth + UDP_LENGTH) as u16).to_be_bytes());
}

/// Sets the fields that may change in transit to ones, in a packet that begins with its IP header.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the packet holds its headers as far as the BTH"
)]
fn mask(packet: &mut [u8], layers: &Layers, excluded: usize) {
    let length_at = match layers.family {
        Family::V4 => {
            packet[1] = 0xff;
            packet[8] = 0xff;
            packet[10..12].fill(0xff);
            2
        }
        Family::V6 => {
            packet[0] |= 0x0f;
            packet[1..4].fill(0xff);
            packet[7] = 0xff;
            4
        }
    };
    let udp = layers.family.header_length();
    packet[udp + 6..udp + 8].fill(0xff);
    packet[udp + UDP_LENGTH + BTH_MASKED - 1] = 0xff;
    if excluded > 0 {
        shorten(packet, length_at, excluded);
        shorten(packet, udp + 4, excluded);
    }
}

#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`at` is the place of a length in a header that the caller has"
)]
fn shorten(bytes: &mut [u8], at: usize, by: usize) {
    let length = u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    bytes[at..at + 2].copy_from_slice(&length.wrapping_sub(by as u16).to_be_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// Computes a CRC bit by bit from the polynomial, independently of the code above.
    fn by_bits(bytes: &[u8]) -> u32 {
        let by_bit =
            |crc: u32| (0..8).fold(crc, |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()));
        !bytes.iter().fold(!0, |crc, &byte| by_bit(crc ^ u32::from(byte)))
    }

    /// Returns a packet after eight bytes of ones, with the fields that may change as ones.
    fn masked(packet: &[u8]) -> Vec<u8> {
        let mut bytes = [&[0xff; 8], packet].concat();
        for at in [1, 8, 10, 11, 26, 27, 32] {
            bytes[8 + at] = 0xff;
        }
        bytes
    }

    /// Covers the code paths for all lengths, here and in the CPU's multiplication: 16 bytes, 64 from 128 on, 128 from 256, 256 from 2,048.
    /// IBA A17.3.3.
    #[test]
    fn every_length_has_its_icrc() {
        let lengths = (40..=600).chain([1000, 1024, 2047, 2048]).chain(2080..2112).chain(4144..=4172);
        let bytes: Vec<u8> = (0..4300_u32).map(|n| ((n * n * 37) >> 3) as u8).collect();
        for length in lengths {
            let frame = &bytes[..14 + length + ICRC_LENGTH];
            let (udp, bth, end) = (14 + 20, 14 + 28, frame.len());
            let layers = Layers { family: Family::V4, ip: 14, udp, bth, end, carried: None };
            assert_eq!(
                compute(frame, &layers, 0),
                by_bits(&masked(&frame[14..14 + length])),
                "{length} bytes"
            );
        }
    }

    /// IBA A17.3.3: the bytes that replace the link header.
    #[test]
    fn the_link_header_is_eight_bytes_of_ones() {
        assert_eq!(by_bits(&[0xff; 8]), !LINK_HEADER);
    }
}
