//! The XDP program attached to an interface: its id, its name, and its removal.

use super::netlink::Netlink;
use netlink_packet_core::NLM_F_ACK;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage, LinkXdp};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Commands of bpf(2).
const PROG_GET_FD_BY_ID: libc::c_long = 13;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
/// Bytes of `struct bpf_prog_info` that every kernel writes, and the offset of the name in it.
const INFO_BYTES: usize = 80;
const NAME_AT: usize = 64;

impl Netlink {
    fn xdp_program(&mut self, index: u32) -> io::Result<Option<u32>> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        let mut found = None;
        self.request(RouteNetlinkMessage::GetLink(request), 0, |answer| {
            if let RouteNetlinkMessage::NewLink(link) = answer {
                found = link.attributes.iter().find_map(program);
            }
            ControlFlow::Break(())
        })?;
        Ok(found)
    }

    fn detach_xdp(&mut self, index: u32) -> io::Result<()> {
        let mut request = LinkMessage::default();
        request.header.index = index;
        request.attributes = vec![LinkAttribute::Xdp(vec![LinkXdp::Fd(-1)])];
        self.request(RouteNetlinkMessage::SetLink(request), NLM_F_ACK, |_| ControlFlow::Continue(()))
    }
}

fn program(attribute: &LinkAttribute) -> Option<u32> {
    let LinkAttribute::Xdp(state) = attribute else { return None };
    state.iter().find_map(|part| match part {
        LinkXdp::ProgId(id) => Some(*id),
        _ => None,
    })
}

/// Returns the id of the XDP program that is attached to the interface with this index, if any.
///
/// # Errors
/// Returns the kernel's error, such as ENODEV if there is no such interface.
pub fn program_of(index: u32) -> io::Result<Option<u32>> {
    Netlink::open()?.xdp_program(index)
}

/// Detaches the XDP program from the interface with this index.
///
/// # Errors
/// Returns the kernel's error: EPERM without CAP_NET_ADMIN.
pub fn detach(index: u32) -> io::Result<()> {
    Netlink::open()?.detach_xdp(index)
}

/// Returns the name of the program with this id.
///
/// # Errors
/// Returns the kernel's error: EPERM without CAP_SYS_ADMIN.
pub fn name_of(program: u32) -> io::Result<String> {
    let request = [program, 0, 0];
    // SAFETY: the request has the length that is passed, and contains no pointers.
    let fd =
        unsafe { libc::syscall(libc::SYS_bpf, PROG_GET_FD_BY_ID, request.as_ptr(), size_of_val(&request)) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    let mut info = [0_u8; INFO_BYTES];
    let target = info.as_mut_ptr() as u64;
    let ask: [u64; 2] = words(fd.as_raw_fd() as u32, INFO_BYTES as u32, target);
    // SAFETY: the request points to `INFO_BYTES` writable bytes, and the kernel writes no more.
    let asked = unsafe { libc::syscall(libc::SYS_bpf, OBJ_GET_INFO_BY_FD, ask.as_ptr(), size_of_val(&ask)) };
    if asked < 0 {
        return Err(io::Error::last_os_error());
    }
    let name = info[NAME_AT..].iter().take_while(|byte| **byte != 0).copied().collect();
    String::from_utf8(name).map_err(io::Error::other)
}

/// Packs two 32-bit numbers and a 64-bit one as a C structure does.
fn words(first: u32, second: u32, third: u64) -> [u64; 2] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&first.to_ne_bytes());
    bytes[4..].copy_from_slice(&second.to_ne_bytes());
    [u64::from_ne_bytes(bytes), third]
}
