//! AckReq: the last packet of a message requests an acknowledgement. In a long message other packets do, too, so that the window keeps
//! moving.

use super::limits::{ACKS_PER_WINDOW, PACKETS_PER_ACK};
use cc::Instant;

/// Packets sent with AckReq, and the packets since the last one.
#[derive(Clone, Copy, Debug)]
pub(super) struct AckRequests {
    /// Number after the newest packet of this round with AckReq; at most `una` if there is none.
    end: u64,
    /// When the last packet with AckReq was sent.
    sent_at: Instant,
    /// Packets sent since then, at most [`PACKETS_PER_ACK`].
    packets: u8,
    /// Payload bytes sent since then.
    bytes: u32,
    /// AckReqs per window, as a power of two.
    per_window: u8,
}

impl AckRequests {
    pub(super) const fn new() -> Self {
        Self { end: 0, sent_at: Instant::ZERO, packets: 0, bytes: 0, per_window: ACKS_PER_WINDOW }
    }

    pub(super) const fn set_per_window(&mut self, per_window: u8) {
        self.per_window = per_window;
    }

    /// Returns whether a packet of `length` bytes must set AckReq because of the packets since the last one.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "each 64th packet asks, so 64 MTUs are the most bytes"
    )]
    pub(super) fn is_due(&self, length: u32, window: u64) -> bool {
        self.packets + 1 >= PACKETS_PER_ACK || u64::from(self.bytes + length) >= window >> self.per_window
    }

    /// Records a packet with AckReq; `next` is the number after it.
    #[inline]
    pub(super) fn on_request(&mut self, next: u64, now: Instant) {
        self.end = self.end.max(next);
        self.sent_at = now;
        (self.packets, self.bytes) = (0, 0);
    }

    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "each 64th packet asks")]
    pub(super) const fn on_packet_without_request(&mut self, length: u32) {
        self.packets += 1;
        self.bytes += length;
    }

    /// Discards the packets from `una` on, which go-back-N retransmits.
    pub(super) const fn rewind(&mut self, una: u64) {
        self.end = una;
        (self.packets, self.bytes) = (0, 0);
    }

    #[inline]
    pub(super) const fn end(&self) -> u64 {
        self.end
    }

    pub(super) const fn sent_at(&self) -> Instant {
        self.sent_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_64th_packet_requests_an_acknowledgement() {
        let mut requests = AckRequests::new();
        (0..63).for_each(|_| requests.on_packet_without_request(1));
        assert!(requests.is_due(1, u64::MAX));
        requests.on_request(64, Instant::ZERO);
        assert!(!requests.is_due(1, u64::MAX));
    }

    #[test]
    fn a_window_has_sixteen_requests() {
        let mut requests = AckRequests::new();
        requests.on_packet_without_request(500);
        assert!(!requests.is_due(499, 16_000) && requests.is_due(500, 16_000));
        requests.set_per_window(5);
        assert!(requests.is_due(1, 16_000));
    }

    #[test]
    fn going_back_clears_ack_requests() {
        let mut requests = AckRequests::new();
        requests.on_request(9, Instant::from_nanos(7));
        requests.rewind(3);
        assert_eq!((requests.end(), requests.sent_at()), (3, Instant::from_nanos(7)));
    }
}
