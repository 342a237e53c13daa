use crate::Report;
use std::time::Duration;

/// A flow that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completed {
    /// Its place in the scenario.
    pub flow: usize,
    /// When it began, jitter included.
    pub start: Duration,
    /// From its start until its last acknowledgement had come back.
    pub time: Duration,
    /// What it would take alone on an idle network without congestion control.
    pub alone: Duration,
}

/// What a run came to.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Flows in the order in which they ended.
    pub completed: Vec<Completed>,
    /// The switch's ports: queues, marks, drops.
    pub report: Report,
    /// Events handled.
    pub events: u64,
    /// Virtual time at the end.
    pub time: Duration,
    /// A digest of every frame that arrived anywhere: equal for equal runs.
    pub trace: u64,
    /// Packets sent more than once, by all hosts.
    pub retransmitted: u64,
}

impl Outcome {
    /// How many times longer than alone each flow took, shortest first.
    #[must_use]
    pub fn slowdowns(&self) -> Vec<f64> {
        let ratio = |flow: &Completed| flow.time.as_secs_f64() / flow.alone.as_secs_f64();
        let mut slowdowns: Vec<f64> = self.completed.iter().map(ratio).collect();
        slowdowns.sort_by(f64::total_cmp);
        slowdowns
    }
}
