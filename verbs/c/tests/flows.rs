//! Raw packets and flow rules of a C program.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

const TO: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];
const FROM: [u8; 6] = [0x24, 0x8a, 7, 0xa5, 0x28, 0xc8];

/// EtherType of the frame that marks the end of a test's frames.
const MARKER: u16 = 0x88b5;

/// Tests share the device, so the rules of one test would match the frames of another.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Replaces the connected queue pair by a raw packet one in RTS, with four receives and the rule of [`MARKER`].
fn raw() -> (Objects, *mut ibv_flow) {
    let mut objects = Objects::new();
    // SAFETY: the objects are alive.
    unsafe {
        assert_eq!(ibv_destroy_qp(objects.qp), 0);
        objects.qp = ibv_create_qp(objects.pd, &mut init(objects.cq, IBV_QPT_RAW_PACKET));
        assert!(!objects.qp.is_null(), "{}", errno());
    }
    let to = |qp_state| ibv_qp_attr { qp_state, port_num: 1, pkey_index: 77, ..Default::default() };
    assert_eq!(objects.modify(to(IBV_QPS_INIT), IBV_QP_STATE), libc::EINVAL, "the port is missing");
    let queue_key = IBV_QP_STATE | IBV_QP_PORT | IBV_QP_QKEY;
    assert_eq!(objects.modify(to(IBV_QPS_INIT), queue_key), libc::EINVAL, "it has none");
    assert_eq!(objects.modify(to(IBV_QPS_INIT), IBV_QP_STATE | IBV_QP_PORT), 0);
    for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
        assert_eq!(objects.modify(to(state), IBV_QP_STATE), 0);
    }
    (0..4).for_each(|id| receive(&objects, id));
    let marker = create(objects.qp, &mut rule(1, ethernet(MARKER))).unwrap();
    (objects, marker)
}

/// A rule with its headers after it, in the layout of C programs.
#[repr(C)]
struct Rule<T> {
    attributes: ibv_flow_attr,
    specs: T,
}

/// Two consecutive headers. The fields of a tuple could be in any order.
#[repr(C)]
struct Specs<T, U>(T, U);

fn rule<T>(count: u8, specs: T) -> Rule<T> {
    let size = size_of::<Rule<T>>() as u16;
    Rule { attributes: ibv_flow_attr { size, num_of_specs: count, port: 1, ..Default::default() }, specs }
}

fn create<T>(qp: *mut ibv_qp, rule: &mut Rule<T>) -> Result<*mut ibv_flow, c_int> {
    // SAFETY: each context is part of a `verbs_context`.
    let table =
        unsafe { &*context().byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() };
    // SAFETY: the queue pair is alive, and the rule is followed by the number of headers in its `num_of_specs`.
    let flow = unsafe { table.ibv_create_flow.unwrap()(qp, (&raw mut *rule).cast()) };
    if flow.is_null() { Err(errno()) } else { Ok(flow) }
}

fn destroy(flow: *mut ibv_flow) -> c_int {
    // SAFETY: as in `create`.
    let table =
        unsafe { &*context().byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() };
    // SAFETY: the library checks the pointer.
    unsafe { table.ibv_destroy_flow.unwrap()(flow) }
}

fn ethernet(ether_type: u16) -> ibv_flow_spec_eth {
    let fields = |dst_mac, ether_type| ibv_flow_eth_filter { dst_mac, ether_type, ..Default::default() };
    ibv_flow_spec_eth {
        type_: IBV_FLOW_SPEC_ETH,
        size: size_of::<ibv_flow_spec_eth>() as u16,
        val: fields(TO, ether_type.to_be()),
        mask: fields([0xff; 6], 0xffff),
    }
}

fn udp(port: u16) -> ibv_flow_spec_tcp_udp {
    let fields = |dst_port| ibv_flow_tcp_udp_filter { dst_port, src_port: 0 };
    ibv_flow_spec_tcp_udp {
        type_: IBV_FLOW_SPEC_UDP,
        size: size_of::<ibv_flow_spec_tcp_udp>() as u16,
        val: fields(port.to_be()),
        mask: fields(0xffff),
    }
}

fn ipv4(to: [u8; 4]) -> ibv_flow_spec_ipv4 {
    let fields = |dst_ip: [u8; 4]| ibv_flow_ipv4_filter { src_ip: 0, dst_ip: u32::from_ne_bytes(dst_ip) };
    ibv_flow_spec_ipv4 {
        type_: IBV_FLOW_SPEC_IPV4,
        size: size_of::<ibv_flow_spec_ipv4>() as u16,
        val: fields(to),
        mask: fields([0xff; 4]),
    }
}

/// Returns a UDP frame from 1.1.1.1 to 2.2.2.2.
fn frame(port: u16) -> Vec<u8> {
    let ip = [0x45, 0, 0, 46, 0, 0, 0x40, 0, 64, 17, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2];
    let [high, low] = port.to_be_bytes();
    [&TO[..], &FROM, &[8, 0], &ip, &[0x04, 0xd2, high, low, 0, 26, 0, 0], &[7; 18]].concat()
}

/// Size of a receive buffer. The buffer of request `id` has this index after the first half of the memory.
const ROOM: usize = 1024;

fn receive(objects: &Objects, id: u64) {
    let addr = objects.memory.as_ptr() as u64 + 4096 + id * ROOM as u64;
    let mut sge = ibv_sge { addr, length: ROOM as u32, lkey: lkey_of(objects) };
    let mut wr = ibv_recv_wr { wr_id: id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
    let mut bad = null_mut();
    // SAFETY: the call is that of a C program, through the context's table.
    assert_eq!(unsafe { (*context()).ops.post_recv.unwrap()(objects.qp, &mut wr, &mut bad) }, 0);
}

/// Sends a frame from offset `place` of the memory, which must not change until the frame has been sent.
fn send(objects: &mut Objects, place: usize, frame: &[u8], flags: c_uint) -> c_int {
    let from = &mut objects.memory[place..][..frame.len()];
    from.copy_from_slice(frame);
    let addr = from.as_ptr() as u64;
    let mut sge = ibv_sge { addr, length: frame.len() as u32, lkey: lkey_of(objects) };
    let (sg_list, num_sge, opcode) = (&raw mut sge, 1, IBV_WR_SEND);
    let mut wr = ibv_send_wr { sg_list, num_sge, opcode, send_flags: flags, ..Default::default() };
    objects.post(&mut wr).0
}

/// Sends a marker. Returns the frames that arrived before the marker. The port returns all frames in the order in which they were sent.
fn until_marker(objects: &mut Objects) -> Vec<Vec<u8>> {
    let marker = [&TO[..], &FROM, &MARKER.to_be_bytes(), &[0; 46]].concat();
    assert_eq!(send(objects, ROOM, &marker, 0), 0);
    let mut frames = Vec::new();
    loop {
        let wc = objects.poll();
        assert_eq!((wc.status, wc.opcode, wc.wc_flags), (IBV_WC_SUCCESS, IBV_WC_RECV, 0));
        let frame = objects.memory[4096 + wc.wr_id as usize * ROOM..][..wc.byte_len as usize].to_vec();
        receive(objects, wc.wr_id);
        if frame == marker {
            return frames;
        }
        frames.push(frame);
    }
}

/// Sends a frame. Returns whether it came back. Checks that it is unchanged and came back at most once.
fn echo(objects: &mut Objects, frame: &[u8]) -> bool {
    assert_eq!(send(objects, 0, frame, 0), 0);
    let frames = until_marker(objects);
    assert!(frames.iter().all(|came| came == frame) && frames.len() <= 1, "{frames:?}");
    !frames.is_empty()
}

#[test]
fn frames_come_back_by_the_rule_that_names_them() {
    let _alone = alone();
    let (mut objects, marker) = raw();
    assert!(!echo(&mut objects, &frame(5678)));
    let flow =
        create(objects.qp, &mut rule(3, Specs(ethernet(0x0800), Specs(ipv4([2; 4]), udp(5678))))).unwrap();
    assert!(!echo(&mut objects, &frame(5679)));
    assert!(echo(&mut objects, &frame(5678)));
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { ibv_destroy_qp(objects.qp) }, libc::EBUSY, "its rules are there");
    assert_eq!((destroy(flow), destroy(flow), destroy(null_mut())), (0, libc::ENOENT, libc::EINVAL));
    assert!(!echo(&mut objects, &frame(5678)));

    let mut all = rule(0, ());
    all.attributes.type_ = IBV_FLOW_ATTR_MC_DEFAULT;
    let rest = create(objects.qp, &mut all).unwrap();
    assert!(echo(&mut objects, &frame(5678)));
    let drop = ibv_flow_spec_action_drop { type_: IBV_FLOW_SPEC_ACTION_DROP, size: 8 };
    let dropped = create(objects.qp, &mut rule(2, Specs(udp(5678), drop))).unwrap();
    assert!(!echo(&mut objects, &frame(5678)));
    assert!(echo(&mut objects, &frame(5679)));
    assert_eq!([rest, dropped, marker].map(destroy), [0; 3]);
}

#[test]
fn an_extended_queue_pair_sends_frames() {
    let _alone = alone();
    let (mut objects, marker) = raw();
    let flow = create(objects.qp, &mut rule(1, ethernet(0x0800))).unwrap();
    let mut frame = frame(5678);
    let qp = objects.qp.cast::<ibv_qp_ex>();
    // SAFETY: the queue pair is alive and has the table of an extended one; the bytes outlive the calls.
    unsafe {
        ((*qp).wr_id, (*qp).wr_flags) = (9, 0);
        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_send.unwrap()(qp);
        (*qp).wr_set_inline_data.unwrap()(qp, frame.as_mut_ptr().cast::<c_void>(), 32);
        assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
    }
    assert_eq!(until_marker(&mut objects), [&frame[..32]]);
    assert_eq!([flow, marker].map(destroy), [0; 2]);
}

#[test]
fn rules_and_frames_are_checked() {
    let _alone = alone();
    let (mut objects, marker) = raw();
    let refused = |change: fn(&mut ibv_flow_attr)| {
        let mut rule = rule(1, ethernet(0x0800));
        change(&mut rule.attributes);
        create(objects.qp, &mut rule).unwrap_err()
    };
    for (what, change, errno) in [
        ("port", (|it| it.port = 2) as fn(&mut ibv_flow_attr), libc::EINVAL),
        ("flags", |it| it.flags = 8, libc::EINVAL),
        ("headers", |it| it.num_of_specs = 11, libc::EINVAL),
        ("kind", |it| it.type_ = 4, libc::EINVAL),
        ("headers of the rest", |it| it.type_ = IBV_FLOW_ATTR_ALL_DEFAULT, libc::EINVAL),
        ("sent frames", |it| it.flags = IBV_FLOW_ATTR_FLAGS_EGRESS, libc::EOPNOTSUPP),
        ("sniffer", |it| it.type_ = IBV_FLOW_ATTR_SNIFFER, libc::EOPNOTSUPP),
    ] {
        assert_eq!(refused(change), errno, "{what}");
    }
    let mut short = ethernet(0x0800);
    short.size -= 1;
    assert_eq!(create(objects.qp, &mut rule(1, short)), Err(libc::EINVAL));
    for (type_, errno) in [
        (IBV_FLOW_SPEC_VXLAN_TUNNEL, libc::EOPNOTSUPP),
        (IBV_FLOW_SPEC_INNER | IBV_FLOW_SPEC_ETH, libc::EOPNOTSUPP),
        (0x77, libc::EINVAL),
    ] {
        assert_eq!(create(objects.qp, &mut rule(1, ibv_flow_spec_eth { type_, ..ethernet(0) })), Err(errno));
    }
    assert_eq!(send(&mut objects, 0, &[0; 13], 0), libc::EINVAL, "no Ethernet header");
    assert_eq!(send(&mut objects, 0, &frame(7), IBV_SEND_IP_CSUM as c_uint), libc::EOPNOTSUPP);
    let mut connected = Objects::new();
    let gone = std::mem::replace(&mut connected.qp, null_mut());
    assert_eq!(create(gone, &mut rule(1, ethernet(0x0800))), Err(libc::EINVAL), "not of raw packets");
    // SAFETY: the queue pair is alive, and destroyed once.
    assert_eq!(unsafe { ibv_destroy_qp(gone) }, 0);
    assert_eq!(create(gone, &mut rule(1, ethernet(0x0800))), Err(libc::EINVAL));
    assert_eq!(destroy(marker), 0);
}
