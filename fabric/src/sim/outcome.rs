//! The outcome of a simulation.

use super::measure::{Queues, Series};
use crate::RuleReport;
use std::time::Duration;

/// A finished flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Index of the flow in the setup.
    pub flow: usize,
    /// Start, including jitter.
    pub start: Duration,
    /// Time from the start to the last acknowledgement.
    pub time: Duration,
    /// Time that the flow takes alone on an idle network.
    pub alone: Duration,
}

impl Finished {
    /// Returns `time / alone`, at least 1.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        (self.time.as_secs_f64() / self.alone.as_secs_f64()).max(1.0)
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Flows in the order in which they ended, by ns; of simultaneous ones, the lower index first.
    pub finished: Vec<Finished>,
    /// Number of events processed. The run ends with the window in which the last flow ends, as long as the shortest delay of a link.
    pub events: u64,
    /// Packets that hosts sent, including acknowledgements.
    pub packets: u64,
    /// Retransmitted packets.
    pub retransmitted: u64,
    /// Virtual time at the end of the last flow, or of the run if flows remain.
    pub time: Duration,
    /// Digest of all arrivals; equal for equal runs.
    pub trace: u64,
    /// Longest queue of any switch port, in bytes.
    pub queue_max: u64,
    /// Time from post to completion of each request, the shortest first. Empty for the model.
    pub latencies: Vec<Duration>,
    /// Duplicate packets at receivers, after an unnecessary retransmission or a lost acknowledgement. 0 for the model.
    pub doubled: u64,
    /// Frames that links lost.
    pub lost: u64,
    /// Packets that switches dropped.
    pub dropped: u64,
    /// ECN marks.
    pub marked: u64,
    /// Direct responses of switches.
    pub direct_responses: u64,
    /// Packets with a forged report of the path.
    pub forged: u64,
    /// Packets with opcodes of Ferroce's own that the network dropped, because hosts do not support them.
    pub vendor_opcodes: u64,
    /// Rules of the setup's script, with the frames that matched and those that were affected.
    pub faults: Vec<RuleReport>,
    /// PFC pauses that switches sent.
    pub pauses: u64,
    /// Time that ports were paused, summed over all ports.
    pub paused: Duration,
    /// Time series, if the setup requests one.
    pub series: Series,
    /// Largest number of packets in the network at once; with several threads, the sum over the threads.
    pub packets_most: usize,
    /// Bytes of memory per running flow, and per host with its link.
    pub memory: [usize; 2],
    pub(super) queues: Queues,
}

impl Outcome {
    /// Returns the kB that the queues of all switch ports did not exceed for `share` of the time, rounded down. Covers the time until the
    /// last flow started. Covers the whole run if all flows started within 100 µs, or if some depend on others.
    #[must_use]
    pub fn queue_quantile(&self, share: f64) -> u64 {
        self.queues.quantile(share)
    }

    /// Returns the share of the same time in which a switch port had at least 1 kB queued.
    #[must_use]
    pub fn queue_busy(&self) -> f64 {
        self.queues.busy()
    }
}
