//! Copies payload between packets and the buffers of a work request.

use super::wqe::MAX_MESSAGE;
use super::{Data, Sge};
use crate::{Access, AccessError, Memory, PdId, RegionTable, Slice};

/// Returns the parts of `buffers` that hold bytes `offset` to `offset + length` of the message.
fn parts(buffers: &[Sge], offset: u32, length: u32) -> impl Iterator<Item = Sge> {
    let mut skip = u64::from(offset);
    let mut left = u64::from(length);
    buffers.iter().filter_map(move |sge| {
        let size = u64::from(sge.length);
        let from = skip.min(size);
        skip -= from;
        let take = (size - from).min(left);
        left -= take;
        (take > 0).then(|| Sge { address: sge.address.wrapping_add(from), length: take as u32, ..*sge })
    })
}

/// Copies the bytes of the message from `offset` on into a packet.
#[inline(always)]
pub(super) fn gather<M: Memory>(
    memory: &M,
    regions: &RegionTable,
    pd: PdId,
    data: &Data,
    offset: u32,
    into: &mut [u8],
) -> Result<(), AccessError> {
    match data {
        Data::Inline(bytes) => {
            let offset = offset as usize;
            into.copy_from_slice(&bytes[offset..offset + into.len()]);
        }
        Data::Buffers(buffers) => {
            // Fast path: nearly all requests have one buffer.
            if let [sge] = buffers.as_slice()
                && into.len() as u64 + u64::from(offset) <= u64::from(sge.length)
                && !into.is_empty()
            {
                let (address, length) = (sge.address.wrapping_add(offset.into()), into.len() as u32);
                let slice = regions.local(sge.lkey, pd, address, length, Access::LOCAL_READ)?;
                return memory.gather(slice, into);
            }
            let mut at = 0;
            for sge in parts(buffers, offset, into.len() as u32) {
                let slice = regions.local(sge.lkey, pd, sge.address, sge.length, Access::LOCAL_READ)?;
                let length = sge.length as usize;
                memory.gather(slice, &mut into[at..at + length])?;
                at += length;
            }
        }
    }
    Ok(())
}

/// Copies a packet's payload to byte `offset` of the message in `buffers`. The caller must have checked that it fits. If a buffer fails its
/// check, no byte is copied; if the memory of a buffer is gone, some may be.
pub(super) fn place<M: Memory>(
    memory: &mut M,
    regions: &RegionTable,
    pd: PdId,
    buffers: &[Sge],
    offset: u32,
    bytes: &[u8],
) -> Result<(), AccessError> {
    let length = bytes.len() as u32;
    let check = |sge: Sge| -> Result<Slice, AccessError> {
        regions.local(sge.lkey, pd, sge.address, sge.length, Access::LOCAL_WRITE)
    };
    for sge in parts(buffers, offset, length) {
        check(sge)?;
    }
    let mut at = 0;
    for sge in parts(buffers, offset, length) {
        let end = at + sge.length as usize;
        memory.place(check(sge)?, &bytes[at..end])?;
        at = end;
    }
    Ok(())
}

/// Returns the length of the longest message that fits into `buffers`, at most 2^31 bytes (IBA 9.7.4.1.6).
pub(super) fn room(buffers: &[Sge]) -> u32 {
    let held: u64 = buffers.iter().map(|sge| u64::from(sge.length)).sum();
    u32::try_from(held).map_or(MAX_MESSAGE, |held| held.min(MAX_MESSAGE))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Lkey;
    use alloc::vec::Vec;

    #[test]
    fn a_stretch_crosses_buffers_and_skips_empty_ones() {
        let sge = |address, length| Sge { address, length, lkey: Lkey::new(1) };
        let buffers = [sge(100, 10), sge(200, 0), sge(300, 10), sge(400, 10)];
        let found: Vec<_> = parts(&buffers, 8, 14).map(|s| (s.address, s.length)).collect();
        assert_eq!(found, [(108, 2), (300, 10), (400, 2)]);
        assert_eq!(parts(&buffers, 30, 0).count(), 0);
    }

    #[test]
    fn the_room_of_a_buffer_list_is_at_most_the_longest_message() {
        let sge = |length| Sge { address: 0, length, lkey: Lkey::new(1) };
        assert_eq!((room(&[]), room(&[sge(3), sge(4)])), (0, 7));
        for large in [[sge(1 << 31), sge(1)], [sge(u32::MAX), sge(u32::MAX)], [sge(0), sge(u32::MAX)]] {
            assert_eq!(room(&large), 1 << 31);
        }
    }
}
