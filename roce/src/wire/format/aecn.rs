//! Advanced ECN (draft-shi-ippm-advanced-ecn-00) as an IPv6 hop-by-hop option with a byte for each kind of information. Each switch
//! replaces a byte by its own value if that is higher, or adds its own value. The draft defines neither the option's type nor the units.

use super::port_state::KINDS;
use super::{Numbers, PortState, hop_by_hop};
use crate::wire::layers::Layers;

pub use super::port_state::{Load, ONE};

/// {flags 8, information type 24}.
const HEADER_LENGTH: usize = 4;
/// Flag: the information type is private, not a bitmap.
const CUSTOMIZED: u8 = 1;
/// Bitmap of all five kinds.
const ALL: u8 = 0xf8;
const OPTION_LENGTH: usize = 2 + HEADER_LENGTH + KINDS;
/// Length of the hop-by-hop header, bytes.
pub const INSERTED: usize = (hop_by_hop::HEADER_LENGTH + OPTION_LENGTH).next_multiple_of(8);

/// Factor from the unit of shares to 2^-20.
const TO_RATIO: u32 = (1 << 20) / 128;

#[derive(Clone, Copy)]
enum Operation {
    Max,
    Add,
}

const OPERATIONS: [Operation; KINDS] =
    [Operation::Max, Operation::Max, Operation::Max, Operation::Add, Operation::Add];

#[expect(clippy::indexing_slicing, reason = "the room is INSERTED bytes")]
pub(in crate::wire) fn insert(frame: &mut [u8], layers: &Layers, numbers: Numbers) {
    let options = hop_by_hop::open(frame, layers, INSERTED);
    let (option, after) = options.split_at_mut(OPTION_LENGTH);
    hop_by_hop::pad(after);
    option[..6].copy_from_slice(&[numbers.aecn_option(), (OPTION_LENGTH - 2) as u8, 0, ALL, 0, 0]);
}

/// Returns the known kinds of the bitmap; `None` if it is not a bitmap, or fields are missing.
fn kinds(data: &[u8]) -> Option<u8> {
    let [flags, kinds, _, _, fields @ ..] = data else { return None };
    let known = kinds & ALL;
    (flags & CUSTOMIZED == 0 && known.count_ones() as usize <= fields.len()).then_some(known)
}

/// Returns the kinds in a bitmap, in the order of their bytes.
fn present(bitmap: u8) -> impl Iterator<Item = usize> {
    (0..KINDS).filter(move |kind| bitmap & 0x80 >> kind != 0)
}

/// Writes a switch's values into the option's data, for the kinds that the sender requests. Returns whether there are any.
#[expect(clippy::indexing_slicing, reason = "`kinds` found the header; the kind is below KINDS")]
pub(in crate::wire) fn stamp(data: &mut [u8], port: &PortState) -> bool {
    let Some(kinds) = kinds(data) else { return false };
    let own = port.load.bytes();
    for (field, kind) in data[HEADER_LENGTH..].iter_mut().zip(present(kinds)) {
        *field = match OPERATIONS[kind] {
            Operation::Max => (*field).max(own[kind]),
            Operation::Add => field.saturating_add(own[kind]),
        };
    }
    kinds != 0
}

/// Reads the state of the path from the option's data; kinds that were not requested are 0.
#[must_use]
#[expect(clippy::indexing_slicing, reason = "`kinds` found the header; the kind is below KINDS")]
pub fn load(data: &[u8]) -> Option<Load> {
    let kinds = kinds(data)?;
    let mut all = [0; KINDS];
    for (field, kind) in data[HEADER_LENGTH..].iter().zip(present(kinds)) {
        all[kind] = *field;
    }
    let [inflight, rate, queue, delay, congested] = all;
    Some(Load { inflight, rate, queue, delay, congested })
}

/// Reads the path's in-flight share in 2^-20, if it was requested.
pub(in crate::wire) fn read(data: &[u8]) -> Option<u32> {
    kinds(data).filter(|kinds| kinds & 0x80 != 0)?;
    load(data).map(|load| u32::from(load.inflight) * TO_RATIO)
}
