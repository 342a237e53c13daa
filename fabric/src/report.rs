//! The statistics of a switch and its ports.

use crate::{FaultCounters, PortCounters};
use serde::Serialize;

/// The bytes in an egress queue, weighted by time. Silences longer than 100 ms, in which no host sends, are excluded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueReport {
    /// Bytes now in the queue.
    pub bytes_now: u64,
    /// Mean, in bytes.
    pub mean: f64,
    /// Median, in bytes.
    pub p50: u64,
    /// 90th percentile, in bytes.
    pub p90: u64,
    /// 99th percentile, in bytes.
    pub p99: u64,
    /// Maximum, in bytes.
    pub max: u64,
}

/// The statistics of a port.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PortReport {
    /// The shaped rate in bit/s; `None` sends as fast as the port accepts.
    pub rate_bps: Option<u64>,
    /// Frames, bytes and drops.
    #[serde(flatten)]
    pub counters: PortCounters,
    /// Faults of the port's link.
    pub faults: FaultCounters,
    /// Seconds, excluding silences longer than 100 ms.
    pub active_seconds: f64,
    /// Seconds in which the link was busy.
    pub busy_seconds: f64,
    /// Busy time divided by active time, 0 to 1; 0 for a port without a rate.
    pub utilisation: f64,
    /// Bits sent per active second.
    pub throughput_bps: f64,
    /// The egress queue.
    pub queue: QueueReport,
}

/// The effects of a script's rule at all ports, since it was added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// The rule's name.
    pub name: String,
    /// Frames that matched.
    pub fitted: u64,
    /// Matching frames that the rule affected.
    pub happened: u64,
}

/// The statistics of a switch since their last reset.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// Switch id in telemetry, 12 bits.
    pub switch_id: u16,
    /// Seconds since the last reset of the statistics.
    pub seconds: f64,
    /// Number of known stations.
    pub stations: usize,
    /// Number of times that the station table had no free place for a new station.
    pub stations_refused: u64,
    /// Ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// Rules of the fault script.
    pub rules: Vec<RuleReport>,
}
