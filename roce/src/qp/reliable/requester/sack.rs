//! Validates a Selective Acknowledge packet against the packets sent.

use super::super::ring::SPAN;
use super::sequence::SendSequence;
use crate::Psn;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sack {
    /// Oldest packet that the peer does not have.
    pub(super) number: u64,
    /// First of the 128 packets of `held`.
    pub(super) from: u64,
    /// Bitmap of the packets that the peer holds.
    pub(super) held: u128,
}

impl Sack {
    /// Validates an acknowledgement: the peer has all packets before `psn` and, of the 128 from `psn + 64 * ahead` on, those in `held`.
    /// Returns `None` if it acknowledges packets that were never sent, packets that exceed any peer's room, or `psn` itself.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn validate(sequence: &SendSequence, psn: Psn, ahead: u8, held: u128) -> Option<Self> {
        let number = sequence.answered(psn)?;
        let from = number + 64 * u64::from(ahead);
        let end = from + u64::from(u128::BITS - held.leading_zeros());
        let is_sent = held == 0 || end <= sequence.sent && end <= sequence.una + SPAN;
        let holds_what_it_lacks = ahead == 0 && held & 1 != 0;
        (is_sent && !holds_what_it_lacks).then_some(Self { number, from, held })
    }

    /// Returns the number after the packets of `held`.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers stay far below 2^64")]
    pub(super) fn end(&self) -> u64 {
        self.from + u64::from(u128::BITS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a sequence with packets 10 to 99 outstanding.
    fn sequence() -> SendSequence {
        let mut sequence = SendSequence::new(Psn::new(1000));
        sequence.send_until(100);
        sequence.una = 10;
        sequence
    }

    fn validate(number: u32, ahead: u8, held: u128) -> Option<Sack> {
        Sack::validate(&sequence(), Psn::new(1000 + number), ahead, held)
    }

    #[test]
    fn the_marked_packets_are_counted_from_the_first_missing_one() {
        assert_eq!(validate(20, 0, 0b110), Some(Sack { number: 20, from: 20, held: 0b110 }));
        assert_eq!(validate(20, 1, 1), Some(Sack { number: 20, from: 84, held: 1 }));
    }

    #[test]
    fn packets_that_were_never_sent_are_not_acknowledged() {
        assert!(validate(20, 0, 1 << 79).is_some(), "packet 99");
        assert_eq!(validate(20, 0, 1 << 80), None);
        assert_eq!(validate(20, 2, 1), None);
        assert!(validate(20, 255, 0).is_some(), "it marks none");
        assert_eq!(validate(100, 0, 0), None);
    }

    #[test]
    fn a_stale_acknowledgement_is_refused() {
        assert_eq!(validate(9, 0, 0b10), None);
    }

    #[test]
    fn a_sack_that_marks_the_first_missing_packet_is_refused() {
        assert_eq!(validate(20, 0, 1), None);
    }

    #[test]
    fn a_peer_holds_no_packet_beyond_its_bitmap() {
        let mut sequence = sequence();
        sequence.send_until(20_000);
        let held = |end| Sack::validate(&sequence, Psn::new(1000 + end - 1 - 64), 1, 1);
        assert!(held(10 + SPAN as u32).is_some() && held(11 + SPAN as u32).is_none());
    }
}
