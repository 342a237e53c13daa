//! Attributes that the C interface changes without a state transition.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;

/// Status of a request that the queue pair's own responder refuses: the queue pair moves to ERR, which flushes the request.
const REFUSED: u32 = IBV_WC_WR_FLUSH_ERR;

fn attributes_of(objects: &Objects) -> ibv_qp_attr {
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: the queue pair is alive.
    assert_eq!(unsafe { ibv_query_qp(objects.qp, &mut attributes, 0, &mut init) }, 0);
    attributes
}

/// WRITEs 8 bytes from the queue pair to itself. Returns the completion's status.
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

/// IBA 11.2.5.2.
#[test]
fn a_drained_queue_pair_accepts_attributes_that_a_running_one_refuses() {
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

/// The kernel's `qp_state_table` has no transition from RESET to ERR.
#[test]
fn a_queue_pair_in_reset_cannot_change_to_err() {
    let objects = Objects::new();
    let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(objects.modify(error, IBV_QP_STATE), libc::EINVAL);
    to(&objects, IBV_QPS_RESET);
    assert_eq!(objects.to_init(), 0);
    to(&objects, IBV_QPS_ERR);
}

fn to(objects: &Objects, qp_state: ibv_qp_state) {
    assert_eq!(objects.modify(ibv_qp_attr { qp_state, ..Default::default() }, IBV_QP_STATE), 0);
}

/// Returns two queue pairs in ERR. The completion queue of the first contains their flushed requests: 1 and 3 of the first, and 2 of the
/// other.
fn flushed() -> (Objects, Objects) {
    let (first, mut other) = (Objects::new(), Objects::new());
    let mut flushed =
        ibv_send_wr { opcode: IBV_WR_SEND, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    // SAFETY: the domain and the queues outlive the queue pairs, because callers drop `other` first.
    unsafe {
        assert_eq!(ibv_destroy_qp(other.qp), 0);
        other.qp = ibv_create_qp(other.pd, &mut init(first.cq, IBV_QPT_RC));
    }
    for objects in [&first, &other] {
        objects.connect();
        to(objects, IBV_QPS_ERR);
    }
    for (id, objects) in [(1, &first), (2, &other), (3, &first)] {
        flushed.wr_id = id;
        assert_eq!(objects.post(&mut flushed).0, 0);
        // Each control call runs at least one turn of the core, so after two calls the completion has arrived.
        for _ in 0..2 {
            attributes_of(objects);
        }
    }
    (first, other)
}

#[test]
fn resetting_a_queue_pair_removes_its_completions() {
    let (first, _other) = flushed();
    to(&first, IBV_QPS_RESET);
    assert_eq!(first.poll().wr_id, 2);
    first.connect();
    assert_eq!(write(&first), IBV_WC_SUCCESS);
}

#[test]
fn destroying_a_queue_pair_removes_its_completions() {
    let (mut first, _other) = flushed();
    // SAFETY: the queue pair is alive. Its domain and queue are alive when the next one is created.
    unsafe {
        assert_eq!(ibv_destroy_qp(first.qp), 0);
        first.qp = ibv_create_qp(first.pd, &mut init(first.cq, IBV_QPT_RC));
    }
    assert_eq!(first.poll().wr_id, 2);
    first.connect();
    assert_eq!(write(&first), IBV_WC_SUCCESS);
}
