//! The transmit ring of an AF_PACKET port, which the kernel and DPDK's driver share.
//!
//! If the next slot is in use, the driver waits for the kernel without a limit. So the port passes it only as many frames as there are free
//! slots. The driver fills the slots in order, one for each frame, starting at the first.

use super::descriptor::mappings_of;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicU32, Ordering};

/// Mask of a slot's status without the timestamp flags (`TP_STATUS_TS_SOFTWARE`, `TP_STATUS_TS_RAW_HARDWARE`).
const STATUS: u32 = !(1 << 29 | 1 << 31);
/// `TP_STATUS_AVAILABLE`: the slot is free.
const AVAILABLE: u32 = 0;

#[derive(Debug)]
pub(super) struct TransmitRing {
    socket: RawFd,
    start: *const u8,
    slot: usize,
    slots: usize,
    next: usize,
}

// SAFETY: the ring is memory that the port's socket keeps mapped, and only atomic operations read it.
unsafe impl Send for TransmitRing {}

impl TransmitRing {
    /// Returns the transmit ring of a socket that has sent nothing yet: `slots` slots of `slot` bytes, in the second half of the socket's
    /// mapping. Returns `None` if the mapping has another size.
    ///
    /// # Safety
    /// The caller must ensure that the driver uses the mapping in this way, and that the mapping outlives the returned value.
    pub(super) unsafe fn of(socket: RawFd, slot: usize, slots: usize) -> Option<Self> {
        let [(start, length)] = mappings_of(socket)[..] else { return None };
        let half = slot * slots;
        let start = std::ptr::with_exposed_provenance(start + half);
        (length == 2 * half).then_some(Self { socket, start, slot, slots, next: 0 })
    }

    /// Returns the number of frames, at most `wanted`, that the driver can send without waiting.
    pub(super) fn room(&self, wanted: usize) -> usize {
        (0..wanted.min(self.slots))
            .take_while(|&ahead| self.is_free((self.next + ahead) % self.slots))
            .count()
    }

    fn is_free(&self, number: usize) -> bool {
        // SAFETY: the slot lies within the mapping, which lives (see `of`), and begins with its aligned status. The kernel writes it at any
        // time.
        let status = unsafe { AtomicU32::from_ptr(self.start.add(number * self.slot).cast_mut().cast()) };
        status.load(Ordering::Acquire) & STATUS == AVAILABLE
    }

    pub(super) fn took(&mut self, frames: usize) {
        self.next = (self.next + frames) % self.slots;
    }

    /// Makes the kernel send the frames in the ring, as the driver does after each burst.
    pub(super) fn kick(&self) {
        // SAFETY: passes no address and no data, only integers. If the kernel refuses, a later call sends the frames.
        unsafe { libc::sendto(self.socket, std::ptr::null(), 0, libc::MSG_DONTWAIT, std::ptr::null(), 0) };
    }
}
