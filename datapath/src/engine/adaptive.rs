//! Adaptive progress: the application runs the core while it polls, and a thread runs it otherwise.
//!
//! The thread is in one of three modes. While *working*, it runs turns and checks whether the application polls too. While *paused*, it
//! leaves the core to the application and checks periodically that the application still polls. While *asleep*, it waits for the port's
//! descriptor, a timer or a post.

use super::core::Turn;
use super::on_demand::{OnDemand, Running};
use super::runner::CoreStatus;
use super::wake::Wake;
use crate::fork::{self, Process};
use crate::io::WakeDescriptor;
use crate::signals;
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::io;
use std::os::fd::RawFd;
use std::sync::atomic::AtomicBool;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const WORKING: u32 = 0;
const PAUSED: u32 = 1;
const ASLEEP: u32 = 2;

/// Turns between two checks whether the application polls.
const BATCH: u32 = 16;
/// Polls during a batch from which on the application runs the core.
const POLLS_TO_PAUSE: u64 = 4;
/// Duration of a pause, and the polls in that time with which the application continues to run the core.
const PAUSE: Duration = Duration::from_millis(1);
const POLLS_TO_STAY_PAUSED: u64 = 50;
/// Idle turns during which the thread spins, and further ones during which it yields. Then it sleeps.
const SPIN_TURNS: u32 = 64;
const YIELD_TURNS: u32 = 128;
/// A yield that takes longer means that other threads need this CPU. The thread then sleeps, because the kernel wakes a sleeping thread for
/// a packet sooner than it returns to a thread that yielded.
const SLOW_YIELD: Duration = Duration::from_micros(50);
/// The longest sleep on a port with a descriptor, which wakes the thread.
const MAX_SLEEP: Duration = Duration::from_millis(500);
/// Shortest and longest sleep on a port without a descriptor, where a received packet is delayed until the sleep ends. Each sleep is a
/// quarter longer than the last, so the delay is at most a fifth of the time since the last packet.
const NAPS: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(1)];
/// The longest time for which the exit of the process waits for a delayed ACK.
const LONGEST_EXIT: Duration = Duration::from_secs(1);
/// The longest time for which it waits for a turn to end. A handler of a signal may have interrupted the turn.
const LONGEST_TURN: Duration = Duration::from_millis(10);
/// Timer slack in ns. The kernel's default, 50 µs, is as long as the shortest sleep.
const TIMER_SLACK_NS: libc::c_ulong = 1000;

pub(super) struct Adaptive {
    shared: Arc<SharedCore>,
    thread: Option<JoinHandle<()>>,
}

struct SharedCore {
    core: OnDemand,
    /// Turns that the application requested; wraps at 2⁶⁴.
    polls: AtomicU64,
    /// The value of `polls` when the application last called `hand_over`.
    polls_at_hand_over: AtomicU64,
    mode: AtomicU32,
    wake: Wake,
}

impl Adaptive {
    pub(super) fn start(core: impl Turn + 'static, status: &Arc<CoreStatus>, wake: Wake) -> io::Result<Self> {
        let shared = Arc::new(SharedCore::new(core, wake));
        send_delayed_at_exit(&shared);
        let (here, there) = (shared.clone(), status.clone());
        let body = move || {
            set_timer_slack();
            here.run(&there);
        };
        let thread = signals::spawn("ferroce-core", body)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Runs one turn for an application that polls. Returns false if it did nothing.
    pub(super) fn poll(&self, status: &CoreStatus) -> bool {
        self.shared.polls.fetch_add(1, Ordering::Relaxed);
        self.turn(status)
    }

    /// Runs one turn, whatever the thread's mode, unless another thread runs one.
    pub(super) fn turn(&self, status: &CoreStatus) -> bool {
        let Some(mut core) = self.shared.core.try_take() else { return false };
        let work = core.turn(status);
        drop(core);
        if work {
            // The turn may have changed the timer or the descriptor on which the thread sleeps.
            self.shared.wake_if(ASLEEP);
        }
        work
    }

    /// Runs the core after a post if the thread sleeps, because posts do not wake the thread.
    pub(super) fn posted(&self, status: &CoreStatus) {
        // The poster rings the doorbell, then reads the mode. The thread stores the mode, then reads the doorbells. At least one of them
        // sees the other's write.
        fence(Ordering::SeqCst);
        if self.shared.mode.load(Ordering::Relaxed) != ASLEEP {
            return;
        }
        // Fails while the thread runs its last turn before it sleeps. That turn may have missed the post, so the thread is woken.
        if let Some(mut core) = self.shared.core.try_take() {
            core.turn(status);
        }
        self.shared.wake_if(ASLEEP);
    }

    /// Returns the core to the thread at once, because the application stops polling.
    pub(super) fn hand_over(&self) {
        self.shared.polls_at_hand_over.store(self.shared.polls.load(Ordering::Relaxed), Ordering::Relaxed);
        // Either a thread that pauses now sees no current polls, or this function sees its mode (see `posted`).
        fence(Ordering::SeqCst);
        self.shared.wake_if(PAUSED);
    }

    pub(super) fn stop(&mut self) {
        self.shared.wake.signal();
        if let Some(thread) = self.thread.take() {
            // `status` already has the core's panic.
            let _ = thread.join();
        }
        self.shared.core.end();
    }
}

/// Adaptive cores, each with the process that started it: a child of a fork has copies.
static STARTED: Mutex<Vec<(Process, Weak<SharedCore>)>> = Mutex::new(Vec::new());

/// Makes a core send its delayed ACK when the process exits.
fn send_delayed_at_exit(core: &Arc<SharedCore>) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    let Some(mut started) = fork::lock(&STARTED) else { return };
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function exists as long as the library does.
        unsafe { libc::atexit(at_exit) };
    }
    started.retain(|(_, core)| core.strong_count() > 0);
    started.push((Process::this(), Arc::downgrade(core)));
}

/// Called by the thread that exits. Its thread-local storage may be destroyed, so the cores' own threads send.
extern "C" fn at_exit() {
    let Ok(started) = STARTED.try_lock() else { return };
    let own = started.iter().filter(|(process, _)| !process.is_parent());
    own.filter_map(|(_, core)| core.upgrade()).for_each(|core| core.send_delayed(LONGEST_EXIT));
}

fn set_timer_slack() {
    // SAFETY: passes integers, and affects only this thread. On failure, sleeps end a little later.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK_NS) };
}

impl SharedCore {
    fn new(core: impl Turn + 'static, wake: Wake) -> Self {
        let (polls, polls_at_hand_over, mode) =
            (AtomicU64::new(0), AtomicU64::new(0), AtomicU32::new(WORKING));
        Self { core: OnDemand::new(core), polls, polls_at_hand_over, mode, wake }
    }

    /// Returns the number of polls since the application last called `hand_over`.
    fn current_polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed).wrapping_sub(self.polls_at_hand_over.load(Ordering::Relaxed))
    }

    /// Wakes the thread if it waits in `mode`. Only one of several callers signals.
    fn wake_if(&self, mode: u32) {
        if self.mode.load(Ordering::Relaxed) == mode
            && self.mode.compare_exchange(mode, WORKING, Ordering::AcqRel, Ordering::Relaxed).is_ok()
        {
            self.wake.signal();
        }
    }

    /// Lets the thread, which may be paused, send a delayed ACK. Waits for that, but no longer than `longest`.
    fn send_delayed(&self, longest: Duration) {
        let (since, mut turn_since) = (Instant::now(), Instant::now());
        while since.elapsed() < longest && turn_since.elapsed() < LONGEST_TURN {
            if let Some(core) = self.core.try_take() {
                if !core.core().is_some_and(Turn::delays_ack) {
                    return;
                }
                turn_since = Instant::now();
            }
            self.wake_if(PAUSED);
            std::thread::sleep(NAPS[0]);
        }
    }

    fn run(&self, status: &CoreStatus) {
        let (mut idle, mut nap) = (0_u32, NAPS[0]);
        let mut polls = self.polls.load(Ordering::Relaxed);
        while !status.stopping() && !status.stopped() {
            let polled = self.polls.load(Ordering::Relaxed).wrapping_sub(polls);
            if polled.min(self.current_polls()) >= POLLS_TO_PAUSE {
                self.pause(status);
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
                let before = Instant::now();
                std::thread::yield_now();
                if before.elapsed() > SLOW_YIELD {
                    idle = SPIN_TURNS + YIELD_TURNS;
                }
            } else if self.sleep(status, nap) {
                nap = (nap + nap / 4).min(MAX_SLEEP);
            } else {
                (idle, nap) = (0, NAPS[0]);
            }
        }
    }

    /// Runs up to a batch of turns, until one does nothing. Returns true if any did something.
    fn batch(&self, status: &CoreStatus) -> bool {
        let mut core = self.core.take();
        let mut any = false;
        for _ in 0..BATCH {
            if !core.turn(status) {
                break;
            }
            any = true;
        }
        if any {
            core.listen(false);
        }
        any
    }

    fn pause(&self, status: &CoreStatus) {
        self.core.take().listen(false);
        loop {
            self.mode.store(PAUSED, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if self.current_polls() < POLLS_TO_PAUSE {
                // The application has called `hand_over` since.
                self.mode.store(WORKING, Ordering::Relaxed);
                return;
            }
            let polls = self.polls.load(Ordering::Relaxed);
            self.wake.wait(None, PAUSE);
            let was_woken = self.mode.swap(WORKING, Ordering::Relaxed) == WORKING;
            let stays_paused = self.polls.load(Ordering::Relaxed).wrapping_sub(polls) >= POLLS_TO_STAY_PAUSED;
            if was_woken || !stays_paused || status.stopping() {
                return;
            }
        }
    }

    /// Sleeps unless there is work now. Returns true if it slept.
    fn sleep(&self, status: &CoreStatus, nap: Duration) -> bool {
        self.mode.store(ASLEEP, Ordering::Relaxed);
        // A thread that rings a doorbell after this sees that this one is asleep (see `posted`).
        fence(Ordering::SeqCst);
        let mut core = self.core.take();
        // The turn handles frames that arrived before `listen`.
        core.listen(true);
        let work = core.turn(status);
        let (descriptor, longest) = wake_conditions(&core, nap);
        if work {
            core.listen(false);
        }
        drop(core);
        if !work && !status.stopping() && !self.wake.wait(descriptor, longest) {
            // The descriptor has an error. If the error persists, it ends every wait at once, so this wait omits the descriptor.
            self.wake.wait(None, nap.min(longest));
        }
        self.mode.store(WORKING, Ordering::Relaxed);
        !work
    }
}

fn wake_conditions(core: &Running<'_>, nap: Duration) -> (Option<RawFd>, Duration) {
    let poll_interval = nap.min(NAPS[1]);
    let Some(core) = core.core() else { return (None, poll_interval) };
    let (descriptor, longest) = match core.descriptor() {
        None => (None, poll_interval),
        Some(WakeDescriptor::Reliable(descriptor)) => (Some(descriptor), MAX_SLEEP),
        Some(WakeDescriptor::Racy(descriptor)) => (Some(descriptor), nap),
    };
    let longest = if core.waits_for_port() { longest.min(poll_interval) } else { longest };
    (descriptor, core.idle_time().map_or(longest, |timer| timer.min(longest)))
}

/// A core without a port or timers, whose turn is a function. It delays an acknowledgement while turns have work.
#[cfg(test)]
struct TestCore<F> {
    turn: F,
    delays_ack: bool,
}

#[cfg(test)]
impl<F: FnMut() -> bool + Send> Turn for TestCore<F> {
    fn turn(&mut self) -> bool {
        self.delays_ack = (self.turn)();
        self.delays_ack
    }

    fn fail_all(&mut self, _reason: &str) {}

    fn idle_time(&self) -> Option<Duration> {
        None
    }

    fn waits_for_port(&self) -> bool {
        false
    }

    fn delays_ack(&self) -> bool {
        self.delays_ack
    }

    fn listen(&mut self, _on: bool) {}

    fn descriptor(&self) -> Option<WakeDescriptor> {
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_exit_of_the_process_waits_for_a_delayed_ack() {
        let status = Arc::new(CoreStatus::default());
        let mut turns_left = 1000;
        let core = TestCore {
            turn: move || {
                turns_left -= 1;
                turns_left > 0
            },
            delays_ack: true,
        };
        let mut adaptive = Adaptive::start(core, &status, Wake::new().unwrap()).unwrap();
        adaptive.shared.send_delayed(Duration::MAX);
        assert!(!adaptive.shared.core.take().core().unwrap().delays_ack());
        status.end();
        adaptive.stop();
    }

    #[test]
    fn polls_before_hand_over_do_not_pause_the_thread() {
        let status = CoreStatus::default();
        let shared =
            Arc::new(SharedCore::new(TestCore { turn: || false, delays_ack: false }, Wake::new().unwrap()));
        let adaptive = Adaptive { shared: shared.clone(), thread: None };
        for _ in 0..POLLS_TO_PAUSE {
            adaptive.poll(&status);
        }
        assert_eq!(shared.current_polls(), POLLS_TO_PAUSE, "it drives the core");
        adaptive.hand_over();
        adaptive.poll(&status);
        assert_eq!(shared.current_polls(), 1);
        shared.pause(&status);
        assert_eq!(shared.mode.load(Ordering::Relaxed), WORKING);
    }
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    /// Returns a core whose turn serves the requests that are `rung`.
    fn core(rung: Arc<AtomicU32>, served: Arc<AtomicU32>) -> impl Turn {
        let turn = move || {
            if rung.load(Ordering::Relaxed) == 0 {
                return false;
            }
            let rung = rung.swap(0, Ordering::Acquire);
            served.fetch_add(rung, Ordering::Relaxed);
            rung > 0
        };
        TestCore { turn, delays_ack: false }
    }

    /// The thread sleeps repeatedly while `posts` threads post one request each. A lost wake-up leaves a request unserved, which the model
    /// reports as an endless execution.
    fn no_post_is_left(posts: u32) {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(3);
        model.check(move || {
            let (rung, served) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
            let shared = SharedCore::new(core(rung.clone(), served.clone()), Wake::new().unwrap());
            let adaptive = Arc::new(Adaptive { shared: Arc::new(shared), thread: None });
            let stop = Arc::new(AtomicU32::new(0));
            let sleeper = {
                let (adaptive, stop) = (adaptive.clone(), stop.clone());
                thread::spawn(move || {
                    let status = CoreStatus::default();
                    while stop.load(Ordering::Acquire) == 0 {
                        adaptive.shared.sleep(&status, NAPS[0]);
                    }
                })
            };
            let post = {
                let (adaptive, rung) = (adaptive.clone(), rung.clone());
                move || {
                    rung.fetch_add(1, Ordering::Release);
                    adaptive.posted(&CoreStatus::default());
                }
            };
            let others: Vec<_> = (1..posts).map(|_| thread::spawn(post.clone())).collect();
            post();
            while served.load(Ordering::Acquire) < posts {
                thread::yield_now();
            }
            stop.store(1, Ordering::Release);
            adaptive.shared.wake.signal();
            others.into_iter().chain([sleeper]).for_each(|thread| thread.join().unwrap());
        });
    }

    #[test]
    fn a_post_wakes_a_thread_that_falls_asleep() {
        no_post_is_left(1);
    }

    #[test]
    fn posts_of_two_threads_wake_a_thread_that_falls_asleep() {
        no_post_is_left(2);
    }
}
