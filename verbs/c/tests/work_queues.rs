//! Work queues of a C program, and queue pairs that distribute frames over them.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::ptr::null_mut;

const GROUP: [u8; 6] = [1, 0x50, 0x56, 0x19, 0x20, 0xa7];

fn table() -> &'static verbs_context {
    // SAFETY: each context is part of a `verbs_context`, and this one stays open.
    unsafe { &*context().byte_sub(offset_of!(verbs_context, context)).cast() }
}

fn init_attributes(objects: &Objects) -> ibv_wq_init_attr {
    let (pd, cq) = (objects.pd, objects.cq);
    ibv_wq_init_attr { wq_type: IBV_WQT_RQ, max_wr: 4, max_sge: 1, pd, cq, ..Default::default() }
}

fn create_wq(wanted: ibv_wq_init_attr) -> Result<*mut ibv_wq, c_int> {
    // SAFETY: the objects in the attributes are alive, or the call refuses them.
    let wq = unsafe { table().create_wq.unwrap()(context(), &mut wanted.clone()) };
    if wq.is_null() { Err(errno()) } else { Ok(wq) }
}

fn go(wq: *mut ibv_wq, wq_state: ibv_wq_state) -> c_int {
    let mut wanted = ibv_wq_attr { attr_mask: IBV_WQ_ATTR_STATE, wq_state, ..Default::default() };
    // SAFETY: the queue is alive.
    unsafe { table().modify_wq.unwrap()(wq, &mut wanted) }
}

fn receive(objects: &Objects, wq: *mut ibv_wq, id: u64) -> c_int {
    let addr = objects.memory.as_ptr() as u64 + 4096;
    let mut sge = ibv_sge { addr, length: 4096, lkey: lkey_of(objects) };
    let mut wr = ibv_recv_wr { wr_id: id, sg_list: &mut sge, num_sge: 1, ..Default::default() };
    let mut bad = null_mut();
    // SAFETY: the queue is alive, and programs call its function.
    unsafe { (*wq).post_recv.unwrap()(wq, &mut wr, &mut bad) }
}

fn create_table(log_ind_tbl_size: u32, queues: &mut [*mut ibv_wq]) -> Result<*mut ibv_rwq_ind_table, c_int> {
    let ind_tbl = queues.as_mut_ptr();
    let mut wanted = ibv_rwq_ind_table_init_attr { log_ind_tbl_size, ind_tbl, comp_mask: 0 };
    // SAFETY: the list has the stated number of entries, unless the call refuses that number.
    let made = unsafe { table().create_rwq_ind_table.unwrap()(context(), &mut wanted) };
    if made.is_null() { Err(errno()) } else { Ok(made) }
}

fn spread(
    objects: &Objects,
    over: *mut ibv_rwq_ind_table,
    change: fn(&mut ibv_qp_init_attr_ex),
) -> Result<*mut ibv_qp, c_int> {
    let mut key: [u8; 40] = std::array::from_fn(|i| (i * 37 + 11) as u8);
    let mut wanted = ibv_qp_init_attr_ex {
        qp_type: IBV_QPT_RAW_PACKET,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE,
        pd: objects.pd,
        rwq_ind_tbl: over,
        rx_hash_conf: ibv_rx_hash_conf {
            rx_hash_function: IBV_RX_HASH_FUNC_TOEPLITZ as u8,
            rx_hash_key_len: key.len() as u8,
            rx_hash_key: key.as_mut_ptr(),
            rx_hash_fields_mask: u64::from(IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV4),
        },
        ..Default::default()
    };
    change(&mut wanted);
    // SAFETY: the objects in the attributes are alive, or the call refuses them.
    let qp = unsafe { table().create_qp_ex.unwrap()(context(), &mut wanted) };
    if qp.is_null() { Err(errno()) } else { Ok(qp) }
}

/// Replaces the queue pair by one that sends frames to a group's address.
fn sender(objects: &mut Objects) {
    // SAFETY: the objects are alive.
    unsafe {
        assert_eq!(ibv_destroy_qp(objects.qp), 0);
        objects.qp = ibv_create_qp(objects.pd, &mut init(objects.cq, IBV_QPT_RAW_PACKET));
    }
    for (qp_state, mask) in [(IBV_QPS_INIT, IBV_QP_PORT), (IBV_QPS_RTR, 0), (IBV_QPS_RTS, 0)] {
        let attributes = ibv_qp_attr { qp_state, port_num: 1, ..Default::default() };
        assert_eq!(objects.modify(attributes, IBV_QP_STATE | mask), 0);
    }
}

fn send(objects: &mut Objects, source: u8) {
    let ip = [0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, source, 2, 2, 2, 2];
    let frame = [&GROUP[..], &[2; 6], &[8, 0], &ip, &[0; 26]].concat();
    objects.memory[..frame.len()].copy_from_slice(&frame);
    let addr = objects.memory.as_ptr() as u64;
    let mut sge = ibv_sge { addr, length: frame.len() as u32, lkey: lkey_of(objects) };
    let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_SEND, ..Default::default() };
    assert_eq!(objects.post(&mut wr).0, 0);
}

/// Objects are created and destroyed in the order of their dependencies, and each flow stays on one queue.
#[test]
fn frames_are_spread_over_work_queues() {
    let mut objects = Objects::new();
    sender(&mut objects);
    let mut queues = [(); 2].map(|()| create_wq(init_attributes(&objects)).unwrap());
    assert_eq!(receive(&objects, queues[0], 1), libc::EINVAL, "it is in RESET");
    let over = create_table(1, &mut queues).unwrap();
    let qp = spread(&objects, over, |_| {}).unwrap();
    let mut rule = ibv_flow_attr { type_: IBV_FLOW_ATTR_ALL_DEFAULT, port: 1, ..Default::default() };
    // SAFETY: the queue pair is alive, and the rule has no headers.
    let flow = unsafe { table().ibv_create_flow.unwrap()(qp, &mut rule) };
    assert!(!flow.is_null());
    for wq in queues {
        assert_eq!(go(wq, IBV_WQS_RDY), 0);
        assert_eq!((0..2).map(|_| receive(&objects, wq, 1)).sum::<c_int>(), 0);
    }
    let mut seen = [0; 2];
    for source in (0..16).flat_map(|source| [source; 2]) {
        send(&mut objects, source);
        let wc = objects.poll();
        assert_eq!((wc.status, wc.opcode, wc.byte_len), (IBV_WC_SUCCESS, IBV_WC_RECV, 60));
        // SAFETY: the queues are alive.
        let at = queues.iter().position(|&wq| unsafe { (*wq).wq_num } == wc.qp_num).unwrap();
        seen[at] += 1;
        assert_eq!((seen[at] % 2, receive(&objects, queues[at], 1)), (seen[at] % 2, 0));
    }
    assert!(seen.iter().all(|&count| count > 0 && count % 2 == 0), "{seen:?}: a flow keeps to its queue");

    // SAFETY: each is alive until it is destroyed.
    unsafe {
        let (destroy_wq, destroy_table) =
            (table().destroy_wq.unwrap(), table().destroy_rwq_ind_table.unwrap());
        assert_eq!((destroy_wq(queues[0]), destroy_table(over)), (libc::EBUSY, libc::EBUSY));
        assert_eq!(table().ibv_destroy_flow.unwrap()(flow), 0);
        assert_eq!((ibv_destroy_qp(qp), destroy_table(over), destroy_table(over)), (0, 0, libc::ENOENT));
        for wq in queues {
            assert_eq!((go(wq, IBV_WQS_ERR), go(wq, IBV_WQS_RDY)), (0, libc::EINVAL));
            assert_eq!((go(wq, IBV_WQS_RESET), (*wq).state), (0, IBV_WQS_RESET));
            assert_eq!((destroy_wq(wq), destroy_wq(wq)), (0, libc::ENOENT));
        }
    }
}

#[test]
fn work_queues_tables_and_hashes_are_checked() {
    let objects = Objects::new();
    let base = init_attributes(&objects);
    for (wanted, refused) in [
        (ibv_wq_init_attr { wq_type: 1, ..base }, libc::EINVAL),
        (ibv_wq_init_attr { cq: null_mut(), ..base }, libc::EINVAL),
        (ibv_wq_init_attr { max_wr: 1 << 20, ..base }, libc::EINVAL),
        (ibv_wq_init_attr { comp_mask: IBV_WQ_INIT_ATTR_RESERVED, ..base }, libc::EOPNOTSUPP),
        (ibv_wq_init_attr { comp_mask: IBV_WQ_INIT_ATTR_FLAGS, create_flags: 1, ..base }, libc::EOPNOTSUPP),
    ] {
        assert_eq!(create_wq(wanted), Err(refused));
    }
    let mut queues = [create_wq(base).unwrap(); 2];
    let modify = |attr_mask: c_uint| {
        let mut wanted = ibv_wq_attr { attr_mask, curr_wq_state: IBV_WQS_RDY, ..Default::default() };
        // SAFETY: the queue is alive.
        unsafe { table().modify_wq.unwrap()(queues[0], &mut wanted) }
    };
    assert_eq!((modify(0), modify(8), modify(2), modify(4)), (22, 22, 22, libc::EOPNOTSUPP));
    assert_eq!(create_table(8, &mut queues), Err(libc::EINVAL), "more than 128 entries");
    assert_eq!(create_table(1, &mut [queues[0], null_mut()]), Err(libc::EINVAL));
    let over = create_table(1, &mut queues).unwrap();
    for (change, refused) in [
        ((|it| it.rx_hash_conf.rx_hash_key_len = 39) as fn(&mut ibv_qp_init_attr_ex), libc::EINVAL),
        (|it| it.rx_hash_conf.rx_hash_function = 2, libc::EINVAL),
        (|it| it.rx_hash_conf.rx_hash_key = null_mut(), libc::EINVAL),
        (|it| it.rx_hash_conf.rx_hash_fields_mask = 0xf, libc::EINVAL),
        (|it| it.rx_hash_conf.rx_hash_fields_mask = 1 << 31, libc::EOPNOTSUPP),
        (|it| it.qp_type = IBV_QPT_UD, libc::EINVAL),
        (|it| it.rwq_ind_tbl = null_mut(), libc::EINVAL),
        (|it| it.comp_mask &= !IBV_QP_INIT_ATTR_RX_HASH, libc::EINVAL),
    ] {
        assert_eq!(spread(&objects, over, change), Err(refused));
    }
    // SAFETY: both are alive.
    unsafe {
        assert_eq!(table().destroy_rwq_ind_table.unwrap()(over), 0);
        assert_eq!(table().destroy_wq.unwrap()(queues[0]), 0);
    }
}
