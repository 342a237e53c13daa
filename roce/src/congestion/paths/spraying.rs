//! The policy that sends packets over all paths. The requester chooses the path of each packet, by what has arrived over each; here are
//! the window and rate that serve all paths, and the path of what the requester does not send: probes and answers.

use cc::{Inflight, Instant};
use core::time::Duration;

/// The state of the policy.
#[derive(Debug, Default)]
pub(super) struct Spraying {
    /// The path of answers, and until when it stays.
    answers: usize,
    answers_until: Instant,
    /// When the last load was reported.
    reported: Instant,
}

impl Spraying {
    /// Returns the path of answers.
    pub(super) const fn answers(&self) -> usize {
        self.answers
    }

    /// The peer sent something again that had arrived: its answer may have been lost, and answers are sent over the next of `count` paths.
    pub(super) fn on_duplicate(&mut self, now: Instant, count: usize, interval: Duration) {
        if now >= self.answers_until {
            self.answers = (self.answers + 1) % count;
            self.answers_until = now + interval;
        }
    }

    /// Returns the in-flight share that the algorithm computes with: that of the most loaded path, since the last report.
    pub(super) fn inflight(&mut self, now: Instant, utilisation: f64, interval: Duration) -> Inflight {
        let since = now.saturating_since(self.reported).clamp(Duration::from_nanos(1), interval);
        self.reported = now;
        Inflight { utilisation, interval: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }
}
