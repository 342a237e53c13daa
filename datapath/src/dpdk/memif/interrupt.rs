//! memif's interrupts, for a thread that sleeps until a frame arrives. DPDK's driver implements them but has no API for them.
//!
//! Each ring has an eventfd, and a flag in shared memory with which its receiver disables interrupts. The sender's driver writes to the
//! eventfd if the flag is not set, and the receiver's driver reads it. The relay forwards both when the link is set up.
//!
//! The sender writes its frame to the ring and then reads the flag, without a fence in between. So it may not signal a frame that it sends
//! while a receiver enables interrupts. The first sleep is therefore short.

use super::socket::MemifMessage;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
const TO_SERVER: u16 = 1;
/// Offset of a ring's flags, and the flag that disables interrupts.
const FLAGS: u64 = 4;
const POLLED: u16 = 1;

/// A descriptor that becomes readable when a frame arrives. It stays the same when the peer changes.
#[derive(Debug)]
pub(in crate::dpdk) struct RingInterrupt {
    /// An epoll set that contains the eventfd of the current peer's ring.
    set: OwnedFd,
    ring: Mutex<Option<Ring>>,
}

#[derive(Debug)]
struct Ring {
    memory: File,
    flags_at: u64,
    interrupt: OwnedFd,
}

impl RingInterrupt {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes an integer.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        Ok(Self { set: unsafe { OwnedFd::from_raw_fd(set) }, ring: Mutex::new(None) })
    }

    fn ring(&self) -> MutexGuard<'_, Option<Ring>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets whether the sender signals frames. Signals cost both drivers a system call for each burst.
    pub(in crate::dpdk) fn listen(&self, on: bool) {
        if let Some(ring) = &*self.ring() {
            let flags = if on { 0 } else { POLLED };
            // On failure the flag does not change. A sleeping thread wakes up regularly anyway.
            let _ = ring.memory.write_all_at(&flags.to_ne_bytes(), ring.flags_at);
        }
    }

    /// Returns the descriptor that becomes readable when a frame arrives, or `None` without a peer.
    pub(in crate::dpdk) fn descriptor(&self) -> Option<RawFd> {
        self.ring().as_ref().map(|_| self.set.as_raw_fd())
    }

    /// Registers the ring of a new peer. Signals once, so that a thread that sleeps without a peer selects its descriptor again.
    fn attach(&self, ring: Ring) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let one = 1_u64.to_ne_bytes();
        // SAFETY: both descriptors are open, the event lives through the call, and the write reads the eight bytes of `one`.
        unsafe {
            libc::epoll_ctl(
                self.set.as_raw_fd(),
                libc::EPOLL_CTL_ADD,
                ring.interrupt.as_raw_fd(),
                &mut event,
            );
            libc::write(ring.interrupt.as_raw_fd(), one.as_ptr().cast(), one.len());
        }
        *self.ring() = Some(ring);
    }

    pub(super) fn detach(&self) {
        if let Some(ring) = self.ring().take() {
            let gone = ring.interrupt.as_raw_fd();
            // SAFETY: both descriptors are open. Closing `gone` would not remove it from the set, because the driver has a duplicate.
            unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_DEL, gone, std::ptr::null_mut()) };
        }
    }
}

/// Regions and ring of a link, collected from its messages until the link is set up.
#[derive(Default)]
pub(super) struct LinkSetup {
    regions: Vec<(u16, OwnedFd)>,
    ring: Option<(u16, u32, OwnedFd)>,
}

impl LinkSetup {
    /// Records a message of a link. `server` is true if this port is the link's server.
    pub(super) fn record(&mut self, message: &MemifMessage, server: bool) {
        match message.kind() {
            // There is one message for each region. The limit applies to a peer that sends more.
            ADD_REGION if self.regions.len() < 8 => {
                self.regions.extend(message.descriptor().map(|memory| (message.word(2), memory)));
            }
            ADD_RING if (message.word(2) & TO_SERVER != 0) == server && message.word(4) == 0 => {
                let offset = u32::from(message.word(8)) | u32::from(message.word(10)) << 16;
                self.ring = message.descriptor().map(|interrupt| (message.word(6), offset, interrupt));
            }
            _ => {}
        }
    }

    pub(super) fn attach(self, interrupt: &RingInterrupt) {
        let Some((region, offset, descriptor)) = self.ring else { return };
        let Some((_, memory)) = self.regions.into_iter().find(|(index, _)| *index == region) else { return };
        let (memory, flags_at) = (File::from(memory), u64::from(offset) + FLAGS);
        // A write beyond the end would extend the file.
        if memory.metadata().is_ok_and(|memory| flags_at + 2 <= memory.len()) {
            interrupt.attach(Ring { memory, flags_at, interrupt: descriptor });
        }
    }
}
