//! Where frames that leave are written.

use crate::qp::Waiting;

/// Room for frames, one after the other, until there is no more.
pub trait Outbox {
    /// Returns room for the next frame: MTU + [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD) bytes. Without a [`Self::commit`] between,
    /// it is the same again.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// The first `length` bytes of the room are a frame.
    fn commit(&mut self, length: usize);

    /// Returns what a queue pair with more to send waits for, once there is no room.
    fn why_full(&self) -> Waiting {
        Waiting::Turn
    }
}

/// Room for one frame.
pub(super) struct Single<'a> {
    frame: &'a mut [u8],
    length: Option<usize>,
}

impl<'a> Single<'a> {
    pub(super) const fn new(frame: &'a mut [u8]) -> Self {
        Self { frame, length: None }
    }

    /// The length of the frame that was written.
    pub(super) const fn length(&self) -> Option<usize> {
        self.length
    }
}

impl Outbox for Single<'_> {
    #[inline]
    fn room(&mut self) -> Option<&mut [u8]> {
        self.length.is_none().then_some(&mut *self.frame)
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.length = Some(length);
    }
}
