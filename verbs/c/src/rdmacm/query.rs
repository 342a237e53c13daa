//! The resolution of a destination's Ethernet address, and the times of the checks for the answer.

use std::time::{Duration, Instant};
use verbs::cm::machine::message::FIRST_CHECK;

/// Longest pause between two checks for an answer.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A pending resolution of the destination's Ethernet address.
pub(crate) struct Query {
    /// Time of the next check for an answer.
    pub(crate) next: Instant,
    pause: Duration,
    deadline: Instant,
}

impl Query {
    pub(crate) fn new(now: Instant, timeout: Duration) -> Self {
        Self { next: now + FIRST_CHECK.min(timeout), pause: FIRST_CHECK, deadline: now + timeout }
    }

    /// Doubles the pause, and schedules the next check. Returns `false` after the deadline.
    pub(crate) fn postpone(&mut self, now: Instant) -> bool {
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.next = (now + self.pause).min(self.deadline);
        now < self.deadline
    }
}
