//! Doorbells: bits that posters set and the core clears, one for each queue with new requests.

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU64, Ordering};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU64, Ordering};

/// Most slots of a set of doorbells: three levels of 64-bit words.
pub const MAX_SLOTS: usize = 64 * 64 * 64;

/// A bit for each slot with new posts. If none is set, a turn costs one load, whatever the number of queue pairs.
///
/// The poster first puts its request into the ring. Then it sets the slot's bit, and then, on each higher level, the bit of the word below.
/// The core clears the bits from the top level down, then empties the ring. So a request in a ring always has its bits set.
#[derive(Debug)]
pub struct Doorbells {
    top: AtomicU64,
    /// The middle level. Empty if the top level has a bit for each word.
    summaries: Box<[AtomicU64]>,
    words: Box<[AtomicU64]>,
}

impl Doorbells {
    /// Creates doorbells for `slots` slots, at most [`MAX_SLOTS`].
    ///
    /// # Panics
    /// Panics if `slots` is larger.
    pub fn new(slots: usize) -> Self {
        assert!(slots <= MAX_SLOTS, "{slots} queue pairs: a core has at most {MAX_SLOTS}");
        let words = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        let bits = slots.div_ceil(64);
        let summaries = if bits > 64 { bits.div_ceil(64) } else { 0 };
        Self { top: AtomicU64::new(0), summaries: words(summaries), words: words(bits) }
    }

    /// Signals that the rings of `slot` have new entries.
    #[inline]
    pub fn ring(&self, slot: usize) {
        let mut word = slot / 64;
        self.words[word].fetch_or(1 << (slot % 64), Ordering::Release);
        if let Some(summary) = self.summaries.get(word / 64) {
            summary.fetch_or(1 << (word % 64), Ordering::Release);
            word /= 64;
        }
        self.top.fetch_or(1 << word, Ordering::Release);
    }

    /// Returns false only if no doorbell has rung since the last [`take`](Self::take).
    #[inline]
    #[must_use]
    pub fn are_rung(&self) -> bool {
        self.top.load(Ordering::Relaxed) != 0
    }

    /// Calls `serve` for each slot whose doorbell has rung since the last call. Returns true if any may have rung.
    pub fn take(&self, mut serve: impl FnMut(usize)) -> bool {
        // An idle turn must not write to a cache line that posters share.
        if !self.are_rung() {
            return false;
        }
        let mut take_word = |word: usize| {
            bits(self.words[word].swap(0, Ordering::Acquire)).for_each(|bit| serve(word * 64 + bit));
        };
        for place in bits(self.top.swap(0, Ordering::Acquire)) {
            match self.summaries.get(place) {
                None => take_word(place),
                Some(summary) => {
                    bits(summary.swap(0, Ordering::Acquire)).for_each(|word| take_word(place * 64 + word));
                }
            }
        }
        true
    }
}

/// Returns the positions of the set bits, lowest first.
fn bits(mut word: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = (word != 0).then(|| word.trailing_zeros() as usize)?;
        word &= word - 1;
        Some(bit)
    })
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

    #[test]
    fn a_hundred_thousand_have_a_third_level() {
        for slots in [4096, 4097, 100_000, MAX_SLOTS] {
            let doorbells = Doorbells::new(slots);
            let mut served = Vec::new();
            for slot in [slots - 1, 0, slots / 2, 4095, slots - 1] {
                doorbells.ring(slot);
            }
            assert!(doorbells.take(|slot| served.push(slot)));
            let mut rang = vec![0, 4095, slots / 2, slots - 1];
            rang.sort_unstable();
            rang.dedup();
            assert_eq!(served, rang);
            assert!(!doorbells.take(|slot| served.push(slot)));
        }
    }
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::thread;

    /// Two posters have slots in one word. The core takes once concurrently and once afterwards, and no post is left.
    #[test]
    fn a_post_always_has_its_bits() {
        model(2);
    }

    /// As [`a_post_always_has_its_bits`], with three levels.
    #[test]
    fn a_post_among_a_hundred_thousand_slots_always_has_its_bits() {
        model(4097);
    }

    fn model(slots: usize) {
        loom::model(move || {
            let doorbells = Arc::new(Doorbells::new(slots));
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
