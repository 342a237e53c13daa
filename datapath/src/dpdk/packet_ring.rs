//! The transmit ring of an AF_PACKET port, as the kernel and the driver share it.
//!
//! The driver waits for the kernel without a limit when it meets a slot that is not free, so it is handed only what has free slots. It
//! fills them in their order, one a frame, from the first on.

use super::descriptor::mappings_of;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// A slot's status without the kernel's notes on times (`TP_STATUS_TS_SOFTWARE`, `TP_STATUS_TS_RAW_HARDWARE`).
const STATUS: u32 = !(1 << 29 | 1 << 31);
/// `TP_STATUS_AVAILABLE`: the slot waits for a frame.
const AVAILABLE: u32 = 0;

/// The ring that the driver puts the next frame into.
#[derive(Debug)]
pub(super) struct TransmitRing {
    socket: RawFd,
    start: *const u8,
    slot: usize,
    slots: usize,
    next: usize,
}

// SAFETY: the ring is memory that the port's socket keeps, and is read by atomic operations alone.
unsafe impl Send for TransmitRing {}

impl TransmitRing {
    /// The ring of `slots` slots of `slot` bytes of a socket that sent nothing yet: the second half of its mapping. None if the
    /// mapping is of another size.
    ///
    /// # Safety
    /// The driver uses the mapping so, and keeps it for as long as this is used.
    pub(super) unsafe fn of(socket: RawFd, slot: usize, slots: usize) -> Option<Self> {
        let [(start, length)] = mappings_of(socket)[..] else { return None };
        let half = slot * slots;
        let start = std::ptr::with_exposed_provenance(start + half);
        (length == 2 * half).then_some(Self { socket, start, slot, slots, next: 0 })
    }

    /// The number of frames, `wanted` at most, that the driver takes without a wait.
    pub(super) fn room(&self, wanted: usize) -> usize {
        (0..wanted.min(self.slots))
            .take_while(|&ahead| self.is_free((self.next + ahead) % self.slots))
            .count()
    }

    fn is_free(&self, number: usize) -> bool {
        // SAFETY: the slot lies within the mapping, which lives (`of`), and begins with its status, which is aligned. The kernel
        // writes it at any time.
        let status = unsafe { AtomicU32::from_ptr(self.start.add(number * self.slot).cast_mut().cast()) };
        status.load(Ordering::Acquire) & STATUS == AVAILABLE
    }

    /// The driver took so many frames.
    pub(super) fn took(&mut self, frames: usize) {
        self.next = (self.next + frames) % self.slots;
    }

    /// Asks the kernel to send what is in the ring, as the driver does after each burst.
    pub(super) fn kick(&self) {
        // SAFETY: only numbers are passed. If the kernel refuses the call, a later one repeats it.
        unsafe { libc::sendto(self.socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    }
}
