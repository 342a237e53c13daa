//! Tests of the addresses that programs bind to and resolve.

use super::*;
use crate::rdmacm::device::devices_of;
use crate::rdmacm::events::{next_now, rdma_ack_cm_event, rdma_create_event_channel};
use crate::rdmacm::options::rdma_set_option;
use crate::rdmacm::resolve::{rdma_resolve_addr, rdma_resolve_route};
use crate::rdmacm::test_environment::{device, network, ours};
use std::ptr::null_mut;

fn id() -> *mut rdma_cm_id {
    device();
    Id::create(rdma_create_event_channel(), null_mut(), RDMA_PS_TCP).unwrap().cast()
}

fn called(result: c_int) -> Result<(), Errno> {
    if result == 0 { Ok(()) } else { Err(crate::rdmacm::errno::last()) }
}

fn at(address: &str, call: impl FnOnce(*mut sockaddr) -> c_int) -> Result<(), Errno> {
    // SAFETY: all-zero bytes are a valid address, with room for either family.
    let mut place: libc::sockaddr_storage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    unsafe { address::write((&raw mut place).cast(), address.parse().unwrap()) };
    called(call((&raw mut place).cast()))
}

fn bind(id: *mut rdma_cm_id, address: &str) -> Result<(), Errno> {
    // SAFETY: the identifier is alive.
    at(address, |address| unsafe { rdma_bind_addr(id, address) })
}

fn listen(id: *mut rdma_cm_id) -> Result<(), Errno> {
    // SAFETY: the identifier is alive.
    called(unsafe { rdma_listen(id, 0) })
}

fn only_its_family(id: *mut rdma_cm_id) -> Result<(), Errno> {
    set_number(id, RDMA_OPTION_ID_AFONLY)
}

fn set_number(id: *mut rdma_cm_id, option: u32) -> Result<(), Errno> {
    let mut on: c_int = 1;
    // SAFETY: the identifier is alive, and the option's value has the length that is passed.
    called(unsafe {
        rdma_set_option(
            id,
            RDMA_OPTION_ID as c_int,
            option as c_int,
            (&raw mut on).cast(),
            size_of::<c_int>(),
        )
    })
}

fn addresses(id: *mut rdma_cm_id) -> (IpAddr, IpAddr) {
    // SAFETY: the identifier is alive.
    unsafe { Id::from(id) }.unwrap().lock().addresses().unwrap()
}

const TAKEN: Result<(), Errno> = Err(Errno(libc::EADDRINUSE));
const UNAVAILABLE: Result<(), Errno> = Err(Errno(libc::EADDRNOTAVAIL));

#[test]
fn a_loopback_address_means_all_local_addresses_as_on_linux() {
    for loopback in ["127.0.0.1:7001", "127.0.0.2:7002", "[::1]:7003"] {
        let id = id();
        bind(id, loopback).unwrap();
        // SAFETY: the identifier is alive.
        unsafe {
            assert!((*id).verbs.is_null(), "which device it will be shows with a connection");
            assert_eq!(Id::from(id).unwrap().lock().source, Some(loopback.parse().unwrap()));
        }
        listen(id).unwrap();
    }
    assert_eq!(bind(id(), "10.0.0.77:7004"), UNAVAILABLE);
}

#[test]
fn a_connection_to_a_loopback_address_is_to_this_device() {
    for (to, found) in [("127.0.0.1:7011", ours().ip()), ("[::1]:7011", "fd00::1".parse().unwrap())] {
        let id = id();
        // SAFETY: the identifier is alive, and the channel is its own.
        unsafe {
            at(to, |to| rdma_resolve_addr(id, null_mut(), to, 100)).unwrap();
            let event = next_now((*id).channel).unwrap();
            assert_eq!((*event).event, RDMA_CM_EVENT_ADDR_RESOLVED);
            rdma_ack_cm_event(event);
            assert!(!(*id).verbs.is_null() || crate::rdmacm::test_environment::device().context.is_null());
        }
        assert_eq!(addresses(id), (found, found));
    }
    // A loopback source with another host as the destination selects our address for that host.
    let id = id();
    bind(id, "127.0.0.1:7012").unwrap();
    // SAFETY: the identifier is alive.
    at("10.0.0.9:7011", |to| unsafe { rdma_resolve_addr(id, null_mut(), to, 100) }).unwrap();
    assert_eq!(addresses(id).0, ours().ip());
}

#[test]
fn listeners_of_both_families_share_a_port() {
    let (v4, v6) = (id(), id());
    bind(v4, "0.0.0.0:7021").unwrap();
    listen(v4).unwrap();
    only_its_family(v6).unwrap();
    bind(v6, "[::]:7021").unwrap();
    listen(v6).unwrap();
    assert_eq!(only_its_family(v6), Err(INVALID), "it listens");
    // Without the option, an IPv6 listener at all addresses also listens at the IPv4 ones.
    assert_eq!(bind(id(), "[::]:7021"), UNAVAILABLE);
    assert_eq!(bind(id(), "10.0.0.1:7021"), UNAVAILABLE);
}

#[test]
fn a_used_address_is_refused_as_on_linux() {
    let first = id();
    bind(first, "10.0.0.1:7031").unwrap();
    listen(first).unwrap();
    assert_eq!(bind(id(), "10.0.0.1:7031"), TAKEN);
    assert_eq!(bind(id(), "0.0.0.0:7031"), UNAVAILABLE);
    bind(id(), "[fd00::1]:7031").unwrap();
    let shares = id();
    set_number(shares, RDMA_OPTION_ID_REUSEADDR).unwrap();
    assert_eq!(bind(shares, "10.0.0.1:7031"), TAKEN, "the other does not share");
    let (one, other) = (id(), id());
    for id in [one, other] {
        set_number(id, RDMA_OPTION_ID_REUSEADDR).unwrap();
        bind(id, "10.0.0.1:7032").unwrap();
    }
    listen(one).unwrap();
    assert_eq!(listen(other), TAKEN, "one listens at a time");
}

/// IBA A11.2: the service of a port begins with the prefix of the port space.
#[test]
fn a_service_is_its_port_space_and_port() {
    assert_eq!(service(RDMA_PS_TCP, 7174), 0x0106_1c06);
    assert_eq!(service(RDMA_PS_UDP, 7174), 0x0111_1c06);
}

/// The address determines the device: the one that the program binds to, or else our address for the peer.
#[test]
fn an_identifier_is_on_the_device_of_its_address() {
    for (bound, to, device) in [
        (None, "10.9.0.7:1", 1),
        (None, "10.0.0.7:1", 0),
        (Some("10.9.0.1:7031"), "10.0.0.7:1", 1),
        (None, "10.9.0.1:1", 1),
    ] {
        let id = id();
        bound.into_iter().for_each(|bound| bind(id, bound).unwrap());
        // SAFETY: the identifier is alive.
        at(to, |to| unsafe { rdma_resolve_addr(id, null_mut(), to, 100) }).unwrap();
        let device = &crate::rdmacm::test_environment::devices()[device];
        // SAFETY: the identifier is alive.
        assert_eq!(unsafe { (*id).verbs }, device.context, "{bound:?} to {to}");
        assert!(device.gids().contains(addresses(id).0), "{bound:?} to {to}");
    }
    assert_eq!(bind(id(), "10.8.0.1:7031"), UNAVAILABLE);
}

/// A listener at all addresses receives requests from each device, and claims its port on each.
#[test]
fn a_service_at_every_address_is_held_on_every_device() {
    let devices = crate::rdmacm::test_environment::devices();
    let claim = |at: &str| Claim {
        service: 1,
        at: at.parse().unwrap(),
        family_only: false,
        shared: false,
        listens: true,
    };
    assert_eq!(devices_of(&claim("0.0.0.0")).unwrap().count(), devices.len());
    assert!(devices_of(&claim("10.9.0.1")).unwrap().all(|device| std::ptr::eq(device, &devices[1])));
    assert!(devices_of(&claim("10.8.0.1")).is_err());
}

/// `rdma_set_option(3)`: the traffic class of the path, as in Linux for RoCE (`cma_resolve_iboe_route`).
#[test]
fn the_type_of_service_is_the_paths_traffic_class() {
    let id = id();
    let mut tos = 0x68_u8;
    let set = |tos: &mut u8, length| {
        let (level, option) = (RDMA_OPTION_ID as c_int, RDMA_OPTION_ID_TOS as c_int);
        // SAFETY: the identifier is alive. The value has the length that is passed, or the call refuses that length before it reads the
        // value.
        called(unsafe { rdma_set_option(id, level, option, std::ptr::from_mut(tos).cast(), length) })
    };
    assert_eq!(set(&mut tos, 4), Err(INVALID), "one byte");
    set(&mut tos, 1).unwrap();
    network().there.insert([10, 0, 0, 2].into());
    // SAFETY: the identifier is alive.
    at("10.0.0.2:7471", |peer| unsafe { rdma_resolve_addr(id, null_mut(), peer, 1000) }).unwrap();
    // SAFETY: the identifier is alive, and has a path once its route is resolved.
    unsafe {
        called(rdma_resolve_route(id, 1000)).unwrap();
        assert_eq!((*(*id).route.path_rec).traffic_class, 0x68);
    }
}
