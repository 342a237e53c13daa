//! A bitmap over packet numbers that follows a moving window.

use alloc::boxed::Box;

/// Packet numbers that a window of selective repeat may span.
pub(super) const SPAN: u64 = 4096;

const WORDS: usize = (SPAN / 64) as usize;

/// Bitmap of a window of [`SPAN`] packet numbers, by number modulo [`SPAN`]. Bits outside the window are clear; the owner stores where the
/// window begins. The first bit that is set allocates the memory, because most queue pairs never lose a packet.
#[derive(Debug)]
pub(super) struct Ring(Option<Box<[u64; WORDS]>>);

impl Ring {
    /// Bytes of a bitmap once a bit was set.
    pub(super) const BYTES: usize = WORDS * size_of::<u64>();

    pub(super) const fn new() -> Self {
        Self(None)
    }

    const fn place(number: u64) -> (usize, u64) {
        ((number % SPAN / 64) as usize, 1 << (number % 64))
    }

    #[expect(clippy::indexing_slicing, reason = "the index is below SPAN / 64")]
    pub(super) fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.0.as_ref().is_some_and(|words| words[word] & bit != 0)
    }

    /// Sets a bit. Returns whether it was clear.
    #[expect(clippy::indexing_slicing, reason = "the index is below SPAN / 64")]
    pub(super) fn set(&mut self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        let words = self.0.get_or_insert_with(|| Box::new([0; WORDS]));
        let is_new = words[word] & bit == 0;
        words[word] |= bit;
        is_new
    }

    /// Clears a bit. Returns whether it was set.
    #[expect(clippy::indexing_slicing, reason = "the index is below SPAN / 64")]
    pub(super) fn clear(&mut self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        let Some(words) = &mut self.0 else { return false };
        let was = words[word] & bit != 0;
        words[word] &= !bit;
        was
    }

    /// Clears the bits from `from` to before `to`. Returns how many were set.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`bits` is 1 to 64, and does not pass `to`; the index is below SPAN / 64; the count is at most SPAN"
    )]
    pub(super) fn clear_range(&mut self, from: u64, to: u64) -> u64 {
        let Some(words) = &mut self.0 else { return 0 };
        if to.saturating_sub(from) >= SPAN {
            let count = words.iter().map(|word| u64::from(word.count_ones())).sum();
            **words = [0; WORDS];
            return count;
        }
        let (mut at, mut count) = (from, 0);
        while at < to {
            let bits = (64 - at % 64).min(to - at);
            let mask = (u64::MAX >> (64 - bits)) << (at % 64);
            let word = &mut words[Self::place(at).0];
            count += u64::from((*word & mask).count_ones());
            *word &= !mask;
            at += bits;
        }
        count
    }

    /// Returns 128 bits: bit `i` is that of `from + i`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is at most 2, and the shift 1 to 63; the index is below SPAN / 64"
    )]
    pub(super) fn window(&self, from: u64) -> u128 {
        let Some(words) = &self.0 else { return 0 };
        let word = |index: u64| u128::from(words[Self::place(from + 64 * index).0]);
        let low = word(0) | word(1) << 64;
        match from % 64 {
            0 => low,
            shift => low >> shift | word(2) << (128 - shift),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ring_is_a_bitmap_that_wraps() {
        let mut ring = Ring::new();
        for number in [SPAN - 70, SPAN - 1, SPAN, SPAN + 1, SPAN + 57] {
            assert!(!ring.has(number) && ring.set(number) && !ring.set(number) && ring.has(number));
        }
        for from in SPAN - 70..SPAN + 70 {
            let window = ring.window(from);
            for bit in 0..128 {
                assert_eq!(window & 1 << bit != 0, ring.has(from + bit), "{from} and {bit}");
            }
        }
        assert_eq!(ring.clear_range(SPAN - 70, SPAN), 2);
        assert!(!ring.has(SPAN - 1) && ring.has(SPAN));
        assert!(ring.clear(SPAN) && !ring.clear(SPAN));
        assert_eq!(ring.clear_range(5, 5), 0);
        assert_eq!(ring.clear_range(0, SPAN), 2);
    }
}
