//! What ends a wait of a core's thread.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

#[cfg(not(all(test, loom)))]
mod real {
    use super::*;
    use crate::event_fd::EventFd;
    use std::os::fd::AsRawFd;

    #[derive(Debug)]
    pub struct Wake(EventFd);

    impl Wake {
        pub fn new() -> io::Result<Self> {
            EventFd::new(libc::EFD_NONBLOCK).map(Self)
        }

        /// Ends the wait that there is, or the next.
        pub fn signal(&self) {
            self.0.signal();
        }

        /// Waits for a signal, for `descriptor` to become readable, or for `longest`.
        pub fn wait(&self, descriptor: Option<RawFd>, longest: Duration) {
            let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // A descriptor of -1 is passed over.
            let mut watched = [watch(self.0.as_raw_fd()), watch(descriptor.unwrap_or(-1))];
            let longest = libc::timespec {
                tv_sec: longest.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(longest.subsec_nanos()),
            };
            // SAFETY: both descriptors are open, the array has two, and no signal mask is changed.
            let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &longest, std::ptr::null()) };
            if ready > 0 && watched[0].revents != 0 {
                // Nothing to read is as well.
                let _ = self.0.take();
            }
        }
    }
}

/// In the model only a signal ends a wait: time and descriptors would hide one that was lost.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Notify;

    pub struct Wake(Notify);

    impl Wake {
        pub fn new() -> io::Result<Self> {
            Ok(Self(Notify::new()))
        }

        pub fn signal(&self) {
            self.0.notify();
        }

        pub fn wait(&self, _descriptor: Option<RawFd>, _longest: Duration) {
            self.0.wait();
        }
    }
}

#[cfg(all(test, loom))]
pub(super) use model::Wake;
#[cfg(not(all(test, loom)))]
pub(super) use real::Wake;
