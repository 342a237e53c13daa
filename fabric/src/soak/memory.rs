//! Memory and frame buffers of the soak test's hosts.

use datapath::io::PacketBuf;
use roce::{AccessError, Memory, Slice};
use std::ops::{Deref, DerefMut, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address of every host's memory.
pub(super) const BASE: u64 = 0x7000_0000_0000;

pub(super) struct Ram(pub(super) Vec<u8>);

impl Ram {
    fn range(at: Slice) -> Range<usize> {
        let from = (at.address() - BASE) as usize;
        from..from + at.len() as usize
    }

    fn word(&mut self, at: Slice, change: impl FnOnce(u64) -> u64) -> u64 {
        let place = &mut self.0[Self::range(at)];
        let before = place.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte));
        place.copy_from_slice(&change(before).to_le_bytes());
        before
    }

    pub(super) fn bytes(&self, offset: u64, length: u32) -> &[u8] {
        &self.0[offset as usize..offset as usize + length as usize]
    }
}

impl Memory for Ram {
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError> {
        self.0[Self::range(to)].copy_from_slice(bytes);
        Ok(())
    }

    fn gather(&self, from: Slice, into: &mut [u8]) -> Result<(), AccessError> {
        into.copy_from_slice(&self.0[Self::range(from)]);
        Ok(())
    }

    fn fetch_add(&mut self, at: Slice, add: u64) -> Result<u64, AccessError> {
        Ok(self.word(at, |word| word.wrapping_add(add)))
    }

    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> Result<u64, AccessError> {
        Ok(self.word(at, |word| if word == compare { swap } else { word }))
    }
}

/// A frame buffer. `alive` counts buffers, so that the test detects leaks.
pub(super) struct Buffer {
    bytes: Vec<u8>,
    capacity: usize,
    alive: Arc<AtomicUsize>,
}

impl Buffer {
    pub(super) fn new(bytes: &[u8], alive: &Arc<AtomicUsize>) -> Self {
        alive.fetch_add(1, Ordering::Relaxed);
        Self { bytes: bytes.to_vec(), capacity: bytes.len(), alive: Arc::clone(alive) }
    }

    pub(super) fn with_capacity(mut self, capacity: usize) -> Self {
        self.capacity = capacity;
        self
    }

    pub(super) fn again(&self) -> Self {
        Self::new(&self.bytes, &self.alive)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.alive.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes
    }
}

impl PacketBuf for Buffer {
    fn capacity(&self) -> usize {
        self.capacity
    }

    fn set_len(&mut self, len: usize) {
        self.bytes.resize(len, 0);
    }
}
