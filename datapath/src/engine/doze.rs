//! Wakes a sleeping core when another core of its port puts a frame into its ring.

use crate::event_fd::EventFd;
#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, Ordering, fence};
use std::os::fd::{AsRawFd, RawFd};
#[cfg(not(all(test, loom)))]
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// The sleep of a core, and the eventfd that ends it.
///
/// The sender puts a frame into the ring, then checks whether the core sleeps. The core marks itself asleep, then checks the ring. So one
/// of them notices the frame.
#[derive(Debug)]
pub(super) struct Doze {
    asleep: AtomicBool,
    bell: EventFd,
}

impl Doze {
    pub(super) fn new(bell: EventFd) -> Self {
        Self { asleep: AtomicBool::new(false), bell }
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
            self.bell.signal();
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.bell.as_raw_fd()
    }
}

/// Run by `ci/loom`.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32;
    use loom::thread;

    /// Two senders each put a frame into the ring while its owner falls asleep: it finds both frames, or is woken.
    #[test]
    fn a_frame_is_found_or_rings() {
        loom::model(|| {
            let bell = EventFd::new(libc::EFD_NONBLOCK).unwrap();
            let doze = Arc::new(Doze::new(bell.try_clone().unwrap()));
            let ring = Arc::new(AtomicU32::new(0));
            let senders: Vec<_> = (0..2)
                .map(|_| {
                    let (doze, ring) = (doze.clone(), ring.clone());
                    thread::spawn(move || {
                        ring.fetch_add(1, Ordering::Release);
                        doze.wake();
                    })
                })
                .collect();
            doze.listen(true);
            let found = ring.load(Ordering::Acquire);
            senders.into_iter().for_each(|sender| sender.join().unwrap());
            assert!(found == 2 || bell.take_now());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_a_sleeper_is_woken_and_once() {
        let bell = EventFd::new(libc::EFD_NONBLOCK).unwrap();
        let doze = Doze::new(bell.try_clone().unwrap());
        doze.wake();
        assert!(bell.take().is_err(), "it is awake");
        doze.listen(true);
        doze.wake();
        doze.wake();
        assert!(bell.take().is_ok());
        assert!(bell.take().is_err());
    }
}
