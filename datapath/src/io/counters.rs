//! Counts of frames that a port itself dropped.

/// Frames that a port dropped, by reason. Most ports count only some of the reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Received frames in several buffers or in a shared buffer. DPDK drivers as configured here deliver neither.
    pub odd_buffer: u64,
    /// Frames to send that were empty or longer than the largest frame. A driver would drop them silently, or stop at them.
    pub bad_length: u64,
    /// Received large datagrams whose lengths or headers are inconsistent.
    pub malformed: u64,
    /// Received large segments that are not UDP: the kernel's own TCP on the shared interface.
    pub not_udp: u64,
    /// Received frames that were longer than the largest frame, or truncated.
    pub not_whole: u64,
    /// Received frames and large datagrams for which the receive ring had no room.
    pub ring_full: u64,
    /// Frames that the kernel refused to send, for example while the interface is down.
    pub refused: u64,
}

impl PortCounters {
    /// Adds the counts of another queue of the same port.
    pub fn add(&mut self, other: &Self) {
        let Self { odd_buffer, bad_length, malformed, not_udp, not_whole, ring_full, refused } = self;
        for (sum, more) in [
            (odd_buffer, other.odd_buffer),
            (bad_length, other.bad_length),
            (malformed, other.malformed),
            (not_udp, other.not_udp),
            (not_whole, other.not_whole),
            (ring_full, other.ring_full),
            (refused, other.refused),
        ] {
            *sum += more;
        }
    }
}
