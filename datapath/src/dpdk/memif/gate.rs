//! A gate that excludes the polling thread from the driver while the driver cleans up.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A gate that one polling thread enters for every burst, and another thread shuts.
#[derive(Debug, Default)]
pub(in crate::dpdk) struct Gate {
    shut: AtomicBool,
    inside: AtomicBool,
}

impl Gate {
    /// Runs `burst` unless the gate is shut. Costs two sequentially consistent stores.
    ///
    /// Both threads store before they load, in one total order. Either `shut` finds this thread inside and waits, or this thread finds the
    /// gate shut.
    pub(in crate::dpdk) fn run(&self, burst: impl FnOnce() -> u16) -> u16 {
        self.inside.store(true, SeqCst);
        let moved = if self.shut.load(SeqCst) { 0 } else { burst() };
        self.inside.store(false, SeqCst);
        moved
    }

    /// Shuts the gate, and waits until the polling thread is outside.
    pub(super) fn shut(&self) {
        self.shut.store(true, SeqCst);
        while self.inside.load(SeqCst) {
            std::thread::yield_now();
        }
    }

    pub(super) fn open(&self) {
        self.shut.store(false, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shut_gate_runs_no_burst() {
        let gate = Gate::default();
        assert_eq!(gate.run(|| 7), 7);
        gate.shut();
        assert_eq!(gate.run(|| panic!("inside")), 0);
        gate.open();
        assert_eq!(gate.run(|| 7), 7);
    }

    #[test]
    fn shutting_waits_for_the_burst_inside() {
        let (gate, work) = (Gate::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..10_000 {
                    gate.run(|| {
                        work.store(true, SeqCst);
                        work.store(false, SeqCst);
                        0
                    });
                }
            });
            for _ in 0..1000 {
                gate.shut();
                assert!(!work.load(SeqCst));
                gate.open();
            }
        });
    }
}
