//! The reports of a run: its state, and the frames at captured ports.

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

/// A frame at a captured port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFrame<'a> {
    /// Index of the port in [`Setup::captured`](super::Setup::captured).
    pub port: usize,
    /// Whether the port's node sends the frame; if not, it receives it.
    pub is_sent: bool,
    /// Virtual time at which the first bit of a sent frame leaves, or the last bit of a received one arrives.
    pub time: Duration,
    /// The frame from its Ethernet header to its ICRC. The payload is zeros.
    pub bytes: &'a [u8],
}

/// Receives the reports of a run. If a method returns `Break`, the run ends with [`SetupError::Observer`](super::SetupError::Observer).
/// `()` ignores all reports. Reports do not change the outcome.
pub trait Observer {
    /// Receives the state of the run, about every 2^18 events.
    fn state(&mut self, _: &RunState<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    /// Receives a frame at a captured port. Frames are reported in the order of their times.
    fn frame(&mut self, _: &PortFrame<'_>) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl Observer for () {}
