//! memif's interrupts, for a thread that sleeps until a frame arrives: DPDK's driver has them, and no call for them.
//!
//! Each ring has an eventfd, and a flag in the shared memory that says that its receiver polls. The driver of the sender writes to the
//! eventfd if the flag is not set, and the driver of the receiver reads it then. Both pass through the relay when the link is set up.
//!
//! The sender puts its frame into the ring, then looks at the flag, with no fence between: a frame that is sent in the very moment in which
//! a receiver begins to listen may not be announced. So the first sleep is a short one.

use super::socket::Message;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::{Mutex, MutexGuard, PoisonError};

const ADD_REGION: u16 = 4;
const ADD_RING: u16 = 5;
/// The ring leads from client to server.
const TO_SERVER: u16 = 1;
/// The offset of a ring's flags, and the flag that its receiver polls.
const FLAGS: u64 = 4;
const POLLED: u16 = 1;

/// A descriptor that becomes readable when a frame arrives, whichever peer is there.
#[derive(Debug)]
pub(in crate::dpdk) struct Bell {
    /// Holds the eventfd of the ring that there is. It stays while peers come and go.
    set: OwnedFd,
    ring: Mutex<Option<Ring>>,
}

/// The ring that this side receives from.
#[derive(Debug)]
struct Ring {
    memory: File,
    flags_at: u64,
    bell: OwnedFd,
}

impl Bell {
    pub(super) fn new() -> io::Result<Self> {
        // SAFETY: epoll_create1 takes a plain number.
        let set = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if set < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: a fresh descriptor with no other owner.
        Ok(Self { set: unsafe { OwnedFd::from_raw_fd(set) }, ring: Mutex::new(None) })
    }

    fn ring(&self) -> MutexGuard<'_, Option<Ring>> {
        self.ring.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets if the sender rings. It costs both drivers a system call a burst.
    pub(in crate::dpdk) fn listen(&self, on: bool) {
        if let Some(ring) = &*self.ring() {
            let flags = if on { 0 } else { POLLED };
            // Memory that takes no flag leaves the ring as it is: a sleeping thread looks now and then.
            let _ = ring.memory.write_all_at(&flags.to_ne_bytes(), ring.flags_at);
        }
    }

    /// Readable when a frame came, while there is a peer.
    pub(in crate::dpdk) fn descriptor(&self) -> Option<RawFd> {
        self.ring().as_ref().map(|_| self.set.as_raw_fd())
    }

    /// Records a new peer. It rings once, so that a thread that slept without one looks at what to wait for now.
    fn hang(&self, ring: Ring) {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        let one = 1_u64.to_ne_bytes();
        // SAFETY: both descriptors are open, the event lives through the call, and eight bytes of an array are written.
        unsafe {
            libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_ADD, ring.bell.as_raw_fd(), &mut event);
            libc::write(ring.bell.as_raw_fd(), one.as_ptr().cast(), one.len());
        }
        *self.ring() = Some(ring);
    }

    /// The peer has left.
    pub(super) fn take_down(&self) {
        if let Some(ring) = self.ring().take() {
            let gone = ring.bell.as_raw_fd();
            // SAFETY: both descriptors are open; the driver has its own of the same eventfd, which would keep it in the set.
            unsafe { libc::epoll_ctl(self.set.as_raw_fd(), libc::EPOLL_CTL_DEL, gone, std::ptr::null_mut()) };
        }
    }
}

/// The parts of the ring that a link's messages have described, until the link is there.
#[derive(Default)]
pub(super) struct Heard {
    regions: Vec<(u16, OwnedFd)>,
    ring: Option<(u16, u32, OwnedFd)>,
}

impl Heard {
    /// A message on its way, of a link whose receiving side here is the server, or the client.
    pub(super) fn note(&mut self, message: &Message, server: bool) {
        match message.kind() {
            // One message each; a peer that sends more gets no bell.
            ADD_REGION if self.regions.len() < 8 => {
                self.regions.extend(message.descriptor().map(|memory| (message.word(2), memory)));
            }
            ADD_RING if (message.word(2) & TO_SERVER != 0) == server && message.word(4) == 0 => {
                let offset = u32::from(message.word(8)) | u32::from(message.word(10)) << 16;
                self.ring = message.descriptor().map(|bell| (message.word(6), offset, bell));
            }
            _ => {}
        }
    }

    /// The link is there.
    pub(super) fn hang(self, bell: &Bell) {
        let Some((region, offset, descriptor)) = self.ring else { return };
        let Some((_, memory)) = self.regions.into_iter().find(|(index, _)| *index == region) else { return };
        let (memory, flags_at) = (File::from(memory), u64::from(offset) + FLAGS);
        // A write behind its end would lengthen it.
        if memory.metadata().is_ok_and(|memory| flags_at + 2 <= memory.len()) {
            bell.hang(Ring { memory, flags_at, bell: descriptor });
        }
    }
}
