//! The offer of selective repeat: whether it is due, and how often it was made.

use crate::qp::LossRecovery;

/// The limit on the offers of a connection: a peer that answers none of them does not know them.
const MOST: u8 = 20;

/// The state of the offer to the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Offer {
    /// Offers that may still be sent.
    pub(super) left: u8,
    /// At least one was sent in this connection.
    pub(super) is_made: bool,
    /// The packets that are due, a bit for each: [`OFFER`], [`QUESTION`]. Each packet that is sent reads this byte.
    pub(super) due: u8,
}

/// The next offer.
pub(super) const OFFER: u8 = 1;

/// A question whether the peer answers small packets ([`super::Requester::take_question`]).
const QUESTION: u8 = 2;

impl Offer {
    /// Nothing is offered.
    pub(super) const NONE: Self = Self { left: 0, is_made: false, due: 0 };

    pub(super) const fn new(recovery: LossRecovery) -> Self {
        match recovery {
            LossRecovery::Offered => Self { left: MOST, ..Self::NONE },
            LossRecovery::GoBackN | LossRecovery::SelectiveRepeat => Self::NONE,
        }
    }

    pub(super) const fn owe_question(&mut self) {
        self.due |= QUESTION;
    }

    /// Returns whether a question was to be sent; from now on it is not.
    pub(super) const fn take_question(&mut self) -> bool {
        let is_owed = self.due & QUESTION != 0;
        self.due &= !QUESTION;
        is_owed
    }

    /// Returns true if the peer may have accepted.
    pub(super) const fn is_made(&self) -> bool {
        self.is_made
    }
}
