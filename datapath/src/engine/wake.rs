//! A wait of a core's thread, which other threads can end.

use std::io;
use std::os::fd::RawFd;
use std::time::Duration;

#[cfg(not(all(test, loom)))]
mod real {
    use super::*;
    use crate::event_fd::EventFd;
    use crate::socket_option;
    use std::os::fd::AsRawFd;

    #[derive(Debug)]
    pub struct Wake(EventFd);

    impl From<EventFd> for Wake {
        fn from(event_fd: EventFd) -> Self {
            Self(event_fd)
        }
    }

    impl Wake {
        pub fn new() -> io::Result<Self> {
            EventFd::new(libc::EFD_NONBLOCK).map(Self)
        }

        /// Ends the current wait, or the next one if no thread waits.
        pub fn signal(&self) {
            self.0.signal();
        }

        /// Waits for a signal, for `descriptor` to become readable, or until `longest` has passed. Returns false if an error of the
        /// descriptor ended the wait.
        pub fn wait(&self, descriptor: Option<RawFd>, longest: Duration) -> bool {
            let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            // ppoll ignores a descriptor of -1.
            let mut watched = [watch(self.0.as_raw_fd()), watch(descriptor.unwrap_or(-1))];
            let longest = libc::timespec {
                tv_sec: longest.as_secs() as libc::time_t,
                tv_nsec: libc::c_long::from(longest.subsec_nanos()),
            };
            // SAFETY: the array has two elements, and a null mask changes no signal mask. A closed descriptor is reported, not an error.
            let ready = unsafe { libc::ppoll(watched.as_mut_ptr(), 2, &longest, std::ptr::null()) };
            let is_signalled = ready > 0 && watched[0].revents != 0;
            if is_signalled {
                // Another reader may have emptied the counter.
                let _ = self.0.take();
            }
            let revents = if ready > 0 { watched[1].revents } else { 0 };
            if revents & !libc::POLLIN != 0 {
                take_error(watched[1].fd);
            }
            is_signalled || revents == 0 || revents & libc::POLLIN != 0
        }
    }

    /// Reads and clears the pending error of a socket, which would end every wait. A packet socket has one after its interface went down.
    /// The kernel attaches the socket again when the interface comes up.
    fn take_error(socket: RawFd) {
        let error = socket_option::number(&socket, libc::SOL_SOCKET, libc::SO_ERROR).unwrap_or(0);
        if error != 0 {
            tracing::warn!("cannot wake the port's socket: {}", io::Error::from_raw_os_error(error));
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use std::net::UdpSocket;

        /// Longer than any test runs.
        const LONG: Duration = Duration::from_secs(3600);

        #[test]
        fn an_error_of_the_descriptor_ends_one_wait() {
            let wake = Wake::new().unwrap();
            let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
            let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
            socket.connect(closed).unwrap();
            for _ in 0..3 {
                // The answer is an ICMP port-unreachable.
                socket.send(&[0]).unwrap();
                assert!(!wake.wait(Some(socket.as_raw_fd()), LONG));
                assert!(wake.wait(Some(socket.as_raw_fd()), Duration::ZERO), "the error is taken");
            }
        }

        #[test]
        fn a_descriptor_that_stays_broken_is_reported_each_time() {
            let wake = Wake::new().unwrap();
            let (end, other) = std::io::pipe().unwrap();
            assert!(wake.wait(Some(end.as_raw_fd()), Duration::ZERO));
            drop(other);
            assert!(!wake.wait(Some(end.as_raw_fd()), LONG));
            assert!(!wake.wait(Some(end.as_raw_fd()), LONG));
            assert!(!wake.wait(Some(end.as_raw_fd()), Duration::ZERO));
        }
    }
}

/// In the model only a signal ends a wait, because a timeout would hide a lost signal.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::sync::Notify;

    pub struct Wake(Notify);

    impl From<crate::event_fd::EventFd> for Wake {
        fn from(_: crate::event_fd::EventFd) -> Self {
            Self(Notify::new())
        }
    }

    impl Wake {
        pub fn new() -> io::Result<Self> {
            Ok(Self(Notify::new()))
        }

        pub fn signal(&self) {
            self.0.notify();
        }

        pub fn wait(&self, _descriptor: Option<RawFd>, _longest: Duration) -> bool {
            self.0.wait();
            true
        }
    }
}

#[cfg(all(test, loom))]
pub(super) use model::Wake;
#[cfg(not(all(test, loom)))]
pub(super) use real::Wake;
