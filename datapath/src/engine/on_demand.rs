//! A core that any thread may run, one thread at a time.

use super::core::Turn;
use super::runner::CoreStatus;
#[cfg(all(test, loom))]
use loom::sync::{Mutex, MutexGuard};
use std::panic::{AssertUnwindSafe, catch_unwind};
#[cfg(not(all(test, loom)))]
use std::sync::{Mutex, MutexGuard};
use std::sync::{PoisonError, TryLockError};

/// A core, until it has stopped.
pub(super) struct OnDemand(Mutex<Option<Box<dyn Turn>>>);

/// A core while the calling thread runs it.
pub(super) struct Running<'a>(MutexGuard<'a, Option<Box<dyn Turn>>>);

impl OnDemand {
    pub(super) fn new(core: impl Turn + 'static) -> Self {
        Self(Mutex::new(Some(Box::new(core))))
    }

    #[inline]
    pub(super) fn try_take(&self) -> Option<Running<'_>> {
        match self.0.try_lock() {
            Ok(core) => Some(Running(core)),
            Err(TryLockError::Poisoned(poisoned)) => Some(Running(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    pub(super) fn take(&self) -> Running<'_> {
        Running(self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn end(&self) {
        *self.take().0 = None;
    }
}

impl Running<'_> {
    /// Runs one turn. Returns false if there was no work, or the core has stopped.
    #[inline]
    pub(super) fn turn(&mut self, status: &CoreStatus) -> bool {
        let Some(core) = self.0.as_mut() else { return false };
        match catch_unwind(AssertUnwindSafe(|| core.turn())) {
            Ok(work) => work,
            Err(panic) => {
                if let Some(core) = self.0.take() {
                    status.end_of(core, &*panic);
                }
                false
            }
        }
    }

    pub(super) fn listen(&mut self, on: bool) {
        if let Some(core) = self.0.as_mut() {
            core.listen(on);
        }
    }

    pub(super) fn core(&self) -> Option<&dyn Turn> {
        self.0.as_deref()
    }
}
