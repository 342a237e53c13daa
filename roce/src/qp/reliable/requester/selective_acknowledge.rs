//! Selective repeat at the requester: infers missing packets from later arrivals and from time, and retransmits only those.
//!
//! `next` never goes back. A packet is lost if a packet sent after it has arrived and the reordering window has passed (RFC 8985: RACK;
//! [`Selective::reordering_window`]). A retransmission is lost after another round trip. If nothing arrives for two round trips, the last
//! packet is retransmitted, and the answer reports what is missing (RFC 8985 7: a tail loss probe).

use super::super::ring::SPAN;
use super::Requester;
use super::error::{RequesterError, STALE};
use super::limits::LATE;
use super::sack::Sack;
use super::selective::Selective;
use super::sequence::SendSequence;
use crate::Psn;
use crate::congestion::Progress;
use crate::qp::wqe::Wqe;
use crate::qp::{Context, Identity};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// Handles a Selective Acknowledge packet; [`Sack::validate`] explains its fields.
    pub(in crate::qp) fn on_selective_acknowledge(
        &mut self,
        psn: Psn,
        (ahead, held): (u8, u128),
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, RequesterError> {
        let sack = Sack::validate(&self.sequence, psn, ahead, held).ok_or(STALE)?;
        if !self.recovery.is_selective() {
            // A peer that reports held packets has accepted an offer.
            if !self.control.is_offered() || held == 0 {
                return Err(STALE);
            }
            if !self.switch_to_selective_repeat(context.now) {
                return Ok(self.go_back_for_sack(sack.number, context, identity));
            }
        }
        let mut progress = self.acknowledge(sack.number, context, identity);
        let una = self.sequence.una;
        if let Some(selective) = self.recovery.selective_mut() {
            selective.on_cumulative(sack.number, &self.queue, una, context.now);
            if selective.apply(&sack, &self.queue, context.now) {
                self.react_to_sack(&sack, &mut progress, context.now);
            }
        }
        Ok(progress)
    }

    /// Infers missing packets from those that the peer holds, and restarts the timers.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    fn react_to_sack(&mut self, sack: &Sack, progress: &mut Progress, now: Instant) {
        progress.rtt = self.take_sample(now).or(progress.rtt);
        let (una, rtt) = (self.sequence.una, self.rtt.estimate());
        if let Some(selective) = self.recovery.selective_mut() {
            let highest = selective.scoreboard.highest_sacked();
            // This answer does not cover the packets between the two ranges. An answer that did may have been lost.
            let missing = (sack.number, highest.min(sack.number + 1));
            selective.mark_requests_missing(missing, &self.queue, rtt, now);
            selective.mark_requests_missing((sack.from, highest.min(sack.end())), &self.queue, rtt, now);
            if una < sack.number {
                selective.mark_answers_missing(sack.number, &self.queue, una, rtt, now);
            }
        }
        self.timers.probe.set(self.probe_due(now).filter(|_| !self.sequence.is_answered()));
        progress.lost |= self.after_progress(now);
    }

    /// Updates the state after an acknowledgement or an early arrival. Returns whether there is a loss that was not reported to congestion
    /// control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn after_progress(&mut self, now: Instant) -> bool {
        let (window, una) = (self.reordering_window(), self.sequence.una);
        let Some(selective) = self.recovery.selective_mut() else { return false };
        selective.scoreboard.acknowledge(una);
        selective.advance_paths(una, now);
        if !selective.rack.has_missing() {
            return false;
        }
        selective.overtake(now + window);
        selective.mark_arrived(una, now, self.rtt.shortest());
        self.detect(now)
    }

    /// Finds packets that are lost by now. Returns whether congestion control must handle a new loss.
    pub(super) fn detect(&mut self, now: Instant) -> bool {
        let Some(selective) = self.recovery.selective_mut() else { return false };
        let is_news = selective.detect(now, self.sequence.sent);
        if selective.rack.has_lost()
            && self.rtt.sampled().is_some_and(|number| selective.rack.is_lost(number))
        {
            self.rtt.cancel();
        }
        if is_news {
            self.sequence.enter_recovery();
        }
        is_news
    }

    /// Returns how much later a packet may arrive than packets sent after it (RFC 8985: the reordering window).
    pub(super) fn reordering_window(&self) -> Duration {
        let rtt = self.rtt.estimate();
        self.recovery.selective().map_or(LATE, |selective| selective.reordering_window(rtt))
    }

    /// Returns the path of the packet with this PSN, with spraying.
    pub(in crate::qp) fn path_of(&self, psn: Psn) -> Option<u8> {
        let spray = self.recovery.selective()?.spray.as_ref()?;
        spray.path_of(self.sequence.number(psn)?)
    }

    /// Returns the longest time of an answer over the slowest path; 0 without spraying.
    pub(super) fn slowest_answer(&self) -> Duration {
        self.recovery.selective().map_or(Duration::ZERO, Selective::slowest_answer)
    }

    /// Records that the peer has answered the request that contains `number`, and so has received it and all requests before it.
    pub(super) fn peer_answers(&mut self, number: u64, now: Instant) {
        if let Some(selective) = self.recovery.selective_mut()
            && let Some(end) = self.queue.containing(number).map(Wqe::end)
        {
            selective.on_cumulative(end, &self.queue, self.sequence.una, now);
        }
    }

    /// Returns the request of the early answer `number`; `None` if the answer is too early to be kept, or a duplicate.
    #[expect(clippy::arithmetic_side_effects, reason = "an answer is not before `una`")]
    pub(super) fn request_with_early_answer(&self, number: u64) -> Option<&Wqe> {
        let selective = self.recovery.selective()?;
        let near = number - self.sequence.una < SPAN && !selective.scoreboard.has_answer(number);
        self.queue.containing(number).filter(|_| near)
    }

    /// Records that the early answer `number` was placed. Returns whether it reveals a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn on_early_answer(&mut self, number: u64, now: Instant) -> bool {
        let (una, rtt) = (self.sequence.una, self.rtt.estimate());
        if let Some(selective) = self.recovery.selective_mut() {
            selective.scoreboard.acknowledge(una);
            selective.scoreboard.on_early_answer(number);
            selective.mark_answers_missing(number, &self.queue, una, rtt, now);
        }
        self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
        self.after_progress(now)
    }

    /// Completes the requests whose predecessors are now acknowledged. Returns the payload bytes acknowledged.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    pub(super) fn advance_una(&mut self, context: &mut Context<'_>, identity: &Identity) -> u64 {
        let mut bytes = 0;
        while let Some(selective) = self.recovery.selective()
            && let Some(front) = self.queue.front()
        {
            if front.is_answered() {
                if !selective.scoreboard.has_answer(self.sequence.una) {
                    break;
                }
                self.sequence.una += 1;
                self.retire_front(context, identity);
            } else {
                let peer = selective.scoreboard.cumulative();
                if self.sequence.una >= peer {
                    break;
                }
                bytes += self.acknowledge(peer, context, identity).bytes;
            }
        }
        bytes
    }

    pub(super) fn mark_all_lost(&mut self, now: Instant) {
        let SendSequence { una, sent, .. } = self.sequence;
        if let Some(selective) = self.recovery.selective_mut() {
            selective.mark_all_lost(&self.queue, (una, sent), now);
        }
        self.rtt.cancel();
    }

    /// Handles an RNR NAK: the peer does not have the oldest packet, even if it was SACKed, and still holds the packets after it. The paths
    /// did not fail.
    pub(super) fn mark_rnr_refused(&mut self, now: Instant) {
        if let Some(selective) = self.recovery.selective_mut() {
            selective.scoreboard.renege();
        }
        self.mark_all_lost(now);
        if let Some(selective) = self.recovery.selective_mut() {
            selective.rack.clear_path_blame();
        }
    }

    /// Sends a tail loss probe: marks the last missing packet as lost. The answer reports what else is missing.
    pub(super) fn probe(&mut self, window: u64, now: Instant) {
        if self.recovery.has_lost() {
            if self.in_flight() >= window.max(1) {
                // The packets that fill the window are lost, too.
                self.mark_all_lost(now);
            }
            // The pacer delays a packet, which requests an answer when it is sent.
            return;
        }
        self.rtt.on_probe();
        let SendSequence { una, sent, .. } = self.sequence;
        let Some(selective) = self.recovery.selective_mut() else { return };
        if selective.mark_last_lost(&self.queue, (una, sent), now) {
            self.rtt.cancel();
        }
    }
}
