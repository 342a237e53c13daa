use crate::Qpn;

/// Queue pairs that one core's numbers can tell apart: the 16 bits below the core's byte.
pub(super) const MAX_QPS: u32 = 1 << 16;

const ROUNDS: usize = 6;

/// Queue pair numbers: a core's byte, then 16 bits that are a secret permutation of slot and generation. Numbers are
/// not guessed from one another, and a slot's next queue pair has another number.
pub(super) struct Numbers {
    core: u8,
    slot_bits: u32,
    keys: [u32; ROUNDS],
}

impl Numbers {
    pub(super) fn new(core: u8, slots: u32, secret: &[u8; 32]) -> Self {
        let key = |i: usize| {
            let at = i * 4;
            u32::from_le_bytes([secret[at], secret[at + 1], secret[at + 2], secret[at + 3]])
        };
        Self {
            core,
            slot_bits: slots.clamp(1, MAX_QPS).next_power_of_two().ilog2(),
            keys: core::array::from_fn(key),
        }
    }

    /// The number of the queue pair that is the `generation`th in `slot`; `None` where the number is one that the
    /// architecture keeps for itself: 0, 1 and all ones (IBA 3.5.3).
    pub(super) fn seal(&self, slot: u32, generation: u32) -> Option<Qpn> {
        let value = (generation << self.slot_bits | slot) as u16;
        let [mut left, mut right] = value.to_be_bytes();
        for key in self.keys {
            (left, right) = (right, left ^ mix(right, key));
        }
        let sealed = u32::from(u16::from_be_bytes([left, right]));
        let number = u32::from(self.core) << 16 | sealed;
        (!matches!(number, 0 | 1 | 0xff_ffff)).then_some(Qpn::new(number))
    }

    /// The slot that `qpn` would be in.
    pub(super) fn slot(&self, qpn: Qpn) -> u32 {
        let [mut left, mut right] = (qpn.get() as u16).to_be_bytes();
        for &key in self.keys.iter().rev() {
            (left, right) = (right ^ mix(left, key), left);
        }
        let value = u32::from(u16::from_be_bytes([left, right]));
        value & ((1 << self.slot_bits) - 1)
    }
}

/// A keyed byte of a byte.
const fn mix(byte: u8, key: u32) -> u8 {
    let x = (byte as u32 ^ key).wrapping_mul(0x9e37_79b1);
    ((x ^ x >> 15).wrapping_mul(0x85eb_ca77) >> 24) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::collections::BTreeSet;

    #[test]
    fn every_slot_and_generation_has_its_own_number() {
        let numbers = Numbers::new(7, 1000, &core::array::from_fn(|i| i as u8));
        let mut seen = BTreeSet::new();
        for generation in 0..64 {
            for slot in 0..1024 {
                let qpn = numbers.seal(slot, generation).unwrap();
                assert_eq!(numbers.slot(qpn), slot);
                assert_eq!(qpn.get() >> 16, 7);
                assert!(seen.insert(qpn.get()));
            }
        }
    }

    #[test]
    fn numbers_that_are_kept_are_not_given() {
        let numbers = Numbers::new(0, MAX_QPS, &[9; 32]);
        let refused = (0..MAX_QPS).filter(|&slot| numbers.seal(slot, 0).is_none()).count();
        assert_eq!(refused, 2);
    }
}
