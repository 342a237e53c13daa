//! The packet socket under an AF_PACKET port, for who sleeps until a frame comes: the driver keeps it to itself.

use crate::fork;
use std::os::fd::RawFd;

/// This process's packet sockets that are bound to the interface.
pub(super) fn packet_sockets(interface: u32) -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&fd| bound_interface(fd) == Some(interface)).collect()
}

/// The interface that a packet socket is bound to; `None` of any other descriptor.
fn bound_interface(fd: RawFd) -> Option<u32> {
    // SAFETY: all-zero bytes are an address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` has `length` bytes; a descriptor that is none, or no socket, is refused.
    let asked = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut length) };
    let packet = asked == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    if packet { u32::try_from(address.sll_ifindex).ok() } else { None }
}

/// Keeps a packet socket from processes that are forked from this one and from programs that they start: open there, it would go on
/// taking the interface's frames.
pub(super) fn keep_to_this_process(socket: RawFd) {
    // SAFETY: changes a flag of a descriptor.
    unsafe { libc::fcntl(socket, libc::F_SETFD, libc::FD_CLOEXEC) };
    fork::give_up(socket);
    // Its rings keep it open too.
    for (start, length) in mappings_of(socket) {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping of this process, and only what children see of it changes.
        unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
    }
}

/// Where `file` is mapped, each with its length.
fn mappings_of(file: RawFd) -> Vec<(usize, usize)> {
    // SAFETY: all-zero bytes are a legal stat, and there is room for it.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &mut status) != 0 {
            return Vec::new();
        }
        status
    };
    // `start-end rwxp offset device inode path`, as proc(5) has it.
    let mapping = |line: &str| {
        let mut fields = line.split_whitespace();
        let (start, end) = fields.next()?.split_once('-')?;
        let inode: u64 = fields.nth(3)?.parse().ok()?;
        let [start, end] = [start, end].map(|address| usize::from_str_radix(address, 16).ok());
        (inode == status.st_ino && line.contains("socket:")).then_some((start?, end? - start?))
    };
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().filter_map(mapping).collect()
}
