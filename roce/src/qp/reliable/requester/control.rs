//! Pending control packets of a requester: offers of selective repeat, and keep-alives, which show whether small packets arrive.

use crate::qp::LossRecovery;

/// Offers per connection: a peer that answers none of them does not support selective repeat.
const MAX_OFFERS: u8 = 20;

/// Bit of `due`.
const OFFER: u8 = 1;

/// Bit of `due`.
const KEEP_ALIVE: u8 = 2;

#[derive(Clone, Copy, Debug)]
pub(super) struct PendingControl {
    offers_left: u8,
    is_offered: bool,
    /// Bits of the packets that are due, in one byte, because it is read for each packet sent.
    due: u8,
}

impl PendingControl {
    pub(super) const NONE: Self = Self { offers_left: 0, is_offered: false, due: 0 };

    pub(super) const fn new(recovery: LossRecovery) -> Self {
        match recovery {
            LossRecovery::Offered => Self { offers_left: MAX_OFFERS, ..Self::NONE },
            LossRecovery::GoBackN | LossRecovery::SelectiveRepeat => Self::NONE,
        }
    }

    #[inline]
    pub(super) const fn is_due(&self) -> bool {
        self.due != 0
    }

    #[inline]
    pub(super) const fn is_offer_due(&self) -> bool {
        self.due & OFFER != 0
    }

    /// Makes an offer due after a loss, if any are left.
    pub(super) const fn offer_at_loss(&mut self) {
        if self.offers_left > 0 {
            self.due |= OFFER;
        }
    }

    pub(super) const fn on_offer_sent(&mut self) {
        let offers_left = self.offers_left.saturating_sub(1);
        *self = Self { offers_left, is_offered: true, due: self.due & !OFFER };
    }

    /// Returns whether the peer may have accepted an offer.
    pub(super) const fn is_offered(&self) -> bool {
        self.is_offered
    }

    pub(super) const fn request_keep_alive(&mut self) {
        self.due |= KEEP_ALIVE;
    }

    /// Clears a due keep-alive. Returns whether one was due.
    pub(super) const fn take_keep_alive(&mut self) -> bool {
        let is_due = self.due & KEEP_ALIVE != 0;
        self.due &= !KEEP_ALIVE;
        is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_offer_is_sent_after_each_of_the_first_20_losses() {
        let mut control = PendingControl::new(LossRecovery::Offered);
        assert!(!control.is_offer_due());
        for _ in 0..MAX_OFFERS {
            control.offer_at_loss();
            assert!(control.is_offer_due());
            control.on_offer_sent();
            assert!(control.is_offered() && !control.is_due());
        }
        control.offer_at_loss();
        assert!(!control.is_offer_due());
    }

    #[test]
    fn go_back_n_has_no_offer_due_after_a_loss() {
        let mut control = PendingControl::new(LossRecovery::GoBackN);
        control.offer_at_loss();
        assert!(!control.is_due());
    }

    #[test]
    fn a_keep_alive_is_taken_once_and_leaves_an_offer_due() {
        let mut control = PendingControl::new(LossRecovery::Offered);
        control.offer_at_loss();
        control.request_keep_alive();
        assert!(control.take_keep_alive() && !control.take_keep_alive() && control.is_offer_due());
    }
}
