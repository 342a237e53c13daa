//! Tests of addresses from hints, compared with rdma-core.

use super::*;
use crate::rdmacm::address;
use std::ptr::null_mut;

fn storage(address: &str) -> libc::sockaddr_storage {
    // SAFETY: all-zero bytes are a valid address, with room for either family.
    let mut place: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { address::write((&raw mut place).cast(), address.parse().unwrap()) };
    place
}

fn named(address: *const sockaddr) -> Option<String> {
    // SAFETY: null, or an address that was copied.
    unsafe { address::read(address.cast()) }.ok().map(|address| address.to_string())
}

/// Returns the source and the destination in the result.
fn found(node: Option<&std::ffi::CStr>, hints: &rdma_addrinfo) -> (Option<String>, Option<String>) {
    let mut info = null_mut();
    let node = node.map_or(std::ptr::null(), std::ffi::CStr::as_ptr);
    // SAFETY: the hints' addresses outlive the call, and the result is freed once.
    unsafe {
        assert_eq!(rdma_getaddrinfo(node, std::ptr::null(), hints, &mut info), 0);
        let both = (named((*info).ai_src_addr), named((*info).ai_dst_addr));
        assert_eq!((*info).ai_qp_type, hints.ai_qp_type);
        rdma_freeaddrinfo(info);
        both
    }
}

#[test]
fn a_program_may_bring_its_addresses_in_the_hints() {
    let (mut source, mut destination) = (storage("10.0.0.1:5"), storage("[fd00::2]:7"));
    let length = size_of::<libc::sockaddr_storage>() as libc::socklen_t;
    let passive = rdma_addrinfo {
        ai_flags: RAI_PASSIVE as c_int,
        ai_qp_type: IBV_QPT_RC as c_int,
        ai_src_addr: (&raw mut source).cast(),
        ai_src_len: length,
        ..Default::default()
    };
    let active = rdma_addrinfo {
        ai_flags: 0,
        ai_dst_addr: (&raw mut destination).cast(),
        ai_dst_len: length,
        ..passive
    };
    let (ours, theirs) = (Some("10.0.0.1:5".into()), Some("[fd00::2]:7".into()));
    assert_eq!(found(None, &passive), (ours.clone(), None));
    assert_eq!(found(None, &active), (ours.clone(), theirs));
    let named = rdma_addrinfo { ai_dst_addr: null_mut(), ai_dst_len: 0, ..active };
    assert_eq!(found(Some(c"10.0.0.2"), &named), (ours, Some("10.0.0.2:0".into())));
    let nothing = rdma_addrinfo { ai_qp_type: IBV_QPT_RC as c_int, ..Default::default() };
    assert_eq!(found(None, &nothing), (None, None));
}

#[test]
fn a_call_without_node_service_and_hints_is_refused() {
    let mut info = null_mut();
    let null = std::ptr::null();
    // SAFETY: null is refused, and the place for the result is alive.
    unsafe {
        assert_eq!(rdma_getaddrinfo(null, null, std::ptr::null(), &mut info), -1);
        assert_eq!(crate::rdmacm::errno::last(), INVALID);
        assert_eq!(rdma_getaddrinfo(null, c"7".as_ptr(), std::ptr::null(), null_mut()), -1);
    }
}
