//! Makes a responder keep early packets, for a peer that offers selective repeat after a loss.

use super::super::ring::SPAN;
use super::reorder::Reorder;
use super::{Answer, Responder};
use crate::qp::LossRecovery;
use crate::{Discard, Psn};
use alloc::boxed::Box;

impl Responder {
    /// The peer offers selective repeat; `psn` is the oldest packet that it has not seen acknowledged. From now on early packets are
    /// held, and an acceptance is due, which repeats `first_received`. An offer that comes again is accepted again: the acceptance may
    /// have been lost.
    ///
    /// # Errors
    /// Returns [`Discard::Opcode`] if this side uses go-back-N only, and [`Discard::StaleOffer`] if the peer can't miss an acknowledgement
    /// of that packet now.
    pub(in crate::qp) fn on_offer(&mut self, psn: Psn, first_received: Psn) -> Result<(), Discard> {
        if self.recovery == LossRecovery::GoBackN {
            return Err(Discard::Opcode);
        }
        if !(0..SPAN as i32).contains(&self.expected.distance(psn)) {
            return Err(Discard::StaleOffer);
        }
        let reorder = self.reorder.get_or_insert_with(|| Box::new(Reorder::new(self.expected)));
        reorder.acceptance = Some(first_received);
        // Behind the acceptance, it says what the peer missed meanwhile.
        self.answer = self.answer.or(Some(Answer::Acknowledge));
        Ok(())
    }

    /// Returns what the acceptance that is due repeats of the offer.
    pub(in crate::qp) fn acceptance(&self) -> Option<Psn> {
        self.reorder.as_ref()?.acceptance
    }

    /// The acceptance was sent.
    pub(in crate::qp) fn on_acceptance_sent(&mut self) {
        let is_idle = self.expected == self.first && !self.holds_early();
        if let Some(reorder) = &mut self.reorder {
            reorder.acceptance = None;
        }
        if is_idle && self.answer == Some(Answer::Acknowledge) {
            // There is no packet yet that it could acknowledge.
            self.answer = None;
        }
    }
}
