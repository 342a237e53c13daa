//! Kernel counters that wake threads (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// An eventfd: readable while its count is above 0, and closed on exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl From<OwnedFd> for EventFd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl EventFd {
    /// Creates an eventfd with a count of 0. `flags` are those of eventfd(2): `EFD_NONBLOCK`, `EFD_SEMAPHORE`, or 0.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn new(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: eventfd takes integers.
        let descriptor = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Adds 1 to the count.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: the write reads the eight bytes of `one`.
        unsafe { libc::write(self.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Resets the count to 0, or subtracts 1 with `EFD_SEMAPHORE`. If the count is 0, waits unless the descriptor is non-blocking.
    ///
    /// # Errors
    /// Returns an error if a signal interrupts the wait, or `WouldBlock` if the descriptor is non-blocking and the count is 0.
    pub fn take(&self) -> io::Result<()> {
        let mut count = [0_u8; 8];
        // SAFETY: the array has the eight bytes that an eventfd returns.
        let read = unsafe { libc::read(self.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Resets or subtracts from the count as [`take`](Self::take) does, but never waits. Returns false if the count is 0, or before Linux
    /// 5.8.
    pub fn take_now(&self) -> bool {
        let mut count = [0_u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // An offset of -1 reads as read(2) does. The flag applies to this call only, so the program's own readers still wait.
        // SAFETY: passes one buffer of the eight bytes that an eventfd returns.
        unsafe { libc::preadv2(self.as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) > 0 }
    }

    /// Duplicates the descriptor. Both share the count.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Self> {
        self.0.try_clone().map(Self)
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsRawFd for EventFd {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taking_a_count_of_0_does_not_wait() {
        let descriptor = EventFd::new(libc::EFD_SEMAPHORE).unwrap();
        assert!(!descriptor.take_now());
        descriptor.signal();
        descriptor.signal();
        assert_eq!(
            [descriptor.take_now(), descriptor.take_now(), descriptor.take_now()],
            [true, true, false]
        );
    }
}
