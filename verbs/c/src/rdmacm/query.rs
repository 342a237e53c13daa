//! A request for the Ethernet address of a destination, and when to look for the answer.

use std::time::{Duration, Instant};
use verbs::cm::machine::message::FIRST_LOOK;

/// The longest pause between two looks at whether the destination has answered.
pub(crate) const LONGEST_PAUSE: Duration = Duration::from_millis(100);

/// A request for the destination's Ethernet address that has no answer yet.
pub(crate) struct Query {
    /// The next look at whether there is an answer.
    pub(crate) next: Instant,
    pause: Duration,
    deadline: Instant,
}

impl Query {
    pub(crate) fn new(now: Instant, timeout: Duration) -> Self {
        Self { next: now + FIRST_LOOK.min(timeout), pause: FIRST_LOOK, deadline: now + timeout }
    }

    /// Schedules the next look, after twice the pause. Returns `false` if the time is over.
    pub(crate) fn put_off(&mut self, now: Instant) -> bool {
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        self.next = (now + self.pause).min(self.deadline);
        now < self.deadline
    }
}
