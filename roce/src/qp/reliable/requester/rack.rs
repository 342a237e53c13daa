//! RACK (RFC 8985): a packet is lost if a packet sent after it has arrived and the reordering window has passed. A retransmission is lost
//! if it is not acknowledged in time.

use super::limits::MAX_PROBE_BACKOFF;
use super::missing::Missing;
use super::scoreboard::Scoreboard;
use super::spray::Spray;
use crate::wheel::earliest_of;
use alloc::collections::VecDeque;
use cc::Instant;
use core::time::Duration;

/// Losses without a reordered packet, after which packets are expected in order.
const IN_ORDER: u8 = 8;
/// Packets per block. A block records when its first missing packet becomes lost, so that a search skips other blocks.
const BLOCK: u64 = 128;
/// Blocks: a window of [`SPAN`](super::super::ring::SPAN) numbers spans fewer.
const BLOCKS: usize = 64;
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Packet that has not arrived, although a later one may have.
#[derive(Clone, Copy, Debug)]
pub(super) struct MissingPacket {
    pub(super) missing: Missing,
    /// The packet is to be retransmitted or, if it is an answer, requested again.
    is_lost: bool,
    /// A packet sent later on the same path has arrived, or the path is not the cause. Without spraying there is one path.
    is_overtaken: bool,
    /// When the packet becomes lost.
    due: Instant,
    /// When it was last retransmitted or requested again.
    resent: Option<Instant>,
    /// Retransmissions, at most [`MAX_PROBE_BACKOFF`].
    retransmissions: u8,
    /// The packet has arrived. Its entry stays until all packets before it have arrived.
    has_arrived: bool,
}

impl MissingPacket {
    pub(super) const fn number(&self) -> u64 {
        self.missing.number
    }

    /// Returns whether no packet sent later on its path has arrived, and it was not retransmitted.
    const fn may_be_path_failure(&self) -> bool {
        !self.is_overtaken && self.resent.is_none()
    }
}

/// Missing packets, and when they become lost.
#[derive(Debug)]
pub(super) struct Rack {
    /// In the order of their numbers.
    packets: VecDeque<MissingPacket>,
    not_arrived: usize,
    lost: usize,
    /// No packet before this number is lost.
    lost_from: u64,
    /// When the next missing packet becomes lost.
    due: Option<Instant>,
    /// When the first missing packet of each block becomes lost, by block number modulo [`BLOCKS`].
    block_dues: [Instant; BLOCKS],
    /// Last loss that was reported to congestion control: the number after the last packet sent, and the time.
    reported: (u64, Instant),
    /// Losses since the last reordered packet, at most [`IN_ORDER`].
    losses_in_order: u8,
    /// Last repeated answer that arrived: the time of its request, its number, and the time of its arrival.
    last_repeated_answer: Option<(Instant, u64, Instant)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    /// When the next missing packet of the block becomes lost.
    due: Instant,
    /// The loss is not reported to congestion control yet.
    is_unreported: bool,
    /// With spraying: a packet may still arrive, because no packet sent later on its path has. Paths may share a queue, so until then
    /// such packets after it may still arrive, too.
    may_arrive: bool,
}

impl Rack {
    /// Creates an empty list. Losses before `reported` were reported to congestion control.
    pub(super) const fn new(reported: (u64, Instant)) -> Self {
        Self {
            packets: VecDeque::new(),
            not_arrived: 0,
            lost: 0,
            lost_from: 0,
            due: None,
            block_dues: [NEVER; BLOCKS],
            reported,
            losses_in_order: 0,
            last_repeated_answer: None,
        }
    }

    /// Returns the reordering window: a round trip, or a quarter of the shortest one after [`IN_ORDER`] losses without a reordered packet.
    #[expect(clippy::arithmetic_side_effects, reason = "the divisor is a constant")]
    pub(super) fn reordering_window(&self, smoothed: Duration, shortest: Duration) -> Duration {
        if self.losses_in_order == IN_ORDER { shortest / 4 } else { smoothed }
    }

    #[inline]
    pub(super) const fn due(&self) -> Option<Instant> {
        self.due
    }

    #[inline]
    pub(super) const fn has_lost(&self) -> bool {
        self.lost > 0
    }

    pub(super) fn is_lost(&self, number: u64) -> bool {
        self.packets
            .get(self.index_of(number))
            .is_some_and(|packet| packet.number() == number && packet.is_lost)
    }

    #[inline]
    pub(super) const fn has_missing(&self) -> bool {
        self.not_arrived > 0
    }

    /// Returns the first packet to retransmit.
    pub(super) fn first_lost(&self) -> Option<MissingPacket> {
        if self.lost == 0 { None } else { self.packets.get(self.index_of(self.lost_from)).copied() }
    }

    /// Returns the place of the first packet from `number` on.
    fn index_of(&self, number: u64) -> usize {
        self.packets.partition_point(|packet| packet.number() < number)
    }

    fn update_lost_from(&mut self) {
        if self.lost > 0 {
            let first = self.packets.range(self.index_of(self.lost_from)..).find(|packet| packet.is_lost);
            self.lost_from = first.map_or(self.lost_from, MissingPacket::number);
        }
    }

    /// Records that packet `number` becomes lost at `due` at the earliest.
    #[expect(clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    fn schedule(&mut self, number: u64, due: Instant) {
        let first = &mut self.block_dues[Self::block_of(number)];
        *first = due.min(*first);
        self.due = earliest_of(self.due, Some(due));
    }

    const fn block_of(number: u64) -> usize {
        (number / BLOCK) as usize % BLOCKS
    }

    /// Returns the number after the consecutive lost answers from `from` on, at most `end`.
    #[expect(clippy::arithmetic_side_effects, reason = "the sum is at most `end`")]
    pub(super) fn lost_answers_end(&self, from: u64, end: u64) -> u64 {
        let behind = self.packets.range(self.index_of(from)..).zip(from..end);
        let is_next = |(packet, at): &(&MissingPacket, u64)| {
            packet.number() == *at && packet.missing.is_answer && packet.is_lost
        };
        from + behind.take_while(is_next).count() as u64
    }

    /// Adds a missing packet that becomes lost at `due`, unless it is in the list.
    #[expect(clippy::arithmetic_side_effects, reason = "`not_arrived` is at most the length")]
    pub(super) fn mark_missing(&mut self, missing: Missing, is_overtaken: bool, due: Instant) {
        let number = missing.number;
        let at = self.index_of(number);
        let known = self.packets.get_mut(at).filter(|packet| packet.number() == number);
        if known.as_ref().is_some_and(|packet| !packet.has_arrived) {
            return;
        }
        let packet = MissingPacket {
            missing,
            is_lost: false,
            is_overtaken,
            due,
            resent: None,
            retransmissions: 0,
            has_arrived: false,
        };
        match known {
            Some(known) => *known = packet,
            None => self.packets.insert(at, packet),
        }
        self.not_arrived += 1;
        self.schedule(number, due);
    }

    /// Finds packets that have been overtaken on their own paths. They become lost at `due` at the latest.
    #[expect(clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    pub(super) fn overtake(&mut self, spray: &Spray, due: Instant) {
        let Self { packets, block_dues, .. } = self;
        for packet in packets.iter_mut().filter(|packet| !packet.has_arrived && packet.may_be_path_failure())
        {
            if spray.is_overtaken(packet.number()) {
                (packet.is_overtaken, packet.due) = (true, packet.due.min(due));
                let first = &mut block_dues[Self::block_of(packet.number())];
                *first = packet.due.min(*first);
                self.due = earliest_of(self.due, Some(packet.due));
            }
        }
    }

    /// Records that the paths did not cause the loss of the missing packets.
    pub(super) fn clear_path_blame(&mut self) {
        self.packets.iter_mut().for_each(|packet| packet.is_overtaken = true);
    }

    /// Marks the missing packet `number` as overtaken. Returns whether it was not: no packet sent later on its path has arrived.
    pub(super) fn mark_overtaken(&mut self, number: u64) -> bool {
        let at = self.index_of(number);
        let packet = self.packets.get_mut(at);
        let packet = packet.filter(|packet| packet.number() == number && !packet.has_arrived);
        packet.is_some_and(|packet| !core::mem::replace(&mut packet.is_overtaken, true))
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`lost` counts some of the packets")]
    pub(super) fn mark_lost(
        &mut self,
        missing: Missing,
        is_overtaken: bool,
        now: Instant,
        scoreboard: &mut Scoreboard,
    ) {
        self.mark_missing(missing, is_overtaken, now);
        let at = self.index_of(missing.number);
        if let Some(packet) = self.packets.get_mut(at) {
            let is_first = self.lost == 0 || missing.number < self.lost_from;
            self.lost += usize::from(!packet.is_lost);
            (packet.is_lost, packet.missing) = (true, missing);
            if is_first {
                self.lost_from = missing.number;
            }
            scoreboard.leave_flight(missing);
        }
    }

    /// Finds packets that are lost by `now`. Returns whether congestion control must handle a new loss; `sent` is the number after the last
    /// packet sent.
    #[expect(clippy::arithmetic_side_effects, clippy::indexing_slicing, reason = "a place is below BLOCKS")]
    pub(super) fn detect(
        &mut self,
        now: Instant,
        sent: u64,
        scoreboard: &mut Scoreboard,
        spray: Option<&Spray>,
    ) -> bool {
        let ends = self.packets.front().zip(self.packets.back());
        let Some((first, last)) = ends.filter(|_| self.due.is_some_and(|due| due <= now)) else {
            return false;
        };
        let (mut due, mut is_unreported, mut may_arrive) = (None, false, false);
        for block in first.number() / BLOCK..=last.number() / BLOCK {
            let at = Self::block_of(block * BLOCK);
            // With spraying, whether a packet is lost depends on those before it.
            if self.block_dues[at] <= now || spray.is_some() {
                let found = self.detect_in(block, may_arrive, now, scoreboard, spray);
                self.block_dues[at] = found.due;
                is_unreported |= found.is_unreported;
                may_arrive = found.may_arrive;
            }
            due = earliest_of(due, Some(self.block_dues[at]).filter(|&due| due < NEVER));
        }
        self.due = due;
        if is_unreported {
            self.reported = (sent, now);
        }
        is_unreported
    }

    /// Searches one block for [`Self::detect`]. `may_arrive` is [`Found::may_arrive`] of the blocks before.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`at` is below the length, which does not change; `lost` counts some of the packets; a number is not before its block"
    )]
    fn detect_in(
        &mut self,
        block: u64,
        may_arrive: bool,
        now: Instant,
        scoreboard: &mut Scoreboard,
        spray: Option<&Spray>,
    ) -> Found {
        let mut found = Found { due: NEVER, is_unreported: false, may_arrive };
        for at in self.index_of(block * BLOCK)..self.packets.len() {
            let packet = self.packets[at];
            if packet.number() - block * BLOCK >= BLOCK {
                break;
            }
            if packet.is_lost || packet.has_arrived {
                continue;
            }
            let due = self.due_of(&packet, spray);
            if due > now {
                found.may_arrive |= packet.may_be_path_failure();
                found.due = found.due.min(due);
                continue;
            }
            if found.may_arrive && packet.may_be_path_failure() {
                continue;
            }
            self.packets[at].is_lost = true;
            self.lost_from =
                if self.lost == 0 { packet.number() } else { self.lost_from.min(packet.number()) };
            self.lost += 1;
            // The loss of a retransmission counts separately. It may have been sent at the moment of the report.
            let (number, reported) = self.reported;
            found.is_unreported |=
                packet.number() >= number || packet.resent.is_some_and(|resent| resent >= reported);
            scoreboard.leave_flight(packet.missing);
        }
        found
    }

    /// Returns when a packet becomes lost. Repeated answers arrive in the order of their requests, and several may take longer than a round
    /// trip. So the arrival of one restarts the time of those after it.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn due_of(&self, packet: &MissingPacket, spray: Option<&Spray>) -> Instant {
        match (self.last_repeated_answer, packet.resent) {
            (Some((requested, number, arrived)), Some(resent))
                if packet.missing.is_answer && (requested, number) < (resent, packet.number()) =>
            {
                packet.due.max(arrived + packet.due.saturating_since(resent))
            }
            _ if packet.may_be_path_failure() => {
                let until = spray.and_then(|spray| spray.may_arrive_until(packet.number()));
                until.map_or(packet.due, |until| packet.due.max(until))
            }
            _ => packet.due,
        }
    }

    /// Records that lost packets from `from` to before `to` were retransmitted. They are lost again after `wait`, doubled each time
    /// (RFC 6298 5.5), or after `longest` if that is less.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`at` is below the length; `lost` counts the packets that are lost; 64 times a wait of hours is far below the longest Duration, and adding to an `Instant` saturates"
    )]
    pub(super) fn on_resent(
        &mut self,
        (from, to): (u64, u64),
        now: Instant,
        wait: Duration,
        longest: Option<Duration>,
        scoreboard: &mut Scoreboard,
    ) {
        for at in self.index_of(from)..self.packets.len() {
            let packet = &mut self.packets[at];
            if packet.number() >= to {
                break;
            }
            if packet.has_arrived {
                continue;
            }
            self.lost -= usize::from(packet.is_lost);
            let backed_off = wait * (1 << packet.retransmissions);
            let due = now + longest.map_or(backed_off, |longest| backed_off.min(longest));
            (packet.is_lost, packet.resent, packet.due) = (false, Some(now), due);
            packet.retransmissions = (packet.retransmissions + 1).min(MAX_PROBE_BACKOFF);
            let missing = packet.missing;
            scoreboard.enter_flight(missing);
            self.schedule(missing.number, due);
        }
        self.update_lost_from();
    }

    /// Marks the packets that have arrived: all before `una`, and those of the scoreboard. Removes them once all before them have.
    pub(super) fn mark_arrived(
        &mut self,
        una: u64,
        now: Instant,
        shortest: Option<Duration>,
        scoreboard: &mut Scoreboard,
    ) {
        let is_over = |packet: &&MissingPacket| packet.has_arrived || packet.number() < una;
        while let Some(&packet) = self.packets.front().filter(is_over) {
            self.packets.pop_front();
            self.on_arrival(&packet, now, shortest);
        }
        let (from, to) = scoreboard.take_arrivals();
        for at in self.index_of(from)..self.packets.len() {
            let Some(&packet) = self.packets.get(at).filter(|packet| packet.number() < to) else { break };
            if scoreboard.has_arrived(packet.missing) {
                self.on_arrival(&packet, now, shortest);
                if let Some(arrived) = self.packets.get_mut(at) {
                    (arrived.has_arrived, arrived.is_lost) = (true, false);
                }
            }
        }
        if !self.has_missing() {
            self.packets.clear();
            (self.due, self.block_dues) = (None, [NEVER; BLOCKS]);
        }
        self.update_lost_from();
    }

    /// Counts the arrival of a packet, once.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`not_arrived` counts the packets that have not arrived, and `lost` some of them; a round trip is at most 4 s; an `Instant` stops at its end; the count is at most IN_ORDER"
    )]
    fn on_arrival(&mut self, packet: &MissingPacket, now: Instant, shortest: Option<Duration>) {
        if packet.has_arrived {
            return;
        }
        self.not_arrived -= 1;
        self.lost -= usize::from(packet.is_lost);
        if let (true, Some(resent)) = (packet.missing.is_answer, packet.resent) {
            self.last_repeated_answer = Some((resent, packet.number(), now));
        }
        // A packet that arrives sooner after its retransmission than a round trip was only late.
        let earliest = shortest.map_or(Duration::ZERO, |rtt| rtt * 3 / 4);
        let was_late = packet.resent.is_none_or(|at| now < at + earliest);
        if packet.is_overtaken || packet.resent.is_some() {
            self.losses_in_order = if was_late { 0 } else { (self.losses_in_order + 1).min(IN_ORDER) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Duration = Duration::from_micros(100);

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    fn packet(number: u64) -> Missing {
        Missing { number, bytes: 100, is_answer: false }
    }

    fn answer(number: u64) -> Missing {
        Missing { number, bytes: 0, is_answer: true }
    }

    fn new() -> (Rack, Scoreboard) {
        (Rack::new((0, Instant::ZERO)), Scoreboard::new(0))
    }

    #[test]
    fn a_missing_packet_is_lost_when_its_time_is_over() {
        let (mut rack, mut board) = new();
        rack.mark_missing(packet(5), true, at(10));
        rack.mark_missing(packet(5), true, at(99));
        assert_eq!((rack.due(), rack.detect(at(9), 20, &mut board, None)), (Some(at(10)), false));
        assert!(rack.detect(at(10), 20, &mut board, None), "congestion control learns of it");
        assert_eq!((rack.first_lost().map(|lost| lost.number()), rack.due()), (Some(5), None));
        assert_eq!(board.bytes_not_in_flight(), 100);
    }

    #[test]
    fn losses_of_one_window_are_reported_once() {
        let (mut rack, mut board) = new();
        rack.mark_missing(packet(5), true, at(10));
        rack.mark_missing(packet(6), true, at(11));
        rack.mark_missing(packet(20), true, at(12));
        assert!(rack.detect(at(10), 20, &mut board, None));
        assert!(!rack.detect(at(11), 20, &mut board, None), "packet 6 was sent before the report");
        assert!(rack.detect(at(12), 21, &mut board, None), "packet 20 was not");
    }

    #[test]
    fn losses_in_several_blocks_are_found_in_order() {
        let (mut rack, mut board) = new();
        for (number, due) in [(300, 30), (5, 10), (140, 20)] {
            rack.mark_missing(packet(number), true, at(due));
        }
        rack.detect(at(20), 400, &mut board, None);
        assert_eq!((rack.first_lost().map(|lost| lost.number()), rack.due()), (Some(5), Some(at(30))));
        assert!(rack.is_lost(140) && !rack.is_lost(300));
    }

    #[test]
    fn a_repetition_is_lost_after_a_wait_that_doubles_up_to_the_timeout() {
        let (mut rack, mut board) = new();
        rack.mark_lost(packet(5), true, at(0), &mut board);
        let mut now = at(0);
        for wait in [100, 200, 400, 500, 500] {
            rack.on_resent((5, 6), now, RTT, Some(RTT * 5), &mut board);
            assert_eq!((rack.has_lost(), board.bytes_not_in_flight()), (false, 0));
            let due = now + Duration::from_micros(wait);
            assert!(!rack.detect(due - Duration::from_micros(1), 20, &mut board, None) && !rack.has_lost());
            assert!(rack.detect(due, 20, &mut board, None), "the loss of a retransmission is reported");
            now = due;
        }
    }

    #[test]
    fn consecutive_lost_answers_are_requested_together() {
        let (mut rack, mut board) = new();
        [5, 6, 7, 9].into_iter().for_each(|number| rack.mark_lost(answer(number), true, at(0), &mut board));
        assert_eq!((rack.lost_answers_end(5, 20), rack.lost_answers_end(6, 7)), (8, 7));
        rack.on_resent((5, 8), at(1), RTT, None, &mut board);
        assert_eq!(rack.first_lost().map(|lost| lost.number()), Some(9));
    }

    #[test]
    fn a_packet_that_arrives_is_no_longer_missing() {
        let (mut rack, mut board) = new();
        [5, 6, 7].into_iter().for_each(|number| rack.mark_lost(packet(number), true, at(0), &mut board));
        board.sack(6);
        rack.mark_arrived(0, at(1), None, &mut board);
        assert!(rack.is_lost(5) && !rack.is_lost(6) && rack.is_lost(7));
        rack.mark_arrived(6, at(1), None, &mut board);
        assert_eq!(rack.first_lost().map(|lost| lost.number()), Some(7));
        rack.mark_arrived(8, at(1), None, &mut board);
        assert!(!rack.has_missing() && !rack.has_lost());
    }

    #[test]
    fn eight_losses_narrow_the_reordering_window_and_a_late_packet_widens_it() {
        let (mut rack, mut board) = new();
        let window = |rack: &Rack| rack.reordering_window(RTT, RTT);
        for number in 0..8 {
            assert_eq!(window(&rack), RTT);
            rack.mark_lost(packet(number), true, at(0), &mut board);
            rack.on_resent((number, number + 1), at(0), RTT, None, &mut board);
            rack.mark_arrived(number + 1, at(100), Some(RTT), &mut board);
        }
        assert_eq!(window(&rack), RTT / 4);
        rack.mark_lost(packet(8), true, at(200), &mut board);
        rack.on_resent((8, 9), at(200), RTT, None, &mut board);
        rack.mark_arrived(9, at(210), Some(RTT), &mut board);
        assert_eq!(window(&rack), RTT, "it came before its repetition could");
    }
}
