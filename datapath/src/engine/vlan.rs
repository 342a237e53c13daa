//! 802.1Q tags of frames that belong to no queue pair. Address resolution and management handle untagged frames only.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use crate::neighbour;
use roce::wire::Vlan;

const TYPE: [u8; 2] = [0x81, 0x00];
/// Bytes of both Ethernet addresses, which precede the tag.
const ADDRESSES: usize = 12;
const LENGTH: usize = 4;

/// Bytes of the largest frame of address resolution or management: a datagram of 256 bytes and its headers.
pub(super) const ROOM: usize = 512;

pub(super) fn tag(frame: &[u8]) -> Option<Vlan> {
    let [a, b, high, low] = *frame.get(ADDRESSES..)?.first_chunk()?;
    ([a, b] == TYPE).then_some(Vlan(u16::from_be_bytes([high, low])))
}

/// Copies a tagged frame without its tag to `room`, truncated to the size of `room`, which is enough for the protocols handled here.
#[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "`tag` found the tag there")]
pub(super) fn without<'a>(frame: &[u8], room: &'a mut [u8; ROOM]) -> &'a [u8] {
    let rest = &frame[ADDRESSES + LENGTH..];
    let length = rest.len().min(ROOM - ADDRESSES);
    room[..ADDRESSES].copy_from_slice(&frame[..ADDRESSES]);
    room[ADDRESSES..][..length].copy_from_slice(&rest[..length]);
    &room[..ADDRESSES + length]
}

/// Returns true for a packet of address resolution, tagged or not.
pub(super) fn is_resolution(frame: &[u8]) -> bool {
    match tag(frame) {
        None => neighbour::is_resolution(frame),
        Some(_) => neighbour::is_resolution(without(frame, &mut [0; ROOM])),
    }
}

/// Inserts a tag into the frame in the first `length` bytes of `frame`. Returns the new length.
#[expect(
    clippy::arithmetic_side_effects,
    clippy::indexing_slicing,
    reason = "the frame is the core's own, in a buffer of the port's"
)]
pub(super) fn insert(vlan: Vlan, frame: &mut [u8], length: usize) -> usize {
    frame.copy_within(ADDRESSES..length, ADDRESSES + LENGTH);
    frame[ADDRESSES..][..2].copy_from_slice(&TYPE);
    frame[ADDRESSES + 2..][..2].copy_from_slice(&vlan.0.to_be_bytes());
    length + LENGTH
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inserted_tag_is_found_and_removed() {
        let plain: Vec<u8> = (0..60).collect();
        let mut frame = [plain.clone(), vec![0; 4]].concat();
        assert_eq!(tag(&plain), None);
        assert_eq!(insert(Vlan(0x6005), &mut frame, 60), 64);
        assert_eq!(tag(&frame), Some(Vlan(0x6005)));
        assert_eq!(without(&frame, &mut [0; ROOM]), plain);
        for cut in 0..16 {
            assert_eq!(tag(&frame[..cut]), None);
        }
        assert_eq!(without(&frame[..16], &mut [0; ROOM]), &plain[..12], "a tag, and nothing behind it");
    }
}
