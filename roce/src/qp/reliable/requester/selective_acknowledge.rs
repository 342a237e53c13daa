//! Selective repeat at the sender: what is missing is found by what came behind it and by time, and only that is sent again.
//!
//! `next` never goes back. A packet is lost once something that was sent behind it has been at the peer for as long as packets may be late
//! here (RFC 8985: RACK; [`Selective::reordering_window`]), and lost again a round trip after its repetition. If nothing at all comes for
//! two round trips, the last packet is sent again, and the answer says what is missing (RFC 8985 7: a tail loss probe).

use super::super::ring::SPAN;
use super::Requester;
use super::limits::LATE;
use super::sack::Sack;
use super::selective::Selective;
use super::sequence::SendSequence;
use super::trouble::{STALE, Trouble};
use crate::Psn;
use crate::congestion::Progress;
use crate::qp::wqe::Wqe;
use crate::qp::{Context, Identity};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// A Selective Acknowledge packet: all before `psn` arrived, `psn` did not, and of the 128 from `psn` and `64 * ahead` on those did
    /// that `held` marks. It is checked, then applied to what is known of the peer, and then the requester reacts.
    pub(in crate::qp) fn on_selective_acknowledge(
        &mut self,
        psn: Psn,
        (ahead, held): (u8, u128),
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let sack = Sack::validate(&self.sequence, psn, ahead, held).ok_or(STALE)?;
        if !self.recovery.is_selective() {
            // An offer was accepted, or nothing would be held.
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
            selective.peer_has(sack.number, &self.queue, una, context.now);
            if selective.apply(&sack, &self.queue, context.now) {
                self.react_to_sack(&sack, &mut progress, context.now);
            }
        }
        Ok(progress)
    }

    /// Finds out what the packets that the peer holds say about the others, and starts the timers again.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    fn react_to_sack(&mut self, sack: &Sack, progress: &mut Progress, now: Instant) {
        progress.rtt = self.take_sample(now).or(progress.rtt);
        let (una, rtt) = (self.sequence.una, self.rtt.estimate());
        if let Some(selective) = self.recovery.selective_mut() {
            let highest = selective.scoreboard.highest_sacked();
            // Of what lies between the two, this answer says nothing: one that did may have been lost.
            let missing = (sack.number, highest.min(sack.number + 1));
            selective.miss_requests(missing, &self.queue, rtt, now);
            selective.miss_requests((sack.from, highest.min(sack.end())), &self.queue, rtt, now);
            if una < sack.number {
                selective.miss_answers(sack.number, &self.queue, una, rtt, now);
            }
        }
        self.timers.probe.set(self.probe_due(now).filter(|_| !self.sequence.is_answered()));
        progress.lost |= self.after_progress(now);
    }

    /// Something was acknowledged, or arrived early. Returns whether there is a loss that was not reported to congestion control.
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
        selective.settle(una, now, self.rtt.shortest());
        self.detect(now)
    }

    /// Finds what is lost by now. Returns whether it was not reported to congestion control.
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

    /// Returns how much later a packet may arrive than packets sent behind it (RFC 8985: the reordering window).
    pub(super) fn reordering_window(&self) -> Duration {
        let rtt = self.rtt.estimate();
        self.recovery.selective().map_or(LATE, |selective| selective.reordering_window(rtt))
    }

    /// Returns the path that the packet with this PSN took, with spraying.
    pub(in crate::qp) fn path_of(&self, psn: Psn) -> Option<u8> {
        let spray = self.recovery.selective()?.spray.as_ref()?;
        spray.path_of(self.sequence.number(psn)?)
    }

    /// Returns how long an answer may take over the slowest path; 0 without spraying.
    pub(super) fn slowest_answer(&self) -> Duration {
        self.recovery.selective().map_or(Duration::ZERO, Selective::slowest_answer)
    }

    /// The peer answers the request that contains `number`, so it has that request and all before it.
    pub(super) fn peer_answers(&mut self, number: u64, now: Instant) {
        if let Some(selective) = self.recovery.selective_mut()
            && let Some(end) = self.queue.containing(number).map(Wqe::end)
        {
            selective.peer_has(end, &self.queue, self.sequence.una, now);
        }
    }

    /// The early answer `number` is about this request; `None` if it is too early to be kept.
    #[expect(clippy::arithmetic_side_effects, reason = "an answer is not before `una`")]
    pub(super) fn early(&self, number: u64) -> Option<&Wqe> {
        let selective = self.recovery.selective()?;
        let near = number - self.sequence.una < SPAN && !selective.scoreboard.has_answer(number);
        self.queue.containing(number).filter(|_| near)
    }

    /// The early answer `number` is in its place. Returns whether it shows a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn on_early_answer(&mut self, number: u64, now: Instant) -> bool {
        let (una, rtt) = (self.sequence.una, self.rtt.estimate());
        if let Some(selective) = self.recovery.selective_mut() {
            selective.scoreboard.acknowledge(una);
            selective.scoreboard.on_early_answer(number);
            selective.miss_answers(number, &self.queue, una, rtt, now);
        }
        self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
        self.after_progress(now)
    }

    /// Completes what waited for the packet before it. Returns the payload bytes that this acknowledged.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    pub(super) fn absorb(&mut self, context: &mut Context<'_>, identity: &Identity) -> u64 {
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

    /// Sends again all that is missing.
    pub(super) fn lose_all(&mut self, now: Instant) {
        let SendSequence { una, sent, .. } = self.sequence;
        if let Some(selective) = self.recovery.selective_mut() {
            selective.lose_all(&self.queue, (una, sent), now);
        }
        self.rtt.cancel();
    }

    /// The peer lacks the oldest packet, and perhaps had it before: it met no receive. What it holds behind that it keeps.
    pub(super) fn lose_refused(&mut self, now: Instant) {
        if let Some(selective) = self.recovery.selective_mut() {
            selective.scoreboard.renege();
        }
        self.lose_blameless(now);
    }

    /// Sends again all that is missing, which is not the fault of the paths.
    pub(super) fn lose_blameless(&mut self, now: Instant) {
        self.lose_all(now);
        if let Some(selective) = self.recovery.selective_mut() {
            selective.rack.excuse_paths();
        }
    }

    /// Nothing has come for too long: sends the last packet again that may be missing. The answer says what else is.
    pub(super) fn probe(&mut self, window: u64, now: Instant) {
        if self.recovery.has_lost() {
            if self.in_flight() >= window.max(1) {
                // The window is full of what is lost as well.
                self.lose_all(now);
            }
            // A packet that the pacer delays requests an answer once it leaves.
            return;
        }
        self.rtt.on_probe();
        let SendSequence { una, sent, .. } = self.sequence;
        let Some(selective) = self.recovery.selective_mut() else { return };
        if selective.lose_last(&self.queue, (una, sent), now) {
            self.rtt.cancel();
        }
    }
}
