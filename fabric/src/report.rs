//! A switch's report of its ports.

use crate::{FaultCounters, PortCounters};
use serde::Serialize;

/// The bytes that waited in an egress queue, weighted by time. Statistics cover the time in which a host sent:
/// an empty queue for longer than 100 ms is left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueReport {
    /// Bytes that wait now.
    pub bytes_now: u64,
    /// Mean, in bytes.
    pub mean: f64,
    /// Median, in bytes.
    pub p50: u64,
    /// 90 % of the time the queue was no longer.
    pub p90: u64,
    /// 99 % of the time the queue was no longer.
    pub p99: u64,
    /// The longest, in bytes.
    pub max: u64,
}

/// One port since its statistics began.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct PortReport {
    /// The shaped rate in bit/s; `None` sends as fast as the port takes.
    pub rate_bps: Option<u64>,
    /// Frames, bytes and drops.
    #[serde(flatten)]
    pub counters: PortCounters,
    /// The faults of the link behind the port.
    pub faults: FaultCounters,
    /// Seconds in which a flow sent: silences beyond 100 ms are left out.
    pub active_seconds: f64,
    /// Seconds in which the link was busy.
    pub busy_seconds: f64,
    /// Busy time by active time, 0 to 1; 0 for a port without a rate.
    pub utilisation: f64,
    /// Bits of frames sent per active second.
    pub throughput_bps: f64,
    /// The egress queue.
    pub queue: QueueReport,
}

/// The effects of a rule of a script since it was added, at all ports.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleReport {
    /// The rule's name.
    pub name: String,
    /// Frames that the rule fits.
    pub fitted: u64,
    /// Frames among them that suffered.
    pub happened: u64,
}

/// A switch since its statistics began.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The switch's id in telemetry, 12 bits.
    pub switch_id: u16,
    /// Seconds since the statistics began.
    pub seconds: f64,
    /// Stations known now.
    pub stations: usize,
    /// The number of times that the table had no place for a new station.
    pub stations_refused: u64,
    /// The ports, in the order of the configuration.
    pub ports: Vec<PortReport>,
    /// The rules of the script of faults.
    pub rules: Vec<RuleReport>,
}
