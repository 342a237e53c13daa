//! Wakes a sleeping core when another core of its port puts a frame into its ring.

use crate::event_fd::EventFd;
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::os::fd::{AsRawFd, RawFd};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The sleep of a core, and the eventfd that ends it.
///
/// The sender puts a frame into the ring, then checks whether the core sleeps. The core marks itself asleep, then checks the ring. So at
/// least one of them sees the other's write.
#[derive(Debug)]
pub(super) struct SleepState {
    asleep: AtomicBool,
    event_fd: EventFd,
}

impl SleepState {
    pub(super) fn new(event_fd: EventFd) -> Self {
        Self { asleep: AtomicBool::new(false), event_fd }
    }

    /// Sets whether the core sleeps. After setting it, the core must check its rings once more.
    pub(super) fn listen(&self, on: bool) {
        self.asleep.store(on, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    #[inline]
    pub(super) fn wake(&self) {
        fence(Ordering::SeqCst);
        if self.asleep.load(Ordering::Relaxed) && self.asleep.swap(false, Ordering::Relaxed) {
            self.event_fd.signal();
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.event_fd.as_raw_fd()
    }
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// Two senders each put a frame into the ring while its owner is about to sleep. The owner finds both frames, or is woken.
    #[test]
    fn a_core_finds_a_frame_or_is_woken() {
        loom::model(|| {
            let event_fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
            let sleep_state = Arc::new(SleepState::new(event_fd.try_clone().unwrap()));
            let ring = Arc::new(AtomicU32::new(0));
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let (sleep_state, ring) = (sleep_state.clone(), ring.clone());
                    thread::spawn(move || {
                        ring.fetch_add(1, Ordering::Release);
                        sleep_state.wake();
                    })
                })
                .collect();
            sleep_state.listen(true);
            let found = ring.load(Ordering::Acquire);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            assert!(found == 2 || event_fd.take_now());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_sleeping_core_is_woken_once() {
        let event_fd = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let sleep_state = SleepState::new(event_fd.try_clone().unwrap());
        sleep_state.wake();
        assert!(event_fd.take().is_err(), "it is awake");
        sleep_state.listen(true);
        sleep_state.wake();
        sleep_state.wake();
        assert!(event_fd.take().is_ok());
        assert!(event_fd.take().is_err());
    }
}
