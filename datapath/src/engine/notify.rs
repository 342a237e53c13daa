//! Wakes a thread that waits for a completion.

use crate::event_fd::EventFd;
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};
use std::sync::Arc;
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering, fence};

const NOT_ARMED: u8 = 0;
const SOLICITED: u8 = 1;
const ANY: u8 = 2;

/// Keeps an eventfd readable after its core has ended, because no later event would wake its readers.
#[derive(Debug)]
pub struct EndEvent {
    has_ended: AtomicBool,
    descriptor: Arc<EventFd>,
}

impl EndEvent {
    pub(super) fn new(descriptor: Arc<EventFd>) -> Self {
        Self { has_ended: AtomicBool::new(false), descriptor }
    }

    /// Returns true if the core has ended. Signals the descriptor again, so that it stays readable after a reader has read it.
    #[must_use]
    pub fn signal_if_ended(&self) -> bool {
        let has_ended = self.has_ended.load(Ordering::Acquire);
        if has_ended {
            self.descriptor.signal();
        }
        has_ended
    }

    pub(super) fn announce(&self) {
        self.has_ended.store(true, Ordering::Release);
        self.descriptor.signal();
    }
}

/// A completion queue's notification request. An armed notifier signals once: for the next completion, or for the next one that was
/// solicited or failed.
///
/// The core puts completions into the ring, then checks whether the notifier is armed. The application arms the notifier, then checks the
/// ring. So at least one of them sees each completion.
#[derive(Debug)]
pub struct Notifier {
    armed: AtomicU8,
    /// Signals that were not taken yet.
    signals: AtomicU32,
    descriptor: Arc<EventFd>,
}

impl Notifier {
    /// Creates a notifier that signals by adding 1 to `descriptor`, an eventfd.
    #[must_use]
    pub fn new(descriptor: Arc<EventFd>) -> Self {
        Self { armed: AtomicU8::new(NOT_ARMED), signals: AtomicU32::new(0), descriptor }
    }

    /// Requests a signal. A request for any completion includes solicited ones.
    pub fn arm(&self, solicited_only: bool) {
        self.armed.fetch_max(if solicited_only { SOLICITED } else { ANY }, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes one signal. Returns false if there is none.
    pub fn take(&self) -> bool {
        self.signals
            .fetch_update(Ordering::AcqRel, Ordering::Relaxed, |signals| signals.checked_sub(1))
            .is_ok()
    }

    /// Cancels a request. A core that checks it at this moment may still signal once.
    pub fn disarm(&self) {
        self.armed.store(NOT_ARMED, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Takes back all signals, also from the descriptor. Returns the number of signals that a thread has read from the descriptor but not
    /// taken yet.
    pub fn take_back(&self) -> u32 {
        let signals = self.signals.swap(0, Ordering::AcqRel);
        (0..signals).filter(|_| !self.descriptor.take_now()).count() as u32
    }

    /// Signals if requested. `solicited` is true if a new completion was solicited or is an error.
    pub(super) fn on_completions(&self, solicited: bool) {
        fence(Ordering::SeqCst);
        let armed = self.armed.load(Ordering::Relaxed);
        // Only one of several cores signals.
        if (armed == ANY || (armed == SOLICITED && solicited))
            && self.armed.swap(NOT_ARMED, Ordering::Relaxed) != NOT_ARMED
        {
            self.signals.fetch_add(1, Ordering::Release);
            self.descriptor.signal();
        }
    }
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    /// The core puts a completion into the ring while a thread arms the notifier and checks the ring. At least one of them sees the other's
    /// write.
    #[test]
    fn a_completion_is_found_or_signals() {
        loom::model(|| {
            let notifier = Arc::new(Notifier::new(Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap())));
            let ring = Arc::new(AtomicU32::new(0));
            let core = {
                let (notifier, ring) = (notifier.clone(), ring.clone());
                thread::spawn(move || {
                    ring.store(1, Ordering::Release);
                    notifier.on_completions(false);
                })
            };
            notifier.arm(false);
            let is_found = ring.load(Ordering::Acquire) == 1;
            core.join().unwrap();
            assert!(is_found || notifier.take());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn notifier() -> Notifier {
        Notifier::new(Arc::new(EventFd::new(0).unwrap()))
    }

    #[test]
    fn an_armed_notifier_signals_once() {
        let notifier = notifier();
        notifier.on_completions(true);
        assert!(!notifier.take(), "it was not armed");
        notifier.arm(true);
        notifier.on_completions(false);
        assert!(!notifier.take(), "none was solicited");
        notifier.on_completions(true);
        notifier.on_completions(true);
        assert_eq!((notifier.take(), notifier.take()), (true, false));
        notifier.arm(false);
        notifier.arm(true);
        notifier.on_completions(false);
        assert!(notifier.take(), "any was asked for");
    }

    #[test]
    fn disarming_removes_signals_from_the_descriptor() {
        let descriptor = Arc::new(EventFd::new(libc::EFD_SEMAPHORE).unwrap());
        let [one, other] = [0; 2].map(|_| Notifier::new(descriptor.clone()));
        for notifier in [&one, &one, &other] {
            notifier.arm(false);
            notifier.on_completions(false);
        }
        one.arm(false);
        one.disarm();
        one.on_completions(false);
        assert_eq!((one.take_back(), one.take()), (0, false));
        assert!(descriptor.take_now(), "the other notifier's signal is left");
        assert!(!descriptor.take_now());
        assert_eq!(other.take_back(), 1, "a thread has read it");
    }
}
