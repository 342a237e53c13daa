//! The policy that sends packets over all paths. The requester chooses the path of each request, by the arrivals over each path. This file
//! has the window for all paths, and the path of answers.

use cc::{Inflight, Instant};
use core::time::Duration;

#[derive(Debug, Default)]
pub(super) struct Spraying {
    /// Path of answers, and the earliest time at which it changes.
    answers: usize,
    answers_until: Instant,
    /// When the last report arrived, and how long after the one before.
    reported: Instant,
    gap: Duration,
}

impl Spraying {
    pub(super) const fn answers(&self) -> usize {
        self.answers
    }

    /// Moves answers to the next of `count` paths, because the peer repeated a request that had arrived: its answer may have been lost.
    pub(super) fn on_duplicate(&mut self, now: Instant, count: usize, interval: Duration) {
        if now >= self.answers_until {
            self.answers = (self.answers + 1) % count;
            self.answers_until = now + interval;
        }
    }

    /// Returns the time between two reports: the shorter of the last two gaps, so that a pause of the sender does not count.
    pub(super) fn spacing(&self, now: Instant) -> Duration {
        now.saturating_since(self.reported).min(self.gap)
    }

    /// Returns the in-flight share for the algorithm: `utilisation`, of the most loaded path, over the time since the last report.
    pub(super) fn inflight(&mut self, now: Instant, utilisation: f64, interval: Duration) -> Inflight {
        self.gap = now.saturating_since(self.reported);
        let since = self.gap.clamp(Duration::from_nanos(1), interval);
        self.reported = now;
        Inflight { utilisation, interval: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) }
    }
}
