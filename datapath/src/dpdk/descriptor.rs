//! The descriptors that DPDK opens, and keeps to itself: the packet socket under an AF_PACKET port, for a thread that sleeps until a frame
//! comes, and all of them, which programs that this one starts must not inherit. Its memory contains every packet.

use super::eal;
use crate::{fork, socket_option};
use std::os::fd::RawFd;
use std::sync::OnceLock;

/// This process's packet sockets that are bound to the interface.
pub(super) fn packet_sockets(interface: u32) -> Vec<RawFd> {
    open().into_iter().filter(|&fd| bound_interface(fd) == Some(interface)).collect()
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

/// This process's AF_XDP sockets.
pub(super) fn xdp_sockets() -> Vec<RawFd> {
    let is_xdp = |fd: &RawFd| {
        socket_option::number(fd, libc::SOL_SOCKET, libc::SO_DOMAIN)
            .is_ok_and(|domain| domain == libc::AF_XDP)
    };
    open().into_iter().filter(is_xdp).collect()
}

/// The kinds of descriptors that DPDK opens without `O_CLOEXEC`. Files of other kinds are the program's.
const KINDS: [&str; 7] = [
    "anon_inode:[event",
    "anon_inode:[timerfd]",
    "/memfd:",
    "pipe:",
    "socket:",
    "/dev/net/tun",
    "/dev/vhost",
];

/// Runs `f`, which has DPDK open descriptors, and closes them to programs that are started later. The EAL runs.
///
/// DPDK has no call for it, so they are those that are new. One that another thread of the program opens meanwhile is closed to them as
/// well, if it is of these kinds.
pub(super) fn closed_on_exec<T>(f: impl FnOnce() -> T) -> T {
    let before = inheritable();
    let result = f();
    close_new_on_exec(&before);
    result
}

/// Closes to programs that are started later what became [`inheritable`] since `before`. The EAL runs.
///
/// DPDK's interrupt thread opens its epoll set anew after each change of the descriptors that it listens to, often under the same number.
/// The first of the two calls runs behind such a change, the second behind one that a handler caused in the meantime.
pub(in crate::dpdk) fn close_new_on_exec(before: &[RawFd]) {
    for _ in 0..2 {
        eal::on_interrupt_thread(|| {});
    }
    let is_ours = |&fd: &RawFd| !before.contains(&fd) || is_interrupt_set(fd);
    inheritable().into_iter().filter(is_ours).for_each(close_on_exec);
}

/// DPDK's timer, which its interrupt thread listens to as long as the process lives.
static TIMER: OnceLock<RawFd> = OnceLock::new();

/// The EAL has started; its timer is not among the descriptors of `before`.
pub(super) fn note_timer(before: &[RawFd]) {
    let is_timer = |&fd: &RawFd| !before.contains(&fd) && name(fd) == "anon_inode:[timerfd]";
    if let Some(timer) = inheritable().into_iter().find(is_timer) {
        let _ = TIMER.set(timer);
    }
}

/// Returns whether this is the epoll set of DPDK's interrupt thread: it contains the timer (proc(5), `fdinfo`).
fn is_interrupt_set(fd: RawFd) -> bool {
    let Some(timer) = TIMER.get() else { return false };
    let set = std::fs::read_to_string(format!("/proc/self/fdinfo/{fd}")).unwrap_or_default();
    let mut listened = set.lines().filter_map(|line| line.strip_prefix("tfd:")?.split_whitespace().next());
    listened.any(|target| target.parse() == Ok(*timer))
}

/// Descriptors of such kinds that a started program would inherit.
pub(in crate::dpdk) fn inheritable() -> Vec<RawFd> {
    let is_inheritable = |&fd: &RawFd| {
        // SAFETY: asks for a flag; a descriptor that is closed meanwhile is refused.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        flags >= 0 && flags & libc::FD_CLOEXEC == 0 && KINDS.iter().any(|kind| name(fd).starts_with(kind))
    };
    open().into_iter().filter(is_inheritable).collect()
}

fn open() -> Vec<RawFd> {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

/// Returns the name of a descriptor in `/proc`.
fn name(fd: RawFd) -> String {
    let link = std::fs::read_link(format!("/proc/self/fd/{fd}"));
    link.map_or_else(|_| String::new(), |path| path.display().to_string())
}

fn close_on_exec(fd: RawFd) {
    // SAFETY: changes a flag of a descriptor.
    unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) };
}

/// Keeps a packet socket from processes that are forked from this one: open there, it would go on taking the interface's frames.
pub(super) fn keep_to_this_process(socket: RawFd) {
    fork::give_up(socket);
    // Its rings keep it open too.
    for (start, length) in mappings_of(socket) {
        let start = std::ptr::with_exposed_provenance_mut(start);
        // SAFETY: the range is a mapping of this process, and only what children see of it changes.
        unsafe { libc::madvise(start, length, libc::MADV_DONTFORK) };
    }
}

/// Returns the addresses at which `file` is mapped, each with its length.
pub(super) fn mappings_of(file: RawFd) -> Vec<(usize, usize)> {
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
