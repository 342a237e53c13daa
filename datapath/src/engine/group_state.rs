//! State that the cores of a port share: the sleeping cores, the other processes whose rings are full, and whether a core has failed.

use super::ending::end_core;
use super::sleep_state::SleepState;
use crate::event_fd::EventFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// State shared by all cores of a port.
#[derive(Debug)]
pub struct CoreGroup {
    sleep_states: Box<[SleepState]>,
    /// A bit for each process of the interface whose ring is full, as core 0 determined.
    full: AtomicU64,
    failed: AtomicBool,
    /// Why the first core failed.
    reason: OnceLock<String>,
}

impl CoreGroup {
    /// Creates the state of one core for each of `event_fds`, which wakes that core.
    #[must_use]
    pub fn new(event_fds: impl IntoIterator<Item = EventFd>) -> Self {
        let sleep_states = event_fds.into_iter().map(SleepState::new).collect();
        Self {
            sleep_states,
            full: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            reason: OnceLock::new(),
        }
    }

    pub(super) fn sleep_state(&self, core: usize) -> &SleepState {
        &self.sleep_states[core]
    }

    /// Wakes a core. Called after adding to its ring or inbox.
    pub(super) fn wake(&self, core: usize) {
        self.sleep_state(core).wake();
    }

    /// Returns a bit for each process of the interface whose ring is full.
    pub(super) fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Stores the processes whose rings are full, and wakes the worker cores if one has room again. Called by core 0.
    pub(super) fn set_full(&self, full: u64) {
        let before = self.full.load(Ordering::Relaxed);
        if before != full {
            self.full.store(full, Ordering::Relaxed);
            if before & !full != 0 {
                (1..self.sleep_states.len()).for_each(|core| self.wake(core));
            }
        }
    }

    /// Records that a core has failed, which ends the others. Returns true for the first failure.
    pub(super) fn fail(&self, reason: &str) -> bool {
        let first = self.reason.set(reason.to_owned()).is_ok();
        self.failed.store(true, Ordering::Release);
        (0..self.sleep_states.len()).for_each(|core| self.wake(core));
        first
    }

    /// Unwinds the calling core, as a panic does, if another core has failed.
    #[inline]
    pub(super) fn check(&self) {
        if self.failed.load(Ordering::Acquire) {
            self.unwind();
        }
    }

    #[cold]
    fn unwind(&self) -> ! {
        end_core(self.reason.get().cloned().unwrap_or_default())
    }
}
