//! Delivers the frames of received datagrams: in place, or in buffers.

use crate::io::{BURST, Burst, PacketBuf};

/// One call of [`receive_in_place`](crate::io::PacketIo::receive_in_place).
pub(in crate::linux) struct InPlaceFrames<'a, B: PacketBuf, A, T> {
    others: &'a mut Burst<B>,
    alloc: A,
    take: T,
    taken: usize,
}

impl<'a, B: PacketBuf, A: FnMut() -> Option<B>, T: FnMut(&[u8]) -> bool> InPlaceFrames<'a, B, A, T> {
    pub(in crate::linux) fn new(others: &'a mut Burst<B>, alloc: A, take: T) -> Self {
        Self { others, alloc, take, taken: 0 }
    }

    /// Returns true if `take` accepted fewer than a burst of frames.
    #[inline]
    pub(in crate::linux) fn wants_more(&self) -> bool {
        self.taken < BURST
    }

    /// Passes a frame to `take`, and copies it to `others` if `take` refuses it. Returns false if `others` has no room or `alloc` returns
    /// no buffer.
    #[inline]
    pub(in crate::linux) fn offer(&mut self, frame: &[u8]) -> bool {
        if (self.take)(frame) {
            self.taken += 1;
            return true;
        }
        if self.others.is_full() {
            return false;
        }
        let Some(mut buffer) = (self.alloc)() else { return false };
        buffer.set_len(frame.len());
        buffer.copy_from_slice(frame);
        self.others.push(buffer);
        true
    }
}

pub(in crate::linux) fn free<B: PacketBuf>(from: &mut Burst<B>, count: usize) {
    if count == from.len() {
        return B::free_all(from);
    }
    let mut sent: Burst<B> = from.drain(..count).collect();
    B::free_all(&mut sent);
}
