//! The memory that processes of one interface share: each writes its own, and maps that of the others read-only.
//!
//! The memory is a sealed memfd of a fixed size, so that no process can shorten it while another maps it. Processes read a sibling's memory
//! by copies and atomic loads, and check every value against its bounds.

use crate::shared_memory::{self, Access, Mapping};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::time::Duration;

/// Most processes that share an interface: the number that the slot bits of a QPN distinguish.
pub const MEMBERS: usize = 64;

/// The first word of the memory, which identifies the layout below. A sibling with another layout is refused.
const LAYOUT: u64 = 0x4652_5349_424c_0002;
const PAGE: usize = 4096;

/// Bytes of the counters of a pair of rings: two cache lines, because CPUs prefetch pairs of lines.
const COUNTERS: usize = 128;
/// Bytes of an entry of the table of claims, and the number of entries.
pub(super) const CLAIM: usize = 64;
pub(super) const CLAIMS: usize = 4096;
/// Bytes of an entry of the table of disconnect notices, and the number of entries.
pub(super) const NOTICE: usize = 320;
pub(super) const NOTICES: usize = 16_384;
/// Bytes of the ring to one sibling: large enough for the time in which the scheduler does not run the sibling, and small enough for a
/// cache.
pub(super) const RING: usize = 512 << 10;

const COUNTERS_AT: usize = PAGE;
const CLAIMS_AT: usize = COUNTERS_AT + MEMBERS * COUNTERS;
const NOTICES_AT: usize = CLAIMS_AT + CLAIMS * CLAIM;
const RINGS_AT: usize = (NOTICES_AT + NOTICES * NOTICE).next_multiple_of(PAGE);
const LENGTH: usize = RINGS_AT + MEMBERS * RING;

/// The part of a process's memory that both sides read.
#[derive(Debug)]
pub(super) struct SharedHeader(Mapping);

impl SharedHeader {
    /// Returns a number that differs between any two processes that ever shared the interface.
    pub(super) fn identity(&self) -> &AtomicU64 {
        self.0.long(8)
    }

    /// Returns a word that is not 0 while the process's core sleeps, or is about to sleep, and must be woken.
    pub(super) fn sleeping(&self) -> &AtomicU32 {
        self.0.word(128)
    }

    /// Returns a word with the number of flows whose telemetry arrives at the process. Earlier versions leave it 0.
    pub(super) fn flows(&self) -> &AtomicU64 {
        self.0.long(192)
    }

    /// Returns a word that is not 0 while the process has a connection manager.
    pub(super) fn manages(&self) -> &AtomicU32 {
        self.0.word(256)
    }

    /// Returns the number of entries of the table of claims that were ever used. Further ones are not read.
    pub(super) fn claims_used(&self) -> &AtomicU32 {
        self.0.word(260)
    }

    pub(super) fn notices_used(&self) -> &AtomicU32 {
        self.0.word(264)
    }

    /// Returns the identity of the process for which the counters of the rings to and from `slot` are valid.
    pub(super) fn meant_for(&self, slot: u8) -> &AtomicU64 {
        self.0.long(counters_at(slot))
    }

    /// Returns the number of bytes ever put into the ring to `slot`.
    pub(super) fn sent(&self, slot: u8) -> &AtomicU64 {
        self.0.long(counters_at(slot) + 8)
    }

    /// Returns the number of bytes ever taken out of the ring from `slot`, which is in that process's memory.
    pub(super) fn taken(&self, slot: u8) -> &AtomicU64 {
        self.0.long(counters_at(slot) + 64)
    }

    /// Returns the state of a claim's entry, and its number, which differs for each claim.
    pub(super) fn claim_state(&self, at: usize) -> &AtomicU64 {
        self.0.long(CLAIMS_AT + at.min(CLAIMS - 1) * CLAIM)
    }

    /// Waits until the state of a claim's entry differs from `seen`, but at most `most`. The wait may end earlier.
    pub(super) fn wait_for_claim(&self, at: usize, seen: u64, most: Duration) {
        let most = libc::timespec { tv_sec: most.as_secs() as _, tv_nsec: most.subsec_nanos().into() };
        let word = self.claim_state(at).as_ptr().cast::<u32>();
        // SAFETY: the word, which has the state's low bits (the processors here are little-endian), is mapped as long as `self`.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAIT, seen as u32, &raw const most) };
    }

    /// Wakes the processes that wait for an entry of this process.
    pub(super) fn wake_for_claim(&self, at: usize) {
        let word = self.claim_state(at).as_ptr().cast::<u32>();
        // SAFETY: as above.
        unsafe { libc::syscall(libc::SYS_futex, word, libc::FUTEX_WAKE, i32::MAX) };
    }

    pub(super) fn claim(&self, at: usize) -> [u8; CLAIM - 8] {
        let mut bytes = [0; CLAIM - 8];
        self.0.copy_out(CLAIMS_AT + at.min(CLAIMS - 1) * CLAIM + 8, &mut bytes);
        bytes
    }

    /// Returns the state of a disconnect notice's entry, which is not 0 if there is a notice.
    pub(super) fn notice_state(&self, at: usize) -> &AtomicU64 {
        self.0.long(NOTICES_AT + at.min(NOTICES - 1) * NOTICE)
    }

    pub(super) fn notice(&self, at: usize) -> [u8; NOTICE - 8] {
        let mut bytes = [0; NOTICE - 8];
        self.0.copy_out(NOTICES_AT + at.min(NOTICES - 1) * NOTICE + 8, &mut bytes);
        bytes
    }
}

fn counters_at(slot: u8) -> usize {
    COUNTERS_AT + usize::from(slot) % MEMBERS * COUNTERS
}

#[derive(Debug)]
pub(super) struct OwnMemory {
    head: SharedHeader,
    file: OwnedFd,
}

impl OwnMemory {
    pub(super) fn new(identity: u64) -> io::Result<Self> {
        let file = shared_memory::create(c"ferroce-siblings", LENGTH)?;
        let mapping = Mapping::new(file.as_fd(), Access::Write, 0, LENGTH)?;
        shared_memory::seal(file.as_fd(), libc::F_SEAL_FUTURE_WRITE)?;
        let head = SharedHeader(mapping);
        head.identity().store(identity, std::sync::atomic::Ordering::Relaxed);
        head.0.long(0).store(LAYOUT, std::sync::atomic::Ordering::Release);
        Ok(Self { head, file })
    }

    pub(super) fn head(&self) -> &SharedHeader {
        &self.head
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Writes into the ring to `slot`, within its bounds.
    pub(super) fn write_ring(&self, slot: u8, at: usize, bytes: &[u8]) {
        assert!(at <= RING && bytes.len() <= RING - at, "{at} + {}", bytes.len());
        self.write(RINGS_AT + usize::from(slot) % MEMBERS * RING + at, bytes);
    }

    pub(super) fn write_claim(&self, at: usize, bytes: &[u8; CLAIM - 8]) {
        self.write(CLAIMS_AT + at.min(CLAIMS - 1) * CLAIM + 8, bytes);
    }

    pub(super) fn write_notice(&self, at: usize, bytes: &[u8; NOTICE - 8]) {
        self.write(NOTICES_AT + at.min(NOTICES - 1) * NOTICE + 8, bytes);
    }

    fn write(&self, offset: usize, bytes: &[u8]) {
        // Only this process writes its memory, and each part only one thread at a time: the rings by the core, and the tables under their
        // lock. Siblings read a part after a counter or a state indicates it.
        self.head.0.copy_in(offset, bytes);
    }
}

#[derive(Debug)]
pub(super) struct PeerMemory {
    head: SharedHeader,
    /// The sibling's ring to this process.
    ring: Mapping,
    file: OwnedFd,
}

impl PeerMemory {
    /// Maps a sibling's memory, with its ring to `slot`.
    ///
    /// # Errors
    /// Returns an error if the memory is not sealed, does not have the length or the identification of the layout, or cannot be mapped.
    pub(super) fn new(file: OwnedFd, slot: u8) -> io::Result<Self> {
        shared_memory::check(file.as_fd(), LENGTH)?;
        let head = SharedHeader(Mapping::new(file.as_fd(), Access::Read, 0, RINGS_AT)?);
        if head.0.long(0).load(std::sync::atomic::Ordering::Acquire) != LAYOUT {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "its memory has another layout"));
        }
        let at = RINGS_AT + usize::from(slot) % MEMBERS * RING;
        let ring = Mapping::new(file.as_fd(), Access::Read, at, RING)?;
        Ok(Self { head, ring, file })
    }

    pub(super) fn head(&self) -> &SharedHeader {
        &self.head
    }

    pub(super) fn file(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Copies bytes of the ring, within its bounds.
    pub(super) fn read_ring(&self, at: usize, into: &mut [u8]) {
        self.ring.copy_out(at, into);
    }
}

/// Checks that writes to the descriptor that wakes a sibling's core never block, because a core writes to it.
///
/// # Errors
/// Returns an error if writes may block.
pub(super) fn check_event_fd(event_fd: &OwnedFd) -> io::Result<()> {
    if flags(event_fd)? & libc::O_NONBLOCK == 0 {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "its eventfd blocks writers; create it with EFD_NONBLOCK",
        ));
    }
    Ok(())
}

/// Checks that the descriptor that hangs up with a process is the read end of a pipe.
///
/// # Errors
/// Returns an error if it is anything else.
pub(super) fn check_life(life: &OwnedFd) -> io::Result<()> {
    let kind = |fd: &OwnedFd| -> io::Result<libc::mode_t> {
        // SAFETY: all-zero bytes are a legal stat, and there is room for it.
        let (result, status) = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            (libc::fstat(fd.as_raw_fd(), &mut status), status)
        };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(status.st_mode & libc::S_IFMT) }
    };
    if kind(life)? != libc::S_IFIFO || flags(life)? & libc::O_ACCMODE != libc::O_RDONLY {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "its life line is no pipe"));
    }
    Ok(())
}

fn flags(fd: &OwnedFd) -> io::Result<libc::c_int> {
    // SAFETY: asks for the flags of a descriptor of ours.
    let flags = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) };
    if flags < 0 { Err(io::Error::last_os_error()) } else { Ok(flags) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_sibling_can_read_the_memory_and_not_write_it() {
        let own = OwnMemory::new(7).unwrap();
        let file = own.file().try_clone_to_owned().unwrap();
        let theirs = PeerMemory::new(file, 3).unwrap();
        own.write_ring(3, RING - 4, &[1, 2, 3, 4]);
        own.head().sent(3).store(9, Ordering::Release);
        let mut read = [0; 4];
        theirs.read_ring(RING - 4, &mut read);
        assert_eq!((read, theirs.head().sent(3).load(Ordering::Acquire)), ([1, 2, 3, 4], 9));
        assert_eq!(theirs.head().identity().load(Ordering::Relaxed), 7);
        let writable = Mapping::new(own.file(), Access::Write, 0, PAGE);
        assert_eq!(writable.unwrap_err().raw_os_error(), Some(libc::EPERM));
        // SAFETY: a plain length for a descriptor of ours.
        assert_eq!(unsafe { libc::ftruncate(own.file().as_raw_fd(), 0) }, -1, "its length is sealed");
    }

    #[test]
    fn memory_that_could_shrink_is_refused() {
        // SAFETY: a NUL-terminated name and plain flags.
        let file = unsafe { libc::memfd_create(c"x".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
        // SAFETY: a fresh descriptor with no other owner.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        assert!(PeerMemory::new(file.try_clone().unwrap(), 0).unwrap_err().to_string().contains("sealed"));
        // SAFETY: plain numbers for a descriptor of ours.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
        assert!(PeerMemory::new(file, 0).unwrap_err().to_string().contains("length"));
    }
}
