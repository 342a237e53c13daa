//! Kernel counters that wake the threads sleeping on them (eventfd(2)).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// A descriptor that is readable while its count is above 0. Closed on exec.
#[derive(Debug)]
pub struct EventFd(OwnedFd);

impl From<OwnedFd> for EventFd {
    fn from(descriptor: OwnedFd) -> Self {
        Self(descriptor)
    }
}

impl EventFd {
    /// A count of 0. `flags` are those of eventfd(2): `EFD_NONBLOCK`, `EFD_SEMAPHORE`, or 0.
    ///
    /// # Errors
    /// Returns an error if the process has no descriptor left.
    pub fn new(flags: libc::c_int) -> io::Result<Self> {
        // SAFETY: eventfd takes plain numbers.
        let descriptor = unsafe { libc::eventfd(0, flags | libc::EFD_CLOEXEC) };
        if descriptor < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor with no other owner.
        Ok(Self(unsafe { OwnedFd::from_raw_fd(descriptor) }))
    }

    /// Adds 1. A full counter, which is too far away to be met, would wake too.
    pub fn signal(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of an array.
        unsafe { libc::write(self.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Takes the count, or 1 of it with `EFD_SEMAPHORE`; waits until it is above 0 if the descriptor blocks.
    ///
    /// # Errors
    /// Returns an error if a signal interrupts the wait, or `WouldBlock` if the descriptor does not block and the count is 0.
    pub fn take(&self) -> io::Result<()> {
        let mut count = [0_u8; 8];
        // SAFETY: the array has the eight bytes that an eventfd returns.
        let read = unsafe { libc::read(self.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
        if read < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Takes from a semaphore's count without waiting. Returns `false` if the count is 0, or if the kernel cannot read it without waiting
    /// (before Linux 5.8).
    pub fn take_now(&self) -> bool {
        let mut count = [0_u8; 8];
        let into = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        // The offset -1 reads as read(2) does, and the flag applies to this call alone: the program's readers still wait.
        // SAFETY: one buffer of the eight bytes that an eventfd fills.
        unsafe { libc::preadv2(self.as_raw_fd(), &raw const into, 1, -1, libc::RWF_NOWAIT) > 0 }
    }

    /// The same count, by another descriptor.
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
    fn a_count_of_nothing_is_not_waited_for() {
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
