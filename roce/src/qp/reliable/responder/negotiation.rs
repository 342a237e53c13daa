//! Accepts a peer's offer of selective repeat after a loss.

use super::super::ring::SPAN;
use super::reorder::Reorder;
use super::{PendingAcknowledge, Responder};
use crate::qp::LossRecovery;
use crate::{Discard, Psn};
use alloc::boxed::Box;

impl Responder {
    /// Handles an offer of selective repeat; `psn` is the oldest packet whose acknowledgement the peer has not received. From now on early
    /// packets are held, and an acceptance is due, which repeats `first_received`. A repeated offer is accepted again, because the
    /// acceptance may have been lost.
    ///
    /// # Errors
    /// Returns [`Discard::Opcode`] if this side uses go-back-N only, and [`Discard::StaleOffer`] if `psn` cannot be the peer's oldest
    /// unacknowledged packet.
    pub(in crate::qp) fn on_offer(&mut self, psn: Psn, first_received: Psn) -> Result<(), Discard> {
        if self.recovery == LossRecovery::GoBackN {
            return Err(Discard::Opcode);
        }
        if !(0..SPAN as i32).contains(&self.expected.distance(psn)) {
            return Err(Discard::StaleOffer);
        }
        let reorder = self.reorder.get_or_insert_with(|| Box::new(Reorder::new(self.expected)));
        reorder.acceptance = Some(first_received);
        // The acknowledgement follows the acceptance, and repeats acknowledgements that may have been lost.
        self.pending_acknowledge = self.pending_acknowledge.or(Some(PendingAcknowledge::Acknowledge));
        Ok(())
    }

    /// Returns the PSN that the due acceptance repeats; `None` if none is due.
    pub(in crate::qp) fn acceptance(&self) -> Option<Psn> {
        self.reorder.as_ref()?.acceptance
    }

    pub(in crate::qp) fn on_acceptance_sent(&mut self) {
        let is_idle = self.expected == self.first && !self.holds_early();
        if let Some(reorder) = &mut self.reorder {
            reorder.acceptance = None;
        }
        if is_idle && self.pending_acknowledge == Some(PendingAcknowledge::Acknowledge) {
            // No packet has arrived that it could acknowledge.
            self.pending_acknowledge = None;
        }
    }
}
