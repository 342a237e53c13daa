//! Chooses the core of each queue pair on a port with several cores, and creates shared objects on all of them.
//!
//! Protection domains, completion queues, regions, windows, shared receive queues and XRC domains are created on all cores. All cores run
//! the same commands in the same order, so each object has the same number or key on all. A queue pair exists on one core, which its number
//! contains. Datagram queue pairs are on core 0, those of a shared receive queue or an XRC domain on its core, and all others on the core
//! with the fewest queues.

use crate::Error;
use crate::device::Inner;
use datapath::engine::{CoreState, Stopped};
use roce::ControlError;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU32, Ordering};

#[derive(Debug)]
pub(crate) struct Loads {
    loads: Box<[AtomicU32]>,
    /// Limit of all cores together.
    limit: u32,
}

impl Loads {
    pub(crate) fn new(cores: u8, limit: u32) -> Self {
        Self { loads: (0..cores).map(|_| AtomicU32::new(0)).collect(), limit }
    }

    pub(crate) fn least(&self) -> usize {
        let loads = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).enumerate();
        loads.min_by_key(|&(_, load)| load).map_or(0, |(core, _)| core)
    }

    /// Counts a new queue on `core`.
    ///
    /// # Errors
    /// Returns [`ControlError::Limit`] if the device's limit is reached. Concurrent callers may exceed the limit by one each. In that case
    /// each core's own limit applies.
    pub(crate) fn take(&self, core: usize) -> Result<(), ControlError> {
        let all: u32 = self.loads.iter().map(|load| load.load(Ordering::Relaxed)).sum();
        if self.loads.len() > 1 && all >= self.limit {
            let what = "queue pairs and shared receive queues";
            return Err(ControlError::Limit { what, limit: self.limit });
        }
        self.loads[core].fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    pub(crate) fn release(&self, core: usize) {
        self.loads[core].fetch_sub(1, Ordering::Relaxed);
    }
}

impl Inner {
    /// Runs `control` on all cores, in the same order as other such calls, and returns their common result.
    pub(crate) fn on_all<R: Send + PartialEq + Debug + 'static>(
        &self,
        control: impl FnOnce(&mut CoreState, cc::Instant) -> R + Clone + Send + 'static,
    ) -> Result<R, Stopped> {
        let mut answers = self.engine.call_all(control)?.into_iter();
        // A device has at least one core.
        let first = answers.next().expect("core 0 answers");
        debug_assert!(answers.all(|answer| answer == first), "cores agree on numbers and keys: {first:?}");
        Ok(first)
    }

    /// Creates a queue on `core`, and counts it there.
    pub(crate) fn create_on<R: Send + 'static>(
        &self,
        core: usize,
        create: impl FnOnce() -> Result<Result<R, ControlError>, Stopped>,
    ) -> Result<R, Error> {
        self.loads.take(core)?;
        let created = create().map_err(Error::from).and_then(|created| Ok(created?));
        created.inspect_err(|_| self.loads.release(core))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_are_created_on_the_least_loaded_core_up_to_the_limit() {
        let loads = Loads::new(3, 5);
        let cores: Vec<_> = (0..4)
            .map(|_| {
                let core = loads.least();
                loads.take(core).unwrap();
                core
            })
            .collect();
        assert_eq!(cores, [0, 1, 2, 0]);
        loads.release(1);
        assert_eq!(loads.least(), 1);
        loads.take(1).unwrap();
        loads.take(1).unwrap();
        assert!(matches!(loads.take(2), Err(ControlError::Limit { limit: 5, .. })));
    }
}
