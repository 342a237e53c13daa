//! Selective repeat at the sender: what the peer has, which of its answers came early, and what is therefore sent again.
//!
//! After a loss `next` goes back as it does in go-back-N, but over what the peer has it jumps, and from the end of what is
//! known to be lost it goes on where it was.

use super::super::super::wqe::Wqe;
use super::super::super::{Context, Identity};
use super::acknowledge::STALE;
use super::{Progress, Requester, Trouble};
use crate::Psn;
use cc::Instant;
use core::time::Duration;

/// What a peer has: all packets before a number, and some of those behind it.
#[derive(Clone, Copy, Debug, Default)]
struct Peer {
    base: u64,
    /// Bit `i`: packet `base + i`.
    bits: u128,
}

impl Peer {
    fn advance_to(&mut self, base: u64) {
        let by = u32::try_from(base.saturating_sub(self.base)).unwrap_or(u32::MAX);
        self.bits = self.bits.checked_shr(by).unwrap_or(0);
        self.base = self.base.max(base);
        // Not the next one, or it would have gone on: a packet that was held and met no receive is given up.
        self.bits &= !1;
    }

    fn has(&self, number: u64) -> bool {
        match number.checked_sub(self.base) {
            None => true,
            Some(bit) => bit < 128 && self.bits & 1 << bit != 0,
        }
    }

    /// One more than the highest.
    const fn end(&self) -> u64 {
        self.base + (u128::BITS - self.bits.leading_zeros()) as u64
    }
}

/// More than the clock's grain, for paths without delay.
const SHORTEST: Duration = Duration::from_micros(1);

/// Answers that may come early: those to 1 MiB of READs at the usual MTU.
const EARLY: u64 = 1024;

/// Answers to READs and atomics that came early and are in their place, by number modulo [`EARLY`].
#[derive(Debug)]
struct Arrived {
    base: u64,
    bits: [u64; (EARLY / 64) as usize],
}

impl Arrived {
    const fn new() -> Self {
        Self { base: 0, bits: [0; (EARLY / 64) as usize] }
    }

    const fn place(number: u64) -> (usize, u64) {
        ((number % EARLY / 64) as usize, 1 << (number % 64))
    }

    fn advance_to(&mut self, base: u64) {
        for number in self.base..base.min(self.base + EARLY) {
            let (word, bit) = Self::place(number);
            self.bits[word] &= !bit;
        }
        self.base = self.base.max(base);
    }

    fn may_have(&self, number: u64) -> bool {
        (self.base..self.base + EARLY).contains(&number)
    }

    fn has(&self, number: u64) -> bool {
        let (word, bit) = Self::place(number);
        self.may_have(number) && self.bits[word] & bit != 0
    }

    fn set(&mut self, number: u64) {
        let (word, bit) = Self::place(number);
        self.bits[word] |= bit;
    }
}

/// What was sent again, until something that was sent later arrives.
#[derive(Clone, Copy, Debug, Default)]
struct Round {
    /// All that was missing below was sent again.
    resent: u64,
    /// What was sent since then for the first time.
    since: u64,
    /// When.
    at: Instant,
}

/// What a sender knows of a peer that takes packets out of order.
#[derive(Debug)]
pub(super) struct Selective {
    peer: Peer,
    arrived: Arrived,
    /// Below it `next` goes over what was sent before.
    limit: u64,
    requests: Round,
    answers: Round,
    /// The longest round trip that was measured lately.
    rtt: Option<Duration>,
}

impl Selective {
    pub(super) const fn new() -> Self {
        const NONE: Round = Round { resent: 0, since: 0, at: Instant::ZERO };
        Self {
            peer: Peer { base: 0, bits: 0 },
            arrived: Arrived::new(),
            limit: 0,
            requests: NONE,
            answers: NONE,
            rtt: None,
        }
    }

    /// The first packet of `wqe`, from `number` on and before `limit`, that must be sent again.
    fn missing(&self, wqe: &Wqe, number: u64, limit: u64) -> Option<u64> {
        let end = wqe.end().min(limit);
        if !wqe.is_answered() {
            return (number.max(self.peer.base)..end).find(|&number| !self.peer.has(number));
        }
        if wqe.first < self.peer.base {
            // The peer answered, and some of it is missing.
            return (number..end).find(|&number| !self.arrived.has(number));
        }
        (number < end && !self.peer.has(wqe.first)).then_some(number)
    }
}

impl Requester {
    /// The number after what the next packet of `wqe`, a READ or atomic, asks for.
    pub(super) fn asks_until(&self, wqe: &Wqe) -> u64 {
        match &self.selective {
            Some(selective) if self.next < selective.limit && wqe.first < selective.peer.base => {
                let end = wqe.end().min(selective.limit);
                (self.next + 1..end).find(|&number| selective.arrived.has(number)).unwrap_or(end)
            }
            _ => wqe.end(),
        }
    }

    /// A Selective Acknowledge packet: all before `psn` arrived, `psn` did not, and what `held` marks did.
    pub(in crate::qp) fn on_selective_acknowledge(
        &mut self,
        psn: Psn,
        held: u128,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let number = self.answered(psn).ok_or(STALE)?;
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_has(number);
        let (sent, una) = (self.sent, self.una);
        let Some(selective) = &mut self.selective else { return Ok(progress) };
        if number < selective.peer.base {
            // Overtaken by a newer one.
            return Ok(progress);
        }
        // What the peer holds it keeps. It can hold nothing that was not sent, and not what it says it lacks.
        let possible = u32::try_from(sent - number).ok().and_then(|count| 1u128.checked_shl(count));
        selective.peer.bits |= held & !1 & possible.map_or(u128::MAX, |limit| limit - 1);
        let (base, end) = (selective.peer.base, selective.peer.end());
        if una < base {
            progress.lost |= self.answers_lost(base, context.now);
        }
        progress.lost |= self.requests_lost(base, end, context.now);
        Ok(progress)
    }

    /// The peer has all before `number`.
    pub(super) fn peer_has(&mut self, number: u64) {
        if let Some(selective) = &mut self.selective {
            selective.peer.advance_to(number);
        }
    }

    /// The peer answers the request that holds `number`, so it has that request and all before it.
    pub(super) fn peer_answers(&mut self, number: u64) {
        let index = self.queue.partition_point(|wqe| wqe.end() <= number);
        if let Some(end) = self.queue.get(index).map(Wqe::end) {
            self.peer_has(end);
        }
    }

    /// The early answer `number` is about this request; `None` where it is too early to be kept.
    pub(super) fn early(&self, number: u64) -> Option<&Wqe> {
        let selective = self.selective.as_ref()?;
        let index = self.queue.partition_point(|wqe| wqe.end() <= number);
        let near = number - self.una < EARLY && !selective.arrived.has(number);
        self.queue.get(index).filter(|_| near)
    }

    /// The early answer `number` is in its place.
    pub(super) fn on_early_answer(&mut self, number: u64) {
        let una = self.una;
        if let Some(selective) = &mut self.selective {
            selective.arrived.advance_to(una);
            selective.arrived.set(number);
        }
    }

    /// Completes what waited for the packet before it. Gives the payload bytes that this acknowledged.
    pub(super) fn absorb(&mut self, context: &mut Context<'_>, identity: &Identity) -> u64 {
        let mut bytes = 0;
        while let Some(selective) = &mut self.selective
            && let Some(front) = self.queue.front()
        {
            if front.is_answered() {
                if !selective.arrived.has(self.una) {
                    break;
                }
                self.una += 1;
                self.retire_front(context, identity);
            } else {
                let peer = selective.peer.base;
                if self.una >= peer {
                    break;
                }
                bytes += self.acknowledge(peer, context, identity).bytes;
            }
        }
        bytes
    }

    /// Answers from `una` to before `end` should have come. Gives whether that is news.
    pub(super) fn answers_lost(&mut self, end: u64, now: Instant) -> bool {
        let Some(selective) = &self.selective else { return false };
        let mut round = selective.answers;
        let lost = self.lost(&mut round, self.una, end, now);
        if let Some(selective) = &mut self.selective {
            selective.answers = round;
        }
        lost
    }

    fn requests_lost(&mut self, base: u64, end: u64, now: Instant) -> bool {
        let Some(selective) = &self.selective else { return false };
        let mut round = selective.requests;
        let lost = self.lost(&mut round, base, end, now);
        if let Some(selective) = &mut self.selective {
            selective.requests = round;
        }
        lost
    }

    /// Packet `end - 1` is there, and some from `base` on are not: they are sent again, unless they just were.
    fn lost(&mut self, round: &mut Round, base: u64, end: u64, now: Instant) -> bool {
        // Something that was sent after them arrived before them, or a round trip has passed: they were lost again.
        let in_time = self.selective.as_ref().and_then(|selective| selective.rtt);
        let in_time = in_time.is_none_or(|rtt| now < round.at + rtt + rtt / 4 + SHORTEST);
        let again = round.resent > base && (end > round.since || !in_time);
        let from = if again { base } else { round.resent.max(base) };
        if self.rnr_until.is_some() || !self.misses(from, end) {
            return false;
        }
        let news = again || round.resent <= base;
        *round = Round { resent: end, since: self.sent, at: now };
        self.go_over(from, end, now);
        news
    }

    fn misses(&self, from: u64, end: u64) -> bool {
        let Some(selective) = &self.selective else { return false };
        let index = self.queue.partition_point(|wqe| wqe.end() <= from);
        let behind = self.queue.iter().skip(index).take_while(|wqe| wqe.first < end);
        behind.into_iter().any(|wqe| selective.missing(wqe, from.max(wqe.first), end).is_some())
    }

    /// Sends again what is missing from `from` to before `end`.
    fn go_over(&mut self, from: u64, end: u64, now: Instant) {
        let is_going = self.next < self.sent;
        let from = if is_going { self.next.min(from) } else { from };
        if let Some(selective) = &mut self.selective {
            selective.limit = if is_going { selective.limit.max(end) } else { end };
        }
        self.sample = None;
        // A timer that runs goes on: whatever a peer says, without progress it fires, and only that costs a retry.
        self.deadline = self.deadline.or(self.wait().map(|wait| now + wait));
        self.seek(from);
        self.skip();
    }

    /// Sends again all that is missing.
    pub(super) fn go_over_all(&mut self) {
        let sent = self.sent;
        if let Some(selective) = &mut self.selective {
            selective.limit = sent;
            self.skip();
        }
    }

    /// Moves `next` on to what is missing; behind the limit, to what was never sent.
    pub(super) fn skip(&mut self) {
        let Some(selective) = &self.selective else { return };
        if self.next >= self.sent {
            return;
        }
        let limit = selective.limit.min(self.sent);
        let found = self.queue.iter().skip(self.cursor).take_while(|wqe| wqe.first < limit);
        let found = found.into_iter().find_map(|wqe| selective.missing(wqe, self.next.max(wqe.first), limit));
        self.seek(found.unwrap_or(self.sent));
    }

    /// A round trip was measured.
    pub(super) fn on_round_trip(&mut self, rtt: Duration) {
        if let Some(selective) = &mut self.selective {
            // Of a queue that has just emptied the longer round trips may still be on their way.
            let before = selective.rtt.unwrap_or(Duration::ZERO);
            selective.rtt = Some(rtt.max(before - before / 8));
        }
    }

    fn seek(&mut self, number: u64) {
        self.next = number;
        self.cursor = self.queue.partition_point(|wqe| wqe.end() <= number && !wqe.is_pending());
        let before = self.queue.iter().take(self.cursor);
        self.outstanding_reads = before.filter(|wqe| wqe.is_answered()).count() as u32;
    }
}
