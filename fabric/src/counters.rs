//! The counters of a switch port.

use serde::Serialize;

/// Frames that went no further, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// Shorter than an Ethernet header. Counted at the port of arrival, as the three below.
    pub runt: u64,
    /// The source address is a group's.
    pub group_source: u64,
    /// For the link only (01:80:c2:00:00:0x): a bridge doesn't pass these on.
    pub link_local: u64,
    /// The destination is behind the port that the frame came from, or there is no other port.
    pub same_port: u64,
    /// The egress queue was full. Counted at the egress port, as all below.
    pub queue_full: u64,
    /// Frames that left the queue and wait because the port does not take them.
    pub port_blocked: u64,
    /// No buffer for a copy, or the copy didn't fit one.
    pub no_buffer: u64,
}

impl Drops {
    /// All reasons together.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { runt, group_source, link_local, same_port, queue_full, port_blocked, no_buffer } = *self;
        runt + group_source + link_local + same_port + queue_full + port_blocked + no_buffer
    }
}

/// Counters of one port since its statistics began. Bytes are those of frames from the Ethernet header on, without
/// FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortCounters {
    /// Frames that came in.
    pub rx_frames: u64,
    /// Their bytes.
    pub rx_bytes: u64,
    /// Frames handed to the port.
    pub tx_frames: u64,
    /// Their bytes.
    pub tx_bytes: u64,
    /// Frames that came in here and went to every other port.
    pub flooded: u64,
    /// Copies for this port.
    pub copies: u64,
    /// Telemetry requests that left with this port's record.
    pub stamped: u64,
    /// Direct telemetry responses that congestion at this port gave rise to.
    pub direct_responses: u64,
    /// Frames marked Congestion Experienced.
    pub ce_marked: u64,
    /// Frames that went no further.
    pub drops: Drops,
}

/// Counts of a link's faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounters {
    /// Frames lost.
    pub lost: u64,
    /// Extra copies.
    pub duplicated: u64,
    /// Frames that others overtook.
    pub reordered: u64,
    /// Frames with a bit flipped.
    pub flipped: u64,
    /// Of those, frames with an ICRC that fits the flipped bit.
    pub resealed: u64,
    /// Frames that a script let out later.
    pub delayed: u64,
    /// Frames that report false values of a path.
    pub lied: u64,
    /// Frames that only Ferroce knows, lost for that.
    pub unheard: u64,
}
