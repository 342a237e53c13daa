//! The scoreboard: the packets that the peer has reported as received (RFC 6675 3).

use super::super::ring::{Ring, SPAN};
use super::missing::Missing;

/// Empty range.
const NO_ARRIVALS: (u64, u64) = (u64::MAX, 0);

/// Requests that the peer has received, and answers that have arrived.
#[derive(Debug)]
pub(super) struct Scoreboard {
    /// The peer has executed all requests before this packet.
    cumulative: u64,
    /// SACKed request packets, from `cumulative` on.
    sacked: Ring,
    /// Number after the highest packet that was ever SACKed.
    highest_sacked: u64,
    /// Answers to READs and atomics that arrived early and were placed, from `answers_from` on.
    answers: Ring,
    answers_from: u64,
    answer_count: u64,
    /// Number before which all answers should have arrived.
    highest_answer: u64,
    /// Unacknowledged request packets that are not in flight: SACKed or lost.
    not_in_flight: Ring,
    not_in_flight_bytes: u64,
    /// Range of the packets that have arrived since the last [`Self::take_arrivals`].
    arrivals: (u64, u64),
}

impl Scoreboard {
    /// Creates the scoreboard of a connection whose oldest unacknowledged packet is `una`.
    pub(super) const fn new(una: u64) -> Self {
        Self {
            cumulative: una,
            sacked: Ring::new(),
            highest_sacked: 0,
            answers: Ring::new(),
            answers_from: una,
            answer_count: 0,
            highest_answer: 0,
            not_in_flight: Ring::new(),
            not_in_flight_bytes: 0,
            arrivals: NO_ARRIVALS,
        }
    }

    pub(super) const fn cumulative(&self) -> u64 {
        self.cumulative
    }

    pub(super) fn advance(&mut self, number: u64) {
        if number > self.cumulative {
            self.sacked.clear_range(self.cumulative, number);
            // The peer probably does not have the next packet: its acknowledgement was lost, or no receive was posted for it.
            self.sacked.clear(number);
            self.record_arrival(self.cumulative, number);
            self.cumulative = number;
        }
    }

    /// Records that `una` is the oldest unacknowledged packet.
    #[expect(clippy::arithmetic_side_effects, reason = "`answer_count` counts the bits that are set")]
    pub(super) fn acknowledge(&mut self, una: u64) {
        if self.answer_count > 0 {
            self.answer_count -= self.answers.clear_range(self.answers_from, una);
        }
        self.answers_from = una;
    }

    pub(super) fn sack(&mut self, number: u64) {
        let end = number.saturating_add(1);
        self.sacked.set(number);
        self.highest_sacked = self.highest_sacked.max(end);
        self.record_arrival(number, end);
    }

    /// Records that the peer does not have packet `cumulative`, even if it was SACKed (RFC 2018 8: reneging). The peer dropped it, because
    /// no receive was posted.
    pub(super) fn renege(&mut self) {
        self.sacked.clear(self.cumulative);
    }

    pub(super) fn has(&self, number: u64) -> bool {
        number.checked_sub(self.cumulative).is_none_or(|ahead| ahead < SPAN && self.sacked.has(number))
    }

    /// Returns a bitmap of the SACKed packets among the 128 from `from` on.
    pub(super) fn sacked_from(&self, from: u64) -> u128 {
        self.sacked.window(from)
    }

    pub(super) const fn highest_sacked(&self) -> u64 {
        self.highest_sacked
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`answer_count` counts the bits that are set")]
    pub(super) fn on_early_answer(&mut self, number: u64) {
        self.answer_count += u64::from(self.answers.set(number));
        self.record_arrival(number, number.saturating_add(1));
    }

    pub(super) fn has_answer(&self, number: u64) -> bool {
        let is_near = number.checked_sub(self.answers_from).is_some_and(|ahead| ahead < SPAN);
        is_near && self.answers.has(number)
    }

    pub(super) fn expect_answers_before(&mut self, end: u64) {
        self.highest_answer = self.highest_answer.max(end);
    }

    pub(super) const fn highest_answer(&self) -> u64 {
        self.highest_answer
    }

    pub(super) const fn answer_count(&self) -> u64 {
        self.answer_count
    }

    /// Returns whether an unacknowledged packet has arrived: an answer here, or a request at the peer.
    pub(super) fn has_arrived(&self, missing: Missing) -> bool {
        if missing.is_answer { self.has_answer(missing.number) } else { self.has(missing.number) }
    }

    #[inline]
    pub(super) const fn bytes_not_in_flight(&self) -> u64 {
        self.not_in_flight_bytes
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the bytes are those of at most SPAN packets")]
    pub(super) fn leave_flight(&mut self, Missing { number, bytes, .. }: Missing) {
        if bytes > 0 && self.not_in_flight.set(number) {
            self.not_in_flight_bytes += u64::from(bytes);
        }
    }

    /// Adds a packet to those in flight again, or clears its bit because it is acknowledged.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a packet's bytes never change, so the bytes of its bit were added when it was set"
    )]
    pub(super) fn enter_flight(&mut self, Missing { number, bytes, .. }: Missing) {
        if bytes > 0 && self.not_in_flight.clear(number) {
            self.not_in_flight_bytes -= u64::from(bytes);
        }
    }

    /// Returns the range of the packets that have arrived since the last call.
    pub(super) const fn take_arrivals(&mut self) -> (u64, u64) {
        core::mem::replace(&mut self.arrivals, NO_ARRIVALS)
    }

    fn record_arrival(&mut self, from: u64, to: u64) {
        self.arrivals = (self.arrivals.0.min(from), self.arrivals.1.max(to));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u64) -> Missing {
        Missing { number, bytes: 100, is_answer: false }
    }

    fn answer(number: u64) -> Missing {
        Missing { number, bytes: 0, is_answer: true }
    }

    /// RFC 6675 3: the scoreboard contains the packets acknowledged, cumulatively and selectively.
    #[test]
    fn the_peer_has_acknowledged_and_sacked_packets() {
        let mut board = Scoreboard::new(10);
        board.sack(15);
        board.sack(12);
        let had: [bool; 7] = core::array::from_fn(|ahead| board.has(9 + ahead as u64));
        assert_eq!(had, [true, false, false, true, false, false, true]);
        assert_eq!((board.highest_sacked(), board.sacked_from(12)), (16, 0b1001));
        assert!(!board.has(12 + SPAN), "the bitmap is round");
    }

    #[test]
    fn a_packet_behind_an_ack_counts_as_missing_until_it_is_sacked_again() {
        let mut board = Scoreboard::new(10);
        board.sack(12);
        board.sack(13);
        board.advance(12);
        assert_eq!((board.cumulative(), board.has(12), board.has(13)), (12, false, true));
        board.advance(11);
        assert_eq!(board.cumulative(), 12, "an older acknowledgement changes nothing");
    }

    /// RFC 2018 8: the receiver may discard data that it has reported.
    #[test]
    fn a_peer_may_renege_on_the_packet_that_it_expects() {
        let mut board = Scoreboard::new(10);
        board.sack(10);
        board.renege();
        assert!(!board.has(10));
        assert_eq!(board.highest_sacked(), 11, "it was held once");
    }

    #[test]
    fn early_answers_are_counted_until_they_are_acknowledged() {
        let mut board = Scoreboard::new(10);
        board.on_early_answer(12);
        board.on_early_answer(12);
        board.on_early_answer(14);
        assert_eq!(board.answer_count(), 2);
        assert!(board.has_arrived(answer(12)) && !board.has_arrived(answer(13)));
        assert!(!board.has_arrived(packet(12)), "the request is another packet");
        board.acknowledge(13);
        assert_eq!((board.answer_count(), board.has_answer(12), board.has_answer(14)), (1, false, true));
        board.expect_answers_before(14);
        board.expect_answers_before(9);
        assert_eq!(board.highest_answer(), 14);
    }

    #[test]
    fn each_packet_leaves_the_flight_once() {
        let mut board = Scoreboard::new(10);
        board.leave_flight(packet(11));
        board.leave_flight(packet(11));
        board.leave_flight(packet(12));
        board.leave_flight(answer(13));
        assert_eq!(board.bytes_not_in_flight(), 200);
        board.enter_flight(packet(11));
        board.enter_flight(packet(11));
        assert_eq!(board.bytes_not_in_flight(), 100);
    }

    #[test]
    fn arrivals_are_the_range_since_the_last_call() {
        let mut board = Scoreboard::new(10);
        board.sack(20);
        board.on_early_answer(15);
        assert_eq!(board.take_arrivals(), (15, 21));
        assert_eq!(board.take_arrivals(), NO_ARRIVALS);
        board.advance(13);
        assert_eq!(board.take_arrivals(), (10, 13));
    }
}
