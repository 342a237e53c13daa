//! Queue pairs whose attributes change in the state that they are in, as the C interface has it.

mod common;

use common::*;
use ferroce_dropin::abi::*;
use ferroce_dropin::*;

/// A queue pair that refuses its own request goes to ERR, and flushes it.
const REFUSED: u32 = IBV_WC_WR_FLUSH_ERR;

fn attributes_of(objects: &Objects) -> ibv_qp_attr {
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { ibv_query_qp(objects.qp, &mut attributes, 0, &mut init) }, 0);
    attributes
}

/// Writes 8 bytes to itself, and gives the completion's status.
fn write(objects: &Objects) -> u32 {
    let address = objects.memory.as_ptr() as u64;
    // SAFETY: the region is alive.
    let (lkey, rkey) = unsafe { ((*objects.mr).lkey, (*objects.mr).rkey) };
    let mut sge = ibv_sge { addr: address, length: 8, lkey };
    let mut wr = ibv_send_wr {
        sg_list: &mut sge,
        num_sge: 1,
        opcode: IBV_WR_RDMA_WRITE,
        send_flags: IBV_SEND_SIGNALED,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = address + 64;
    wr.wr.rdma.rkey = rkey;
    assert_eq!(objects.post(&mut wr).0, 0);
    objects.poll().status
}

#[test]
fn a_peer_s_rights_change_while_it_sends() {
    let objects = Objects::new();
    objects.connect();
    assert_eq!(write(&objects), IBV_WC_SUCCESS);
    let only_reads = ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_READ, ..Default::default() };
    assert_eq!(objects.modify(only_reads, IBV_QP_ACCESS_FLAGS), 0);
    assert_eq!(attributes_of(&objects).qp_access_flags, IBV_ACCESS_REMOTE_READ);
    assert_eq!(attributes_of(&objects).qp_state, IBV_QPS_RTS);
    assert_eq!(write(&objects), REFUSED);
}

#[test]
fn rights_given_on_the_way_to_rtr_and_rts_count() {
    let reads = ibv_qp_attr { qp_access_flags: IBV_ACCESS_REMOTE_READ, ..Default::default() };
    let objects = Objects::new();
    assert_eq!(objects.to_init_with(15), 0);
    assert_eq!(objects.modify(reads, IBV_QP_ACCESS_FLAGS), 0, "in INIT as well");
    objects.ready();
    assert_eq!(write(&objects), REFUSED);
}

#[test]
fn a_drained_queue_pair_takes_what_a_running_one_does_not() {
    let objects = Objects::new();
    objects.connect();
    let patient = ibv_qp_attr { timeout: 20, retry_cnt: 3, rnr_retry: 2, ..Default::default() };
    let mask = IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY;
    assert_eq!(objects.modify(patient, mask), libc::EINVAL, "in RTS");
    let sqd = ibv_qp_attr { qp_state: IBV_QPS_SQD, ..Default::default() };
    assert_eq!(objects.modify(sqd, IBV_QP_STATE), 0);
    assert_eq!(objects.modify(patient, mask), 0);
    let many = ibv_qp_attr { retry_cnt: 8, ..Default::default() };
    assert_eq!(objects.modify(many, IBV_QP_RETRY_CNT), libc::EINVAL);
    let now = attributes_of(&objects);
    assert_eq!((now.timeout, now.retry_cnt, now.rnr_retry, now.qp_state), (20, 3, 2, IBV_QPS_SQD));
    let rts = ibv_qp_attr { qp_state: IBV_QPS_RTS, min_rnr_timer: 9, ..Default::default() };
    assert_eq!(objects.modify(rts, IBV_QP_STATE | IBV_QP_PATH_MTU), libc::EINVAL, "that stays");
    assert_eq!(objects.modify(rts, IBV_QP_STATE | IBV_QP_MIN_RNR_TIMER), 0);
    assert_eq!(attributes_of(&objects).min_rnr_timer, 9);
    assert_eq!(write(&objects), IBV_WC_SUCCESS);
}
