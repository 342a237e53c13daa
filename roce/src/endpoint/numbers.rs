//! Queue pair numbers: unguessable, and found in O(1).

use crate::Qpn;
use core::cell::Cell;

/// A number's low bits, which one core's queue pairs share; above them stands the core.
const BITS: u32 = 18;
const HALF: u32 = BITS / 2;
const HALF_MASK: u32 = (1 << HALF) - 1;

/// Queue pairs that one core's numbers can tell apart.
pub(super) const MAX_QPS: u32 = 1 << BITS;

/// Cores that numbers can tell apart.
const CORES: u8 = 1 << (24 - BITS);

const ROUNDS: usize = 6;
/// Numbers whose slots are remembered.
const RECENT: usize = 16;

/// Queue pair numbers: 6 bits for the core, then 18 that are a secret permutation of slot and generation. Numbers are
/// not guessed from one another, and a slot's next queue pair has another number.
pub(super) struct QpNumbers {
    core: u8,
    slot_bits: u32,
    keys: [u32; ROUNDS],
    /// Numbers looked up lately, with their slots: packets of a queue pair come in bursts.
    recent: [Cell<(u32, u32)>; RECENT],
}

impl QpNumbers {
    pub(super) fn new(core: u8, slots: u32, secret: &[u8; 32]) -> Self {
        let key = |i: usize| {
            let at = i * 4;
            u32::from_le_bytes([secret[at], secret[at + 1], secret[at + 2], secret[at + 3]])
        };
        let mut numbers = Self {
            core: core % CORES,
            slot_bits: slots.clamp(1, MAX_QPS).next_power_of_two().ilog2(),
            keys: core::array::from_fn(key),
            recent: Default::default(),
        };
        // What is remembered is true from the start.
        let zero = numbers.open(0);
        numbers.recent = core::array::from_fn(|_| Cell::new((0, zero)));
        numbers
    }

    /// The number of the queue pair that is the `generation`th in `slot`; `None` where the number is one that the
    /// architecture keeps for itself: 0, 1 and all ones (IBA 3.5.3).
    pub(super) fn seal(&self, slot: u32, generation: u32) -> Option<Qpn> {
        let value = generation.checked_shl(self.slot_bits).unwrap_or(0) | slot;
        let (mut left, mut right) = (value >> HALF & HALF_MASK, value & HALF_MASK);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key));
        }
        let number = u32::from(self.core) << BITS | left << HALF | right;
        (!matches!(number, 0 | 1 | 0xff_ffff)).then_some(Qpn::new(number))
    }

    /// Whether a slot's numbers begin again with this generation.
    pub(super) const fn goes_round(&self, generation: u32) -> bool {
        generation.trailing_zeros() >= BITS - self.slot_bits
    }

    /// The slot that `qpn` would be in.
    #[inline]
    pub(super) fn slot(&self, qpn: Qpn) -> u32 {
        let number = qpn.get();
        let recent = &self.recent[number as usize % RECENT];
        let (known, slot) = recent.get();
        if known == number {
            return slot;
        }
        let slot = self.open(number);
        recent.set((number, slot));
        slot
    }

    fn open(&self, number: u32) -> u32 {
        let (mut left, mut right) = (number >> HALF & HALF_MASK, number & HALF_MASK);
        for &key in self.keys.iter().rev() {
            (left, right) = (right ^ mix(left, key), left);
        }
        (left << HALF | right) & ((1 << self.slot_bits) - 1)
    }
}

/// Keyed bits of half a number.
const fn mix(half: u32, key: u32) -> u32 {
    let x = (half ^ key).wrapping_mul(0x9e37_79b1);
    (x ^ x >> 15).wrapping_mul(0x85eb_ca77) >> (32 - HALF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_slot_and_generation_has_its_own_number() {
        let numbers = QpNumbers::new(7, 1000, &core::array::from_fn(|i| i as u8));
        let mut seen = BTreeSet::new();
        for generation in 0..64 {
            for slot in 0..1024 {
                let qpn = numbers.seal(slot, generation).unwrap();
                assert_eq!(numbers.slot(qpn), slot);
                assert_eq!(numbers.slot(qpn), slot, "remembered");
                assert_eq!(qpn.get() >> BITS, 7);
                assert!(seen.insert(qpn.get()));
            }
        }
    }

    /// IBA 3.5.3: the numbers of the management queue pairs and of multicast are not given.
    #[test]
    fn numbers_that_are_kept_are_not_given() {
        let numbers = QpNumbers::new(0, MAX_QPS, &[9; 32]);
        let refused = (0..MAX_QPS).filter(|&slot| numbers.seal(slot, 0).is_none()).count();
        assert_eq!(refused, 2);
    }
}
