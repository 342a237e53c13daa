//! Frames that are dropped instead of sent: while a fault holds the port down, or no buffer has been free for too long. The queue pairs send
//! them, so that retry timers run, which start when a frame is sent.

use crate::io::BURST;
use roce::Outbox;
use roce::qp::Waiting;

/// Up to [`BURST`] frames, of which only the number is kept.
pub(super) struct DiscardedFrames<'a> {
    /// Room for the longest frame.
    pub(super) buffer: &'a mut [u8],
    pub(super) count: usize,
    /// The waiting state of a queue pair with more frames.
    pub(super) waits_for: Waiting,
}

impl Outbox for DiscardedFrames<'_> {
    const SENDS: bool = false;

    fn room(&mut self) -> Option<&mut [u8]> {
        (self.count < BURST).then_some(&mut *self.buffer)
    }

    fn commit(&mut self, _length: usize) {
        self.count += 1;
    }

    fn why_full(&self) -> Waiting {
        self.waits_for
    }
}
