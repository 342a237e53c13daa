//! The outcome of a simulation.

use super::measure::{Queues, Series};
use std::time::Duration;

/// A flow that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Its place in the setup.
    pub flow: usize,
    /// When it began, jitter included.
    pub start: Duration,
    /// From its start until its last acknowledgement.
    pub time: Duration,
    /// The time that it takes alone on an idle network.
    pub alone: Duration,
}

impl Finished {
    /// Returns how many times longer it took than alone.
    #[must_use]
    pub fn slowdown(&self) -> f64 {
        (self.time.as_secs_f64() / self.alone.as_secs_f64()).max(1.0)
    }
}

/// The result of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Flows in the order in which they ended.
    pub finished: Vec<Finished>,
    /// Events handled.
    pub events: u64,
    /// Packets that hosts sent, acknowledgements too.
    pub packets: u64,
    /// Packets sent more than once.
    pub retransmitted: u64,
    /// Virtual time at the end.
    pub time: Duration,
    /// A digest of every arrival: equal for equal runs.
    pub trace: u64,
    /// The longest queue of any switch port, bytes.
    pub queue_max: u64,
    /// The time of each request of an endpoint, from its post to its completion, in the order of completion.
    pub latencies: Vec<Duration>,
    /// Packets that a receiver had already: sent again without need, or because their acknowledgement was lost. Endpoints only.
    pub doubled: u64,
    /// Frames lost on links.
    pub lost: u64,
    /// Packets dropped by switches.
    pub dropped: u64,
    /// Packets marked.
    pub marked: u64,
    /// Direct responses of switches.
    pub told: u64,
    /// Packets whose report of a path was falsified on the way to the sender.
    pub lied: u64,
    /// Packets that a deaf host did not take in.
    pub unheard: u64,
    /// Pauses sent by switches.
    pub pauses: u64,
    /// The time that ports were paused, summed over them.
    pub paused: Duration,
    /// The series that was requested.
    pub series: Series,
    /// The most packets that were on their way at once.
    pub packets_most: usize,
    /// Bytes that one running flow takes, and one host with its link.
    pub memory: [usize; 2],
    pub(super) queues: Queues,
}

impl Outcome {
    /// KB below which the queues of all switch ports were for `share` of the time until the last flow
    /// began (to the end if all began within 100 µs), in steps of 1 KB.
    #[must_use]
    pub fn queue_quantile(&self, share: f64) -> u64 {
        self.queues.quantile(share)
    }

    /// The share of the time in which a switch port held 1 KB or more, in the same time.
    #[must_use]
    pub fn queue_busy(&self) -> f64 {
        self.queues.busy()
    }
}
