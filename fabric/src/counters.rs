//! The counters of a switch port.

use serde::Serialize;

/// Dropped frames, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Drops {
    /// Frame is shorter than an Ethernet header. This and the next three are counted at the ingress port.
    pub runt: u64,
    /// Source address is a group address.
    pub group_source: u64,
    /// Destination is 01:80:c2:00:00:0x, which bridges do not forward.
    pub link_local: u64,
    /// Destination is at the ingress port, or there is no other port.
    pub same_port: u64,
    /// The egress queue was full. This and the next two are counted at the egress port.
    pub queue_full: u64,
    /// Released frames had not been fetched, because the port is blocked.
    pub port_blocked: u64,
    /// No buffer was available for a copy, or the buffer was too small.
    pub no_buffer: u64,
}

impl Drops {
    /// Returns the sum of all reasons.
    #[must_use]
    pub const fn total(&self) -> u64 {
        let Self { runt, group_source, link_local, same_port, queue_full, port_blocked, no_buffer } = *self;
        runt + group_source + link_local + same_port + queue_full + port_blocked + no_buffer
    }
}

/// Counters of one port since the last reset of the statistics. Bytes count from the Ethernet header, without FCS.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PortCounters {
    /// Received frames.
    pub rx_frames: u64,
    /// Received bytes.
    pub rx_bytes: u64,
    /// Frames passed to the port.
    pub tx_frames: u64,
    /// Bytes passed to the port.
    pub tx_bytes: u64,
    /// Received frames that were flooded to all other ports.
    pub flooded: u64,
    /// Copies of flooded frames for this port, including dropped ones.
    pub copies: u64,
    /// Frames into which this port wrote telemetry.
    pub stamped: u64,
    /// Direct telemetry responses sent because of congestion at this port.
    pub direct_responses: u64,
    /// Frames marked Congestion Experienced.
    pub ce_marked: u64,
    /// Dropped frames.
    pub drops: Drops,
}

/// Counters of a link's faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultCounters {
    /// Frames lost.
    pub lost: u64,
    /// Duplicates.
    pub duplicated: u64,
    /// Frames overtaken by others.
    pub reordered: u64,
    /// Flipped bits.
    pub flipped: u64,
    /// Frames whose ICRC was recomputed after a script flipped a bit.
    pub resealed: u64,
    /// Frames that a script delayed.
    pub delayed: u64,
    /// Frames whose report of a path was forged.
    #[serde(rename = "lied")]
    pub forged: u64,
    /// Lost frames that have an opcode of Ferroce's own.
    #[serde(rename = "unheard")]
    pub vendor_opcodes: u64,
}
