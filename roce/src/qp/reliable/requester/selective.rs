//! The state of selective repeat: scoreboard, missing packets, paths.
//!
//! [`RequestQueue`] has the packets of each request; acknowledgements of requests are applied to the scoreboard here.

use super::super::ring::SPAN;
use super::limits::{LATE, UNKNOWN};
use super::missing::{Missing, missing_of, packet_of};
use super::rack::Rack;
use super::request_queue::RequestQueue;
use super::rtt::RttEstimate;
use super::sack::Sack;
use super::scoreboard::Scoreboard;
use super::spray::Spray;
use alloc::boxed::Box;
use cc::Instant;
use core::time::Duration;

/// State of a requester whose peer accepts packets out of order.
#[derive(Debug)]
pub(super) struct Selective {
    pub(super) scoreboard: Scoreboard,
    pub(super) rack: Rack,
    pub(super) spray: Option<Box<Spray>>,
}

impl Selective {
    pub(super) const fn new(spray: Option<Box<Spray>>) -> Self {
        Self { scoreboard: Scoreboard::new(0), rack: Rack::new((0, Instant::ZERO)), spray }
    }

    /// Creates the state of a connection that switches from go-back-N. `una` is its oldest unacknowledged packet. Losses before `reported`
    /// were reported to congestion control.
    pub(super) const fn after_go_back_n(una: u64, reported: (u64, Instant)) -> Self {
        Self { scoreboard: Scoreboard::new(una), rack: Rack::new(reported), spray: None }
    }

    /// Returns how much later a packet may arrive than packets sent after it (RFC 8985: the reordering window).
    pub(super) fn reordering_window(&self, rtt: Option<RttEstimate>) -> Duration {
        rtt.map_or(LATE, |rtt| self.rack.reordering_window(rtt.smoothed(), rtt.shortest()))
    }

    /// Returns the longest time of an answer over the slowest path; 0 without spraying.
    pub(super) fn slowest_answer(&self) -> Duration {
        self.spray.as_ref().and_then(|spray| spray.slowest_answer()).unwrap_or_default()
    }

    /// Applies a selective acknowledgement to the scoreboard. Returns false if a newer one was applied before.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64; `new` is not 0")]
    pub(super) fn apply(&mut self, sack: &Sack, queue: &RequestQueue, now: Instant) -> bool {
        if sack.number < self.scoreboard.cumulative() {
            return false;
        }
        self.scoreboard.renege();
        let mut new = sack.held & !self.scoreboard.sacked_from(sack.from);
        while new != 0 {
            let number = sack.from + u64::from(new.trailing_zeros());
            new &= new - 1;
            let Some(wqe) = queue.containing(number) else { break };
            // Only the first of a READ's numbers is a packet of this side.
            if !wqe.is_answered() || number == wqe.first {
                self.scoreboard.sack(number);
                self.scoreboard.leave_flight(packet_of(wqe, number, queue.mtu()));
                if let Some(spray) = &mut self.spray {
                    spray.on_arrival(number, now);
                }
            }
        }
        true
    }

    /// Records that the peer has all packets before `number`; `una` is the oldest unacknowledged packet.
    #[inline]
    pub(super) fn on_cumulative(&mut self, number: u64, queue: &RequestQueue, una: u64, now: Instant) {
        if una < number && self.scoreboard.cumulative() < number {
            // An answer before `number` is missing. The requests that the peer has after it are not in flight.
            let from = self.scoreboard.cumulative().max(una);
            for wqe in queue.range(from, number).filter(|wqe| !wqe.is_answered()) {
                for missing in missing_of(wqe, queue.mtu(), true, from, number) {
                    self.scoreboard.leave_flight(missing);
                }
            }
        }
        self.scoreboard.advance(number);
        self.advance_paths(number, now);
    }

    /// Records that packets from `before` to before `una` are acknowledged. Their requests must still be in `queue`.
    pub(super) fn acknowledge(&mut self, before: u64, una: u64, queue: &RequestQueue) {
        if self.scoreboard.bytes_not_in_flight() == 0 {
            return;
        }
        for wqe in queue.before(una).filter(|wqe| !wqe.is_answered()) {
            for number in before.max(wqe.first)..wqe.end().min(una) {
                self.scoreboard.enter_flight(packet_of(wqe, number, queue.mtu()));
            }
        }
    }

    /// Returns whether a packet sent later on the same path has arrived. All answers, and all packets without spraying, have one path.
    fn is_overtaken(&self, missing: Missing) -> bool {
        missing.is_answer || self.spray.as_ref().is_none_or(|spray| spray.is_overtaken(missing.number))
    }

    /// Adds a missing packet that becomes lost after `window`, unless it has arrived. If no packet has overtaken it on its path, the path's
    /// delay extends `window`.
    #[inline(always)]
    fn mark_missing(&mut self, missing: Missing, window: Duration, now: Instant) {
        // Nearly all of the 128 packets that a selective acknowledgement covers have arrived.
        if !self.scoreboard.has_arrived(missing) {
            self.add_missing(missing, window, now);
        }
    }

    #[inline(never)]
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn add_missing(&mut self, missing: Missing, window: Duration, now: Instant) {
        let is_overtaken = self.is_overtaken(missing);
        let window = match &self.spray {
            Some(spray) if !is_overtaken => spray.reordering_window(missing.number).unwrap_or(UNKNOWN),
            _ => window,
        };
        self.rack.mark_missing(missing, is_overtaken, now + window);
    }

    /// Adds as missing the request packets from `from` to before `to` that the peer does not have.
    pub(super) fn mark_requests_missing(
        &mut self,
        (from, to): (u64, u64),
        queue: &RequestQueue,
        rtt: Option<RttEstimate>,
        now: Instant,
    ) {
        let window = self.reordering_window(rtt);
        for wqe in queue.range(from, to) {
            for missing in missing_of(wqe, queue.mtu(), false, from, to) {
                self.mark_missing(missing, window, now);
            }
        }
    }

    /// Adds as missing the answers to READs and atomics that should have arrived before packet `end`; `una` is the oldest unacknowledged
    /// packet.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn mark_answers_missing(
        &mut self,
        end: u64,
        queue: &RequestQueue,
        una: u64,
        rtt: Option<RttEstimate>,
        now: Instant,
    ) {
        let window = self.reordering_window(rtt);
        if self.rack.has_missing() {
            // A request that has arrived by now may have no answer yet.
            self.mark_arrived(una, now, rtt.map(|rtt| rtt.shortest()));
        }
        let from = self.scoreboard.highest_answer().max(una);
        let end = end.min(una + SPAN);
        for wqe in queue.range(from, end).filter(|wqe| wqe.is_answered()) {
            for missing in missing_of(wqe, queue.mtu(), true, from, end) {
                self.mark_missing(missing, window, now);
            }
        }
        self.scoreboard.expect_answers_before(end);
    }

    pub(super) fn mark_lost(&mut self, missing: Missing, now: Instant) -> bool {
        if self.scoreboard.has_arrived(missing) {
            return false;
        }
        let is_overtaken = self.is_overtaken(missing);
        self.rack.mark_lost(missing, is_overtaken, now, &mut self.scoreboard);
        true
    }

    /// Marks all packets from `una` to before `sent` that have not arrived as lost.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn mark_all_lost(&mut self, queue: &RequestQueue, (una, sent): (u64, u64), now: Instant) {
        let end = sent.min(una + SPAN);
        for wqe in queue.before(end) {
            let is_executed = wqe.first < self.scoreboard.cumulative();
            for missing in missing_of(wqe, queue.mtu(), is_executed, una, end) {
                self.mark_lost(missing, now);
            }
        }
    }

    /// Marks the last packet from `una` to before `sent` that has not arrived as lost. Returns whether there is one.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn mark_last_lost(
        &mut self,
        queue: &RequestQueue,
        (una, sent): (u64, u64),
        now: Instant,
    ) -> bool {
        let end = sent.min(una + SPAN);
        (0..=queue.next_index()).rev().any(|index| {
            let Some(wqe) = queue.get(index).filter(|wqe| wqe.first < end) else { return false };
            let is_executed = wqe.first < self.scoreboard.cumulative();
            let mut missing = missing_of(wqe, queue.mtu(), is_executed, una, end).rev();
            missing.any(|missing| self.mark_lost(missing, now))
        })
    }

    /// Finds packets that are lost by `now`. Returns whether congestion control must handle a new loss; `sent` is the number after the last
    /// packet sent.
    pub(super) fn detect(&mut self, now: Instant, sent: u64) -> bool {
        self.rack.detect(now, sent, &mut self.scoreboard, self.spray.as_deref())
    }

    pub(super) fn on_resent(
        &mut self,
        range: (u64, u64),
        now: Instant,
        wait: Duration,
        longest: Option<Duration>,
    ) {
        self.rack.on_resent(range, now, wait, longest, &mut self.scoreboard);
    }

    /// Finds packets that have been overtaken on their own paths. They become lost at `due` at the latest.
    pub(super) fn overtake(&mut self, due: Instant) {
        if let Some(spray) = &self.spray {
            self.rack.overtake(spray, due);
        }
    }

    /// Marks the packets that have arrived, among them all before `una`.
    pub(super) fn mark_arrived(&mut self, una: u64, now: Instant, shortest: Option<Duration>) {
        self.rack.mark_arrived(una, now, shortest, &mut self.scoreboard);
    }

    /// Records that the peer has all packets before `number`.
    pub(super) fn advance_paths(&mut self, number: u64, now: Instant) {
        if let Some(spray) = &mut self.spray {
            spray.advance_to(number, now);
        }
    }

    /// Records that packet `number` was sent over `path`; the next packet is `next`.
    pub(super) fn on_sent_over(&mut self, number: u64, next: u64, path: u8, now: Instant) {
        let may_be_path_failure = self.rack.mark_overtaken(number);
        if let Some(spray) = &mut self.spray {
            spray.on_sent(number, next, path, may_be_path_failure, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::request_queue::tests::queue;
    use super::*;
    use alloc::vec::Vec;

    fn packet(number: u64) -> Missing {
        Missing { number, bytes: 100, is_answer: false }
    }

    #[test]
    fn a_packet_that_has_arrived_is_neither_missing_nor_lost() {
        let mut selective = Selective::new(None);
        selective.scoreboard.sack(5);
        selective.mark_missing(packet(5), LATE, Instant::ZERO);
        assert!(!selective.mark_lost(packet(5), Instant::ZERO) && !selective.rack.has_missing());
        assert!(selective.mark_lost(packet(6), Instant::ZERO) && selective.rack.is_lost(6));
        assert_eq!(selective.scoreboard.bytes_not_in_flight(), 100);
    }

    #[test]
    fn a_packet_is_marked_overtaken_once() {
        let mut selective = Selective::new(Some(Box::new(Spray::new(2))));
        let path = 0;
        selective.on_sent_over(0, 1, path, Instant::ZERO);
        selective.on_sent_over(1, 2, path, Instant::ZERO);
        selective.mark_missing(packet(1), LATE, Instant::ZERO);
        assert!(selective.rack.mark_overtaken(1) && !selective.rack.mark_overtaken(1));
        if let Some(spray) = &mut selective.spray {
            spray.on_arrival(1, Instant::ZERO);
        }
        selective.mark_missing(packet(0), LATE, Instant::ZERO);
        assert!(!selective.rack.mark_overtaken(0), "packet 1 overtook it");
    }

    /// Returns the packets of [`queue`] that are lost after the reordering window. 0 to 2 are a WRITE, 3 and 4 a READ, 5 is a WRITE.
    fn lost(selective: &mut Selective) -> Vec<u64> {
        selective.detect(Instant::ZERO + LATE, 6);
        (0..6).filter(|&number| selective.rack.is_lost(number)).collect()
    }

    #[test]
    fn missing_request_packets_are_lost_after_the_reordering_window() {
        let mut selective = Selective::new(None);
        selective.scoreboard.sack(1);
        selective.mark_requests_missing((0, 5), &queue(), None, Instant::ZERO);
        assert!(!selective.detect(Instant::ZERO, 6), "it is not over");
        assert_eq!(lost(&mut selective), [0, 2, 3], "the request of the READ is one packet");
    }

    #[test]
    fn answers_before_an_early_one_are_lost_after_the_reordering_window() {
        let mut selective = Selective::new(None);
        selective.scoreboard.on_early_answer(4);
        selective.mark_answers_missing(4, &queue(), 3, None, Instant::ZERO);
        assert_eq!(lost(&mut selective), [3]);
        selective.mark_answers_missing(6, &queue(), 3, None, Instant::ZERO);
        assert_eq!(lost(&mut selective), [3], "answer 4 is here, and packet 5 has no answer");
        assert_eq!(selective.scoreboard.highest_answer(), 6);
    }

    #[test]
    fn packets_that_the_peer_has_after_a_missing_answer_are_not_in_flight() {
        let mut selective = Selective::new(None);
        selective.on_cumulative(3, &queue(), 3, Instant::ZERO);
        assert_eq!(selective.scoreboard.bytes_not_in_flight(), 0, "all before it is acknowledged");
        selective.on_cumulative(6, &queue(), 3, Instant::ZERO);
        assert_eq!((selective.scoreboard.cumulative(), selective.scoreboard.bytes_not_in_flight()), (6, 100));
        selective.acknowledge(3, 6, &queue());
        assert_eq!(selective.scoreboard.bytes_not_in_flight(), 0);
    }

    #[test]
    fn all_that_has_not_arrived_is_lost() {
        let mut selective = Selective::new(None);
        selective.scoreboard.sack(1);
        selective.mark_all_lost(&queue(), (0, 6), Instant::ZERO);
        assert_eq!(lost(&mut selective), [0, 2, 3, 5]);
        let mut selective = Selective::new(None);
        selective.on_cumulative(4, &queue(), 3, Instant::ZERO);
        selective.mark_all_lost(&queue(), (3, 5), Instant::ZERO);
        assert_eq!(lost(&mut selective), [3, 4], "the request was executed, its two answers are missing");
    }

    #[test]
    fn a_probe_repeats_the_last_packet_that_has_not_arrived() {
        let mut queue = queue();
        queue.skip_sent(6);
        let mut selective = Selective::new(None);
        selective.scoreboard.sack(5);
        assert!(selective.mark_last_lost(&queue, (0, 6), Instant::ZERO));
        assert_eq!(lost(&mut selective), [3]);
        let mut selective = Selective::new(None);
        (0..6).for_each(|number| selective.scoreboard.sack(number));
        assert!(!selective.mark_last_lost(&queue, (0, 6), Instant::ZERO), "the peer has all");
    }

    #[test]
    fn an_older_selective_acknowledgement_changes_nothing() {
        let mut selective = Selective::new(None);
        let sack = |number| Sack { number, from: number, held: 0b10 };
        assert!(selective.apply(&sack(1), &queue(), Instant::ZERO));
        assert_eq!((selective.scoreboard.has(2), selective.scoreboard.bytes_not_in_flight()), (true, 88));
        selective.on_cumulative(3, &queue(), 3, Instant::ZERO);
        assert!(!selective.apply(&sack(2), &queue(), Instant::ZERO));
        assert_eq!(selective.scoreboard.cumulative(), 3);
    }
}
