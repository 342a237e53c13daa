//! Selective repeat at the sender: what is missing is found by what came behind it and by time, and only that is sent again.
//!
//! `next` never goes back. A packet is lost once something that was sent behind it has been at the peer for as long as packets may be
//! late here (RFC 8985: RACK; [`Selective::reordering`]), and lost again a round trip after its repetition. If nothing at all comes for
//! two round trips, the last packet is sent again, and the answer says what is missing (RFC 8985 7: a tail loss probe).

use super::super::ring::SPAN;
use super::holes::{Hole, Missing};
use super::limits::{LATE, MOST_PROBES, UNKNOWN};
use super::plan::Plan;
use super::trouble::{STALE, Trouble};
use super::{Progress, Requester};
use crate::Psn;
use crate::qp::operation::operation;
use crate::qp::wqe::{Position, Wqe};
use crate::qp::{Context, Identity};
use cc::Instant;
use core::time::Duration;

/// Returns the missing packets of `wqe` from `from` to before `end`: its request packets, or its answers if the peer has executed its
/// request.
#[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
pub(super) fn missing_of(
    wqe: &Wqe,
    mtu: u32,
    is_executed: bool,
    from: u64,
    end: u64,
) -> impl DoubleEndedIterator<Item = Missing> {
    let (first, last) = match (wqe.is_answered(), is_executed) {
        (false, _) | (true, true) => (from.max(wqe.first), end.min(wqe.end())),
        // The request is one packet, whatever it asks for.
        (true, false) => (from.max(wqe.first), end.min(wqe.first + 1)),
    };
    (first..last.max(first)).map(move |number| Missing {
        is_answer: wqe.is_answered() && is_executed,
        ..packet_of(wqe, number, mtu)
    })
}

/// Request packet `number`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "packet numbers stay far below 2^64; byte counts never go back"
)]
fn packet_of(wqe: &Wqe, number: u64, mtu: u32) -> Missing {
    let bytes = (wqe.stream_at(number + 1, mtu) - wqe.stream_at(number, mtu)) as u32;
    Missing { number, bytes, is_answer: false }
}

impl Requester {
    /// A Selective Acknowledge packet: all before `psn` arrived, `psn` did not, and of the 128 from `psn` and `64 * ahead` on those did
    /// that `held` marks.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(in crate::qp) fn on_selective_acknowledge(
        &mut self,
        psn: Psn,
        (ahead, held): (u8, u128),
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let number = self.answered(psn).ok_or(STALE)?;
        let from = number + 64 * u64::from(ahead);
        self.check_claim(number, from, held)?;
        if self.selective.is_none() {
            // An offer was accepted, or nothing would be held.
            if !self.offer.is_made() || held == 0 {
                return Err(STALE);
            }
            if !self.adopt(context.now) {
                return Ok(self.go_back_for_claim(number, context, identity));
            }
        }
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_has(number, context.now);
        let Some(selective) = &mut self.selective else { return Ok(progress) };
        if number < selective.base {
            // Overtaken by a newer one.
            return Ok(progress);
        }
        selective.gives_up();
        self.take_claim(from, held, context.now);
        progress.rtt = self.take_sample(context.now).or(progress.rtt);
        let heard = self.selective.as_ref().map_or(number, |selective| selective.heard());
        // Of what lies between the two, this answer says nothing: one that did may have been lost.
        self.misses(number, heard.min(number + 1), context.now);
        self.misses(from, heard.min(from + u64::from(u128::BITS)), context.now);
        if self.una < number {
            self.answers_missing(number, context.now);
        }
        self.probe_at = self.probe_due(context.now).filter(|_| self.una < self.sent);
        progress.lost |= self.after_progress(context.now);
        Ok(progress)
    }

    /// Checks what a peer says that it holds: packets that were sent, and that only it could hold.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    fn check_claim(&self, number: u64, from: u64, held: u128) -> Result<(), Trouble> {
        let end = from + u64::from(u128::BITS - held.leading_zeros());
        let is_sent = held == 0 || end <= self.sent && end <= self.una + SPAN;
        let lacks_its_own = from == number && held & 1 != 0;
        if is_sent && !lacks_its_own { Ok(()) } else { Err(STALE) }
    }

    /// Notes what the peer holds of the 128 packets from `from` on.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64; `new` is not 0")]
    fn take_claim(&mut self, from: u64, held: u128, now: Instant) {
        let Self { selective: Some(selective), queue, mtu, .. } = self else { return };
        let mut new = held & !selective.held(from);
        while new != 0 {
            let number = from + u64::from(new.trailing_zeros());
            new &= new - 1;
            let index = queue.partition_point(|wqe| wqe.end() <= number);
            let Some(wqe) = queue.get(index) else { return };
            // Of a READ's numbers only the first is a packet of ours.
            if !wqe.is_answered() || number == wqe.first {
                selective.holds(number);
                selective.goes_away(packet_of(wqe, number, *mtu));
                if let Some(spray) = &mut selective.spray {
                    spray.arrived(number, now);
                }
            }
        }
    }

    /// Request packets from `from` to before `to` that the peer lacks are missing.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn misses(&mut self, from: u64, to: u64, now: Instant) {
        let late = self.lateness();
        let Self { selective: Some(selective), queue, mtu, .. } = self else { return };
        let index = queue.partition_point(|wqe| wqe.end() <= from);
        for wqe in queue.iter().skip(index).take_while(|wqe| wqe.first < to) {
            for missing in missing_of(wqe, *mtu, false, from, to) {
                if selective.is_there(missing) {
                    continue;
                }
                let other = selective.spray.as_ref().filter(|spray| !spray.is_overtaken(missing.number));
                let late = other.map_or(late, |spray| spray.lateness(missing.number).unwrap_or(UNKNOWN));
                selective.misses(missing, now + late);
            }
        }
    }

    /// Answers to READs and atomics that should have come before that to packet `end` are missing.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packet numbers stay far below 2^64; adding to an `Instant` saturates"
    )]
    pub(super) fn answers_missing(&mut self, end: u64, now: Instant) {
        let (late, una) = (self.lateness(), self.una);
        let Self { selective: Some(selective), queue, mtu, trip, .. } = self else { return };
        if selective.has_holes() {
            // A request that is there now may lack its answer.
            selective.fill(una, now, trip.map(|trip| trip.shortest()));
        }
        let from = selective.answered().max(una);
        let end = end.min(una + SPAN);
        let index = queue.partition_point(|wqe| wqe.end() <= from);
        for wqe in queue.iter().skip(index).take_while(|wqe| wqe.first < end).filter(|wqe| wqe.is_answered())
        {
            for missing in missing_of(wqe, *mtu, true, from, end) {
                selective.misses(missing, now + late);
            }
        }
        selective.answers_until(end);
    }

    /// Something was acknowledged, or arrived early. Returns whether there is a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn after_progress(&mut self, now: Instant) -> bool {
        let late = self.lateness();
        let Self { selective: Some(selective), una, trip, .. } = self else { return false };
        selective.acknowledged(*una);
        if let Some(spray) = &mut selective.spray {
            spray.advance_to(*una, now);
        }
        if !selective.has_holes() {
            return false;
        }
        selective.overtake(now + late);
        selective.fill(*una, now, trip.map(|trip| trip.shortest()));
        self.detect(now)
    }

    /// Finds what is lost by now. Returns whether it was not reported to congestion control.
    pub(super) fn detect(&mut self, now: Instant) -> bool {
        let Some(selective) = &mut self.selective else { return false };
        let is_news = selective.detect(now, self.sent);
        if selective.has_lost() {
            // A packet that is sent again measures nothing (Karn).
            self.sample = self.sample.filter(|&(number, _)| !selective.is_lost(number));
        }
        if is_news {
            self.recovers_to = self.sent;
        }
        is_news
    }

    /// Returns how much later a packet may arrive than packets sent behind it.
    fn lateness(&self) -> Duration {
        match (&self.trip, &self.selective) {
            (Some(trip), Some(selective)) => selective.reordering(trip.smoothed(), trip.shortest()),
            _ => LATE,
        }
    }

    /// Returns the path over which the packet of [`Self::plan`] leaves, with spraying.
    #[inline]
    pub(in crate::qp) fn way(&self, now: Instant) -> Option<u8> {
        let selective = self.selective.as_ref()?;
        let spray = selective.spray.as_ref()?;
        Some(selective.first_lost().map_or_else(|| spray.pick(now), |hole| spray.pick_again(hole.number())))
    }

    /// Returns the path that the packet with this PSN took, with spraying.
    pub(in crate::qp) fn way_of(&self, psn: Psn) -> Option<u8> {
        let spray = self.selective.as_ref()?.spray.as_ref()?;
        let number = self.una.checked_add_signed(psn.distance(self.psn(self.una)).into())?;
        spray.way_of(number)
    }

    /// Packet `number` left over `way`.
    pub(in crate::qp) fn took(&mut self, number: u64, way: u8, now: Instant) {
        let Some(selective) = &mut self.selective else { return };
        let is_silent = selective.take_silence(number);
        if let Some(spray) = &mut selective.spray {
            spray.took(number, self.next, way, is_silent, now);
        }
    }

    /// Returns how long an answer may take over the slowest path; 0 without spraying.
    pub(super) fn spray_patience(&self) -> Duration {
        let spray = self.selective.as_ref().and_then(|selective| selective.spray.as_ref());
        spray.and_then(|spray| spray.patience()).unwrap_or_default()
    }

    /// The peer has all before `number`.
    #[inline]
    pub(super) fn peer_has(&mut self, number: u64, now: Instant) {
        let Self { selective: Some(selective), queue, mtu, una, .. } = self else { return };
        if *una < number && selective.base < number {
            // An answer is missing before it: what the peer has behind that is not in flight any more.
            let from = selective.base.max(*una);
            let index = queue.partition_point(|wqe| wqe.end() <= from);
            for wqe in queue.iter().skip(index).take_while(|wqe| wqe.first < number) {
                if !wqe.is_answered() {
                    for missing in missing_of(wqe, *mtu, true, from, number) {
                        selective.goes_away(missing);
                    }
                }
            }
        }
        selective.advance_to(number);
        if let Some(spray) = &mut selective.spray {
            spray.advance_to(number, now);
        }
    }

    /// The peer answers the request that contains `number`, so it has that request and all before it.
    pub(super) fn peer_answers(&mut self, number: u64, now: Instant) {
        if self.selective.is_none() {
            return;
        }
        let index = self.queue.partition_point(|wqe| wqe.end() <= number);
        if let Some(end) = self.queue.get(index).map(Wqe::end) {
            self.peer_has(end, now);
        }
    }

    /// The early answer `number` is about this request; `None` if it is too early to be kept.
    #[expect(clippy::arithmetic_side_effects, reason = "an answer is not before `una`")]
    pub(super) fn early(&self, number: u64) -> Option<&Wqe> {
        let selective = self.selective.as_ref()?;
        let index = self.queue.partition_point(|wqe| wqe.end() <= number);
        let near = number - self.una < SPAN && !selective.has_arrived(number);
        self.queue.get(index).filter(|_| near)
    }

    /// The early answer `number` is in its place. Returns whether it shows a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn on_early_answer(&mut self, number: u64, now: Instant) -> bool {
        let una = self.una;
        if let Some(selective) = &mut self.selective {
            selective.acknowledged(una);
            selective.arrives(number);
        }
        self.answers_missing(number, now);
        self.probe_at = self.probe_wait().map(|wait| now + wait);
        self.after_progress(now)
    }

    /// Completes what waited for the packet before it. Returns the payload bytes that this acknowledged.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    pub(super) fn absorb(&mut self, context: &mut Context<'_>, identity: &Identity) -> u64 {
        let mut bytes = 0;
        while let Some(selective) = &mut self.selective
            && let Some(front) = self.queue.front()
        {
            if front.is_answered() {
                if !selective.has_arrived(self.una) {
                    break;
                }
                self.una += 1;
                self.retire_front(context, identity);
            } else {
                let peer = selective.base;
                if self.una >= peer {
                    break;
                }
                bytes += self.acknowledge(peer, context, identity).bytes;
            }
        }
        bytes
    }

    /// Packets from `before` on are acknowledged: what was not in flight of them counts no more. Their requests are still there.
    pub(super) fn settle(&mut self, before: u64) {
        let Self { selective: Some(selective), queue, mtu, una, .. } = self else { return };
        if selective.away_bytes() == 0 {
            return;
        }
        for wqe in queue.iter().take_while(|wqe| wqe.first < *una).filter(|wqe| !wqe.is_answered()) {
            for number in before.max(wqe.first)..wqe.end().min(*una) {
                selective.comes_back(packet_of(wqe, number, *mtu));
            }
        }
    }

    /// Sends again all that is missing.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn lose_all(&mut self, now: Instant) {
        let Self { selective: Some(selective), queue, mtu, una, sent, .. } = self else { return };
        let end = (*sent).min(*una + SPAN);
        for wqe in queue.iter().take_while(|wqe| wqe.first < end) {
            let is_executed = wqe.first < selective.base;
            for missing in missing_of(wqe, *mtu, is_executed, *una, end) {
                selective.loses(missing, now);
            }
        }
        self.sample = None;
    }

    /// The peer lacks the oldest packet, and perhaps had it before: it met no receive. What it holds behind that it keeps.
    pub(super) fn lose_refused(&mut self, now: Instant) {
        if let Some(selective) = &mut self.selective {
            selective.gives_up();
        }
        self.lose_blameless(now);
    }

    /// Sends again all that is missing, which is not the fault of the paths.
    pub(super) fn lose_blameless(&mut self, now: Instant) {
        self.lose_all(now);
        if let Some(selective) = &mut self.selective {
            selective.excuse_paths();
        }
    }

    /// Nothing has come for too long: sends the last packet again that may be missing. The answer says what else is.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packet numbers stay far below 2^64; the sum is at most MOST_PROBES + 1"
    )]
    pub(super) fn probe(&mut self, window: u64, now: Instant) {
        if self.is_repeating() {
            if self.in_flight() >= window.max(1) {
                // The window is full of what is lost as well.
                self.lose_all(now);
            }
            // A packet that the pacer delays requests an answer once it leaves.
            return;
        }
        self.probes = (self.probes + 1).min(MOST_PROBES);
        let Self { selective: Some(selective), queue, mtu, una, sent, cursor, .. } = self else { return };
        let end = (*sent).min(*una + SPAN);
        for index in (0..=*cursor).rev() {
            let Some(wqe) = queue.get(index).filter(|wqe| wqe.first < end) else { continue };
            let is_executed = wqe.first < selective.base;
            let mut missing = missing_of(wqe, *mtu, is_executed, *una, end).rev();
            if missing.any(|missing| selective.loses(missing, now)) {
                self.sample = None;
                return;
            }
        }
    }

    /// The packet that is sent again next, if the window allows.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is at most the length; a hole is in its request"
    )]
    pub(super) fn plan_again(&self, hole: Hole, window: u64) -> Option<Plan<'_>> {
        let number = hole.number();
        if self.rnr_until.is_some() || self.in_flight() >= window.max(1) {
            return None;
        }
        let index = self.queue.partition_point(|wqe| wqe.end() <= number);
        let wqe = self.queue.get(index)?;
        let offset = wqe.offset(number, self.mtu);
        let length = if wqe.is_fetched() { 0 } else { (wqe.length - offset).min(self.mtu) };
        let position = Position::of((number - wqe.first) as u32, wqe.packets);
        let ends = wqe.is_answered() || matches!(position, Position::Last | Position::Only);
        Some(Plan {
            operation: operation(wqe, position, offset, wqe.offset(self.until(hole, wqe), self.mtu))?,
            psn: self.psn(number),
            srq: wqe.request.srq,
            // A packet that is sent again reports at once if it arrived.
            ack_request: true,
            solicited: ends && wqe.request.solicited,
            data: &wqe.request.data,
            offset,
            length,
            is_oldest: index == 0,
        })
    }

    /// The number behind what the repetition of `hole` sends or asks for.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    fn until(&self, hole: Hole, wqe: &Wqe) -> u64 {
        match (&self.selective, wqe.is_answered()) {
            (Some(selective), true) if hole.missing.is_answer => selective.stretch(hole.number(), wqe.end()),
            (_, true) => wqe.end(),
            (_, false) => hole.number() + 1,
        }
    }

    /// The packet of [`Self::plan_again`] was sent.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "packet numbers and counters stay far below 2^64; waits are minutes; adding to an `Instant` saturates"
    )]
    pub(super) fn commit_again(&mut self, hole: Hole, context: &mut Context<'_>) -> u64 {
        let now = context.now;
        let index = self.queue.partition_point(|wqe| wqe.end() <= hole.number());
        let until = self.queue.get(index).map_or(hole.number() + 1, |wqe| self.until(hole, wqe));
        let until = if hole.missing.is_answer { until } else { hole.number() + 1 };
        let wait =
            self.trip.map_or(LATE, |trip| trip.smoothed()).max(self.spray_patience()) + self.lateness();
        // Without a round trip that was measured nothing says how long it takes: the timer does.
        let wait = if self.trip.is_none() { self.wait().unwrap_or(UNKNOWN) } else { wait };
        let longest = self.wait();
        // It requests an answer, which reports on all that was sent before.
        self.asked = self.asked.max(self.next);
        self.asked_at = now;
        self.unasked = (0, 0);
        if let Some(selective) = &mut self.selective {
            selective.resends((hole.number(), until), now, wait, longest);
        }
        self.deadline = self.deadline.or(self.wait().map(|wait| now + wait));
        self.probe_at = self.probe_wait().map(|wait| now + wait);
        context.counters.retransmitted += 1;
        hole.number()
    }
}
