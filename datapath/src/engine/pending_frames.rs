//! Queued frames to other processes of the interface whose rings are full, so that a stopped process delays no other.

use crate::io::BURST;
use crate::siblings::Pushed;

/// Most frames queued for one process: those that other cores had passed to core 0 before they were informed that its ring is full. Further
/// ones are lost, as in a switch.
const MAX_PER_PROCESS: usize = 2 * BURST;

/// Frames in order, each with the slot of the process that it is for.
pub(super) struct PendingFrames<B> {
    frames: Vec<(u8, B)>,
    /// A bit for each slot whose process has no room. On core 0, the slots of the frames above; on a worker core, a copy of core 0's.
    full: u64,
}

impl<B> PendingFrames<B> {
    pub(super) const fn new() -> Self {
        Self { frames: Vec::new(), full: 0 }
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// Returns the slots whose processes have no room, a bit for each.
    #[inline]
    pub(super) const fn full(&self) -> u64 {
        self.full
    }

    /// Stores the full slots that core 0 has determined.
    pub(super) const fn set_full(&mut self, full: u64) {
        self.full = full;
    }

    pub(super) const fn is_full(&self, slot: u8) -> bool {
        self.full & bit(slot) != 0
    }

    /// Queues a frame for the process in `slot`. Returns the frame if the limit for the process is reached.
    pub(super) fn push(&mut self, slot: u8, frame: B) -> Option<B> {
        if self.frames.iter().filter(|(waiting, _)| *waiting == slot).count() >= MAX_PER_PROCESS {
            return Some(frame);
        }
        self.full |= bit(slot);
        self.frames.push((slot, frame));
        None
    }

    /// Passes the frames to `push`, in order, and removes those that it accepts.
    pub(super) fn retry(&mut self, mut push: impl FnMut(u8, &B) -> Pushed) {
        self.full = 0;
        let full = &mut self.full;
        self.frames.retain(|(slot, frame)| {
            if *full & bit(*slot) == 0 && push(*slot, frame) == Pushed::Full {
                *full |= bit(*slot);
            }
            *full & bit(*slot) != 0
        });
    }
}

/// There are 64 slots.
const fn bit(slot: u8) -> u64 {
    1 << (slot % 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_a_process_stay_in_order_while_others_are_delivered() {
        let mut pending = PendingFrames::new();
        for (slot, frame) in [(1, 10), (2, 20), (1, 11), (2, 21)] {
            assert_eq!(pending.push(slot, frame), None);
        }
        let mut taken = Vec::new();
        pending.retry(|slot, frame| {
            taken.push(*frame);
            if slot == 1 || *frame == 21 { Pushed::Full } else { Pushed::Done }
        });
        assert_eq!((taken, pending.full()), (vec![10, 20, 21], 0b110), "11 does not pass 10");
        let mut rest = Vec::new();
        pending.retry(|_, frame| {
            rest.push(*frame);
            Pushed::Done
        });
        assert_eq!((rest, pending.full(), pending.is_empty()), (vec![10, 11, 21], 0, true));
    }

    #[test]
    fn frames_beyond_the_limit_are_returned() {
        let mut pending = PendingFrames::new();
        assert!((0..MAX_PER_PROCESS).all(|frame| pending.push(3, frame).is_none()));
        assert_eq!(pending.push(3, 99), Some(99));
        assert_eq!(pending.push(4, 99), None);
    }
}
