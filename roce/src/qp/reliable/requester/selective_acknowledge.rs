//! Selective repeat at the sender: what is missing is found by what came behind it and by time, and only that is sent again.
//!
//! `next` never goes back. A packet is lost once something that was sent behind it has been at the peer for as long as packets may be
//! late here (RFC 8985: RACK; [`Rack::reordering_window`](super::rack::Rack::reordering_window)), and lost again a round trip after its repetition. If nothing at all comes for
//! two round trips, the last packet is sent again, and the answer says what is missing (RFC 8985 7: a tail loss probe).

use super::super::ring::SPAN;
use super::Requester;
use super::limits::{LATE, UNKNOWN};
use super::missing::{missing_of, packet_of};
use super::sack::Sack;
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
            if !self.adopt(context.now) {
                return Ok(self.go_back_for_claim(sack.number, context, identity));
            }
        }
        let mut progress = self.acknowledge(sack.number, context, identity);
        self.peer_has(sack.number, context.now);
        if self.apply_sack(&sack, context.now) {
            self.react_to_sack(&sack, &mut progress, context.now);
        }
        Ok(progress)
    }

    /// Notes which of the packets the peer holds. Returns whether the acknowledgement is not overtaken by a newer one.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64; `new` is not 0")]
    fn apply_sack(&mut self, sack: &Sack, now: Instant) -> bool {
        let Some(selective) = self.recovery.selective_mut() else { return false };
        if sack.number < selective.scoreboard.cumulative() {
            return false;
        }
        selective.scoreboard.renege();
        let mut new = sack.held & !selective.scoreboard.sacked_from(sack.from);
        while new != 0 {
            let number = sack.from + u64::from(new.trailing_zeros());
            new &= new - 1;
            let Some(wqe) = self.queue.containing(number) else { break };
            // Of a READ's numbers only the first is a packet of ours.
            if !wqe.is_answered() || number == wqe.first {
                selective.scoreboard.sack(number);
                selective.scoreboard.leave_flight(packet_of(wqe, number, self.queue.mtu()));
                if let Some(spray) = &mut selective.spray {
                    spray.arrived(number, now);
                }
            }
        }
        true
    }

    /// Finds out what the packets that the peer holds say about the others, and starts the timers again.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    fn react_to_sack(&mut self, sack: &Sack, progress: &mut Progress, now: Instant) {
        progress.rtt = self.take_sample(now).or(progress.rtt);
        let highest =
            self.recovery.selective().map_or(sack.number, |selective| selective.scoreboard.highest_sacked());
        // Of what lies between the two, this answer says nothing: one that did may have been lost.
        self.misses(sack.number, highest.min(sack.number + 1), now);
        self.misses(sack.from, highest.min(sack.end()), now);
        if self.sequence.una < sack.number {
            self.answers_missing(sack.number, now);
        }
        self.timers.probe.set(self.probe_due(now).filter(|_| !self.sequence.is_answered()));
        progress.lost |= self.after_progress(now);
    }

    /// Request packets from `from` to before `to` that the peer lacks are missing.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn misses(&mut self, from: u64, to: u64, now: Instant) {
        let late = self.lateness();
        let Some(selective) = self.recovery.selective_mut() else { return };
        for wqe in self.queue.range(from, to) {
            for missing in missing_of(wqe, self.queue.mtu(), false, from, to) {
                if selective.scoreboard.has_arrived(missing) {
                    continue;
                }
                let other = selective.spray.as_ref().filter(|spray| !spray.is_overtaken(missing.number));
                let late = other.map_or(late, |spray| spray.lateness(missing.number).unwrap_or(UNKNOWN));
                selective.miss(missing, now + late);
            }
        }
    }

    /// Answers to READs and atomics that should have come before that to packet `end` are missing.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packet numbers stay far below 2^64; adding to an `Instant` saturates"
    )]
    pub(super) fn answers_missing(&mut self, end: u64, now: Instant) {
        let (late, una) = (self.lateness(), self.sequence.una);
        let Some(selective) = self.recovery.selective_mut() else { return };
        if selective.rack.has_missing() {
            // A request that is there now may lack its answer.
            selective.settle(una, now, self.rtt.shortest());
        }
        let from = selective.scoreboard.highest_answer().max(una);
        let end = end.min(una + SPAN);
        for wqe in self.queue.range(from, end).filter(|wqe| wqe.is_answered()) {
            for missing in missing_of(wqe, self.queue.mtu(), true, from, end) {
                selective.miss(missing, now + late);
            }
        }
        selective.scoreboard.expect_answers_before(end);
    }

    /// Something was acknowledged, or arrived early. Returns whether there is a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn after_progress(&mut self, now: Instant) -> bool {
        let (late, una) = (self.lateness(), self.sequence.una);
        let Some(selective) = self.recovery.selective_mut() else { return false };
        selective.scoreboard.acknowledge(una);
        selective.advance_paths(una, now);
        if !selective.rack.has_missing() {
            return false;
        }
        selective.overtake(now + late);
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

    /// Returns how much later a packet may arrive than packets sent behind it.
    pub(super) fn lateness(&self) -> Duration {
        match (self.rtt.estimate(), self.recovery.selective()) {
            (Some(rtt), Some(selective)) => selective.rack.reordering_window(rtt.smoothed(), rtt.shortest()),
            _ => LATE,
        }
    }

    /// Returns the path that the packet with this PSN took, with spraying.
    pub(in crate::qp) fn path_of(&self, psn: Psn) -> Option<u8> {
        let spray = self.recovery.selective()?.spray.as_ref()?;
        spray.way_of(self.sequence.number(psn)?)
    }

    /// Returns how long an answer may take over the slowest path; 0 without spraying.
    pub(super) fn spray_patience(&self) -> Duration {
        let spray = self.recovery.selective().and_then(|selective| selective.spray.as_ref());
        spray.and_then(|spray| spray.patience()).unwrap_or_default()
    }

    /// The peer has all before `number`.
    #[inline]
    pub(super) fn peer_has(&mut self, number: u64, now: Instant) {
        let una = self.sequence.una;
        let Some(selective) = self.recovery.selective_mut() else { return };
        if una < number && selective.scoreboard.cumulative() < number {
            // An answer is missing before it: what the peer has behind that is not in flight any more.
            let from = selective.scoreboard.cumulative().max(una);
            for wqe in self.queue.range(from, number).filter(|wqe| !wqe.is_answered()) {
                for missing in missing_of(wqe, self.queue.mtu(), true, from, number) {
                    selective.scoreboard.leave_flight(missing);
                }
            }
        }
        selective.scoreboard.advance(number);
        selective.advance_paths(number, now);
    }

    /// The peer answers the request that contains `number`, so it has that request and all before it.
    pub(super) fn peer_answers(&mut self, number: u64, now: Instant) {
        if !self.recovery.is_selective() {
            return;
        }
        if let Some(end) = self.queue.containing(number).map(Wqe::end) {
            self.peer_has(end, now);
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
        let una = self.sequence.una;
        if let Some(selective) = self.recovery.selective_mut() {
            selective.scoreboard.acknowledge(una);
            selective.scoreboard.on_early_answer(number);
        }
        self.answers_missing(number, now);
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

    /// Packets from `before` on are acknowledged: what was not in flight of them counts no more. Their requests are still there.
    pub(super) fn settle(&mut self, before: u64) {
        let una = self.sequence.una;
        let Some(selective) = self.recovery.selective_mut() else { return };
        if selective.scoreboard.bytes_not_in_flight() == 0 {
            return;
        }
        for wqe in self.queue.before(una).filter(|wqe| !wqe.is_answered()) {
            for number in before.max(wqe.first)..wqe.end().min(una) {
                selective.scoreboard.enter_flight(packet_of(wqe, number, self.queue.mtu()));
            }
        }
    }

    /// Sends again all that is missing.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn lose_all(&mut self, now: Instant) {
        let SendSequence { una, sent, .. } = self.sequence;
        let Some(selective) = self.recovery.selective_mut() else { return };
        let end = sent.min(una + SPAN);
        for wqe in self.queue.before(end) {
            let is_executed = wqe.first < selective.scoreboard.cumulative();
            for missing in missing_of(wqe, self.queue.mtu(), is_executed, una, end) {
                selective.lose(missing, now);
            }
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
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
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
        let end = sent.min(una + SPAN);
        for index in (0..=self.queue.next_index()).rev() {
            let Some(wqe) = self.queue.get(index).filter(|wqe| wqe.first < end) else { continue };
            let is_executed = wqe.first < selective.scoreboard.cumulative();
            let mut missing = missing_of(wqe, self.queue.mtu(), is_executed, una, end).rev();
            if missing.any(|missing| selective.lose(missing, now)) {
                self.rtt.cancel();
                return;
            }
        }
    }
}
