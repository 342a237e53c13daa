//! What a run reports while it runs.

use std::ops::ControlFlow;
use std::time::Duration;

/// The state of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunState<'a> {
    /// Number of finished flows.
    pub finished: usize,
    /// Number of events processed.
    pub events: u64,
    /// Virtual time of the next event.
    pub time: Duration,
    /// Queued bytes of each sampled port, in the order of [`Row`](super::Row). Empty without sampling.
    pub queues: &'a [u64],
}

/// Receives the reports of a run, and may end it with [`SetupError::Observer`](super::SetupError::Observer) by `Break`. `()` ignores all
/// reports. No report changes the outcome.
pub trait Observer {
    /// Receives the state of the run, about every 2^18 events.
    fn state(&mut self, _: &RunState<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl Observer for () {}
