//! Faults on demand, as a C program sees them: calls that fail with an error number, and events of the port.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::c_int;
use std::ptr::null_mut;
use verbs::fault::{Fault, Verb};
use verbs::observe;

fn fault(text: &str) {
    let fault: Fault = text.parse().unwrap();
    observe::inject(std::process::id(), &fault).unwrap_or_else(|error| panic!("{error}"));
}

fn port_state() -> ibv_port_state {
    let mut port = ibv_port_attr::default();
    // SAFETY: the context is open, and there is room for the attributes that older programs know.
    assert_eq!(unsafe { ibv_query_port(context(), 1, (&raw mut port).cast()) }, 0);
    port.state
}

fn next() -> ibv_event_type {
    let mut event = ibv_async_event::default();
    // SAFETY: the context is open, and the library returned the event.
    unsafe {
        assert_eq!(ibv_get_async_event(context(), &mut event), 0);
        ibv_ack_async_event(&mut event);
    }
    event.event_type
}

/// A verb by its name, and a call of it that succeeds. The call returns the error number, or 0.
type Call<'a> = (Verb, &'a dyn Fn() -> c_int);

fn number<T>(object: *mut T) -> c_int {
    if object.is_null() { errno() } else { 0 }
}

/// One test, because the calls that fail belong to the process.
#[test]
fn faults_reach_a_c_program() {
    let runtime = tempfile::tempdir().unwrap();
    // SAFETY: no other thread reads the environment yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", runtime.path()) };
    context();
    each_verb_fails_once_after_its_number_of_calls();

    fault("port-down");
    assert_eq!((next(), port_state()), (IBV_EVENT_PORT_ERR, IBV_PORT_DOWN));
    fault("port-up");
    assert_eq!((next(), port_state()), (IBV_EVENT_PORT_ACTIVE, IBV_PORT_ACTIVE));

    fault("gid-remove 1");
    let mut gid = ibv_gid { raw: [1; 16] };
    // SAFETY: the context is open, and there is room for a GID.
    assert_eq!((next(), unsafe { ibv_query_gid(context(), 1, 1, &mut gid) }), (IBV_EVENT_GID_CHANGE, 0));
    // SAFETY: any bytes are a GID.
    assert_eq!(unsafe { gid.raw }, [0; 16]);

    fault("device-fatal");
    assert_eq!(next(), IBV_EVENT_DEVICE_FATAL);
    // SAFETY: the context is open.
    assert_eq!(refused(unsafe { ibv_alloc_pd(context()) }), libc::EIO);
}

fn each_verb_fails_once_after_its_number_of_calls() {
    let objects = Objects::new();
    objects.connect();
    // SAFETY: the calls are those of a C program. The objects that they create live until the process ends.
    unsafe {
        let ops = (*context()).ops;
        let mut memory = vec![0_u8; 64];
        let memory = memory.as_mut_ptr();
        let gid = || {
            let mut gid = ibv_gid { raw: [0; 16] };
            if ibv_query_gid(context(), 1, 0, &mut gid) == 0 { Ok(gid) } else { Err(errno()) }
        };
        let calls: [Call; 12] = [
            (Verb::OpenDevice, &|| number(ibv_open_device((*context()).device))),
            (Verb::QueryDevice, &|| ibv_query_device(context(), &mut ibv_device_attr::default())),
            (Verb::QueryPort, &|| {
                ibv_query_port(context(), 1, std::ptr::from_mut(&mut ibv_port_attr::default()).cast())
            }),
            (Verb::QueryGid, &|| gid().err().unwrap_or(0)),
            (Verb::AllocPd, &|| number(ibv_alloc_pd(context()))),
            (Verb::RegMr, &|| number(ibv_reg_mr(objects.pd, memory.cast(), 64, 1))),
            (Verb::CreateCompChannel, &|| number(ibv_create_comp_channel(context()))),
            (Verb::CreateCq, &|| number(ibv_create_cq(context(), 1, null_mut(), null_mut(), 0))),
            (Verb::CreateQp, &|| number(ibv_create_qp(objects.pd, &mut init(objects.cq, IBV_QPT_RC)))),
            (Verb::PollCq, &|| {
                let found = ops.poll_cq.unwrap()(objects.cq, 1, &mut ibv_wc::default());
                if found < 0 { errno() } else { 0 }
            }),
            (Verb::ReqNotifyCq, &|| ops.req_notify_cq.unwrap()(objects.cq, 0)),
            (Verb::RdmaCreateId, &|| {
                let mut id = null_mut();
                if rdma_create_id(null_mut(), &mut id, null_mut(), RDMA_PS_TCP) == 0 { 0 } else { errno() }
            }),
        ];
        for (verb, call) in calls {
            fault(&format!("fail {verb} EOVERFLOW after 1"));
            assert_eq!([call(), call(), call()], [0, libc::EOVERFLOW, 0], "{verb}");
        }
        // A request that fails is named as the bad one, and is not posted.
        fault("fail post_recv ENOBUFS");
        let (mut wr, mut bad) = (ibv_recv_wr::default(), null_mut());
        let mut post = || (ops.post_recv.unwrap()(objects.qp, &mut wr, &mut bad), bad);
        let first = post();
        assert_eq!((first.0, first.1.is_null()), (libc::ENOBUFS, false));
        assert_eq!(post().0, 0);
        fault("fail modify_qp EIO");
        let error = ibv_qp_attr { qp_state: IBV_QPS_ERR, ..Default::default() };
        assert_eq!(objects.modify(error, IBV_QP_STATE), libc::EIO);
        assert_eq!((*objects.qp).state, IBV_QPS_RTS, "the call had no effect");
        assert_eq!(objects.modify(error, IBV_QP_STATE), 0);
        assert_eq!(objects.poll().status, IBV_WC_WR_FLUSH_ERR);
    }
    // Its destruction would fail, because the objects of the calls use its own.
    std::mem::forget(objects);
}
