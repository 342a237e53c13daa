//! IFA 2.0 (draft-kumar-ippm-ifa): a header between IP and UDP, and metadata after the UDP header, which the UDP length does not include.
//! The metadata are a header and 32 bytes from each switch, the newest first. The 32 bytes are those of local name space 1, which include
//! transmitted bytes.

use super::words::{grow, lengthen, word, write_words};
use super::{HopReading, Hops, PortState};
use crate::Discard;
use crate::wire::constants::UDP_LENGTH;
use crate::wire::layers::{Family, Layers, chunk};
use cc::{Counter, Rate};

/// IP protocol: the first of those for experiments (RFC 3692).
pub const PROTOCOL: u8 = 253;
/// {version 4, global name space 4, next header 8, flags 8, limit of metadata 8 in words}.
pub const HEADER_LENGTH: usize = 4;
/// {request vector 8, action vector 8, hop limit 8, words of metadata 8}.
const METADATA_HEADER_LENGTH: usize = 4;
/// Length of both headers, bytes.
pub const INSERTED: usize = HEADER_LENGTH + METADATA_HEADER_LENGTH;

/// Version 2; name space 15: each switch writes its local one.
const VERSION_AND_SPACE: u8 = 2 << 4 | 0xf;
const LOCAL_SPACE: u32 = 1;
/// Length of the metadata of each switch, bytes: {name space 4, device 20, TTL 8}, {speed 4, ECN 2, queue 6, arrival 20 in s}, {egress port
/// 16, ingress port 16}, arrival in ns, residence in ns, txBytes, {0 16, queue 16 in 80 B}, 0.
pub const HOP_LENGTH: usize = 32;
const HOP_WORDS: u8 = HOP_LENGTH as u8 / 4;
const QUEUE_UNIT: u64 = 80;

/// Speeds by code: those that switches are known to write, then Ferroce's.
const SPEEDS: [Rate; 15] = [
    Rate::from_gbps(10),
    Rate::from_gbps(25),
    Rate::from_gbps(40),
    Rate::from_gbps(50),
    Rate::from_gbps(100),
    Rate::from_gbps(200),
    Rate::from_gbps(400),
    Rate::from_mbps(10),
    Rate::from_mbps(100),
    Rate::from_mbps(200),
    Rate::from_mbps(500),
    Rate::from_gbps(1),
    Rate::from_mbps(2_500),
    Rate::from_gbps(5),
    Rate::from_gbps(800),
];

/// Returns the protocol after IFA's header.
pub fn next_header(header: &[u8; HEADER_LENGTH]) -> Result<u8, Discard> {
    if header[0] == VERSION_AND_SPACE { Ok(header[1]) } else { Err(Discard::NotRoce) }
}

/// Returns the length of the metadata and their header at `at`, bytes.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the length is 8 bits of words behind an offset in the packet"
)]
pub fn metadata_length(packet: &[u8], at: usize) -> Result<usize, Discard> {
    let [_, _, _, words] = *chunk::<METADATA_HEADER_LENGTH>(packet, at)?;
    let length = METADATA_HEADER_LENGTH + usize::from(words) * 4;
    if at + length > packet.len() { Err(Discard::Truncated) } else { Ok(length) }
}

/// Implements [`Format::insert`](super::Format::insert).
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the sender's own packet has INSERTED bytes of room"
)]
pub(in crate::wire) fn insert(frame: &mut [u8], layers: &Layers) {
    let network_end = layers.ip + layers.family.header_length();
    let udp = network_end + HEADER_LENGTH;
    frame.copy_within(INSERTED..INSERTED + network_end, 0);
    frame.copy_within(INSERTED + layers.udp..INSERTED + layers.udp + UDP_LENGTH, udp);
    let protocol_at = layers.ip
        + match layers.family {
            Family::V4 => 9,
            Family::V6 => 6,
        };
    let next = core::mem::replace(&mut frame[protocol_at], PROTOCOL);
    lengthen(frame, layers, INSERTED);
    let most = super::HOPS * HOP_WORDS;
    frame[network_end..udp].copy_from_slice(&[VERSION_AND_SPACE, next, 0, most]);
    frame[udp + UDP_LENGTH..udp + UDP_LENGTH + METADATA_HEADER_LENGTH].copy_from_slice(&[
        0,
        0,
        super::HOPS,
        0,
    ]);
}

/// Inserts a switch's metadata. Returns the new length of the packet; `None` if there is no room.
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
    let speed = SPEEDS.iter().position(|speed| *speed == port.rate)? as u32;
    let at = layers.udp + UDP_LENGTH;
    let most = *frame.get(layers.udp - 1)?;
    let [_, _, hops, words] = *chunk(frame, at).ok()?;
    let fits = u16::from(words) + u16::from(HOP_WORDS) <= u16::from(most);
    if hops == 0 || !fits || length + HOP_LENGTH > frame.len() {
        return None;
    }
    let (ttl, class) = match layers.family {
        Family::V4 => (frame[layers.ip + 8], frame[layers.ip + 1]),
        Family::V6 => (frame[layers.ip + 7], frame[layers.ip + 1] >> 4),
    };
    let from = at + METADATA_HEADER_LENGTH;
    grow(frame, length, from, HOP_LENGTH, layers);
    frame[at + 2..at + 4].copy_from_slice(&[hops - 1, words + HOP_WORDS]);
    let arrived = port.time.saturating_sub(port.sojourn);
    let queue = u16::try_from(port.queue / QUEUE_UNIT).unwrap_or(u16::MAX);
    let metadata = [
        LOCAL_SPACE << 28 | u32::from(port.switch) << 8 | u32::from(ttl),
        speed << 28 | u32::from(class & 3) << 26 | (arrived / 1_000_000_000) as u32 & 0xf_ffff,
        u32::from(port.port) << 16 | 0xffff,
        (arrived % 1_000_000_000) as u32,
        (port.time - arrived) as u32,
        port.tx_bytes as u32,
        u32::from(queue),
        0,
    ];
    write_words(&mut frame[from..from + HOP_LENGTH], metadata);
    Some(length + HOP_LENGTH)
}

#[expect(clippy::arithmetic_side_effects, reason = "20 bits of seconds in ns stay below 2^51")]
pub(in crate::wire) fn read(bytes: &[u8]) -> Option<Hops> {
    let (metadata, rest) = bytes.get(METADATA_HEADER_LENGTH..)?.as_chunks::<HOP_LENGTH>();
    if !rest.is_empty() {
        return None;
    }
    let mut hops = Hops::default();
    for hop in metadata.iter().rev() {
        let first = word(hop, 0)?;
        if first >> 28 != LOCAL_SPACE {
            return None;
        }
        let second = word(hop, 1)?;
        let arrived = u64::from(second & 0xf_ffff) * 1_000_000_000 + u64::from(word(hop, 3)?);
        let reading = HopReading {
            bandwidth: SPEEDS.get((second >> 28) as usize).copied(),
            time: Counter::of::<32, 1>(arrived + u64::from(word(hop, 4)?)),
            tx_bytes: Some(Counter::of::<32, 1>(word(hop, 5)?.into())),
            queue: u64::from(word(hop, 6)? & 0xffff) * QUEUE_UNIT,
        };
        hops.push(first >> 8 & 0xf_ffff, reading);
    }
    Some(hops)
}
