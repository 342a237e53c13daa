//! Endpoints of `rdma_create_ep(3)` whose queue pair cannot be created.

mod common;

use common::{context, errno, init};
use ferroce_c::abi::*;
use ferroce_c::*;
use std::net::Ipv4Addr;
use std::ptr::{from_mut, null_mut};

fn address(port: u16) -> libc::sockaddr_in {
    libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: port.to_be(),
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::new(10, 0, 0, 1)).to_be() },
        sin_zero: [0; 8],
    }
}

/// Returns attributes for which the identifier creates all queues. A depth of 2^31 exceeds every limit.
fn attributes(send: u32, receive: u32) -> ibv_qp_init_attr {
    let mut attributes = init(null_mut(), IBV_QPT_RC);
    (attributes.cap.max_send_wr, attributes.cap.max_recv_wr) = (send, receive);
    attributes
}

/// Returns an endpoint of 10.0.0.1. If `passive`, it is bound to `port` for a listener; otherwise, it connects to `port`.
fn endpoint(port: u16, passive: bool, mut attributes: ibv_qp_init_attr) -> *mut rdma_cm_id {
    let (mut at, mut id) = (address(port), null_mut());
    let address = from_mut(&mut at).cast();
    // SAFETY: all-zero bytes are a valid value.
    let mut info: rdma_addrinfo = unsafe { std::mem::zeroed() };
    info.ai_flags = if passive { RAI_PASSIVE as i32 } else { 0 };
    info.ai_port_space = RDMA_PS_TCP as i32;
    info.ai_qp_type = IBV_QPT_RC as i32;
    (info.ai_src_addr, info.ai_dst_addr) =
        if passive { (address, null_mut()) } else { (null_mut(), address) };
    // SAFETY: all arguments outlive the call.
    let result = unsafe { rdma_create_ep(&mut id, &mut info, null_mut(), &mut attributes) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    id
}

#[test]
fn a_request_whose_queue_pair_cannot_be_created_is_rejected() {
    context();
    let server = endpoint(7471, true, attributes(1 << 31, 4));
    let client = endpoint(7471, false, attributes(4, 4));
    // SAFETY: both endpoints are alive until they are destroyed below.
    unsafe {
        assert_eq!(rdma_listen(server, 1), 0);
        let client = client.expose_provenance();
        let connecting = std::thread::spawn(move || {
            let client = std::ptr::with_exposed_provenance_mut(client);
            let result = (rdma_connect(client, null_mut()), errno());
            rdma_destroy_ep(client);
            result
        });
        let mut id = null_mut();
        assert_eq!((rdma_get_request(server, &mut id), errno()), (-1, libc::EINVAL));
        assert_eq!(connecting.join().unwrap(), (-1, libc::ECONNREFUSED));
        rdma_destroy_ep(server);
    }
}

#[test]
fn queues_of_a_queue_pair_that_cannot_be_created_are_destroyed() {
    context();
    let mut wanted = attributes(4, 1 << 31);
    let (mut id, mut to) = (null_mut(), address(7472));
    // SAFETY: all arguments outlive the calls, and the identifier is destroyed once.
    unsafe {
        assert_eq!(rdma_create_id(null_mut(), &mut id, null_mut(), RDMA_PS_TCP), 0);
        assert_eq!(rdma_resolve_addr(id, null_mut(), from_mut(&mut to).cast(), 1000), 0);
        assert_eq!(rdma_resolve_route(id, 1000), 0);
        assert_eq!((rdma_create_qp(id, null_mut(), &mut wanted), errno()), (-1, libc::EINVAL));
        assert!((*id).send_cq.is_null() && (*id).send_cq_channel.is_null());
        assert_eq!(rdma_destroy_id(id), 0);
    }
}
