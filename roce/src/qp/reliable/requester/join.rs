//! Moves a requester from go-back-N to selective repeat: it offers selective repeat after a loss, and changes once the peer accepts.

use super::super::ring::SPAN;
use super::offer::{OFFER, Offer};
use super::selective::missing_of;
use super::{Progress, Requester, Selective};
use crate::qp::Context;
use crate::qp::Identity;
use crate::qp::wqe::Wqe;
use crate::{Discard, Psn};
use alloc::boxed::Box;
use cc::Instant;

impl Requester {
    /// Something was lost, and go-back-N sends it again.
    pub(super) fn offer_at_loss(&mut self) {
        if self.offer.left > 0 {
            self.offer.due |= OFFER;
        }
    }

    /// Returns whether an offer or a question is to be sent.
    #[inline]
    pub(in crate::qp) const fn owes_control(&self) -> bool {
        self.offer.due != 0
    }

    /// Returns whether an offer is to be sent.
    #[inline]
    pub(in crate::qp) const fn owes_offer(&self) -> bool {
        self.offer.due & OFFER != 0
    }

    /// Returns the PSN of the oldest packet that is not acknowledged.
    pub(in crate::qp) fn oldest_psn(&self) -> Psn {
        self.psn(self.una)
    }

    /// An offer was sent.
    #[expect(clippy::arithmetic_side_effects, reason = "an offer is due only if one is left")]
    pub(in crate::qp) fn on_offer_sent(&mut self) {
        self.offer = Offer { left: self.offer.left - 1, is_made: true, due: self.offer.due & !OFFER };
    }

    /// The peer accepts, and expects `psn` next.
    ///
    /// # Errors
    /// Returns [`Discard::StaleOffer`] if nothing was offered, or the peer can't expect that now. Whether the change is put off is no
    /// error: another loss offers it again.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the operand is a constant; `sent` is not before `una`"
    )]
    pub(in crate::qp) fn on_acceptance(&mut self, psn: Psn, now: Instant) -> Result<(), Discard> {
        if self.selective.is_some() {
            return Ok(());
        }
        let ahead = i64::from(psn.distance(self.psn(self.una)));
        let is_near = ahead > -(SPAN as i64) && ahead <= (self.sent - self.una) as i64;
        if !self.offer.is_made || !is_near {
            return Err(Discard::StaleOffer);
        }
        self.adopt(now);
        Ok(())
    }

    /// Goes over to selective repeat. What go-back-N would send again from now on counts as lost; what it has sent again already, and
    /// what it never had to, is in flight. Returns `false`, and stays with go-back-N, if more is outstanding than a bitmap covers.
    #[expect(clippy::arithmetic_side_effects, reason = "`sent` is not before `una`")]
    pub(super) fn adopt(&mut self, now: Instant) -> bool {
        let (una, next, sent) = self.bounds();
        if sent - una >= SPAN {
            return false;
        }
        let mut selective = Selective::joining(una, (self.recovers_to, now));
        let outstanding = |wqe: &&Wqe| wqe.first < sent;
        for wqe in self.queue.iter().take_while(outstanding) {
            for missing in missing_of(wqe, self.mtu, wqe.first < una, next, sent) {
                selective.loses(missing, now);
            }
        }
        self.outstanding_reads =
            self.queue.iter().take_while(outstanding).filter(|wqe| wqe.is_answered()).count() as u32;
        self.cursor = self.queue.partition_point(|wqe| wqe.end() <= sent && !wqe.is_pending());
        self.next = sent;
        self.selective = Some(Box::new(selective));
        self.offer = Offer::NONE;
        (self.reach, self.run, self.bears) = (u64::MAX, 0, None);
        (self.recovering, self.ahead) = (false, 0);
        self.reads_at_once = self.max_reads.into();
        true
    }

    /// The peer holds packets behind the missing packet `number`, and the change to selective repeat is put off. As it sends no NAK,
    /// this goes back, once for all that was sent before.
    pub(super) fn go_back_for_claim(
        &mut self,
        number: u64,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Progress {
        let mut progress = self.acknowledge(number, context, identity);
        if self.una >= self.recovers_to {
            self.go_back(context.now);
            progress.lost = true;
        }
        progress
    }
}
