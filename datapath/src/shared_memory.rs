//! Memory that processes share: memfds of a fixed size, so that no process can shorten one under another, and their mappings.
//!
//! Bytes that another process writes there are read by copies and atomic loads, and trusted only within their limits.

use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

/// The accesses that a mapping allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Writing, with every page present from the start: no access faults.
    WritePresent,
}

/// The memory is larger than the files that the process may write.
#[derive(Debug, thiserror::Error)]
#[error(
    "file size limit of {limit} bytes: {length} bytes of shared memory exceed it; raise it with `ulimit -f unlimited`"
)]
struct FileSizeLimit {
    limit: u64,
    length: usize,
}

/// Creates memory of `length` bytes, all zero. [`seal`] fixes its length.
///
/// # Errors
/// Returns an error that names the limit if the memory exceeds `RLIMIT_FSIZE`, and the system's error, as if it has no memory left.
pub(crate) fn create(name: &CStr, length: usize) -> io::Result<OwnedFd> {
    check_file_size(length)?;
    // SAFETY: a NUL-terminated name and plain flags.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor with no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: a plain length for a descriptor of ours.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// The kernel ends a process by SIGXFSZ that extends a file beyond its limit, also one in memory.
fn check_file_size(length: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for the structure.
    if unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    match limit.rlim_cur {
        limit if length as u64 > limit => {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, FileSizeLimit { limit, length }))
        }
        _ => Ok(()),
    }
}

/// Takes all of the memory from the system.
///
/// # Errors
/// Returns the system's error if it has not as much.
pub(crate) fn populate(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    // SAFETY: plain numbers for a descriptor of ours.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Fixes the length, and adds the seals `more`; no further seal can be added.
///
/// # Errors
/// Returns the system's error.
pub(crate) fn seal(file: BorrowedFd<'_>, more: libc::c_int) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | more;
    // SAFETY: plain numbers for a descriptor of ours.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks memory that another process created: it cannot be shortened, and is `length` bytes long.
///
/// # Errors
/// Returns an error that says which it is not.
pub(crate) fn check(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    // SAFETY: asks for the seals of a descriptor of ours.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(wrong("its memory is not sealed"));
    }
    // SAFETY: all-zero bytes are a legal stat, and there is room for it.
    let found = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        libc::fstat(file.as_raw_fd(), &mut status);
        status.st_size
    };
    if usize::try_from(found) != Ok(length) {
        return Err(wrong("its memory has another length"));
    }
    Ok(())
}

/// A mapping of a part of such memory, unmapped when dropped.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is reached by atomics and copies, from any thread.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at `at`, a multiple of the page size. The caller knows that the file is as long.
    ///
    /// # Errors
    /// Returns the system's error, as if the memory is sealed against writing.
    pub(crate) fn new(fd: BorrowedFd<'_>, access: Access, at: usize, length: usize) -> io::Result<Self> {
        let (protection, flags) = match access {
            Access::Read => (libc::PROT_READ, libc::MAP_SHARED),
            Access::Write => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
            Access::WritePresent => {
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE)
            }
        };
        // SAFETY: a new mapping, at an address that the kernel chooses; the file is as long, which the caller checked.
        let start = unsafe {
            let at = at as libc::off_t;
            libc::mmap(std::ptr::null_mut(), length, protection, flags, fd.as_raw_fd(), at)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { start, length })
    }

    /// The address of `length` bytes at an offset.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "offset {offset} + {length}");
        // SAFETY: within the mapping, as was just checked.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// The 32-bit word at an aligned offset.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        // SAFETY: mapped as long as `self`, aligned as all offsets of the layout are, and reached by atomics alone.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// The 64-bit word at an aligned offset.
    pub(crate) fn long(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Copies bytes at an offset out.
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: mapped bytes; the destination is the caller's own. What the other process writes meanwhile shows as other bytes.
        unsafe { std::ptr::copy_nonoverlapping(from, into.as_mut_ptr(), into.len()) };
    }

    /// Copies bytes in. The caller is the only writer of these bytes; a process that reads them sees either.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: mapped bytes, from memory that is none of them: no reference to the mapping exists.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nothing uses it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}
