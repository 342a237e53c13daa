//! Asynchronous events for a C program: their objects and their order, and destruction that waits for their acknowledgement.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// One context receives the events of all tests, so only one test runs at a time.
static TURNS: Mutex<()> = Mutex::new(());

fn next() -> ibv_async_event {
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open, and there is room for an event.
    assert_eq!(unsafe { ibv_get_async_event(context(), &mut event) }, 0);
    event
}

/// Returns whether a descriptor becomes readable within `timeout` milliseconds; -1 waits without limit.
fn readable(fd: i32, timeout: i32) -> bool {
    let mut watched = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, alive.
    unsafe { libc::poll(&mut watched, 1, timeout) > 0 }
}

/// Returns whether an event is queued.
fn waits() -> bool {
    // SAFETY: the context is open.
    readable(unsafe { (*context()).async_fd }, 0)
}

fn sqd(objects: &Objects) {
    let attributes = ibv_qp_attr { qp_state: IBV_QPS_SQD, en_sqd_async_notify: 1, ..Default::default() };
    assert_eq!(objects.modify(attributes, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY), 0);
}

#[test]
fn a_drained_queue_is_reported() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::new();
    objects.connect();
    assert!(!waits());
    sqd(&objects);
    let mut event = next();
    assert_eq!(event.event_type, IBV_EVENT_SQ_DRAINED);
    // SAFETY: the event refers to a queue pair.
    assert_eq!(unsafe { event.element.qp }, objects.qp);
    // SAFETY: the library returned the event.
    unsafe { ibv_ack_async_event(&mut event) };
    assert!(!waits());
}

#[test]
fn a_failed_queue_pair_is_reported() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::new();
    objects.connect();
    let mut sge = ibv_sge { addr: objects.memory.as_ptr() as u64, length: 8, lkey: lkey_of(&objects) };
    let mut wr =
        ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_RDMA_WRITE, ..Default::default() };
    // An rkey without a region.
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: sge.addr, rkey: 0 };
    assert_eq!(objects.post(&mut wr).0, 0);
    // The queue pair is its own peer, and its responder fails first.
    let mut event = next();
    assert_eq!(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
    // SAFETY: the library returned the event, which refers to a queue pair.
    unsafe {
        assert_eq!(event.element.qp, objects.qp);
        ibv_ack_async_event(&mut event);
    }
    assert!(!waits(), "it failed once");
    // SAFETY: all-zero bytes are a valid cause, and the queue pair is alive.
    let (status, cause) = unsafe {
        let mut cause: FerroceCause = std::mem::zeroed();
        cause.size = size_of::<FerroceCause>() as u32;
        (ferroce_qp_cause(objects.qp, &mut cause), cause)
    };
    // SAFETY: the text ends with a NUL.
    let text = unsafe { std::ffi::CStr::from_ptr(cause.text.as_ptr()) }.to_str().unwrap();
    // SAFETY: the queue pair is alive.
    let qpn = unsafe { (*objects.qp).qp_num };
    assert_eq!((status, cause.reason, cause.peer_qpn), (0, 18, qpn), "{text}");
    let mut gid = ibv_gid { raw: [0; 16] };
    // SAFETY: the context is open, and there is room for a GID.
    assert_eq!(unsafe { ibv_query_gid(context(), 1, 0, &mut gid) }, 0);
    // SAFETY: any bytes are a GID.
    assert_eq!((cause.peer, cause.retries), (unsafe { gid.raw }, 0));
    assert!(
        text.ends_with("; check the key, range, rights and length that the peer's program uses"),
        "{text}"
    );
    // SAFETY: null is refused.
    assert_eq!(unsafe { ferroce_qp_cause(objects.qp, null_mut()) }, libc::EINVAL);
}

#[test]
fn a_shared_receive_queue_below_its_limit_is_reported() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::new();
    let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the domain is alive, and the queue is alive until it is destroyed.
    unsafe {
        let srq = ibv_create_srq(objects.pd, &mut init);
        assert!(!srq.is_null());
        let mut limit = ibv_srq_attr { srq_limit: 2, ..Default::default() };
        // The queue is empty, so it is already below the limit.
        assert_eq!(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT as i32), 0);
        let mut event = next();
        assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
        assert_eq!(event.element.srq, srq);
        ibv_ack_async_event(&mut event);
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
}

/// IBA 11.6.3.2.
#[test]
fn a_failure_that_a_completion_reports_is_no_event() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::new();
    objects.connect();
    let mut sge = ibv_sge { addr: objects.memory.as_ptr() as u64, length: 8, lkey: !lkey_of(&objects) };
    let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_SEND, ..Default::default() };
    assert_eq!(objects.post(&mut wr).0, 0);
    assert_eq!(objects.poll().status, IBV_WC_LOC_PROT_ERR);
    // The next event is that of a later request, so the failure caused none.
    let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
    let mut init = ibv_srq_init_attr { srq_context: null_mut(), attr };
    // SAFETY: the domain is alive, and the queue is alive until it is destroyed.
    unsafe {
        let srq = ibv_create_srq(objects.pd, &mut init);
        let mut limit = ibv_srq_attr { srq_limit: 2, ..Default::default() };
        assert_eq!(ibv_modify_srq(srq, &mut limit, IBV_SRQ_LIMIT as i32), 0);
        let mut event = next();
        // Acknowledged before the check, because the destruction of a queue pair waits for that.
        ibv_ack_async_event(&mut event);
        assert_eq!(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
}

#[test]
fn destroying_waits_until_events_are_acknowledged() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut objects = Objects::new();
    objects.connect();
    sqd(&objects);
    let mut event = next();
    let acknowledged = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (address, acknowledged) = (objects.qp.expose_provenance(), &acknowledged);
        scope.spawn(move || {
            // SAFETY: the queue pair is alive, and nothing else uses it.
            let destroyed = unsafe { ibv_destroy_qp(std::ptr::with_exposed_provenance_mut(address)) };
            assert_eq!(destroyed, 0);
            assert!(acknowledged.load(Ordering::Acquire));
        });
        acknowledged.store(true, Ordering::Release);
        // SAFETY: the library returned the event; its queue pair lives until the event is acknowledged.
        unsafe { ibv_ack_async_event(&mut event) };
    });
    objects.qp = null_mut();
}

#[test]
fn events_of_destroyed_objects_are_discarded() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let gone = Objects::new();
    gone.connect();
    sqd(&gone);
    let there = Objects::new();
    there.connect();
    // SAFETY: the context is open.
    assert!(readable(unsafe { (*context()).async_fd }, -1));
    drop(gone);
    assert!(!waits(), "nothing is left to take");
    sqd(&there);
    let mut event = next();
    // SAFETY: the library returned the event, which refers to a queue pair.
    unsafe {
        assert_eq!(event.element.qp, there.qp);
        ibv_ack_async_event(&mut event);
    }
}

#[test]
fn a_destroyed_queues_event_leaves_the_channel() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the calls are those of a C program; each object is destroyed after those that use it.
    unsafe {
        let channel = ibv_create_comp_channel(context());
        let fd = (*channel).fd;
        // Each object has a completion queue on the channel. `ring` causes an event there, because it flushes a posted request.
        let [mut gone, mut there] = [0; 2].map(|_| {
            let mut objects = Objects::new();
            assert_eq!((ibv_destroy_qp(objects.qp), ibv_destroy_cq(objects.cq)), (0, 0));
            objects.cq = ibv_create_cq(context(), 16, null_mut(), channel, 0);
            objects.qp = ibv_create_qp(objects.pd, &mut init(objects.cq, IBV_QPT_RC));
            objects.connect();
            objects
        });
        let ring = |objects: &Objects| {
            assert_eq!((*context()).ops.req_notify_cq.unwrap()(objects.cq, 0), 0);
            let (mut wr, mut bad) = (ibv_recv_wr::default(), null_mut());
            assert_eq!((*context()).ops.post_recv.unwrap()(objects.qp, &mut wr, &mut bad), 0);
            let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
            assert_eq!(objects.modify(error, IBV_QP_STATE), 0);
        };
        let destroy = |objects: &mut Objects| {
            assert_eq!((ibv_destroy_qp(objects.qp), ibv_destroy_cq(objects.cq)), (0, 0));
            objects.qp = null_mut();
            objects.cq = ibv_create_cq(context(), 1, null_mut(), null_mut(), 0);
        };
        ring(&gone);
        assert!(readable(fd, -1));
        destroy(&mut gone);
        assert!(!readable(fd, 0), "a server that polls would wait in ibv_get_cq_event");
        ring(&there);
        let (mut cq, mut user) = (null_mut(), null_mut());
        assert_eq!((ibv_get_cq_event(channel, &mut cq, &mut user), cq), (0, there.cq));
        ibv_ack_cq_events(cq, 1);
        destroy(&mut there);
        assert!(!readable(fd, 0));
        assert_eq!(ibv_destroy_comp_channel(channel), 0);
    }
}

#[test]
fn a_completion_queue_is_resized_with_its_completions() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    let objects = Objects::new();
    objects.connect();
    let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
    assert_eq!(objects.modify(error, IBV_QP_STATE), 0);
    let mut wr = ibv_send_wr { opcode: IBV_WR_SEND, send_flags: IBV_SEND_SIGNALED, ..Default::default() };
    for id in 0..4 {
        wr.wr_id = id;
        assert_eq!(objects.post(&mut wr).0, 0);
    }
    // SAFETY: the queue is alive.
    let resize = |depth| unsafe { ibv_resize_cq(objects.cq, depth) };
    // SAFETY: as above.
    let cqe = || unsafe { (*objects.cq).cqe };
    assert_eq!((resize(0), resize(-1), resize(1 << 30)), (libc::EINVAL, libc::EINVAL, libc::EINVAL));
    assert_eq!((resize(64), cqe()), (0, 64));
    assert_eq!((resize(3), cqe()), (libc::EINVAL, 64), "four will come");
    // Each control call runs at least one turn of the core, so after two calls all completions have arrived.
    assert_eq!((objects.modify(error, IBV_QP_STATE), objects.modify(error, IBV_QP_STATE)), (0, 0));
    assert_eq!((resize(3), cqe()), (libc::EINVAL, 64), "four wait");
    assert_eq!((resize(4), cqe()), (0, 4));
    for id in 0..4 {
        assert_eq!(objects.poll().wr_id, id);
    }
    // SAFETY: null is refused.
    assert_eq!(unsafe { ibv_resize_cq(null_mut::<c_void>().cast(), 4) }, libc::EINVAL);
}

/// Another thread may wait on the descriptor. It wakes up, and the context is no longer accessed.
#[test]
fn the_descriptor_of_a_closed_context_is_readable() {
    let _turn = TURNS.lock().unwrap_or_else(PoisonError::into_inner);
    // SAFETY: the shared context is open, so its device lives; only the other context is closed here.
    unsafe {
        let other = ibv_open_device((*context()).device);
        let copy = libc::dup((*other).async_fd);
        assert!(!readable(copy, 0));
        assert_eq!(ibv_close_device(other), 0);
        assert!(readable(copy, 0));
        let mut event = ibv_async_event::default();
        assert_eq!(ibv_get_async_event(other, &mut event), -1);
        libc::close(copy);
    }
}
