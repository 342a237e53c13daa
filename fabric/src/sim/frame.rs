use datapath::io::PacketBuf;
use std::ops::{Deref, DerefMut};

/// A frame on its way, in a buffer that is used again.
#[derive(Debug)]
pub(super) struct Frame {
    bytes: Box<[u8]>,
    length: usize,
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[..self.length]
    }
}

impl PacketBuf for Frame {
    fn capacity(&self) -> usize {
        self.bytes.len()
    }

    fn set_len(&mut self, len: usize) {
        assert!(len <= self.bytes.len(), "a frame is no longer than its buffer");
        self.length = len;
    }
}

/// Buffers that wait to be used again.
pub(super) struct Frames {
    free: Vec<Frame>,
    capacity: usize,
}

impl Frames {
    pub(super) const fn new(capacity: usize) -> Self {
        Self { free: Vec::new(), capacity }
    }

    /// An empty frame.
    pub(super) fn take(&mut self) -> Frame {
        let mut frame = self
            .free
            .pop()
            .unwrap_or_else(|| Frame { bytes: vec![0; self.capacity].into_boxed_slice(), length: 0 });
        frame.length = frame.bytes.len();
        frame
    }

    pub(super) fn give_back(&mut self, frame: Frame) {
        self.free.push(frame);
    }
}
