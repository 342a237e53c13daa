//! A core that the application runs while it polls, and a thread of its own while it doesn't.
//!
//! The thread is in one of three modes. *Working*, it runs turns, and sees whether the application polls too.
//! *Standing back*, it leaves the core to the application, and looks after it now and then. *Asleep*, it waits for the port's
//! descriptor, a timer, or a post.

use super::core::Turn;
use super::on_demand::{OnDemand, Running};
use super::runner::Status;
use crate::event_fd::EventFd;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::thread::JoinHandle;
use std::time::Duration;

const WORKING: u32 = 0;
const STANDING_BACK: u32 = 1;
const ASLEEP: u32 = 2;

/// Turns between two looks at the application.
const BATCH: u32 = 16;
/// Polls within a batch that mean that the application drives the core.
const DRIVES: u64 = 4;
/// How long the thread stands back at a time, and the polls in that time by which the application drives on.
const STAND_BACK: Duration = Duration::from_millis(1);
const DRIVES_ON: u64 = 50;
/// Idle turns that only spin, and those that then only yield, before the thread sleeps.
const SPIN_TURNS: u32 = 64;
const YIELD_TURNS: u32 = 128;
/// The longest sleep where the port has a descriptor: what it waits for wakes it.
const LONGEST_SLEEP: Duration = Duration::from_millis(500);
/// Where it has none, a sleep is all that an arriving packet waits for. It grows from the first to the second.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];

/// The core with its thread.
pub(super) struct Adaptive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    core: OnDemand,
    /// Turns that the application asked for, counted round 2⁶⁴.
    polls: AtomicU64,
    mode: AtomicU32,
    /// Ends a wait of the thread.
    wake: EventFd,
}

impl Adaptive {
    pub(super) fn start(core: impl Turn + 'static, status: &Arc<Status>) -> io::Result<Self> {
        let wake = EventFd::new(libc::EFD_NONBLOCK)?;
        let core = OnDemand::new(core);
        let shared = Arc::new(Shared { core, polls: AtomicU64::new(0), mode: AtomicU32::new(WORKING), wake });
        let (here, there) = (shared.clone(), status.clone());
        let body = move || {
            block_signals();
            here.run(&there);
        };
        let thread = std::thread::Builder::new().name("ferroce-core".into()).spawn(body)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// One turn for an application that polls. `false` when nothing was done here.
    pub(super) fn poll(&self, status: &Status) -> bool {
        self.shared.polls.fetch_add(1, Ordering::Relaxed);
        self.turn(status)
    }

    /// One turn, without a word about who drives.
    pub(super) fn turn(&self, status: &Status) -> bool {
        let Some(mut core) = self.shared.core.try_take() else { return false };
        let work = core.turn(status);
        drop(core);
        if work {
            // The thread slept for a timer, or a descriptor, that may be another one now.
            self.shared.rouse(ASLEEP);
        }
        work
    }

    /// Something was posted: a thread that sleeps doesn't see it, so the poster runs the core.
    pub(super) fn posted(&self, status: &Status) {
        // The doorbell first, then the mode; the thread goes the other way round. One of both sees the other.
        fence(Ordering::SeqCst);
        if self.shared.mode.load(Ordering::Relaxed) != ASLEEP {
            return;
        }
        // Refused in the thread's last turn before it sleeps, which may have looked before the post.
        if let Some(mut core) = self.shared.core.try_take() {
            core.turn(status);
        }
        self.shared.rouse(ASLEEP);
    }

    /// The application stops polling now: the thread takes over at once.
    pub(super) fn hand_over(&self) {
        self.shared.rouse(STANDING_BACK);
    }

    pub(super) fn stop(&mut self) {
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the core is in the status already.
            let _ = thread.join();
        }
        self.shared.core.end();
    }
}

/// Signals are the application's: its threads take them.
fn block_signals() {
    // SAFETY: the set is filled before it is used, and only this thread's mask changes.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

impl Shared {
    /// Ends the thread's wait if it waits in `mode`; only the first to see it does.
    fn rouse(&self, mode: u32) {
        if self.mode.load(Ordering::Relaxed) == mode
            && self.mode.compare_exchange(mode, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.wake.signal();
        }
    }

    fn run(&self, status: &Status) {
        let (mut idle, mut nap) = (0_u32, NAPS[0]);
        let mut polls = self.polls.load(Ordering::Relaxed);
        while !status.stopping() && !status.stopped() {
            if self.polls.load(Ordering::Relaxed).wrapping_sub(polls) >= DRIVES {
                self.stand_back(status);
                idle = 0;
            }
            polls = self.polls.load(Ordering::Relaxed);
            if self.batch(status) {
                (idle, nap) = (0, NAPS[0]);
                continue;
            }
            idle = idle.saturating_add(BATCH);
            if idle < SPIN_TURNS {
                std::hint::spin_loop();
            } else if idle < SPIN_TURNS + YIELD_TURNS {
                std::thread::yield_now();
            } else if self.sleep(status, nap) {
                nap = (nap * 2).min(NAPS[1]);
            } else {
                (idle, nap) = (0, NAPS[0]);
            }
        }
    }

    /// Runs turns until the first that finds nothing, a batch at most; tells whether any found something.
    fn batch(&self, status: &Status) -> bool {
        let mut core = self.core.take();
        let mut any = false;
        for _ in 0..BATCH {
            if !core.turn(status) {
                break;
            }
            any = true;
        }
        any
    }

    /// Leaves the core to the application for as long as it polls.
    fn stand_back(&self, status: &Status) {
        loop {
            self.mode.store(STANDING_BACK, Ordering::Relaxed);
            let polls = self.polls.load(Ordering::Relaxed);
            self.wait(None, STAND_BACK);
            let roused = self.mode.swap(WORKING, Ordering::Relaxed) == WORKING;
            let drives_on = self.polls.load(Ordering::Relaxed).wrapping_sub(polls) >= DRIVES_ON;
            if roused || !drives_on || status.stopping() {
                return;
            }
        }
    }

    /// Sleeps until there is something to do, unless there is now; tells whether it slept.
    fn sleep(&self, status: &Status, nap: Duration) -> bool {
        self.mode.store(ASLEEP, Ordering::Relaxed);
        // As in `posted`: who rings the doorbell after this sees that the thread is asleep.
        fence(Ordering::SeqCst);
        let mut core = self.core.take();
        let work = core.turn(status);
        let (descriptor, timer) = needs(&core);
        drop(core);
        if !work && !status.stopping() {
            let longest = if descriptor.is_some() { LONGEST_SLEEP } else { nap };
            self.wait(descriptor, timer.map_or(longest, |timer| timer.min(longest)));
        }
        self.mode.store(WORKING, Ordering::Relaxed);
        !work
    }

    /// Waits until roused, for the port's descriptor, or for `longest`.
    fn wait(&self, descriptor: Option<RawFd>, longest: Duration) {
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        // A descriptor of -1 is passed over.
        let mut watched = [watch(self.wake.as_raw_fd()), watch(descriptor.unwrap_or(-1))];
        let longest = libc::timespec {
            tv_sec: longest.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(longest.subsec_nanos()),
        };
        // SAFETY: both descriptors are open, the array has two, and no signal mask is changed.
        let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &longest, std::ptr::null()) };
        if ready > 0 && watched[0].revents != 0 {
            // Nothing to read is as well.
            let _ = self.wake.take();
        }
    }
}

/// What to wait for: the port's descriptor, and the time to the next timer.
fn needs(core: &Running<'_>) -> (Option<RawFd>, Option<Duration>) {
    core.core().map_or((None, None), |core| (core.descriptor(), core.idle_time()))
}
