//! Queue pair numbers: hard to guess, found in O(1), and not reused for [`QPN_QUARANTINE`].

use crate::Qpn;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use cc::Instant;
use core::cell::Cell;
use core::time::Duration;

/// Time for which the number of a destroyed queue pair is not reused. Its peer may still retransmit, and the network may delay packets. The
/// time is twice the longest duration of the default 7 retries with a timeout of 67 ms. That duration assumes that each timeout is four
/// times as long, as IBA 9.7.6.1.3 allows.
pub const QPN_QUARANTINE: Duration = Duration::from_secs(4);

/// Low bits of a number, for the queue pairs of one process. The bits above contain the number of the process.
const BITS: u32 = 18;

/// Processes that queue pair numbers can distinguish.
const PROCESSES: u8 = 1 << (24 - BITS);

const ROUNDS: usize = 6;
/// Entries of the cache of looked up numbers.
const RECENT: usize = 16;

/// Slot of a number without a queue pair.
const NO_SLOT: u32 = u32::MAX;

/// Returns the process in the top 6 bits of `qpn`, among those that share an interface.
#[inline]
#[must_use]
pub const fn process_of(qpn: Qpn) -> u8 {
    (qpn.get() >> BITS) as u8
}

/// Core of a port, as encoded in the numbers of its queue pairs: in 0, 2 or 4 bits below the 6 bits of the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreIndex {
    /// Number of bits; even, so that the rest of a number has two halves.
    bits: u32,
    index: u8,
}

impl CoreIndex {
    /// Only core of a port.
    pub const ONLY: Self = Self { bits: 0, index: 0 };

    /// Limit of the cores of a port.
    pub const MAX: u8 = 16;

    /// Creates the index of core `index` of `cores`, at most [`MAX`](Self::MAX).
    #[must_use]
    pub const fn new(index: u8, cores: u8) -> Self {
        let bits = match cores {
            0 | 1 => 0,
            2..=4 => 2,
            _ => 4,
        };
        Self { bits, index }
    }

    /// Returns the core's index among all cores of the port.
    #[must_use]
    pub const fn index(self) -> u8 {
        self.index
    }

    /// Returns the index of the core in `qpn`, for a port with as many cores as this one's.
    #[inline]
    #[must_use]
    pub const fn named_by(self, qpn: Qpn) -> u8 {
        (qpn.get() >> self.low_bits()) as u8 & ((1 << self.bits) - 1)
    }

    /// Returns the index of the core in `qpn`, for a port with as many cores as this one's, which belongs to `process`. The index is beyond
    /// all cores if the number belongs to another process.
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

    /// Returns the number of bits of a queue pair number below those of the core.
    #[must_use]
    pub const fn low_bits(self) -> u32 {
        BITS - self.bits
    }
}

/// Queue pair numbers: 6 bits for the process, those of the core, then a secret permutation of an index, so that a number reveals no other.
/// Each index is used once before any is reused, whatever the queue pair's slot in the table.
pub(super) struct QpNumbers {
    /// Bits of all numbers of the core above the permutation.
    prefix: u32,
    /// Bits of the permutation, and of half of it.
    bits: u32,
    half: u32,
    keys: [u32; ROUNDS],
    /// Slot in the table of the last queue pair with each index. Indexes beyond the end were never used.
    slots: Vec<u32>,
    /// Indexes of destroyed queue pairs, in the order of their destruction, and until when each is not reused.
    quarantined: VecDeque<(Instant, u32)>,
    /// Cache of looked up numbers with their slots: packets of a queue pair arrive in bursts.
    recent: [Cell<(u32, u32)>; RECENT],
}

impl QpNumbers {
    pub(super) fn new(process: u8, core: CoreIndex, secret: &[u8; 32]) -> Self {
        let key = |i: usize| {
            let at = i * 4;
            u32::from_le_bytes([secret[at], secret[at + 1], secret[at + 2], secret[at + 3]])
        };
        let bits = core.low_bits();
        Self {
            prefix: u32::from(process % PROCESSES) << BITS | u32::from(core.index) << bits,
            bits,
            half: bits / 2,
            keys: core::array::from_fn(key),
            slots: Vec::new(),
            quarantined: VecDeque::new(),
            // No queue pair has number 0.
            recent: core::array::from_fn(|_| Cell::new((0, NO_SLOT))),
        }
    }

    /// Assigns a number to a new queue pair at `slot`: one that was never used, otherwise the one that was released first. Returns `None`
    /// if every number is in use, or was in use less than [`QPN_QUARANTINE`] ago.
    pub(super) fn assign(&mut self, now: Instant, slot: u32) -> Option<Qpn> {
        while (self.slots.len() as u32) < 1 << self.bits {
            let index = self.slots.len() as u32;
            self.slots.push(NO_SLOT);
            if let Some(qpn) = self.permute(index) {
                return Some(self.assign_slot(index, qpn, slot));
            }
        }
        let &(_, index) = self.quarantined.front().filter(|&&(until, _)| until <= now)?;
        self.quarantined.pop_front();
        self.permute(index).map(|qpn| self.assign_slot(index, qpn, slot))
    }

    fn assign_slot(&mut self, index: u32, qpn: Qpn, slot: u32) -> Qpn {
        self.slots[index as usize] = slot;
        self.recent[qpn.get() as usize % RECENT].set((qpn.get(), slot));
        qpn
    }

    /// Releases the number of a destroyed queue pair, to be reused after [`QPN_QUARANTINE`].
    pub(super) fn release(&mut self, now: Instant, qpn: Qpn) {
        self.quarantined.push_back((now + QPN_QUARANTINE, self.invert(qpn.get())));
    }

    /// Returns the number of an index; `None` for the reserved numbers 0, 1 and all ones (IBA 3.5.3).
    fn permute(&self, index: u32) -> Option<Qpn> {
        let (mut left, mut right) = self.halves(index);
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key, self.half));
        }
        let number = self.prefix | left << self.half | right;
        (!matches!(number, 0 | 1 | 0xff_ffff)).then_some(Qpn::new(number))
    }

    const fn halves(&self, index: u32) -> (u32, u32) {
        let mask = (1 << self.half) - 1;
        (index >> self.half & mask, index & mask)
    }

    #[inline]
    pub(super) fn slot_of(&self, qpn: Qpn) -> u32 {
        let number = qpn.get();
        let recent = &self.recent[number as usize % RECENT];
        let (known, slot) = recent.get();
        if known == number {
            return slot;
        }
        let slot = self.slots.get(self.invert(number) as usize).copied().unwrap_or(NO_SLOT);
        recent.set((number, slot));
        slot
    }

    fn invert(&self, number: u32) -> u32 {
        let (mut left, mut right) = self.halves(number);
        for &key in self.keys.iter().rev() {
            (left, right) = (right ^ mix(left, key, self.half), left);
        }
        left << self.half | right
    }
}

/// Returns the keyed round function of half a number, `bits` long.
const fn mix(half: u32, key: u32, bits: u32) -> u32 {
    let x = (half ^ key).wrapping_mul(0x9e37_79b1);
    (x ^ x >> 15).wrapping_mul(0x85eb_ca77) >> (32 - bits)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    fn all(numbers: &mut QpNumbers) -> Vec<Qpn> {
        (0..).map_while(|slot| numbers.assign(Instant::ZERO, slot)).collect()
    }

    #[test]
    fn every_queue_pair_has_its_own_number_which_names_process_and_core() {
        for (cores, bits) in [(1, 0), (2, 2), (4, 2), (5, 4), (16, 4)] {
            for index in [0, cores - 1] {
                let core = CoreIndex::new(index, cores);
                assert_eq!(core.max_qps(), 1 << (BITS - bits));
                let mut numbers = QpNumbers::new(9, core, &[3; 32]);
                let qpns = all(&mut numbers);
                assert_eq!(qpns.len() as u32, core.max_qps());
                assert_eq!(qpns.iter().map(|qpn| qpn.get()).collect::<BTreeSet<_>>().len(), qpns.len());
                for (slot, &qpn) in (0..).zip(&qpns) {
                    assert_eq!((process_of(qpn), core.named_by(qpn)), (9, index), "core {index} of {cores}");
                    assert_eq!(core.place_of(9, qpn), index.into());
                    assert!([0, 8, 10, 63].iter().all(|&other| core.place_of(other, qpn) >= 1 << bits));
                    assert_eq!(
                        [numbers.slot_of(qpn), numbers.slot_of(qpn)],
                        [slot; 2],
                        "the second is remembered"
                    );
                }
            }
        }
    }

    /// IBA 3.5.3: the numbers of the management queue pairs and of multicast are not used.
    #[test]
    fn reserved_numbers_are_not_assigned() {
        let mut numbers = QpNumbers::new(0, CoreIndex::ONLY, &[9; 32]);
        let qpns = all(&mut numbers);
        assert_eq!(qpns.len() as u32, CoreIndex::ONLY.max_qps() - 2);
        assert!(qpns.iter().all(|qpn| qpn.get() > 1));
    }

    #[test]
    fn a_released_number_is_assigned_again_after_its_quarantine() {
        let core = CoreIndex::new(1, 16);
        let mut numbers = QpNumbers::new(0, core, &[7; 32]);
        let qpns = all(&mut numbers);
        let at = |millis| Instant::ZERO + Duration::from_millis(millis);
        numbers.release(at(10), qpns[5]);
        numbers.release(at(20), qpns[3]);
        let quarantine = QPN_QUARANTINE.as_millis() as u64;
        assert_eq!(numbers.assign(at(quarantine + 9), 77), None);
        assert_eq!(numbers.assign(at(quarantine + 10), 77), Some(qpns[5]));
        assert_eq!(numbers.slot_of(qpns[5]), 77);
        assert_eq!(numbers.assign(at(quarantine + 10), 78), None);
        assert_eq!(numbers.assign(at(quarantine + 20), 78), Some(qpns[3]));
    }
}
