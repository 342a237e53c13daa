//! A sender's view of a peer that accepts packets out of order: what the peer has, what is missing, and since when.

use super::super::ring::{Ring, SPAN};
use super::limits::MAX_PROBE_BACKOFF;
use super::spray::Spray;
use crate::wheel::sooner;
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use cc::Instant;
use core::time::Duration;

/// Losses in a row without a packet that was only late, after which packets are expected in their order.
const CALM: u8 = 8;
/// Packets that have one time at which the first hole among them becomes lost: a search visits no others.
const BLOCK: u64 = 128;
/// A window of [`SPAN`] numbers lies in fewer blocks.
const BLOCKS: usize = 64;
const NEVER: Instant = Instant::from_nanos(u64::MAX);
const NO_NEWS: (u64, u64) = (u64::MAX, 0);

/// A packet whose arrival is in question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Missing {
    pub(super) number: u64,
    /// Payload bytes that the window counts while it is in flight: none of an answer.
    pub(super) bytes: u32,
    /// An answer of the peer, not a request.
    pub(super) is_answer: bool,
}

/// A packet that is missing although something behind it has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole {
    pub(super) missing: Missing,
    /// It waits to be sent or requested again.
    pub(super) is_lost: bool,
    /// Something that left later on the same path has arrived. Without spraying there is one path.
    is_overtaken: bool,
    /// If it does not come until then it is lost.
    due: Instant,
    /// When it was sent or requested again last.
    resent: Option<Instant>,
    /// The number of times that it was sent or requested again.
    tries: u8,
    /// It has come. It keeps its place until all before it have.
    is_filled: bool,
}

impl Hole {
    pub(super) const fn number(&self) -> u64 {
        self.missing.number
    }

    /// Nothing that left later on its path has arrived, nor was it sent again.
    const fn is_silent(&self) -> bool {
        !self.is_overtaken && self.resent.is_none()
    }
}

/// A sender's knowledge of its peer.
#[derive(Debug)]
pub(super) struct Selective {
    /// The peer has executed all requests before this packet.
    pub(super) base: u64,
    /// Request packets that the peer holds, from `base` on.
    held: Ring,
    /// One more than the highest of them that there ever was.
    heard: u64,
    /// Answers to READs and atomics that came early and are in their place.
    arrived: Ring,
    arrived_from: u64,
    arrived_count: u64,
    /// One more than the highest answer that came early.
    answered: u64,
    /// Request packets that are not acknowledged and not in flight either: the peer holds them, or they are lost.
    away: Ring,
    away_bytes: u64,
    /// By number.
    holes: VecDeque<Hole>,
    /// The number of holes that are not filled.
    open: usize,
    /// The number of those that are lost.
    lost: usize,
    /// No hole before this number is lost.
    lost_from: u64,
    /// The first number of the packets that have come since holes were filled last, and one behind the last.
    news: (u64, u64),
    /// The next moment at which one of the holes becomes lost.
    due: Option<Instant>,
    /// The same for each block, by number modulo [`BLOCKS`] times [`BLOCK`].
    dues: [Instant; BLOCKS],
    /// The last loss that was reported to congestion control: packets sent before this number, and before this moment, belong to it.
    reported: (u64, Instant),
    /// Losses since a packet was late, up to [`CALM`].
    calm: u8,
    /// If packets leave over several paths.
    pub(super) spray: Option<Box<Spray>>,
    /// The repeated answer that came last: when it was requested, its number, and when it came.
    streams: Option<(Instant, u64, Instant)>,
}

impl Selective {
    pub(super) const fn new(spray: Option<Box<Spray>>) -> Self {
        Self {
            spray,
            base: 0,
            held: Ring::new(),
            heard: 0,
            arrived: Ring::new(),
            arrived_from: 0,
            arrived_count: 0,
            answered: 0,
            away: Ring::new(),
            away_bytes: 0,
            holes: VecDeque::new(),
            open: 0,
            lost: 0,
            lost_from: 0,
            news: NO_NEWS,
            due: None,
            dues: [NEVER; BLOCKS],
            reported: (0, Instant::ZERO),
            calm: 0,
            streams: None,
        }
    }

    /// Of a connection whose oldest packet not acknowledged is `una`; losses before `told` were reported to congestion control.
    pub(super) fn joining(una: u64, told: (u64, Instant)) -> Self {
        Self { base: una, arrived_from: una, reported: told, ..Self::new(None) }
    }

    /// The peer has all before `number`.
    pub(super) fn advance_to(&mut self, number: u64) {
        if number > self.base {
            self.held.clear_range(self.base, number);
            // The peer probably lacks the next one: its acknowledgement has not come, or it met no receive.
            self.held.clear(number);
            self.hears(self.base, number);
            self.base = number;
        }
    }

    /// The oldest packet not acknowledged is `una`.
    #[expect(clippy::arithmetic_side_effects, reason = "`arrived_count` counts the bits that are set")]
    pub(super) fn acknowledged(&mut self, una: u64) {
        if self.arrived_count > 0 {
            self.arrived_count -= self.arrived.clear_range(self.arrived_from, una);
        }
        self.arrived_from = una;
    }

    /// Returns whether the peer has request packet `number`.
    pub(super) fn has(&self, number: u64) -> bool {
        number.checked_sub(self.base).is_none_or(|ahead| ahead < SPAN && self.held.has(number))
    }

    /// Returns which packets of the 128 from `from` on the peer holds.
    pub(super) fn held(&self, from: u64) -> u128 {
        self.held.window(from)
    }

    /// The peer holds request packet `number`.
    pub(super) fn holds(&mut self, number: u64) {
        let end = number.saturating_add(1);
        self.held.set(number);
        self.heard = self.heard.max(end);
        self.hears(number, end);
    }

    /// The peer lacks packet `base`, even if it had said that it holds it: it met no receive, and was given up.
    pub(super) fn gives_up(&mut self) {
        self.held.clear(self.base);
    }

    /// Returns the highest request packet that the peer reported as held, plus one.
    pub(super) const fn heard(&self) -> u64 {
        self.heard
    }

    /// Returns the highest answer that came early, and one.
    pub(super) const fn answered(&self) -> u64 {
        self.answered
    }

    /// Returns whether answer `number` came early.
    pub(super) fn has_arrived(&self, number: u64) -> bool {
        let is_near = number.checked_sub(self.arrived_from).is_some_and(|ahead| ahead < SPAN);
        is_near && self.arrived.has(number)
    }

    /// Returns whether a packet that is not acknowledged has come: an answer here, or a request at the peer.
    pub(super) fn is_there(&self, missing: Missing) -> bool {
        if missing.is_answer { self.has_arrived(missing.number) } else { self.has(missing.number) }
    }

    /// Answer `number` came early.
    #[expect(clippy::arithmetic_side_effects, reason = "`arrived_count` counts the bits that are set")]
    pub(super) fn arrives(&mut self, number: u64) {
        self.arrived_count += u64::from(self.arrived.set(number));
        self.hears(number, number.saturating_add(1));
    }

    /// Holes from `from` to before `to` may be filled.
    fn hears(&mut self, from: u64, to: u64) {
        self.news = (self.news.0.min(from), self.news.1.max(to));
    }

    /// Answers before `end` should have come.
    pub(super) fn answers_until(&mut self, end: u64) {
        self.answered = self.answered.max(end);
    }

    /// Returns how many answers came early.
    pub(super) const fn arrived_count(&self) -> u64 {
        self.arrived_count
    }

    /// Returns the payload bytes that are not acknowledged, and not in flight either.
    pub(super) const fn away_bytes(&self) -> u64 {
        self.away_bytes
    }

    /// A packet is not in flight any more.
    #[expect(clippy::arithmetic_side_effects, reason = "the bytes are those of at most SPAN packets")]
    pub(super) fn goes_away(&mut self, Missing { number, bytes, .. }: Missing) {
        if bytes > 0 && self.away.set(number) {
            self.away_bytes += u64::from(bytes);
        }
    }

    /// It is in flight again, or acknowledged.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a packet's bytes never change, so the bytes of its bit were added when it was set"
    )]
    pub(super) fn comes_back(&mut self, Missing { number, bytes, .. }: Missing) {
        if bytes > 0 && self.away.clear(number) {
            self.away_bytes -= u64::from(bytes);
        }
    }

    /// Returns how late a packet may be behind others: a round trip, until losses show that nothing is late here.
    #[expect(clippy::arithmetic_side_effects, reason = "the divisor is a constant")]
    pub(super) fn reordering(&self, smoothed: Duration, shortest: Duration) -> Duration {
        if self.calm == CALM { shortest / 4 } else { smoothed }
    }

    /// Returns when the next missing packet becomes lost.
    #[inline]
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns whether something waits to be sent again.
    #[inline]
    pub(super) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    /// Returns whether packet `number` waits to be sent again.
    pub(super) fn is_lost(&self, number: u64) -> bool {
        self.holes.get(self.place(number)).is_some_and(|hole| hole.number() == number && hole.is_lost)
    }

    #[inline]
    pub(super) const fn has_holes(&self) -> bool {
        self.open > 0
    }

    /// Returns the first hole that waits to be sent again.
    pub(super) fn first_lost(&self) -> Option<Hole> {
        if self.lost == 0 { None } else { self.holes.get(self.place(self.lost_from)).copied() }
    }

    /// Returns the place of the first hole from `number` on.
    fn place(&self, number: u64) -> usize {
        self.holes.partition_point(|hole| hole.number() < number)
    }

    /// Moves `lost_from` to the first hole that is lost.
    fn seek_lost(&mut self) {
        if self.lost > 0 {
            let first = self.holes.range(self.place(self.lost_from)..).find(|hole| hole.is_lost);
            self.lost_from = first.map_or(self.lost_from, Hole::number);
        }
    }

    /// Hole `number` becomes lost at `due` at the soonest.
    #[expect(clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    fn expects(&mut self, number: u64, due: Instant) {
        let first = &mut self.dues[Self::block_of(number)];
        *first = due.min(*first);
        self.due = sooner(self.due, Some(due));
    }

    const fn block_of(number: u64) -> usize {
        (number / BLOCK) as usize % BLOCKS
    }

    /// Returns the number behind a stretch of lost answers that begins at `from`, before `end`.
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is at most `end`")]
    pub(super) fn stretch(&self, from: u64, end: u64) -> u64 {
        let behind = self.holes.range(self.place(from)..).zip(from..end);
        from + behind
            .take_while(|(hole, at)| hole.number() == *at && hole.missing.is_answer && hole.is_lost)
            .count() as u64
    }

    /// A packet is missing unless it is there, and is lost at `due` if it does not come.
    #[expect(clippy::arithmetic_side_effects, reason = "`open` is at most the length")]
    pub(super) fn misses(&mut self, missing: Missing, due: Instant) {
        if self.is_there(missing) {
            return;
        }
        let number = missing.number;
        let at = self.place(number);
        let known = self.holes.get_mut(at).filter(|hole| hole.number() == number);
        if known.as_ref().is_some_and(|hole| !hole.is_filled) {
            return;
        }
        let is_overtaken =
            missing.is_answer || self.spray.as_ref().is_none_or(|spray| spray.is_overtaken(number));
        let hole =
            Hole { missing, is_lost: false, is_overtaken, due, resent: None, tries: 0, is_filled: false };
        match known {
            Some(known) => *known = hole,
            None => self.holes.insert(at, hole),
        }
        self.open += 1;
        self.expects(number, due);
    }

    /// Finds what has been overtaken on its own path by now: that may be late until `due`.
    #[expect(clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    pub(super) fn overtake(&mut self, due: Instant) {
        let Self { spray: Some(spray), holes, dues, .. } = self else { return };
        for hole in holes.iter_mut().filter(|hole| !hole.is_filled && hole.is_silent()) {
            if spray.is_overtaken(hole.number()) {
                (hole.is_overtaken, hole.due) = (true, hole.due.min(due));
                let first = &mut dues[Self::block_of(hole.number())];
                *first = hole.due.min(*first);
                self.due = sooner(self.due, Some(hole.due));
            }
        }
    }

    /// Clears the paths of the blame for missing packets.
    pub(super) fn excuse_paths(&mut self) {
        self.holes.iter_mut().for_each(|hole| hole.is_overtaken = true);
    }

    /// Returns whether nothing has arrived that left after the missing packet `number` on the same path. Only its first loss says so.
    pub(super) fn take_silence(&mut self, number: u64) -> bool {
        let at = self.place(number);
        let hole = self.holes.get_mut(at).filter(|hole| hole.number() == number && !hole.is_filled);
        hole.is_some_and(|hole| !core::mem::replace(&mut hole.is_overtaken, true))
    }

    /// A packet is lost unless it is there. Returns whether it is lost.
    #[expect(clippy::arithmetic_side_effects, reason = "`lost` counts some of the holes")]
    pub(super) fn loses(&mut self, missing: Missing, now: Instant) -> bool {
        if self.is_there(missing) {
            return false;
        }
        self.misses(missing, now);
        let at = self.place(missing.number);
        if let Some(hole) = self.holes.get_mut(at) {
            let is_first = self.lost == 0 || missing.number < self.lost_from;
            self.lost += usize::from(!hole.is_lost);
            (hole.is_lost, hole.missing) = (true, missing);
            if is_first {
                self.lost_from = missing.number;
            }
            self.goes_away(missing);
        }
        true
    }

    /// Finds what has become lost by `now`. Returns whether congestion control must learn of it; `sent` is the next packet that was never
    /// sent.
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    pub(super) fn detect(&mut self, now: Instant, sent: u64) -> bool {
        let ends = self.holes.front().zip(self.holes.back());
        let Some((first, last)) = ends.filter(|_| self.due.is_some_and(|due| due <= now)) else {
            return false;
        };
        let (mut due, mut is_news, mut is_queued) = (None, false, false);
        for block in first.number() / BLOCK..=last.number() / BLOCK {
            let at = Self::block_of(block * BLOCK);
            // With spraying, what one hole waits for depends on those before it.
            if self.dues[at] <= now || self.spray.is_some() {
                self.dues[at] = self.detect_in(block, now, &mut is_news, &mut is_queued);
            }
            due = sooner(due, Some(self.dues[at]).filter(|&due| due < NEVER));
        }
        self.due = due;
        if is_news {
            self.reported = (sent, now);
        }
        is_news
    }

    /// As [`Self::detect`], of one block. Returns when the first of the others in it becomes lost.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`at` is below the length, which does not change; `lost` counts some of the holes; a number is not before its block"
    )]
    fn detect_in(&mut self, block: u64, now: Instant, is_news: &mut bool, is_queued: &mut bool) -> Instant {
        let mut due = NEVER;
        for at in self.place(block * BLOCK)..self.holes.len() {
            let hole = self.holes[at];
            if hole.number() - block * BLOCK >= BLOCK {
                break;
            }
            if hole.is_lost || hole.is_filled {
                continue;
            }
            let hole_due = self.due_of(&hole);
            if hole_due > now {
                *is_queued |= hole.is_silent();
                due = due.min(hole_due);
                continue;
            }
            if *is_queued && hole.is_silent() {
                // Paths may share a queue: as long as one that left before it may come, so may this one.
                continue;
            }
            self.holes[at].is_lost = true;
            self.lost_from = if self.lost == 0 { hole.number() } else { self.lost_from.min(hole.number()) };
            self.lost += 1;
            // The loss of a repetition counts separately. It may have left at the moment of the report.
            let (number, reported) = self.reported;
            *is_news |= hole.number() >= number || hole.resent.is_some_and(|resent| resent >= reported);
            self.goes_away(hole.missing);
        }
        due
    }

    /// When a hole becomes lost. Repeated answers come in the order of their requests, and a stretch of them may take longer than a round
    /// trip: those behind the one that came last have as much time from that on as they had from their repetition on.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn due_of(&self, hole: &Hole) -> Instant {
        match (self.streams, hole.resent) {
            (Some((asked, number, came)), Some(resent))
                if hole.missing.is_answer && (asked, number) < (resent, hole.number()) =>
            {
                hole.due.max(came + hole.due.saturating_since(resent))
            }
            _ if hole.is_silent() => {
                let hope = self.spray.as_ref().and_then(|spray| spray.hopes_until(hole.number()));
                hope.map_or(hole.due, |hope| hole.due.max(hope))
            }
            _ => hole.due,
        }
    }

    /// Records that lost packets from `from` to before `to` were sent again. They are lost again after `wait`, doubled each time (RFC 6298
    /// 5.5), and after `longest` at the latest.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`at` is below the length; `lost` counts the holes that are lost; 64 times a wait of hours is far below the longest Duration, and adding to an `Instant` saturates"
    )]
    pub(super) fn resends(
        &mut self,
        (from, to): (u64, u64),
        now: Instant,
        wait: Duration,
        longest: Option<Duration>,
    ) {
        for at in self.place(from)..self.holes.len() {
            let hole = &mut self.holes[at];
            if hole.number() >= to {
                break;
            }
            if hole.is_filled {
                continue;
            }
            self.lost -= usize::from(hole.is_lost);
            let patient = wait * (1 << hole.tries);
            let due = now + longest.map_or(patient, |longest| patient.min(longest));
            (hole.is_lost, hole.resent, hole.due) = (false, Some(now), due);
            hole.tries = (hole.tries + 1).min(MAX_PROBE_BACKOFF);
            let missing = hole.missing;
            self.comes_back(missing);
            self.expects(missing.number, due);
        }
        self.seek_lost();
    }

    /// Forgets the holes that are filled: all before `una` is acknowledged.
    pub(super) fn fill(&mut self, una: u64, now: Instant, shortest: Option<Duration>) {
        while let Some(&hole) = self.holes.front().filter(|hole| hole.is_filled || hole.number() < una) {
            self.holes.pop_front();
            self.fills(&hole, now, shortest);
        }
        let (from, to) = core::mem::replace(&mut self.news, NO_NEWS);
        for at in self.place(from)..self.holes.len() {
            let Some(&hole) = self.holes.get(at).filter(|hole| hole.number() < to) else { break };
            if self.is_there(hole.missing) {
                self.fills(&hole, now, shortest);
                if let Some(filled) = self.holes.get_mut(at) {
                    (filled.is_filled, filled.is_lost) = (true, false);
                }
            }
        }
        if !self.has_holes() {
            self.holes.clear();
            (self.due, self.dues) = (None, [NEVER; BLOCKS]);
        }
        self.seek_lost();
    }

    /// Counts a hole that is filled, unless it was counted before.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`open` counts the holes that are not filled, and `lost` some of them; a round trip is at most 4 s; an `Instant` stops at its end; `calm` is at most CALM"
    )]
    fn fills(&mut self, hole: &Hole, now: Instant, shortest: Option<Duration>) {
        if hole.is_filled {
            return;
        }
        self.open -= 1;
        self.lost -= usize::from(hole.is_lost);
        if let (true, Some(resent)) = (hole.missing.is_answer, hole.resent) {
            self.streams = Some((resent, hole.number(), now));
        }
        // What comes sooner after its repetition than a round trip was only late.
        let soon = shortest.map_or(Duration::ZERO, |rtt| rtt * 3 / 4);
        let was_late = hole.resent.is_none_or(|at| now < at + soon);
        if hole.is_overtaken || hole.resent.is_some() {
            self.calm = if was_late { 0 } else { (self.calm + 1).min(CALM) };
        }
    }
}
