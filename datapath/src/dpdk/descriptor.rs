//! The file descriptors that DPDK opens without returning them. A thread that sleeps until a frame arrives needs the packet socket of an
//! AF_PACKET port. Programs that this process starts must inherit none of the descriptors, because DPDK's memory contains every packet.

use super::eal;
use crate::{fork, socket_option};
use std::os::fd::RawFd;
use std::sync::OnceLock;

pub(super) fn packet_sockets(interface: u32) -> Vec<RawFd> {
    open().into_iter().filter(|&fd| bound_interface(fd) == Some(interface)).collect()
}

fn bound_interface(fd: RawFd) -> Option<u32> {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    let mut length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
    // SAFETY: `address` has `length` bytes. The kernel refuses a descriptor that is closed or no socket.
    let asked = unsafe { libc::getsockname(fd, (&raw mut address).cast(), &mut length) };
    let packet = asked == 0 && i32::from(address.sll_family) == libc::AF_PACKET;
    if packet { u32::try_from(address.sll_ifindex).ok() } else { None }
}

pub(super) fn xdp_sockets() -> Vec<RawFd> {
    let is_xdp = |fd: &RawFd| {
        socket_option::number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
            .is_ok_and(|domain| domain == libc::AF_XDP)
    };
    open().into_iter().filter(is_xdp).collect()
}

/// Kinds of descriptors that DPDK opens without `O_CLOEXEC`. Files of other kinds belong to the program.
const KINDS: [&str; 7] = [
    "anon_inode:[event",
    "anon_inode:[timerfd]",
    "/memfd:",
    "pipe:",
    "socket:",
    "/dev/net/tun",
    "/dev/vhost",
];

/// Runs `f`, which makes DPDK open descriptors, and sets `FD_CLOEXEC` on these. The EAL must run.
///
/// DPDK does not report these descriptors, so all new descriptors of DPDK's kinds count. This includes one that another thread of the
/// program opens at the same time.
pub(super) fn closed_on_exec<T>(f: impl FnOnce() -> T) -> T {
    let before = inheritable();
    let result = f();
    close_new_on_exec(&before);
    result
}

/// Sets `FD_CLOEXEC` on the descriptors that became [`inheritable`] since `before`. The EAL must run.
///
/// DPDK's interrupt thread creates its epoll set again after each change of the descriptors that it watches, often with the same number.
/// The first of the two calls runs after such a change, the second after one that a handler caused in the meantime.
pub(in crate::dpdk) fn close_new_on_exec(before: &[RawFd]) {
    for _ in 0..2 {
        eal::on_interrupt_thread(|| {});
    }
    let is_ours = |&fd: &RawFd| !before.contains(&fd) || is_interrupt_set(fd);
    inheritable().into_iter().filter(is_ours).for_each(close_on_exec);
}

/// DPDK's timer, which its interrupt thread watches until the process ends.
static TIMER: OnceLock<RawFd> = OnceLock::new();

/// Finds the timer of the EAL, which has just started, so that the timer is not in `before`.
pub(super) fn note_timer(before: &[RawFd]) {
    let is_timer = |&fd: &RawFd| !before.contains(&fd) && name(fd) == "anon_inode:[timerfd]";
    if let Some(timer) = inheritable().into_iter().find(is_timer) {
        let _ = TIMER.set(timer);
    }
}

/// Returns true if `fd` is the epoll set of DPDK's interrupt thread, which contains the timer (proc(5), `fdinfo`).
fn is_interrupt_set(fd: RawFd) -> bool {
    let Some(timer) = TIMER.get() else { return false };
    let set = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let mut listened = set.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
    listened.any(|target| target.parse() == Ok(*timer))
}

/// Returns the descriptors of DPDK's kinds that a started program would inherit.
pub(in crate::dpdk) fn inheritable() -> Vec<RawFd> {
    let is_inheritable = |&fd: &RawFd| {
        // SAFETY: only reads a flag; the kernel refuses a descriptor that was closed in the meantime.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0 && KINDS.iter().any(|kind| name(fd).starts_with(kind))
    };
    open().into_iter().filter(is_inheritable).collect()
}

fn open() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn name(fd: RawFd) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map_or_else(|_| String::new(), |path| path.display().to_string())
}

fn close_on_exec(fd: RawFd) {
    // SAFETY: only sets a flag of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Closes a packet socket in processes that are forked from this one. An open copy would continue to receive the interface's frames.
pub(super) fn keep_to_this_process(socket: RawFd) {
    fork::close_on_fork(socket);
    // A mapping of the socket's rings would keep the socket open, too.
    for (start, length) in mappings_of(socket) {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping of this process, and the call changes only what forked children see of it.
        unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
    }
}

/// Returns the addresses and lengths of the mappings of a socket.
pub(super) fn mappings_of(file: RawFd) -> Vec<(usize, usize)> {
    // SAFETY: all-zero bytes are a valid stat, and fstat writes one.
    let status = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        if libc::fstat(file, &mut status) != 0 {
            return Vec::new();
        }
        status
    };
    // A line is `start-end rwxp offset device inode path` (proc(5)).
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
