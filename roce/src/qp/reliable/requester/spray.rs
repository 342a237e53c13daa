//! Spraying with selective repeat: packets leave over several paths, each with its own UDP source port and its own order.
//!
//! A packet is late once one that left later on the same path has arrived, and lost if it stays away; what other paths bring proves
//! nothing. If nothing arrives on a path for longer than it ever takes, the path is left, and tried again now and then by one packet
//! ([`Paths`](crate::congestion) has the headers).

use super::super::ring::SPAN;
use super::rtt::RttEstimator;
use crate::congestion::PathChoice;
use alloc::boxed::Box;
use alloc::vec::Vec;
use cc::Instant;
use core::time::Duration;

/// A packet left over the path of the low bits.
const TAKEN: u8 = 0x80;
/// It left again: its arrival proves nothing about either path.
const AGAIN: u8 = 0x40;
/// It arrived.
const ARRIVED: u8 = 0x20;
const WAY: u8 = 0x07;

/// Waits for a path's slowest answer until a path that was left is tried again: so many, then twice as many each time.
const REST: u32 = 8;
/// Doublings of that.
const MOST_STRIKES: u8 = 6;
/// A path that no answer measured may take so many times as long as those measured.
const UNMEASURED: u32 = 8;
/// A path with a longer queue than the others gets one turn of so many.
const SLOW_TURNS: u8 = 8;
/// A queue that is longer by less is as long.
const SAME_QUEUE: Duration = Duration::from_micros(2);

#[derive(Clone, Copy, Debug)]
struct Way {
    rtt: RttEstimator,
    /// One more than the highest packet that arrived over it.
    top: u64,
    /// When it last brought a packet that left for the first time.
    heard: Instant,
    /// It was left until then.
    left: Option<Instant>,
    /// The number of times in a row.
    strikes: u8,
    /// The one packet on a path that is left, or was never measured.
    trial: Option<u64>,
    /// Its queue is longer than those of others.
    is_slow: bool,
    /// Turns that it was passed over.
    passed: u8,
}

/// The paths of a queue pair, and which packet took which.
#[derive(Debug)]
pub(super) struct Spray {
    ways: Vec<Way>,
    /// By number modulo [`SPAN`].
    taken: Box<[u8]>,
    /// All before this packet arrived.
    base: u64,
    /// One more than the highest packet that left.
    next: u64,
    turn: u8,
}

impl Spray {
    /// `count` paths that carried nothing yet: of a number out of bounds, as many as [`Paths`](crate::congestion) has.
    #[expect(clippy::arithmetic_side_effects, reason = "`count` is 1 to 8")]
    pub(super) fn new(count: u8) -> Self {
        let count = count.clamp(1, PathChoice::MOST);
        let way = Way {
            rtt: RttEstimator::new(),
            top: 0,
            heard: Instant::ZERO,
            left: None,
            strikes: 0,
            trial: None,
            is_slow: false,
            passed: 0,
        };
        Self {
            ways: alloc::vec![way; count.into()],
            taken: alloc::vec![0; SPAN as usize].into_boxed_slice(),
            base: 0,
            next: 0,
            turn: count - 1,
        }
    }

    const fn place(number: u64) -> usize {
        (number % SPAN) as usize
    }

    /// Returns the path that packet `number` took, if it is known.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below SPAN; `number` is below `next`"
    )]
    pub(super) fn way_of(&self, number: u64) -> Option<u8> {
        let taken = self.taken[Self::place(number)];
        let is_known = taken & TAKEN != 0 && number < self.next && self.next - number <= SPAN;
        is_known.then_some(taken & WAY)
    }

    fn way(&self, number: u64) -> Option<&Way> {
        self.ways.get(usize::from(self.way_of(number)?))
    }

    /// Paths in the order of their turns, except `except`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "there are 1 to 8 paths; the path's index is below their number"
    )]
    fn turns(&self, except: Option<u8>) -> impl Iterator<Item = (u8, &Way)> {
        let count = self.ways.len() as u8;
        let turns = (1..=count).map(move |step| (self.turn + step) % count);
        turns.filter(move |&way| Some(way) != except).map(|way| (way, &self.ways[usize::from(way)]))
    }

    /// Returns the path of the next packet that leaves for the first time.
    pub(super) fn pick(&self, now: Instant) -> u8 {
        let carries = |way: &Way| match (way.rtt.estimate(), way.left) {
            (Some(_), None) => !way.is_slow || way.passed >= SLOW_TURNS,
            (None, None) => way.trial.is_none(),
            (_, Some(until)) => way.trial.is_none() && until <= now,
        };
        let next = self.turns(None).find(|(_, way)| carries(way));
        next.map_or_else(|| self.usable(None), |(way, _)| way)
    }

    /// Returns the path over which packet `number` leaves again: another one than before.
    pub(super) fn pick_again(&self, number: u64) -> u8 {
        self.usable(self.way_of(number))
    }

    /// Returns a path that was measured and not left. If there is none, the first that was not left, or the one left the longest ago.
    #[expect(clippy::indexing_slicing, reason = "`way` is below the number of paths")]
    fn usable(&self, except: Option<u8>) -> u8 {
        let is_live = |(_, way): &(u8, &Way)| way.left.is_none() && way.rtt.estimate().is_some();
        let live = self.turns(except).find(is_live).or_else(|| self.turns(None).find(is_live));
        let waits = |&way: &usize| (self.ways[way].left, Some(way as u8) == except);
        let longest = || (0..self.ways.len()).min_by_key(waits).unwrap_or(0) as u8;
        live.map_or_else(longest, |(way, _)| way)
    }

    /// Packet `number` left over `way`; the next packet will be `end`, which a READ moves by the packets of its answer. `is_silent`: it
    /// leaves again, and nothing later arrived over the path that it took before.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "there are 1 to 8 paths; the index is below SPAN; packet numbers stay far below 2^64"
    )]
    pub(super) fn took(&mut self, number: u64, end: u64, way: u8, is_silent: bool, now: Instant) {
        let before = self.way_of(number);
        let is_again = number < self.next;
        self.taken[Self::place(number)] = TAKEN | way | if is_again { AGAIN } else { 0 };
        if is_again {
            if let Some(before) = before {
                self.lost(number, before, is_silent, now);
            }
            return;
        }
        self.next = end;
        // No packet of ours carries them, and their places are those of earlier packets.
        (number + 1..end.min(number + SPAN)).for_each(|skipped| self.taken[Self::place(skipped)] = 0);
        let count = self.ways.len() as u8;
        let mut passed = (self.turn + 1) % count;
        while passed != way {
            self.ways[usize::from(passed)].passed = self.ways[usize::from(passed)].passed.saturating_add(1);
            passed = (passed + 1) % count;
        }
        self.turn = way;
        let way = &mut self.ways[usize::from(way)];
        way.passed = 0;
        way.rtt.on_sent(number, now);
        if way.left.is_some() || way.rtt.estimate().is_none() {
            way.trial = way.trial.or(Some(number));
        }
    }

    /// Packet `number` was lost on `way`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the path's index is below their number; minutes times 512 are far below the longest Duration; adding to an `Instant` saturates; the sum is at most MOST_STRIKES + 1"
    )]
    fn lost(&mut self, number: u64, way: u8, is_silent: bool, now: Instant) {
        let rest = self.latest(way).unwrap_or(Duration::from_millis(1)) * REST;
        let way = &mut self.ways[usize::from(way)];
        if way.rtt.sampled() == Some(number) {
            way.rtt.cancel();
        }
        let was_trial = way.trial == Some(number);
        if was_trial {
            way.trial = None;
        }
        if is_silent && (was_trial || way.left.is_none()) {
            way.left = Some(now + rest * (1 << way.strikes));
            way.strikes = (way.strikes + 1).min(MOST_STRIKES);
        }
    }

    /// Packet `number` arrived.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below SPAN; a noted path's index is below their number; packet numbers stay far below 2^64"
    )]
    pub(super) fn arrived(&mut self, number: u64, now: Instant) {
        let taken = &mut self.taken[Self::place(number)];
        let before = *taken;
        *taken |= ARRIVED;
        if before & (TAKEN | AGAIN | ARRIVED) != TAKEN {
            return;
        }
        let way = &mut self.ways[usize::from(before & WAY)];
        (way.top, way.heard) = (way.top.max(number + 1), now);
        if way.left.is_some() || way.trial.is_some() {
            (way.left, way.strikes, way.trial) = (None, 0, None);
        }
        if way.rtt.sampled() == Some(number) {
            way.rtt.on_arrival(now);
            self.compare();
        }
    }

    /// All before `number` arrived.
    pub(super) fn advance_to(&mut self, number: u64, now: Instant) {
        for arrived in self.base.max(number.saturating_sub(SPAN))..number {
            self.arrived(arrived, now);
        }
        self.base = self.base.max(number);
    }

    /// Notes which paths have the longer queues: a queue is what a round trip takes beyond the shortest one.
    #[expect(clippy::arithmetic_side_effects, reason = "round trips are at most a minute")]
    fn compare(&mut self) {
        let queue =
            |way: &Way| way.rtt.estimate().map(|trip| trip.smoothed().saturating_sub(trip.shortest()));
        let live = self.ways.iter().filter(|way| way.left.is_none());
        let least = live.filter_map(queue).min().unwrap_or_default();
        for way in &mut self.ways {
            let Some((trip, queue)) = way.rtt.estimate().zip(queue(way)) else { continue };
            way.is_slow = queue > least + SAME_QUEUE.max(trip.shortest() / 4);
        }
    }

    /// Returns whether something that left after packet `number` has arrived over the same path.
    pub(super) fn is_overtaken(&self, number: u64) -> bool {
        self.way(number).is_some_and(|way| number < way.top)
    }

    /// The longest that an answer takes over this path, if that is known.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the path's index is below their number; a minute times 8 is far below the longest Duration"
    )]
    fn latest(&self, way: u8) -> Option<Duration> {
        let unmeasured = || self.slowest().map(|slowest| slowest * UNMEASURED);
        self.ways[usize::from(way)].rtt.estimate().map(|trip| trip.latest()).or_else(unmeasured)
    }

    /// Returns how much longer packet `number` may take than what arrives now over other paths; `None` while nothing is measured.
    pub(super) fn lateness(&self, number: u64) -> Option<Duration> {
        let way = self.way_of(number)?;
        let others = self.turns(Some(way)).filter_map(|(_, other)| other.rtt.estimate());
        let shortest = others.map(|trip| trip.shortest()).min()?;
        Some(self.latest(way)?.saturating_sub(shortest))
    }

    /// Returns until when packet `number` may still come although its time is over: a path keeps its order, so while it brings what
    /// left before, its queue may only have grown.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn hopes_until(&self, number: u64) -> Option<Instant> {
        let way = self.way(number)?;
        Some(way.heard + way.rtt.estimate()?.slack())
    }

    /// Returns the longest that an answer takes over the paths measured.
    fn slowest(&self) -> Option<Duration> {
        let live = self.ways.iter().filter(|way| way.left.is_none());
        live.filter_map(|way| way.rtt.estimate()).map(|trip| trip.latest()).max()
    }

    /// Returns how long an answer may take, whatever path the packet took.
    #[expect(clippy::arithmetic_side_effects, reason = "a minute times 8 is far below the longest Duration")]
    pub(super) fn patience(&self) -> Option<Duration> {
        let on_trial = self.ways.iter().any(|way| way.rtt.estimate().is_none() && way.trial.is_some());
        self.slowest().map(|slowest| slowest * if on_trial { UNMEASURED } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    /// Sends packet `number` for the first time. Returns its path.
    fn send(spray: &mut Spray, number: u64, at: u64) -> u8 {
        let way = spray.pick(micros(at));
        spray.took(number, number + 1, way, false, micros(at));
        way
    }

    /// The settings of a queue pair may ask for any number of paths.
    #[test]
    fn no_number_of_paths_is_too_few_or_too_many() {
        for count in 0..=u8::MAX {
            let mut spray = Spray::new(count);
            for number in 0..9 {
                let way = send(&mut spray, number, 0);
                assert_eq!(spray.way_of(number), Some(way), "{count} paths");
            }
            (0..9).for_each(|number| spray.arrived(number, micros(9)));
        }
    }

    /// Four paths of 10, 20, 30 and 40 µs, measured by one packet each.
    fn measured() -> Spray {
        let mut spray = Spray::new(4);
        for number in 0..4 {
            assert_eq!(u64::from(send(&mut spray, number, 0)), number);
        }
        assert_eq!(send(&mut spray, 4, 0), 0, "one packet measures a path, the others take the first");
        (0..4).for_each(|number| spray.arrived(number, micros(10 * (number + 1))));
        spray
    }

    #[test]
    fn paths_take_turns_once_they_are_measured() {
        let mut spray = measured();
        let ways: Vec<u8> = (5..13).map(|number| send(&mut spray, number, 50)).collect();
        assert_eq!(ways, [1, 2, 3, 0, 1, 2, 3, 0]);
        assert_eq!(spray.lateness(6).map(|late| late >= Duration::from_micros(20)), Some(true));
        assert!(!spray.is_overtaken(5));
        spray.arrived(6, micros(60));
        assert!(!spray.is_overtaken(5), "another path");
        spray.arrived(9, micros(70));
        assert!(spray.is_overtaken(5) && !spray.is_overtaken(10));
    }

    #[test]
    fn a_silent_path_is_left_and_tried_by_one_packet_at_a_time() {
        let mut spray = measured();
        for number in 5..9 {
            send(&mut spray, number, 50);
        }
        // Packet 5 took path 1.
        let other = spray.pick_again(5);
        assert_ne!(other, 1);
        spray.took(5, 6, other, true, micros(100));
        assert!((9..30).all(|number| send(&mut spray, number, 100) != 1));
        let tried: Vec<u8> = (30..40).map(|number| send(&mut spray, number, 2_000)).collect();
        assert_eq!(tried.iter().filter(|way| **way == 1).count(), 1);
        let trial = 30 + tried.iter().position(|way| *way == 1).unwrap() as u64;
        spray.took(trial, trial + 1, spray.pick_again(trial), true, micros(2_100));
        assert!((40..60).all(|number| send(&mut spray, number, 2_300) != 1), "it rests for longer");
        let trial = (60..70).find(|&number| send(&mut spray, number, 9_000) == 1).unwrap();
        spray.arrived(trial, micros(9_020));
        let ways: Vec<u8> = (70..78).map(|number| send(&mut spray, number, 9_030)).collect();
        assert_eq!(ways.iter().filter(|way| **way == 1).count(), 2);
    }

    #[test]
    fn an_answer_that_is_asked_for_again_measures_nothing() {
        let mut spray = measured();
        // A READ with an answer of ten packets, requested again from the fourth on.
        let way = spray.pick(micros(50));
        spray.took(5, 15, way, false, micros(50));
        assert_eq!(spray.way_of(8), None);
        spray.took(8, 15, 3, false, micros(400));
        spray.arrived(8, micros(401));
        let shortest =
            spray.ways.iter().filter_map(|way| way.rtt.estimate()).map(|trip| trip.shortest()).min();
        assert_eq!(shortest, Some(Duration::from_micros(10)));
    }

    #[test]
    fn a_trial_that_the_peer_refused_is_no_fault_of_its_path() {
        let mut spray = Spray::new(2);
        let way = send(&mut spray, 0, 0);
        spray.took(0, 1, way, false, micros(100));
        assert_eq!(spray.ways[usize::from(way)].left, None);
    }

    #[test]
    fn a_path_with_a_queue_gets_fewer_packets() {
        let mut spray = measured();
        let mut counts = [0; 4];
        for number in 5..205 {
            let at = number * 100;
            let way = send(&mut spray, number, at);
            counts[usize::from(way)] += 1;
            let queue = if way == 2 { 30 } else { 0 };
            spray.arrived(number, micros(at + 10 * (u64::from(way) + 1) + queue));
        }
        assert!(counts[2] < 20 && [0, 1, 3].iter().all(|way| counts[*way] > 50), "{counts:?}");
    }
}
