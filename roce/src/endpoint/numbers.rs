//! Queue pair numbers: unguessable, and found in O(1).

use crate::Qpn;
use core::cell::Cell;

/// The low bits of a number, for the queue pairs of one process; the bits above name the process.
const BITS: u32 = 18;

/// The number of processes that QPNs can name.
const PROCESSES: u8 = 1 << (24 - BITS);

const ROUNDS: usize = 6;
/// The number of QPNs whose slots are remembered.
const RECENT: usize = 16;

/// Returns the process that `qpn` names by its top 6 bits: one of those that share an interface.
#[inline]
#[must_use]
pub const fn process_of(qpn: Qpn) -> u8 {
    (qpn.get() >> BITS) as u8
}

/// A core among those behind one port, as the numbers of its queue pairs name it: by 0, 2 or 4 bits below the process's 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreIndex {
    /// Even, so that the rest of a number has two halves.
    bits: u32,
    index: u8,
}

impl CoreIndex {
    /// The only core of a port.
    pub const ONLY: Self = Self { bits: 0, index: 0 };

    /// The largest number of cores behind a port.
    pub const MOST: u8 = 16;

    /// Returns the name of core `index` of `cores`, at most [`MOST`](Self::MOST).
    #[must_use]
    pub const fn new(index: u8, cores: u8) -> Self {
        let bits = match cores {
            0 | 1 => 0,
            2..=4 => 2,
            _ => 4,
        };
        Self { bits, index }
    }

    /// Returns the core's place among all cores of the port.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.index
    }

    /// Returns the place of the core that `qpn` names, of a port with as many cores as this one's.
    #[inline]
    #[must_use]
    pub const fn named_by(self, qpn: Qpn) -> u8 {
        (qpn.get() >> self.low_bits()) as u8 & ((1 << self.bits) - 1)
    }

    /// Returns the place of the core that `qpn` names, of a port with as many cores as this one's, which belongs to `process`. The place is
    /// beyond all cores if the number is another process's.
    #[inline]
    #[must_use]
    pub const fn place_of(self, process: u8, qpn: Qpn) -> u32 {
        (qpn.get() >> self.low_bits()).wrapping_sub((process as u32) << self.bits)
    }

    /// Returns the number of queue pairs that the numbers of one core can distinguish.
    #[must_use]
    pub const fn max_qps(self) -> u32 {
        1 << self.low_bits()
    }

    /// Returns the number of bits of a QPN below those that name the core.
    #[must_use]
    pub const fn low_bits(self) -> u32 {
        BITS - self.bits
    }
}

/// Queue pair numbers: 6 bits for the process, those of the core, then a secret permutation of slot and generation. Numbers are
/// not guessed from one another, and a slot's next queue pair has another number.
pub(super) struct QpNumbers {
    /// The bits that all numbers of the core have above the permutation.
    prefix: u32,
    /// Bits of the permutation, and of a half of it.
    bits: u32,
    half: u32,
    slot_bits: u32,
    keys: [u32; ROUNDS],
    /// Recently looked up numbers with their slots: packets of a queue pair come in bursts.
    recent: [Cell<(u32, u32)>; RECENT],
}

impl QpNumbers {
    pub(super) fn new(process: u8, core: CoreIndex, slots: u32, secret: &[u8; 32]) -> Self {
        let key = |i: usize| {
            let at = i * 4;
            u32::from_le_bytes([secret[at], secret[at + 1], secret[at + 2], secret[at + 3]])
        };
        let bits = core.low_bits();
        let mut numbers = Self {
            prefix: u32::from(process % PROCESSES) << BITS | u32::from(core.index) << bits,
            bits,
            half: bits / 2,
            slot_bits: slots.clamp(1, 1 << bits).next_power_of_two().ilog2(),
            keys: core::array::from_fn(key),
            recent: Default::default(),
        };
        // The remembered pair is valid from the start.
        let zero = numbers.open(0);
        numbers.recent = core::array::from_fn(|_| Cell::new((0, zero)));
        numbers
    }

    /// Returns the number of the `generation`th queue pair in `slot`; `None` if the number is one that the
    /// architecture keeps for itself: 0, 1 and all ones (IBA 3.5.3).
    pub(super) fn seal(&self, slot: u32, generation: u32) -> Option<Qpn> {
        let value = generation.checked_shl(self.slot_bits).unwrap_or(0) | slot;
        let (mut left, mut right) = self.halves(value);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key, self.half));
        }
        let number = self.prefix | left << self.half | right;
        (!matches!(number, 0 | 1 | 0xff_ffff)).then_some(Qpn::new(number))
    }

    /// Returns true if a slot's numbers begin again with this generation.
    pub(super) const fn goes_round(&self, generation: u32) -> bool {
        generation.trailing_zeros() >= self.bits - self.slot_bits
    }

    const fn halves(&self, value: u32) -> (u32, u32) {
        let mask = (1 << self.half) - 1;
        (value >> self.half & mask, value & mask)
    }

    /// Returns the slot that `qpn` would be in.
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
        let (mut left, mut right) = self.halves(number);
        for &key in self.keys.iter().rev() {
            (left, right) = (right ^ mix(left, key, self.half), left);
        }
        (left << self.half | right) & ((1 << self.slot_bits) - 1)
    }
}

/// Returns `bits` keyed bits of half a number.
const fn mix(half: u32, key: u32, bits: u32) -> u32 {
    let x = (half ^ key).wrapping_mul(0x9e37_79b1);
    (x ^ x >> 15).wrapping_mul(0x85eb_ca77) >> (32 - bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_slot_and_generation_has_its_own_number() {
        let numbers = QpNumbers::new(7, CoreIndex::ONLY, 1000, &core::array::from_fn(|i| i as u8));
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

    #[test]
    fn a_number_names_the_process_and_the_core() {
        for (cores, bits) in [(1, 0), (2, 2), (4, 2), (5, 4), (16, 4)] {
            for index in 0..cores {
                let core = CoreIndex::new(index, cores);
                let numbers = QpNumbers::new(9, core, core.max_qps(), &[3; 32]);
                assert_eq!(core.max_qps(), 1 << (BITS - bits));
                for slot in [0, 1, 77, core.max_qps() - 1] {
                    let Some(qpn) = numbers.seal(slot, 0) else { continue };
                    assert_eq!((process_of(qpn), core.named_by(qpn)), (9, index), "core {index} of {cores}");
                    assert_eq!(core.place_of(9, qpn), index.into());
                    assert!([0, 8, 10, 63].iter().all(|&other| core.place_of(other, qpn) >= 1 << bits));
                    assert_eq!(numbers.slot(qpn), slot);
                }
            }
        }
    }

    /// IBA 3.5.3: the numbers of the management queue pairs and of multicast are not used.
    #[test]
    fn numbers_that_are_kept_are_not_given() {
        let numbers = QpNumbers::new(0, CoreIndex::ONLY, CoreIndex::ONLY.max_qps(), &[9; 32]);
        let refused = (0..CoreIndex::ONLY.max_qps()).filter(|&slot| numbers.seal(slot, 0).is_none()).count();
        assert_eq!(refused, 2);
    }
}
