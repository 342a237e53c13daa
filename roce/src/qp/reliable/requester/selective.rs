//! The state of selective repeat: what the peer has, what is missing, and the paths that packets take.

use super::missing::Missing;
use super::rack::Rack;
use super::scoreboard::Scoreboard;
use super::spray::Spray;
use alloc::boxed::Box;
use cc::Instant;
use core::time::Duration;

/// A sender's knowledge of a peer that accepts packets out of order.
#[derive(Debug)]
pub(super) struct Selective {
    pub(super) scoreboard: Scoreboard,
    pub(super) rack: Rack,
    /// If packets leave over several paths.
    pub(super) spray: Option<Box<Spray>>,
}

impl Selective {
    pub(super) const fn new(spray: Option<Box<Spray>>) -> Self {
        Self { scoreboard: Scoreboard::new(0), rack: Rack::new((0, Instant::ZERO)), spray }
    }

    /// Of a connection whose oldest packet not acknowledged is `una`; losses before `reported` were reported to congestion control.
    pub(super) const fn joining(una: u64, reported: (u64, Instant)) -> Self {
        Self { scoreboard: Scoreboard::new(una), rack: Rack::new(reported), spray: None }
    }

    /// Returns whether something that left later on the path of a packet has arrived. Of answers, and without spraying, there is one path.
    fn is_overtaken(&self, missing: Missing) -> bool {
        missing.is_answer || self.spray.as_ref().is_none_or(|spray| spray.is_overtaken(missing.number))
    }

    /// A packet is missing unless it has arrived, and is lost at `due` if it does not come.
    pub(super) fn miss(&mut self, missing: Missing, due: Instant) {
        if !self.scoreboard.has_arrived(missing) {
            self.rack.miss(missing, self.is_overtaken(missing), due);
        }
    }

    /// A packet is lost unless it has arrived. Returns whether it is lost.
    pub(super) fn lose(&mut self, missing: Missing, now: Instant) -> bool {
        if self.scoreboard.has_arrived(missing) {
            return false;
        }
        let is_overtaken = self.is_overtaken(missing);
        self.rack.lose(missing, is_overtaken, now, &mut self.scoreboard);
        true
    }

    /// Finds what has become lost by `now`. Returns whether congestion control must learn of it; `sent` is the next packet that was never
    /// sent.
    pub(super) fn detect(&mut self, now: Instant, sent: u64) -> bool {
        self.rack.detect(now, sent, &mut self.scoreboard, self.spray.as_deref())
    }

    /// Lost packets were sent again ([`Rack::on_resent`]).
    pub(super) fn on_resent(
        &mut self,
        range: (u64, u64),
        now: Instant,
        wait: Duration,
        longest: Option<Duration>,
    ) {
        self.rack.on_resent(range, now, wait, longest, &mut self.scoreboard);
    }

    /// Finds what has been overtaken on its own path by now: that may be late until `due`.
    pub(super) fn overtake(&mut self, due: Instant) {
        if let Some(spray) = &self.spray {
            self.rack.overtake(spray, due);
        }
    }

    /// Forgets the packets that have arrived: all before `una` is acknowledged.
    pub(super) fn settle(&mut self, una: u64, now: Instant, shortest: Option<Duration>) {
        self.rack.settle(una, now, shortest, &mut self.scoreboard);
    }

    /// All before `number` has arrived at the peer.
    pub(super) fn advance_paths(&mut self, number: u64, now: Instant) {
        if let Some(spray) = &mut self.spray {
            spray.advance_to(number, now);
        }
    }

    /// Packet `number` left over `path`; the next packet is `next`.
    pub(super) fn on_sent_over(&mut self, number: u64, next: u64, path: u8, now: Instant) {
        let is_silent = self.rack.take_silence(number);
        if let Some(spray) = &mut self.spray {
            spray.took(number, next, path, is_silent, now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet(number: u64) -> Missing {
        Missing { number, bytes: 100, is_answer: false }
    }

    #[test]
    fn what_has_arrived_is_neither_missing_nor_lost() {
        let mut selective = Selective::new(None);
        selective.scoreboard.sack(5);
        selective.miss(packet(5), Instant::ZERO);
        assert!(!selective.lose(packet(5), Instant::ZERO) && !selective.rack.has_missing());
        assert!(selective.lose(packet(6), Instant::ZERO) && selective.rack.is_lost(6));
        assert_eq!(selective.scoreboard.bytes_not_in_flight(), 100);
    }

    #[test]
    fn a_packet_that_no_other_overtook_on_its_path_says_so_once() {
        let mut selective = Selective::new(Some(Box::new(Spray::new(2))));
        let path = 0;
        selective.on_sent_over(0, 1, path, Instant::ZERO);
        selective.on_sent_over(1, 2, path, Instant::ZERO);
        selective.miss(packet(1), Instant::ZERO);
        assert!(selective.rack.take_silence(1) && !selective.rack.take_silence(1));
        if let Some(spray) = &mut selective.spray {
            spray.arrived(1, Instant::ZERO);
        }
        selective.miss(packet(0), Instant::ZERO);
        assert!(!selective.rack.take_silence(0), "packet 1 overtook it");
    }
}
