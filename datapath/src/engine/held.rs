//! Frames to other processes of the interface that wait for room: one for each process, so that one which takes nothing holds up no other.

use crate::siblings::Pushed;

/// At most one frame for each process.
pub(super) struct Held<B>(Vec<(u8, B)>);

impl<B> Held<B> {
    pub(super) const fn new() -> Self {
        Self(Vec::new())
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether a frame waits for the process in `slot`.
    pub(super) fn has(&self, slot: u8) -> bool {
        self.0.iter().any(|(held, _)| *held == slot)
    }

    /// Keeps a frame for the process in `slot`. Returns it if one waits already.
    pub(super) fn keep(&mut self, slot: u8, frame: B) -> Option<B> {
        if self.has(slot) {
            return Some(frame);
        }
        self.0.push((slot, frame));
        None
    }

    /// Offers each frame to its process by `push`, and drops those that it takes.
    pub(super) fn send(&mut self, mut push: impl FnMut(u8, &B) -> Pushed) {
        self.0.retain(|(slot, frame)| push(*slot, frame) == Pushed::Full);
    }
}
