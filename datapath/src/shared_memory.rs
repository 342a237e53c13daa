//! Memory shared between processes: memfds of a fixed size, so that no process can truncate them, and their mappings.
//!
//! Another process may write any bytes there. The contents are read by copies and atomic loads, and checked before use.

use crate::host_memory;
use std::ffi::{CStr, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    /// Read and write, with every page present from the start, so that no access faults.
    WritePresent,
}

/// The error for memory that exceeds the process's limit on file sizes.
#[derive(Debug, thiserror::Error)]
#[error(
    "file size limit of {limit} bytes: {length} bytes of shared memory exceed it; raise it with `ulimit -f unlimited`"
)]
struct FileSizeLimit {
    limit: u64,
    length: usize,
}

/// Creates `length` bytes of zeroed shared memory. [`seal`] fixes its length.
///
/// # Errors
/// Returns an error that states the limit if `length` exceeds `RLIMIT_FSIZE`, or the system's error.
pub(crate) fn create(name: &CStr, length: usize) -> io::Result<OwnedFd> {
    check_file_size(length)?;
    // SAFETY: the name is NUL-terminated.
    let file = unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING) };
    if file < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // SAFETY: takes integers.
    if unsafe { libc::ftruncate(file.as_raw_fd(), length as libc::off_t) } < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(file)
}

/// Checks `RLIMIT_FSIZE`. The kernel kills a process with SIGXFSZ if it extends a file beyond that limit, even one in memory.
fn check_file_size(length: usize) -> io::Result<()> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` has room for the result.
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

/// Allocates all pages of the memory.
///
/// # Errors
/// Returns the system's error if it does not have enough memory.
pub(crate) fn populate(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    // SAFETY: takes integers.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, length as libc::off_t) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Seals the length and adds the seals `more`. Further seals cannot be added.
///
/// # Errors
/// Returns the system's error.
pub(crate) fn seal(file: BorrowedFd<'_>, more: libc::c_int) -> io::Result<()> {
    let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL | more;
    // SAFETY: takes integers.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Checks that memory from another process has `length` bytes and cannot be truncated.
///
/// # Errors
/// Returns an error that states the condition that is not met.
pub(crate) fn check(file: BorrowedFd<'_>, length: usize) -> io::Result<()> {
    let wrong = |why| io::Error::new(io::ErrorKind::InvalidData, why);
    // SAFETY: only reads the seals.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 || seals & libc::F_SEAL_SHRINK == 0 {
        return Err(wrong("its memory is not sealed"));
    }
    // SAFETY: all-zero bytes are a valid stat, and fstat writes one.
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

#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is accessed by atomics, and by copies that the compiler does not see, which any thread may do.
unsafe impl Send for Mapping {}
// SAFETY: as above; several threads may do both at a time.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes at offset `at`, a multiple of the page size. The caller must have checked that the file is long enough.
    ///
    /// # Errors
    /// Returns the system's error, for example if the memory is sealed against writing.
    pub(crate) fn new(fd: BorrowedFd<'_>, access: Access, at: usize, length: usize) -> io::Result<Self> {
        let (protection, flags) = match access {
            Access::Read => (libc::PROT_READ, libc::MAP_SHARED),
            Access::Write => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED),
            Access::WritePresent => {
                (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_POPULATE)
            }
        };
        // SAFETY: creates a new mapping at an address that the kernel chooses.
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

    /// Returns the address of `length` bytes at an offset. Panics if they exceed the mapping.
    fn at(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset <= self.length && length <= self.length - offset, "offset {offset} + {length}");
        // SAFETY: the offset was just checked to lie within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// Returns the 32-bit word at an offset. Panics if it is not aligned.
    pub(crate) fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "offset {offset}");
        // SAFETY: the word is mapped as long as `self` lives, and aligned, because mappings start at a page.
        unsafe { AtomicU32::from_ptr(self.at(offset, 4).cast()) }
    }

    /// Returns the 64-bit word at an offset. Panics if it is not aligned.
    pub(crate) fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "offset {offset}");
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.at(offset, 8).cast()) }
    }

    /// Copies the bytes at an offset. If another process writes meanwhile, the copy contains a mixture of old and new bytes.
    pub(crate) fn copy_out(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: `from` is valid for `into.len()` bytes.
        let copied = unsafe { host_memory::copy_out(from, into) };
        assert!(copied.is_ok(), "the memory is mapped");
    }

    /// Copies `bytes` to an offset. A concurrent reader may read a mixture of old and new bytes.
    pub(crate) fn copy_in(&self, offset: usize, bytes: &[u8]) {
        let to = self.at(offset, bytes.len());
        // SAFETY: `to` is valid for `bytes.len()` bytes.
        let copied = unsafe { host_memory::copy_in(to, bytes) };
        assert!(copied.is_ok(), "the memory is mapped");
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` created the mapping, and nothing uses it afterwards.
        unsafe { libc::munmap(self.start.as_ptr().cast::<c_void>(), self.length) };
    }
}
