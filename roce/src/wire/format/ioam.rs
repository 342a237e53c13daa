//! IOAM's pre-allocated trace (RFC 9197 4.4) as an IPv6 hop-by-hop option (RFC 9486 3): the sender leaves room, and each switch writes its
//! data, starting at the end.

use super::words::{from_kbps, to_kbps, word, write_words};
use super::{HopReading, Hops, PortState, hop_by_hop};
use crate::wire::layers::Layers;
use cc::Counter;

/// Option type: a node that does not know it skips it, and the option may change in transit (RFC 9486 4).
pub const OPTION: u8 = 0x31;
/// IOAM option-type of a pre-allocated trace.
const PRE_ALLOCATED: u8 = 0;

/// Namespace that every node knows (RFC 9197 4.3). Its times are POSIX's in seconds and microseconds, as in Linux.
const NAMESPACE: u16 = 0;
/// Hop limit and node id, seconds, fraction, namespace data, queue depth, wide namespace data.
const TRACE_TYPE: u32 = 1 << 23 | 1 << 21 | 1 << 20 | 1 << 18 | 1 << 17 | 1 << 13;
/// Length of the data of each node, bytes: {hop limit 8, node 24}, seconds, microseconds, the link's rate in kbit/s, bytes queued, {ns
/// beyond the microsecond 10, txBytes 54}.
const NODE_LENGTH: usize = 28;
const NODE_WORDS: u16 = NODE_LENGTH as u16 / 4;
/// Placeholder of a value that a node does not have (RFC 9197 4.4.2).
const UNAVAILABLE: u32 = u32::MAX;
/// O: a node found no room (RFC 9197 4.4.1).
const OVERFLOW: u16 = 1 << 10;
const REMAINING: u16 = 0x7f;
const TX_BITS: u8 = 54;

/// {reserved 8, IOAM type 8}, then {namespace 16, node words 5, flags 4, remaining words 7}, {trace type 24, reserved 8}.
const HEADER_LENGTH: usize = 2 + 8;
const SPACE: usize = super::HOPS as usize * NODE_LENGTH;
/// Padding before the option, which must be at a multiple of 4 (RFC 9486 3).
const BEFORE: usize = 2;
const OPTION_LENGTH: usize = 2 + HEADER_LENGTH + SPACE;
/// Length of the hop-by-hop header, bytes.
pub const INSERTED: usize = (hop_by_hop::HEADER_LENGTH + BEFORE + OPTION_LENGTH).next_multiple_of(8);

/// Returns whether an IOAM option's data is a pre-allocated trace.
pub const fn is_trace(data: &[u8]) -> bool {
    matches!(data, [_, PRE_ALLOCATED, ..]) && data.len() >= HEADER_LENGTH
}

#[expect(clippy::indexing_slicing, reason = "the room is INSERTED bytes")]
pub(in crate::wire) fn insert(frame: &mut [u8], layers: &Layers) {
    let options = hop_by_hop::open(frame, layers, INSERTED);
    let (before, options) = options.split_at_mut(BEFORE);
    let (option, after) = options.split_at_mut(OPTION_LENGTH);
    hop_by_hop::pad(before);
    hop_by_hop::pad(after);
    option[..4].copy_from_slice(&[OPTION, (OPTION_LENGTH - 2) as u8, 0, PRE_ALLOCATED]);
    let remaining = (SPACE / 4) as u32;
    let first = u32::from(NAMESPACE) << 16 | u32::from(NODE_WORDS) << 11 | remaining;
    write_words(&mut option[4..], [first, TRACE_TYPE << 8]);
}

/// Trace header, and the space for nodes.
struct Trace<'a> {
    head: u16,
    space: &'a [u8],
}

impl<'a> Trace<'a> {
    #[expect(clippy::indexing_slicing, reason = "the header was checked to be there")]
    fn of(data: &'a [u8]) -> Option<Self> {
        let header = data.get(2..HEADER_LENGTH)?;
        let (first, kind) = (word(header, 0)?, word(header, 1)?);
        let (head, space) = (first as u16, &data[HEADER_LENGTH..]);
        let is_ours =
            (first >> 16) as u16 == NAMESPACE && head >> 11 == NODE_WORDS && kind >> 8 == TRACE_TYPE;
        let fits = usize::from(head & REMAINING) * 4 <= space.len();
        (is_ours && fits).then_some(Self { head, space })
    }
}

/// Kind of node that writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Node {
    Ferroce,
    /// Linux, which writes all ones as wide data.
    Linux,
}

/// Writes a node's data into the option's data. Returns false, with O set, if there is no room.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "`Trace::of` found that what remains fits"
)]
pub(in crate::wire) fn stamp(data: &mut [u8], hop_limit: u8, port: &PortState, by: Node) -> bool {
    let Some(Trace { head, .. }) = Trace::of(data) else { return false };
    let remaining = head & REMAINING;
    let Some(left) = remaining.checked_sub(NODE_WORDS) else {
        data[4..6].copy_from_slice(&(head | OVERFLOW).to_be_bytes());
        return false;
    };
    data[4..6].copy_from_slice(&(head & !REMAINING | left).to_be_bytes());
    let (seconds, nanos) = (port.time / 1_000_000_000, port.time % 1_000_000_000);
    let wide = match by {
        Node::Ferroce => (nanos % 1000) << TX_BITS | port.tx_bytes & ((1 << TX_BITS) - 1),
        Node::Linux => u64::MAX,
    };
    let node = [
        u32::from(hop_limit) << 24 | u32::from(port.switch),
        seconds as u32,
        (nanos / 1000) as u32,
        to_kbps(port.rate),
        u32::try_from(port.queue).unwrap_or(UNAVAILABLE - 1),
        (wide >> 32) as u32,
        wide as u32,
    ];
    let at = HEADER_LENGTH + usize::from(left) * 4;
    write_words(&mut data[at..at + NODE_LENGTH], node);
    true
}

pub(in crate::wire) fn read(data: &[u8]) -> Option<Hops> {
    let Trace { head, space } = Trace::of(data)?;
    let (nodes, rest) = space.get(usize::from(head & REMAINING) * 4..)?.as_chunks::<NODE_LENGTH>();
    if !rest.is_empty() {
        return None;
    }
    let mut hops = Hops::default();
    for node in nodes.iter().rev() {
        hops.push(word(node, 0)? & 0xff_ffff, read_node(node)?);
    }
    Some(hops)
}

#[expect(clippy::arithmetic_side_effects, reason = "32 bits of seconds in ns stay below 2^62")]
fn read_node(node: &[u8; NODE_LENGTH]) -> Option<HopReading> {
    let micros = u64::from(word(node, 1)?) * 1_000_000 + u64::from(word(node, 2)?);
    let wide = u64::from(word(node, 5)?) << 32 | u64::from(word(node, 6)?);
    let queue = word(node, 4)?;
    let is_available = wide != u64::MAX;
    Some(HopReading {
        bandwidth: from_kbps(word(node, 3)?),
        time: match is_available {
            true => Counter::of::<32, 1>(micros * 1000 + (wide >> TX_BITS)),
            false => Counter::of::<32, 1000>(micros),
        },
        tx_bytes: is_available.then(|| Counter::of::<TX_BITS, 1>(wide)),
        queue: if queue == UNAVAILABLE { 0 } else { queue.into() },
    })
}
