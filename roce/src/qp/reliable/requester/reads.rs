//! The outstanding READs and atomics, and their limits (IBA 9.7.3.1, `max_rd_atomic`).

/// READs and atomics before `next` whose answers are outstanding.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct OutstandingReads {
    count: u16,
    /// Limit that the peer's resources set.
    max: u8,
    /// Limit in use. A loss halves it, and each completed request adds one. Otherwise a slow peer such as Soft-RoCE would accumulate
    /// repeated rounds of requests, and drop those that exceed its queues.
    limit: u16,
}

impl OutstandingReads {
    pub(super) fn set_max(&mut self, max: u8) {
        (self.max, self.limit) = (max, max.into());
    }

    #[inline]
    pub(super) const fn is_empty(&self) -> bool {
        self.count == 0
    }

    #[inline]
    pub(super) const fn is_full(&self) -> bool {
        self.count >= self.limit
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "at most `limit` are outstanding")]
    pub(super) const fn begin(&mut self, count: u16) {
        self.count += count;
    }

    /// Records that a READ or atomic has completed; `is_counted` if it was sent in this round.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "one that is before `next` was counted; `limit` is at most 256"
    )]
    pub(super) fn end(&mut self, is_counted: bool) {
        self.count -= u16::from(is_counted);
        self.limit = (self.limit + 1).min(self.max.into());
    }

    /// Halves the limit if any are outstanding, to at least 2.
    pub(super) fn on_loss(&mut self) {
        if self.count > 0 {
            self.limit = (self.limit / 2).max(2).min(self.max.into());
        }
    }

    /// Resets the count, because all are retransmitted.
    pub(super) const fn rewind(&mut self) {
        self.count = 0;
    }

    /// Sets the number outstanding, and restores the peer's limit.
    pub(super) fn recount(&mut self, count: u16) {
        (self.count, self.limit) = (count, self.max.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_halves_the_limit_and_each_answer_adds_one() {
        let mut reads = OutstandingReads::default();
        reads.set_max(16);
        reads.on_loss();
        reads.begin(15);
        assert!(!reads.is_full(), "nothing was outstanding");
        reads.on_loss();
        assert_eq!((reads.limit, reads.is_full()), (8, true));
        (0..15).for_each(|_| reads.end(true));
        assert_eq!((reads.count, reads.limit), (0, 16));
    }

    #[test]
    fn the_limit_is_never_above_the_peers() {
        let mut reads = OutstandingReads::default();
        reads.set_max(1);
        reads.begin(1);
        reads.on_loss();
        assert_eq!(reads.limit, 1);
    }
}
