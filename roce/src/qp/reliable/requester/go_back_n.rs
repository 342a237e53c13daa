//! Go-back-N: retransmits all packets from the oldest on, within a recovery window (IBA 9.7.5.1).

use super::limits::MIN_RECOVERY_PACKETS;
use core::num::NonZeroU32;

#[derive(Clone, Copy, Debug)]
pub(super) struct GoBackN {
    /// Bytes that may be in flight after a loss; grows by the bytes acknowledged. After a timeout it is one packet, because a peer that is
    /// too slow would drop a whole window again, and packets of its other queue pairs. After any other loss it is twice the average number
    /// of packets between losses, because the peer drops the packets after the next loss.
    recovery_window: u64,
    since_loss: u32,
    /// Smoothed `since_loss` at recent losses, with a gain of 1/4.
    between_losses: Option<NonZeroU32>,
    /// Last early answer since an implied NAK was acted on; `None` after progress.
    implied_nak: Option<u64>,
}

/// Meaning of an answer that arrives before that of an older READ or atomic (IBA 9.7.5.1: an implied NAK).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImpliedNak {
    /// The answer to the older request was lost.
    New,
    /// The answer belongs to the round that an implied NAK has ended.
    Known,
    /// The answer belongs to the next round, whose first answer was lost as well.
    NextRound,
}

impl GoBackN {
    pub(super) const fn new() -> Self {
        Self { recovery_window: u64::MAX, since_loss: 0, between_losses: None, implied_nak: None }
    }

    /// Returns `window`, limited by the recovery window, bytes.
    #[inline]
    pub(super) fn limit(&self, window: u64) -> u64 {
        window.min(self.recovery_window)
    }

    /// Reduces the recovery window to one packet of `mtu` bytes.
    pub(super) fn restrict(&mut self, mtu: u32) {
        self.recovery_window = mtu.into();
    }

    /// Records that `packets` packets of `mtu` bytes were acknowledged.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "a window's packets fit into 64 bits of bytes")]
    pub(super) fn on_progress(&mut self, packets: u64, mtu: u32) {
        self.recovery_window = self.recovery_window.saturating_add(packets * u64::from(mtu));
        self.since_loss = self.since_loss.saturating_add(u32::try_from(packets).unwrap_or(u32::MAX));
        self.implied_nak = None;
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "three quarters and a quarter of 32 bits fit into 32 bits; 33 bits times an MTU fit into 64 bits"
    )]
    pub(super) fn on_loss(&mut self, mtu: u32) {
        let packets = self
            .between_losses
            .map_or(self.since_loss, |before| before.get() - before.get() / 4 + self.since_loss / 4);
        (self.between_losses, self.since_loss) = (NonZeroU32::new(packets), 0);
        self.recovery_window = (2 * u64::from(packets)).max(MIN_RECOVERY_PACKETS) * u64::from(mtu);
    }

    /// Classifies answer `number`, which arrived before that of an older READ or atomic. Answers of one round arrive in order, so a smaller
    /// number begins the next round.
    pub(super) fn on_early_answer(&mut self, number: u64) -> ImpliedNak {
        match &mut self.implied_nak {
            None => ImpliedNak::New,
            Some(last) if number < *last => {
                *last = 0;
                ImpliedNak::NextRound
            }
            Some(last) => {
                *last = number;
                ImpliedNak::Known
            }
        }
    }

    /// Records that [`ImpliedNak::New`] of answer `number` was acted on.
    pub(super) const fn on_implied_nak(&mut self, number: u64) {
        self.implied_nak = Some(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recovery_window_is_twice_the_progress_between_losses() {
        let mut recovery = GoBackN::new();
        assert_eq!(recovery.limit(u64::MAX), u64::MAX);
        recovery.on_progress(100, 1000);
        recovery.on_loss(1000);
        assert_eq!(recovery.limit(u64::MAX), 200_000);
        recovery.on_progress(20, 1000);
        assert_eq!((recovery.limit(u64::MAX), recovery.limit(7)), (220_000, 7));
        // Three quarters of 100 and a quarter of 20.
        recovery.on_loss(1000);
        assert_eq!(recovery.limit(u64::MAX), 160_000);
    }

    #[test]
    fn the_recovery_window_is_eight_packets_at_least_and_one_after_a_timeout() {
        let mut recovery = GoBackN::new();
        recovery.on_loss(1000);
        assert_eq!(recovery.limit(u64::MAX), 8000);
        recovery.restrict(1000);
        assert_eq!(recovery.limit(u64::MAX), 1000);
        recovery.on_progress(1, 1000);
        assert_eq!(recovery.limit(u64::MAX), 2000);
    }

    #[test]
    fn an_implied_nak_counts_once_a_round() {
        let mut recovery = GoBackN::new();
        assert_eq!(recovery.on_early_answer(5), ImpliedNak::New);
        recovery.on_implied_nak(5);
        assert_eq!(recovery.on_early_answer(6), ImpliedNak::Known);
        assert_eq!(recovery.on_early_answer(5), ImpliedNak::NextRound);
        assert_eq!(recovery.on_early_answer(6), ImpliedNak::Known);
        recovery.on_progress(1, 1000);
        assert_eq!(recovery.on_early_answer(7), ImpliedNak::New);
    }
}
