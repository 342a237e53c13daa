//! Packet spraying with selective repeat: packets use several paths, each with its own UDP source port and its own order.
//!
//! A packet is overtaken if a packet sent later over the same path has arrived; arrivals over other paths do not count. A path is avoided
//! if nothing arrives over it for longer than its slowest answer. From time to time, one packet probes it. [`Paths`](crate::congestion) has
//! the headers and loads of the same paths, by the same index.

use super::super::ring::SPAN;
use super::rtt::RttEstimator;
use crate::congestion::PathChoice;
use alloc::boxed::Box;
use alloc::vec::Vec;
use cc::Instant;
use core::time::Duration;

/// The packet was sent, over the path of the low bits.
const SENT: u8 = 0x80;
/// The packet was retransmitted: its arrival does not show over which path.
const REPEATED: u8 = 0x40;
/// The packet arrived.
const ARRIVED: u8 = 0x20;
/// Index of the path.
const PATH: u8 = 0x07;

/// Factor from the path's slowest answer to the time for which a failed path is avoided; doubles with each failure in a row.
const AVOIDED: u32 = 8;
/// Limit of these doublings.
const MAX_FAILURES: u8 = 6;
/// Factor from the slowest answer of the measured paths to that of an unmeasured path.
const UNMEASURED: u32 = 8;
/// A path with a longer queue than the others carries one packet in this many turns.
const SLOW_TURNS: u8 = 8;
/// Queues that differ by less count as equal.
const EQUAL_QUEUE: Duration = Duration::from_micros(2);

/// Measurements and state of one path.
#[derive(Clone, Copy, Debug)]
struct Delivery {
    rtt: RttEstimator,
    /// Number after the highest packet that arrived over the path.
    end: u64,
    /// Last arrival over the path of a packet that was sent once.
    last_arrival: Instant,
    /// The path has failed, and is avoided until this time.
    avoided_until: Option<Instant>,
    failures: u8,
    /// Packet that probes a path that is avoided, or was never measured.
    probe: Option<u64>,
    /// Whether the path's queue is longer than those of others.
    is_slow: bool,
    /// Turns since the path carried a packet.
    skipped: u8,
}

/// Paths of a queue pair, and the path of each packet.
#[derive(Debug)]
pub(super) struct Spray {
    paths: Vec<Delivery>,
    /// Path and state of each packet, by number modulo [`SPAN`].
    packets: Box<[u8]>,
    /// All packets before this one have arrived.
    cumulative: u64,
    /// Number after the highest packet that was sent.
    next: u64,
    /// Path of the last packet that was sent for the first time.
    turn: u8,
}

impl Spray {
    /// Creates `count` unused paths, clamped to 1 to 8, as [`Paths`](crate::congestion) does.
    #[expect(clippy::arithmetic_side_effects, reason = "`count` is 1 to 8")]
    pub(super) fn new(count: u8) -> Self {
        let count = count.clamp(1, PathChoice::MAX);
        let path = Delivery {
            rtt: RttEstimator::new(),
            end: 0,
            last_arrival: Instant::ZERO,
            avoided_until: None,
            failures: 0,
            probe: None,
            is_slow: false,
            skipped: 0,
        };
        Self {
            paths: alloc::vec![path; count.into()],
            packets: alloc::vec![0; SPAN as usize].into_boxed_slice(),
            cumulative: 0,
            next: 0,
            turn: count - 1,
        }
    }

    const fn slot(number: u64) -> usize {
        (number % SPAN) as usize
    }

    /// Returns the path of packet `number`, if known.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below SPAN; `number` is below `next`"
    )]
    pub(super) fn path_of(&self, number: u64) -> Option<u8> {
        let packet = self.packets[Self::slot(number)];
        let is_known = packet & SENT != 0 && number < self.next && self.next - number <= SPAN;
        is_known.then_some(packet & PATH)
    }

    fn delivery(&self, number: u64) -> Option<&Delivery> {
        self.paths.get(usize::from(self.path_of(number)?))
    }

    /// Returns the paths in the order of their turns, without `except`.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "there are 1 to 8 paths; the path's index is below their number"
    )]
    fn turns(&self, except: Option<u8>) -> impl Iterator<Item = (u8, &Delivery)> {
        let count = self.paths.len() as u8;
        let turns = (1..=count).map(move |step| (self.turn + step) % count);
        turns.filter(move |&path| Some(path) != except).map(|path| (path, &self.paths[usize::from(path)]))
    }

    /// Returns the path of the next packet that is sent for the first time.
    pub(super) fn select(&self, now: Instant) -> u8 {
        let carries = |path: &Delivery| match (path.rtt.estimate(), path.avoided_until) {
            (Some(_), None) => !path.is_slow || path.skipped >= SLOW_TURNS,
            (None, None) => path.probe.is_none(),
            (_, Some(until)) => path.probe.is_none() && until <= now,
        };
        let next = self.turns(None).find(|(_, path)| carries(path));
        next.map_or_else(|| self.usable(None), |(path, _)| path)
    }

    /// Returns the path of a retransmission of packet `number`; another path than before, if possible.
    pub(super) fn select_again(&self, number: u64) -> u8 {
        self.usable(self.path_of(number))
    }

    /// Returns a path that was measured and is not avoided. Without one, returns the first that is not avoided, or the one that is avoided
    /// for the shortest time from now.
    #[expect(clippy::indexing_slicing, reason = "`path` is below the number of paths")]
    fn usable(&self, except: Option<u8>) -> u8 {
        let is_live =
            |(_, path): &(u8, &Delivery)| path.avoided_until.is_none() && path.rtt.estimate().is_some();
        let live = self.turns(except).find(is_live).or_else(|| self.turns(None).find(is_live));
        let avoided = |&path: &usize| (self.paths[path].avoided_until, Some(path as u8) == except);
        let longest = || (0..self.paths.len()).min_by_key(avoided).unwrap_or(0) as u8;
        live.map_or_else(longest, |(path, _)| path)
    }

    /// Records that packet `number` was sent over `path`. `end` is the next packet number, which a READ advances by the packets of its
    /// answer. `may_be_path_failure` is set for a retransmission if no packet sent later over its path had arrived.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "there are 1 to 8 paths; the index is below SPAN; packet numbers stay far below 2^64"
    )]
    pub(super) fn on_sent(
        &mut self,
        number: u64,
        end: u64,
        path: u8,
        may_be_path_failure: bool,
        now: Instant,
    ) {
        let before = self.path_of(number);
        let is_again = number < self.next;
        self.packets[Self::slot(number)] = SENT | path | if is_again { REPEATED } else { 0 };
        if is_again {
            if let Some(before) = before {
                self.on_loss(number, before, may_be_path_failure, now);
            }
            return;
        }
        self.next = end;
        // No packet of this side has these numbers. Their slots may still contain earlier packets.
        (number + 1..end.min(number + SPAN)).for_each(|skipped| self.packets[Self::slot(skipped)] = 0);
        let count = self.paths.len() as u8;
        let mut skipped = (self.turn + 1) % count;
        while skipped != path {
            let delivery = &mut self.paths[usize::from(skipped)];
            delivery.skipped = delivery.skipped.saturating_add(1);
            skipped = (skipped + 1) % count;
        }
        self.turn = path;
        let delivery = &mut self.paths[usize::from(path)];
        delivery.skipped = 0;
        delivery.rtt.on_sent(number, now);
        if delivery.avoided_until.is_some() || delivery.rtt.estimate().is_none() {
            delivery.probe = delivery.probe.or(Some(number));
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the path's index is below their number; minutes times 512 are far below the longest Duration; adding to an `Instant` saturates; the sum is at most MAX_FAILURES + 1"
    )]
    fn on_loss(&mut self, number: u64, path: u8, may_be_path_failure: bool, now: Instant) {
        let avoided = self.latest(path).unwrap_or(Duration::from_millis(1)) * AVOIDED;
        let path = &mut self.paths[usize::from(path)];
        if path.rtt.sampled() == Some(number) {
            path.rtt.cancel();
        }
        let was_probe = path.probe == Some(number);
        if was_probe {
            path.probe = None;
        }
        if may_be_path_failure && (was_probe || path.avoided_until.is_none()) {
            path.avoided_until = Some(now + avoided * (1 << path.failures));
            path.failures = (path.failures + 1).min(MAX_FAILURES);
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below SPAN; a noted path's index is below their number; packet numbers stay far below 2^64"
    )]
    pub(super) fn on_arrival(&mut self, number: u64, now: Instant) {
        let packet = &mut self.packets[Self::slot(number)];
        let before = *packet;
        *packet |= ARRIVED;
        if before & (SENT | REPEATED | ARRIVED) != SENT {
            return;
        }
        let path = &mut self.paths[usize::from(before & PATH)];
        (path.end, path.last_arrival) = (path.end.max(number + 1), now);
        if path.avoided_until.is_some() || path.probe.is_some() {
            (path.avoided_until, path.failures, path.probe) = (None, 0, None);
        }
        if path.rtt.sampled() == Some(number) {
            path.rtt.on_arrival(now);
            self.compare_queues();
        }
    }

    pub(super) fn advance_to(&mut self, number: u64, now: Instant) {
        for arrived in self.cumulative.max(number.saturating_sub(SPAN))..number {
            self.on_arrival(arrived, now);
        }
        self.cumulative = self.cumulative.max(number);
    }

    /// Marks the paths with longer queues. A queue is the part of a round trip beyond the shortest one.
    #[expect(clippy::arithmetic_side_effects, reason = "round trips are at most a minute")]
    fn compare_queues(&mut self) {
        let queue =
            |path: &Delivery| path.rtt.estimate().map(|rtt| rtt.smoothed().saturating_sub(rtt.shortest()));
        let live = self.paths.iter().filter(|path| path.avoided_until.is_none());
        let least = live.filter_map(queue).min().unwrap_or_default();
        for path in &mut self.paths {
            let Some((rtt, queue)) = path.rtt.estimate().zip(queue(path)) else { continue };
            path.is_slow = queue > least + EQUAL_QUEUE.max(rtt.shortest() / 4);
        }
    }

    /// Returns whether a packet sent after packet `number` over the same path has arrived.
    pub(super) fn is_overtaken(&self, number: u64) -> bool {
        self.delivery(number).is_some_and(|path| number < path.end)
    }

    /// Returns the longest time of an answer over this path, if known.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the path's index is below their number; a minute times 8 is far below the longest Duration"
    )]
    fn latest(&self, path: u8) -> Option<Duration> {
        let unmeasured = || self.slowest().map(|slowest| slowest * UNMEASURED);
        self.paths[usize::from(path)].rtt.estimate().map(|rtt| rtt.latest()).or_else(unmeasured)
    }

    /// Returns how much longer packet `number` may take than arrivals over other paths; `None` without a measurement.
    pub(super) fn reordering_window(&self, number: u64) -> Option<Duration> {
        let path = self.path_of(number)?;
        let others = self.turns(Some(path)).filter_map(|(_, other)| other.rtt.estimate());
        let shortest = others.map(|rtt| rtt.shortest()).min()?;
        Some(self.latest(path)?.saturating_sub(shortest))
    }

    /// Returns until when packet `number` may arrive after its time has passed. A path keeps its order: while earlier packets arrive over
    /// it, the cause may be a longer queue.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(super) fn may_arrive_until(&self, number: u64) -> Option<Instant> {
        let path = self.delivery(number)?;
        Some(path.last_arrival + path.rtt.estimate()?.slack())
    }

    /// Returns the longest time of an answer over the measured paths that are not avoided.
    fn slowest(&self) -> Option<Duration> {
        let live = self.paths.iter().filter(|path| path.avoided_until.is_none());
        live.filter_map(|path| path.rtt.estimate()).map(|rtt| rtt.latest()).max()
    }

    /// Returns the longest time of an answer over any path.
    #[expect(clippy::arithmetic_side_effects, reason = "a minute times 8 is far below the longest Duration")]
    pub(super) fn slowest_answer(&self) -> Option<Duration> {
        let is_probing = self.paths.iter().any(|path| path.rtt.estimate().is_none() && path.probe.is_some());
        self.slowest().map(|slowest| slowest * if is_probing { UNMEASURED } else { 1 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn micros(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn send(spray: &mut Spray, number: u64, at: u64) -> u8 {
        let path = spray.select(micros(at));
        spray.on_sent(number, number + 1, path, false, micros(at));
        path
    }

    /// The settings of a queue pair may contain any number of paths.
    #[test]
    fn any_number_of_paths_is_accepted() {
        for count in 0..=u8::MAX {
            let mut spray = Spray::new(count);
            for number in 0..9 {
                let path = send(&mut spray, number, 0);
                assert_eq!(spray.path_of(number), Some(path), "{count} paths");
            }
            (0..9).for_each(|number| spray.on_arrival(number, micros(9)));
        }
    }

    /// Returns four paths with round trips of 10, 20, 30 and 40 µs, measured by one packet each.
    fn measured() -> Spray {
        let mut spray = Spray::new(4);
        for number in 0..4 {
            assert_eq!(u64::from(send(&mut spray, number, 0)), number);
        }
        assert_eq!(
            send(&mut spray, 4, 0),
            0,
            "one packet measures a path, the others are sent over the first"
        );
        (0..4).for_each(|number| spray.on_arrival(number, micros(10 * (number + 1))));
        spray
    }

    #[test]
    fn paths_take_turns_once_they_are_measured() {
        let mut spray = measured();
        let paths: Vec<u8> = (5..13).map(|number| send(&mut spray, number, 50)).collect();
        assert_eq!(paths, [1, 2, 3, 0, 1, 2, 3, 0]);
        assert_eq!(spray.reordering_window(6).map(|window| window >= Duration::from_micros(20)), Some(true));
        assert!(!spray.is_overtaken(5));
        spray.on_arrival(6, micros(60));
        assert!(!spray.is_overtaken(5), "another path");
        spray.on_arrival(9, micros(70));
        assert!(spray.is_overtaken(5) && !spray.is_overtaken(10));
    }

    #[test]
    fn a_path_without_arrivals_is_avoided_and_probed_by_one_packet_at_a_time() {
        let mut spray = measured();
        for number in 5..9 {
            send(&mut spray, number, 50);
        }
        // Packet 5 was sent over path 1.
        let other = spray.select_again(5);
        assert_ne!(other, 1);
        spray.on_sent(5, 6, other, true, micros(100));
        assert!((9..30).all(|number| send(&mut spray, number, 100) != 1));
        let tried: Vec<u8> = (30..40).map(|number| send(&mut spray, number, 2_000)).collect();
        assert_eq!(tried.iter().filter(|path| **path == 1).count(), 1);
        let probe = 30 + tried.iter().position(|path| *path == 1).unwrap() as u64;
        spray.on_sent(probe, probe + 1, spray.select_again(probe), true, micros(2_100));
        assert!((40..60).all(|number| send(&mut spray, number, 2_300) != 1), "it is avoided for longer");
        let probe = (60..70).find(|&number| send(&mut spray, number, 9_000) == 1).unwrap();
        spray.on_arrival(probe, micros(9_020));
        let paths: Vec<u8> = (70..78).map(|number| send(&mut spray, number, 9_030)).collect();
        assert_eq!(paths.iter().filter(|path| **path == 1).count(), 2);
    }

    #[test]
    fn an_answer_that_is_requested_again_measures_nothing() {
        let mut spray = measured();
        // A READ with an answer of ten packets, requested again from the fourth on.
        let path = spray.select(micros(50));
        spray.on_sent(5, 15, path, false, micros(50));
        assert_eq!(spray.path_of(8), None);
        spray.on_sent(8, 15, 3, false, micros(400));
        spray.on_arrival(8, micros(401));
        let shortest =
            spray.paths.iter().filter_map(|path| path.rtt.estimate()).map(|rtt| rtt.shortest()).min();
        assert_eq!(shortest, Some(Duration::from_micros(10)));
    }

    #[test]
    fn a_refused_probe_is_no_failure_of_its_path() {
        let mut spray = Spray::new(2);
        let path = send(&mut spray, 0, 0);
        spray.on_sent(0, 1, path, false, micros(100));
        assert_eq!(spray.paths[usize::from(path)].avoided_until, None);
    }

    #[test]
    fn a_path_with_a_queue_gets_fewer_packets() {
        let mut spray = measured();
        let mut counts = [0; 4];
        for number in 5..205 {
            let at = number * 100;
            let path = send(&mut spray, number, at);
            counts[usize::from(path)] += 1;
            let queue = if path == 2 { 30 } else { 0 };
            spray.on_arrival(number, micros(at + 10 * (u64::from(path) + 1) + queue));
        }
        assert!(counts[2] < 20 && [0, 1, 3].iter().all(|path| counts[*path] > 50), "{counts:?}");
    }
}
