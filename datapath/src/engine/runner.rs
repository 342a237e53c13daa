//! Runs the turns of a core: on a thread, or in its callers.

use super::adaptive::Adaptive;
use super::config::{CoreConfig, Idle, Progress, StartError};
use super::core::Turn;
use super::ending::End;
use super::notify::EndEvent;
use super::on_demand::OnDemand;
use super::wake::Wake;
use crate::event_fd::EventFd;
use crate::signals;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Idle turns during which the core spins, and further ones during which it yields. Then it sleeps.
const SPIN_TURNS: u32 = 64;
const YIELD_TURNS: u32 = 256;

#[derive(Debug, Default)]
pub(super) struct CoreStatus {
    stop: AtomicBool,
    stopped: AtomicBool,
    reason: OnceLock<String>,
    sleepers: Mutex<Vec<Weak<EndEvent>>>,
}

impl CoreStatus {
    #[inline]
    pub(super) fn stopped(&self) -> bool {
        self.stopped.load(Ordering::Acquire)
    }

    pub(super) fn reason(&self) -> String {
        self.reason.get().cloned().unwrap_or_else(|| "it was closed".into())
    }

    pub(super) fn stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    pub(super) fn end(&self) {
        self.stopped.store(true, Ordering::Release);
        self.sleepers()
            .drain(..)
            .filter_map(|sleeper| sleeper.upgrade())
            .for_each(|sleeper| sleeper.announce());
    }

    pub(super) fn announce(&self, end: &Arc<EndEvent>) {
        let mut sleepers = self.sleepers();
        if self.stopped() {
            return end.announce();
        }
        sleepers.retain(|sleeper| sleeper.strong_count() > 0);
        sleepers.push(Arc::downgrade(end));
    }

    fn sleepers(&self) -> MutexGuard<'_, Vec<Weak<EndEvent>>> {
        self.sleepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends a core after a panic or [`end_core`](super::ending::end_core). Its queue pairs complete in error before the core is dropped.
    pub(super) fn end_of(&self, mut core: Box<dyn Turn>, panic: &(dyn Any + Send)) {
        let reason = match panic.downcast_ref::<End>() {
            Some(End(reason)) => reason.clone(),
            None => {
                let message = panic.downcast_ref::<String>().map(String::as_str);
                let message =
                    message.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
                format!("a defect of ferroce: its core panicked: {message}")
            }
        };
        // The core may panic again during the clean-up. That panic must not propagate to the caller.
        let _ = catch_unwind(AssertUnwindSafe(|| core.fail_all(&reason)));
        let _ = catch_unwind(AssertUnwindSafe(|| drop(core)));
        // Fails if there is a reason already, which stays.
        let _ = self.reason.set(reason);
        self.end();
    }
}

/// Runs a core according to its [`Progress`].
pub(super) enum Runner {
    Inline(OnDemand),
    Dedicated(Option<JoinHandle<()>>),
    Adaptive(Adaptive),
}

impl Runner {
    /// Starts the core with this index among those of the port. `event_fd` wakes it.
    pub(super) fn start(
        core: impl Turn + 'static,
        config: &CoreConfig,
        index: usize,
        status: &Arc<CoreStatus>,
        event_fd: Option<EventFd>,
    ) -> Result<Self, StartError> {
        let pin = match config.progress {
            Progress::Inline => return Ok(Self::Inline(OnDemand::new(core))),
            Progress::Adaptive => {
                let wake = event_fd.map_or_else(Wake::new, |event_fd| Ok(event_fd.into()));
                let started = wake.and_then(|wake| Adaptive::start(core, status, wake));
                return started.map(Self::Adaptive).map_err(StartError::Thread);
            }
            Progress::Dedicated { core } => core.map(|core| find_cpu(core, index)).transpose()?,
        };
        let (status, idle) = (status.clone(), config.idle);
        let body = move || {
            if let Some(cpu) = pin {
                core_affinity::set_for_current(cpu);
            }
            let mut core = core;
            let result = catch_unwind(AssertUnwindSafe(|| run(&mut core, &status.stop, idle)));
            // Dropped before its end is announced, so that its resources are free by then.
            match result {
                Ok(()) => {
                    drop(core);
                    status.end();
                }
                Err(panic) => status.end_of(Box::new(core), &*panic),
            }
        };
        let thread = signals::spawn("ferroce-core", body).map_err(StartError::Thread)?;
        Ok(Self::Dedicated(Some(thread)))
    }

    /// Runs one turn if polling callers run the core. Returns false if it did nothing.
    #[inline]
    pub(super) fn poll(&self, status: &CoreStatus) -> bool {
        match self {
            Self::Inline(core) => core.try_take().is_some_and(|mut core| core.turn(status)),
            Self::Adaptive(adaptive) => adaptive.poll(status),
            Self::Dedicated(_) => false,
        }
    }

    /// Runs one turn for a caller that waits for an answer without polling.
    pub(super) fn turn(&self, status: &CoreStatus) -> bool {
        match self {
            Self::Inline(_) | Self::Dedicated(_) => self.poll(status),
            Self::Adaptive(adaptive) => adaptive.turn(status),
        }
    }

    pub(super) fn stop(&mut self, status: &CoreStatus) {
        status.stop.store(true, Ordering::Release);
        match self {
            Self::Inline(core) => core.end(),
            Self::Adaptive(adaptive) => adaptive.stop(),
            Self::Dedicated(thread) => {
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
        }
        status.end();
    }
}

/// Returns the CPU of the core with this index. Core 0 of the port has the CPU `core`.
fn find_cpu(core: usize, index: usize) -> Result<core_affinity::CoreId, StartError> {
    let cpus = core_affinity::get_core_ids().unwrap_or_default();
    let found = cpus.iter().skip_while(|cpu| cpu.id != core).nth(index).copied();
    found.ok_or_else(|| StartError::Cpu { core, allowed: cpus.iter().map(|cpu| cpu.id).collect() })
}

fn run(core: &mut impl Turn, stop: &AtomicBool, idle: Idle) {
    let mut idle_turns = 0_u32;
    while !stop.load(Ordering::Relaxed) {
        if core.turn() {
            idle_turns = 0;
            continue;
        }
        idle_turns = idle_turns.saturating_add(1);
        match idle {
            Idle::Busy => std::hint::spin_loop(),
            Idle::Yield { .. } if idle_turns < SPIN_TURNS => std::hint::spin_loop(),
            Idle::Yield { .. } if idle_turns < SPIN_TURNS + YIELD_TURNS => std::thread::yield_now(),
            Idle::Yield { longest_sleep } => nap(core, longest_sleep),
        }
    }
}

/// Sleeps until the next timer, but at most `longest` and at most 10 ms. If the timer is closer than the kernel's timer slack, yields
/// instead.
fn nap(core: &impl Turn, longest: Duration) {
    let longest = longest.min(Duration::from_millis(10));
    let sleep = core.idle_time().map_or(longest, |next| next.min(longest));
    if sleep < Duration::from_micros(5) {
        std::thread::yield_now();
    } else {
        std::thread::sleep(sleep);
    }
}
