//! State that the cores of a port share: which of them sleep, and whether one has failed.

use super::doze::Doze;
use crate::event_fd::EventFd;
use std::panic::resume_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

/// State shared by all cores of a port.
#[derive(Debug)]
pub struct Team {
    dozes: Box<[Doze]>,
    failed: AtomicBool,
    /// Why the first core failed.
    reason: OnceLock<String>,
}

impl Team {
    /// Creates the state of as many cores as there are `bells`, each of which ends the sleep of its core.
    #[must_use]
    pub fn new(bells: impl IntoIterator<Item = EventFd>) -> Self {
        let dozes = bells.into_iter().map(Doze::new).collect();
        Self { dozes, failed: AtomicBool::new(false), reason: OnceLock::new() }
    }

    pub(super) fn doze(&self, core: usize) -> &Doze {
        &self.dozes[core]
    }

    /// Wakes a core. Called after putting something into its ring or inbox.
    pub(super) fn wake(&self, core: usize) {
        self.doze(core).wake();
    }

    /// Records that a core has failed, which ends the others. Returns true for the first failure.
    pub(super) fn fail(&self, reason: &str) -> bool {
        let first = self.reason.set(reason.to_owned()).is_ok();
        self.failed.store(true, Ordering::Release);
        (0..self.dozes.len()).for_each(|core| self.wake(core));
        first
    }

    /// Unwinds the calling core, as a panic does, if another core has failed.
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
