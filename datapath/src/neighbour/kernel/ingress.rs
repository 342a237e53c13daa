//! Keeps what is ours from the kernel's IP layer, which would look up a route and a socket for each packet only to drop it: a fifth
//! of what a frame costs over a Linux interface. The port, a packet socket, has its copy before.

use super::filter;
use crate::bpf::Instruction;
use crate::fork::Own;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Of `bpf(2)`: commands, the kind of program, where it is attached.
const PROG_LOAD: libc::c_long = 5;
const LINK_CREATE: libc::c_long = 28;
const SCHED_CLS: u32 = 3;
const TCX_INGRESS: u32 = 46;

/// The part of `union bpf_attr` that loads a program.
#[repr(C)]
#[derive(Default)]
struct Load {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach: u32,
}

/// The part that attaches one.
#[repr(C)]
#[derive(Default)]
struct Link {
    program: i32,
    interface: u32,
    attach: u32,
    flags: u32,
    beside: u32,
    unused: u32,
    revision: u64,
}

/// Drops UDP datagrams to these `ports` and `addresses` at the interface of this index, behind its packet sockets, until what comes
/// back is dropped or the process ends. Where the kernel is older than 6.6, or this process lacks `CAP_BPF` or `CAP_NET_ADMIN`, there
/// is nothing: then they take the long way.
pub(super) fn drop_at(index: u32, addresses: &[IpAddr], ports: &[u16]) -> Option<Own> {
    let attached = load(&filter::program(addresses, ports)).and_then(|program| attach(&program, index));
    attached
        .inspect_err(|error| {
            tracing::debug!("interface {index}: the kernel handles our packets too: {error}")
        })
        .ok()
        .map(Own::from)
}

fn load(program: &[Instruction]) -> io::Result<OwnedFd> {
    const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";
    let mut name = [0; 16];
    name[..7].copy_from_slice(b"ferroce");
    let request = Load {
        kind: SCHED_CLS,
        count: program.len() as u32,
        instructions: program.as_ptr() as u64,
        license: LICENSE.as_ptr() as u64,
        name,
        attach: TCX_INGRESS,
        ..Load::default()
    };
    // SAFETY: the request's pointers lead to `count` instructions and a text with its NUL, which outlive the call.
    unsafe { bpf(PROG_LOAD, &request) }
}

fn attach(program: &OwnedFd, index: u32) -> io::Result<OwnedFd> {
    let request =
        Link { program: program.as_raw_fd(), interface: index, attach: TCX_INGRESS, ..Link::default() };
    // SAFETY: the request has no pointers.
    unsafe { bpf(LINK_CREATE, &request) }
}

/// # Safety
/// The caller must pass a `request` whose pointers lead to what the command requires.
unsafe fn bpf<T>(command: libc::c_long, request: &T) -> io::Result<OwnedFd> {
    // SAFETY: `request` is `size_of::<T>()` readable bytes; the caller vouches for the rest. These commands write nothing.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, std::ptr::from_ref(request), size_of::<T>()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor with no other owner; the kernel has it closed on exec.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}
