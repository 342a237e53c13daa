//! Makes DPDK's memory private to this process, so that a forked child has a copy of it and can open ports.
//!
//! Without hugepages DPDK maps a memfd, for peers that map it too (a memif's zero-copy peer, a vhost-user back end). If no port has such a
//! peer, private pages replace it right after DPDK has started. The kernel copies them on write after a fork.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

const NAME: &str = "/memfd:nohuge";

/// Replaces DPDK's memory by private pages. DPDK must have started, and no port may be open.
///
/// # Errors
/// Returns an error, and changes nothing, if the memory is not found or the system has no memory left.
pub(super) fn take() -> io::Result<()> {
    let missing = || io::Error::new(io::ErrorKind::NotFound, "DPDK's memory is not where it was expected");
    let (start, length) = mapping().ok_or_else(missing)?;
    let file = file().ok_or_else(missing)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: creates a new mapping at an address that the kernel chooses.
    let copy =
        unsafe { libc::mmap(std::ptr::null_mut(), length, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if copy == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    for (at, count) in written(file, length) {
        // SAFETY: both mappings are `length` bytes long, as is the file, and nothing writes to the first at this time: no port is open.
        unsafe {
            let from = std::ptr::with_exposed_provenance::<u8>(start + at);
            std::ptr::copy_nonoverlapping(from, copy.cast::<u8>().add(at), count);
        }
    }
    let place = std::ptr::with_exposed_provenance_mut::<libc::c_void>(start);
    // SAFETY: the copy has the same length and contents, and no thread uses the memory, because no port is open.
    let moved =
        unsafe { libc::mremap(copy, length, length, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED, place) };
    if moved == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Returns the address and the length of the memory, or `None` unless it is one mapping.
fn mapping() -> Option<(usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut found = maps.lines().filter(|line| line.contains(NAME)).filter_map(|line| {
        let (start, end) = line.split_whitespace().next()?.split_once('-')?;
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
        Some((start?, end? - start?))
    });
    let one = found.next()?;
    found.next().is_none().then_some(one)
}

fn file() -> Option<BorrowedFd<'static>> {
    let open = std::fs::read_dir("/proc/self/fd").ok()?;
    let mut numbers = open.flatten().filter_map(|entry| {
        let target = std::fs::read_link(entry.path()).ok()?;
        target.to_str()?.starts_with(NAME).then(|| entry.file_name().to_str()?.parse().ok())?
    });
    // SAFETY: DPDK never closes it.
    numbers.next().map(|fd| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Returns the offsets and lengths of the parts of a file that are not holes.
fn written(file: BorrowedFd<'_>, length: usize) -> Vec<(usize, usize)> {
    let seek = |from: usize, whence| {
        // SAFETY: takes integers, and nothing uses the file position.
        usize::try_from(unsafe { libc::lseek(file.as_raw_fd(), from as libc::off_t, whence) }).ok()
    };
    let (mut parts, mut at) = (Vec::new(), 0);
    while let Some(start) = seek(at, libc::SEEK_DATA).filter(|start| *start < length) {
        let end = seek(start, libc::SEEK_HOLE).unwrap_or(length).min(length);
        parts.push((start, end - start));
        at = end;
    }
    parts
}
