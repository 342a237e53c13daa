//! Switches a requester from go-back-N to selective repeat once the peer accepts the offer.

use super::super::ring::SPAN;
use super::control::PendingControl;
use super::missing::missing_of;
use super::recovery::Recovery;
use super::{Requester, Selective};
use crate::congestion::Progress;
use crate::qp::Context;
use crate::qp::Identity;
use crate::{Discard, Psn};
use alloc::boxed::Box;
use cc::Instant;

impl Requester {
    /// Handles the acceptance of an offer by a peer that expects `psn` next.
    ///
    /// # Errors
    /// Returns [`Discard::StaleOffer`] if nothing was offered, or the peer cannot expect `psn` now. A postponed switch is no error: the
    /// next loss repeats the offer.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the operand is a constant; `sent` is not before `una`"
    )]
    pub(in crate::qp) fn on_acceptance(&mut self, psn: Psn, now: Instant) -> Result<(), Discard> {
        if self.recovery.is_selective() {
            return Ok(());
        }
        let ahead = self.sequence.distance(psn);
        let is_near = ahead > -(SPAN as i64) && ahead <= self.sequence.outstanding() as i64;
        if !self.control.is_offered() || !is_near {
            return Err(Discard::StaleOffer);
        }
        self.switch_to_selective_repeat(now);
        Ok(())
    }

    /// Switches to selective repeat. Packets that go-back-N has still to retransmit count as lost; all others are in flight. Returns
    /// `false`, and keeps go-back-N, if more is outstanding than a bitmap covers.
    #[expect(clippy::arithmetic_side_effects, reason = "`sent` is not before `una`")]
    pub(super) fn switch_to_selective_repeat(&mut self, now: Instant) -> bool {
        let (una, next, sent) = self.bounds();
        if self.sequence.outstanding() >= SPAN {
            return false;
        }
        let mut selective = Selective::after_go_back_n(una, (self.sequence.recovery_point(), now));
        let mut reads = 0;
        for wqe in self.queue.before(sent) {
            for missing in missing_of(wqe, self.queue.mtu(), wqe.first < una, next, sent) {
                selective.mark_lost(missing, now);
            }
            reads += u16::from(wqe.is_answered());
        }
        self.reads.recount(reads);
        self.queue.skip_sent(sent);
        self.sequence.send_until(sent);
        self.recovery = Recovery::Selective(Box::new(selective));
        self.control = PendingControl::NONE;
        true
    }

    /// Goes back, once for everything sent before, because the peer holds packets after the missing packet `number` and the switch to
    /// selective repeat is postponed. Such a peer sends no NAK.
    pub(super) fn go_back_for_sack(
        &mut self,
        number: u64,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Progress {
        let mut progress = self.acknowledge(number, context, identity);
        if !self.sequence.is_in_recovery() {
            self.recover(context.now);
            progress.lost = true;
        }
        progress
    }
}
