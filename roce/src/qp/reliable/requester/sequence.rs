//! The send sequence space of a connection: the packets acknowledged, the next packet, and the packets sent (RFC 9293 3.3.1).

use crate::Psn;

/// Packet numbers of the requester (see [`Wqe`](crate::qp::wqe::Wqe)): `una` ≤ `next` ≤ `sent`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendSequence {
    /// PSN of packet 0.
    first: Psn,
    /// Oldest unacknowledged packet.
    pub(super) una: u64,
    /// Next packet to send. Go-back-N sets it back to `una` after a loss; selective repeat never does.
    pub(super) next: u64,
    /// Number after the highest packet ever sent. This, not `next`, bounds the packets that a peer may acknowledge: after `next` went back,
    /// the peer may acknowledge packets of the round before. Refusing that would livelock a window of one packet.
    pub(super) sent: u64,
    /// Number after the highest packet that was sent before the last loss. The requester is in recovery until it is acknowledged
    /// (RFC 6675 2).
    recovery_point: u64,
}

impl SendSequence {
    pub(super) const fn new(first: Psn) -> Self {
        Self { first, una: 0, next: 0, sent: 0, recovery_point: 0 }
    }

    pub(super) const fn first(&self) -> Psn {
        self.first
    }

    pub(super) fn psn(&self, number: u64) -> Psn {
        self.first.plus((number & u64::from(Psn::CIRCLE - 1)) as u32)
    }

    /// Returns the packet number with this PSN that is nearest to `una`; `None` if it is before the connection's first.
    pub(super) fn number(&self, psn: Psn) -> Option<u64> {
        self.una.checked_add_signed(self.distance(psn))
    }

    /// Returns how far this PSN is ahead of `una`.
    pub(super) fn distance(&self, psn: Psn) -> i64 {
        psn.distance(self.psn(self.una)).into()
    }

    /// Returns the number of the packet that an answer with this PSN acknowledges; `None` if it was acknowledged before or never sent.
    pub(super) fn answered(&self, psn: Psn) -> Option<u64> {
        self.number(psn).filter(|number| (self.una..self.sent).contains(number))
    }

    /// Returns the last acknowledged PSN; one before the first if there is none.
    pub(super) fn acknowledged_psn(&self) -> Psn {
        self.psn(self.una).plus(Psn::CIRCLE - 1)
    }

    /// Returns whether everything sent is acknowledged.
    #[inline]
    pub(super) const fn is_answered(&self) -> bool {
        self.una == self.sent
    }

    /// Sets `next`, and records all packets before it as sent.
    #[inline]
    pub(super) fn send_until(&mut self, next: u64) {
        self.next = next;
        self.sent = self.sent.max(next);
    }

    pub(super) const fn rewind(&mut self) {
        self.next = self.una;
    }

    /// Skips packets that were acknowledged after going back.
    pub(super) fn skip_acknowledged(&mut self) {
        self.next = self.next.max(self.una);
    }

    /// Records all packets before `end` as sent and acknowledged.
    pub(super) const fn abandon(&mut self, end: u64) {
        (self.una, self.next, self.sent) = (end, end, end);
    }

    #[expect(clippy::arithmetic_side_effects, reason = "`sent` is not before `una`")]
    pub(super) const fn outstanding(&self) -> u64 {
        self.sent - self.una
    }

    pub(super) const fn enter_recovery(&mut self) {
        self.recovery_point = self.sent;
    }

    /// Returns whether packets sent before the last loss are unacknowledged.
    pub(super) const fn is_in_recovery(&self) -> bool {
        self.una < self.recovery_point
    }

    pub(super) const fn recovery_point(&self) -> u64 {
        self.recovery_point
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9293 3.3.1: SND.UNA is the oldest number not acknowledged; the numbers from it to the newest one sent may be acknowledged.
    #[test]
    fn an_answer_is_about_a_packet_that_was_sent_and_is_not_acknowledged() {
        let mut sequence = SendSequence::new(Psn::new(0xff_fffe));
        sequence.send_until(4);
        sequence.una = 1;
        let psns = [0xff_fffe, 0xff_ffff, 0, 1, 2].map(|psn| sequence.answered(Psn::new(psn)));
        assert_eq!(psns, [None, Some(1), Some(2), Some(3), None]);
        assert_eq!((sequence.acknowledged_psn(), sequence.outstanding()), (Psn::new(0xff_fffe), 3));
    }

    #[test]
    fn going_back_does_not_lower_the_highest_acknowledgeable_number() {
        let mut sequence = SendSequence::new(Psn::new(5));
        sequence.send_until(4);
        sequence.rewind();
        sequence.send_until(1);
        assert_eq!((sequence.next, sequence.sent, sequence.answered(Psn::new(8))), (1, 4, Some(3)));
        sequence.una = 3;
        sequence.skip_acknowledged();
        assert_eq!(sequence.next, 3);
    }

    /// RFC 6675 2: "RecoveryPoint" is the highest number sent when the loss was detected.
    #[test]
    fn recovery_ends_when_all_that_was_sent_before_the_loss_is_acknowledged() {
        let mut sequence = SendSequence::new(Psn::new(0));
        sequence.send_until(4);
        sequence.enter_recovery();
        sequence.send_until(6);
        sequence.una = 3;
        assert!(sequence.is_in_recovery());
        sequence.una = 4;
        assert!(!sequence.is_in_recovery());
    }
}
