//! The packet socket under an AF_PACKET port, for who sleeps until a frame comes: the driver keeps it to itself.

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

/// A program that is started from this one shall not inherit it.
pub(super) fn close_on_exec(fd: RawFd) {
    // SAFETY: changes a flag of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}
