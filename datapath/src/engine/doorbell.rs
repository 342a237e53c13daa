#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Slots that a set of doorbells can have: one word says which of 64 words have bits.
pub const MAX_SLOTS: usize = 64 * 64;

/// Which queue pairs have posts. Thousands of idle ones cost one load a turn.
///
/// The poster first puts its request into the ring, then sets the slot's bit, then the word's bit in the summary.
/// The core clears in the opposite order and then empties the ring, so a request is never left in a ring
/// without a bit.
#[derive(Debug)]
pub struct Doorbells {
    summary: AtomicU64,
    words: Box<[AtomicU64]>,
}

impl Doorbells {
    /// Doorbells for `slots`, at most [`MAX_SLOTS`].
    pub fn new(slots: usize) -> Self {
        assert!(slots <= MAX_SLOTS, "{slots} queue pairs: a core has at most {MAX_SLOTS}");
        Self {
            summary: AtomicU64::new(0),
            words: (0..slots.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        }
    }

    /// Says that the slot's rings have something new.
    pub fn ring(&self, slot: usize) {
        self.words[slot / 64].fetch_or(1 << (slot % 64), Ordering::Release);
        self.summary.fetch_or(1 << (slot / 64), Ordering::Release);
    }

    /// Calls `serve` for each slot that rang since the last time; tells whether any did.
    pub fn take(&self, mut serve: impl FnMut(usize)) -> bool {
        // The common case, nothing to do, must not write a line that posters share.
        if self.summary.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let mut summary = self.summary.swap(0, Ordering::Acquire);
        while summary != 0 {
            let word = summary.trailing_zeros() as usize;
            summary &= summary - 1;
            let mut bits = self.words[word].swap(0, Ordering::Acquire);
            while bits != 0 {
                serve(word * 64 + bits.trailing_zeros() as usize);
                bits &= bits - 1;
            }
        }
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_ring_is_served_once() {
        let doorbells = Doorbells::new(200);
        let mut served = Vec::new();
        assert!(!doorbells.take(|slot| served.push(slot)));
        for slot in [199, 0, 63, 64, 0] {
            doorbells.ring(slot);
        }
        assert!(doorbells.take(|slot| served.push(slot)));
        assert_eq!(served, [0, 63, 64, 199]);
        assert!(!doorbells.take(|slot| served.push(slot)));
    }
}

/// `ci/loom` runs it.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two posters on slots of one word, a core that takes twice and once more at rest: nothing posted is left.
    #[test]
    fn nothing_stays_in_a_ring_without_a_bit() {
        loom::model(|| {
            let doorbells = Arc::new(Doorbells::new(2));
            let rings = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
            let posters: Vec<_> = (0..2)
                .map(|slot| {
                    let (doorbells, rings) = (doorbells.clone(), rings.clone());
                    thread::spawn(move || {
                        rings[slot].store(1, Ordering::Relaxed);
                        doorbells.ring(slot);
                    })
                })
                .collect();
            let mut taken = 0;
            doorbells.take(|slot| taken += rings[slot].swap(0, Ordering::Relaxed));
            for poster in posters {
                poster.join().unwrap();
            }
            doorbells.take(|slot| taken += rings[slot].swap(0, Ordering::Relaxed));
            assert_eq!(taken, 2);
        });
    }
}
