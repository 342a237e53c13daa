//! Counts of what a port itself dropped.

/// Frames that a port dropped before or after a core had them. Most ports count only some of the reasons.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Received frames in several buffers, or in a shared one: the DPDK drivers that are set up here use neither.
    pub odd_buffer: u64,
    /// Frames to be sent that were empty or longer than the largest frame. A driver would lose them silently, or never get past.
    pub bad_length: u64,
    /// Received UDP datagrams of several packets whose lengths or headers do not fit each other.
    pub malformed: u64,
    /// Received segments of several packets that are not UDP: the kernel's own TCP, which shares the interface.
    pub not_udp: u64,
    /// Received frames that were longer than the largest frame, or that were not received whole.
    pub not_whole: u64,
    /// Received datagrams, of one packet or several, for which the receive ring had no room.
    pub ring_full: u64,
    /// Frames that the kernel refused to send, as while the interface is down.
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
