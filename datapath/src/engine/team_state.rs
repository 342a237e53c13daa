//! The state that the cores behind one port share: who sleeps, and whether one has failed.

use super::doze::Doze;
use crate::event_fd::EventFd;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// The state that all cores of a port share.
#[derive(Debug)]
pub struct Team {
    /// One for each core, in the cores' order.
    dozes: Box<[Doze]>,
    failed: AtomicBool,
    /// The reason, once a core has failed.
    reason: OnceLock<String>,
}

impl Team {
    /// Creates the state of as many cores as there are bells. Each bell ends the sleep of its core.
    #[must_use]
    pub fn new(bells: impl IntoIterator<Item = EventFd>) -> Self {
        let dozes = bells.into_iter().map(Doze::new).collect();
        Self { dozes, failed: AtomicBool::new(false), reason: OnceLock::new() }
    }

    /// Returns the sleep of a core.
    pub(super) fn doze(&self, core: usize) -> &Doze {
        &self.dozes[core]
    }

    /// Wakes a core, after something was put into its ring or its inbox.
    pub(super) fn wake(&self, core: usize) {
        self.doze(core).wake();
    }

    /// Records that a core ends by a defect, so that the others end with it. Returns true if it is the first.
    pub(super) fn fail(&self, reason: &str) -> bool {
        let first = self.reason.set(reason.to_owned()).is_ok();
        self.failed.store(true, Ordering::Release);
        (0..self.dozes.len()).for_each(|core| self.wake(core));
        first
    }

    /// Ends the calling core as a panic does if another core has failed.
    #[inline]
    pub(super) fn check(&self) {
        if self.failed.load(Ordering::Acquire) {
            self.follow();
        }
    }

    #[cold]
    fn follow(&self) -> ! {
        let reason = self.reason.get().cloned().unwrap_or_default();
        resume_unwind(Box::new(reason))
    }
}
