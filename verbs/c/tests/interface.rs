//! The C interface from a program's perspective: errno values of refused calls, as in rdma-core, and a message of a queue pair to itself.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::c_void;
use std::ptr::null_mut;

#[test]
fn null_is_refused_where_an_object_should_be() {
    // SAFETY: null is refused.
    unsafe {
        assert_eq!(refused(ibv_open_device(null_mut())), libc::ENODEV);
        assert_eq!(refused(ibv_alloc_pd(null_mut())), libc::EINVAL);
        assert_eq!(refused(ibv_create_cq(null_mut(), 1, null_mut(), null_mut(), 0)), libc::EINVAL);
        assert_eq!(refused(ibv_create_qp(null_mut(), null_mut())), libc::EINVAL);
        assert_eq!(refused(ibv_create_comp_channel(null_mut())), libc::EINVAL);
        assert_eq!(refused(ibv_create_ah(null_mut(), null_mut())), libc::EINVAL);
        assert_eq!(ibv_close_device(null_mut()), libc::EINVAL);
        assert_eq!(ibv_dealloc_pd(null_mut()), libc::EINVAL);
        assert_eq!(ibv_dereg_mr(null_mut()), libc::EINVAL);
        assert_eq!(ibv_destroy_cq(null_mut()), libc::EINVAL);
        assert_eq!(ibv_destroy_qp(null_mut()), libc::EINVAL);
        assert_eq!(ibv_modify_qp(null_mut(), null_mut(), 0), libc::EINVAL);
        assert_eq!(ibv_query_device(context(), null_mut()), libc::EINVAL);
        assert_eq!(ibv_query_gid(context(), 2, 0, null_mut()), -1);
        ibv_free_device_list(null_mut());
    }
}

/// IBA 10.6.3.1: a region that a peer may write must allow local writes.
#[test]
fn memory_is_checked_when_it_is_registered() {
    let objects = Objects::new();
    let address: *mut c_void = objects.memory.as_ptr().cast_mut().cast();
    // SAFETY: the domain is alive; the invalid memory is refused.
    unsafe {
        let reg = |address, length, access| refused(ibv_reg_mr(objects.pd, address, length, access));
        assert_eq!(reg(address, 0, 1), libc::EINVAL);
        assert_eq!(reg(address, 64, 2), libc::EINVAL, "a peer may write, but not the owner");
        assert_eq!(reg(address, 64, 1 << 30), libc::EINVAL, "no such right");
        assert_eq!(reg(4096 as *mut c_void, 64, 1), libc::EFAULT, "nothing is there");
        let constant = c"read only".as_ptr().cast_mut().cast();
        assert_eq!(reg(constant, 9, 1), libc::EFAULT, "it can't be written");
    }
}

#[test]
fn queue_pairs_are_checked_when_they_are_made() {
    let objects = Objects::new();
    // SAFETY: the domain and the queue are alive.
    let make = |wanted: ibv_qp_init_attr| unsafe { refused(ibv_create_qp(objects.pd, &mut wanted.clone())) };
    assert_eq!(make(init(null_mut(), IBV_QPT_RC)), libc::EINVAL);
    assert_eq!(make(init(objects.cq, 77)), libc::EINVAL);
    assert_eq!(make(init(objects.cq, IBV_QPT_DRIVER)), libc::EINVAL);
    let mut large = init(objects.cq, IBV_QPT_RC);
    large.cap.max_send_sge = 1 << 20;
    assert_eq!(make(large), libc::EINVAL);
}

#[test]
fn an_object_in_use_is_not_destroyed() {
    let objects = Objects::new();
    // SAFETY: both are alive.
    unsafe {
        assert_eq!(ibv_dealloc_pd(objects.pd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(objects.cq), libc::EBUSY);
    }
}

#[test]
fn posts_are_refused_by_state_and_limit_and_name_the_bad_one() {
    let mut objects = Objects::new();
    let lkey = lkey_of(&objects);
    let mut sge = [ibv_sge { addr: objects.memory.as_mut_ptr() as u64, length: 8, lkey }; 3];
    let mut second = ibv_send_wr {
        wr_id: 2,
        sg_list: sge.as_mut_ptr(),
        num_sge: 3,
        opcode: IBV_WR_SEND,
        ..Default::default()
    };
    let mut first = ibv_send_wr { wr_id: 1, num_sge: 1, next: &mut second, ..second };
    assert_eq!(objects.post(&mut first), (libc::EINVAL, &raw mut first), "not in RESET");
    objects.connect();
    assert_eq!(objects.post(&mut first), (libc::EINVAL, &raw mut second), "too many buffers");
    second.num_sge = 1;
    second.opcode = 99;
    assert_eq!(objects.post(&mut second), (libc::EINVAL, &raw mut second), "no such operation");
    second.opcode = IBV_WR_BIND_MW;
    assert_eq!(objects.post(&mut second), (libc::EINVAL, &raw mut second), "no window");
    second.opcode = IBV_WR_TSO;
    assert_eq!(objects.post(&mut second), (libc::EOPNOTSUPP, &raw mut second));
    second.opcode = IBV_WR_SEND;
    let mut posted = 1;
    let (error, _) = loop {
        match objects.post(&mut second) {
            (0, _) => posted += 1,
            refused => break refused,
        }
    };
    assert_eq!((error, posted), (libc::ENOMEM, 4), "the queue is full");
}

#[test]
fn a_queue_pair_connected_to_itself_transfers_and_its_states_are_queried() {
    let mut objects = Objects::new();
    objects.connect();
    objects.memory[..5].copy_from_slice(b"hello");
    let start = objects.memory.as_mut_ptr() as u64;
    let mut sge = ibv_sge { addr: start, length: 5, lkey: lkey_of(&objects) };
    let mut wr = ibv_send_wr {
        wr_id: 7,
        sg_list: &mut sge,
        num_sge: 1,
        opcode: IBV_WR_RDMA_WRITE,
        send_flags: IBV_SEND_SIGNALED,
        ..Default::default()
    };
    wr.wr.rdma.remote_addr = start + 4096;
    // SAFETY: the region is alive.
    wr.wr.rdma.rkey = unsafe { (*objects.mr).rkey };
    assert_eq!(objects.post(&mut wr), (0, null_mut()));
    let wc = objects.poll();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (7, IBV_WC_SUCCESS, IBV_WC_RDMA_WRITE));
    assert_eq!(objects.memory[4096..4101], *b"hello");
    // SAFETY: the region is alive.
    wr.wr.rdma.rkey = unsafe { (*objects.mr).rkey } ^ 1;
    assert_eq!(objects.post(&mut wr), (0, null_mut()));
    // The queue pair's own responder refuses the request, and moves it to the error state before the NAK arrives.
    assert_eq!(objects.poll().status, IBV_WC_WR_FLUSH_ERR);
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: all objects are alive.
    unsafe { assert_eq!(ibv_query_qp(objects.qp, &mut attributes, 0, &mut init), 0) };
    assert_eq!(
        (attributes.qp_state, attributes.path_mtu, init.cap.max_send_wr),
        (IBV_QPS_ERR, IBV_MTU_1024, 4)
    );
}

#[test]
fn two_threads_create_queue_pairs_whose_queues_are_swapped() {
    // SAFETY: the calls are those of a C program; the domain, the queues and the shared queue outlive both threads.
    unsafe {
        let pd = ibv_alloc_pd(context());
        let queues = [0; 2].map(|_| ibv_create_cq(context(), 16, null_mut(), null_mut(), 0));
        let attr = ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 };
        let srq = ibv_create_srq(pd, &mut ibv_srq_init_attr { srq_context: null_mut(), attr });
        let [one, other, pd_of, srq_of] =
            [queues[0].cast::<c_void>(), queues[1].cast(), pd.cast(), srq.cast()]
                .map(|it| it.expose_provenance());
        std::thread::scope(|scope| {
            for (send, recv) in [(one, other), (other, one)] {
                scope.spawn(move || {
                    let mut wanted = init(std::ptr::with_exposed_provenance_mut(send), IBV_QPT_RC);
                    wanted.recv_cq = std::ptr::with_exposed_provenance_mut(recv);
                    wanted.srq = std::ptr::with_exposed_provenance_mut(srq_of);
                    for _ in 0..50 {
                        let qp = ibv_create_qp(std::ptr::with_exposed_provenance_mut(pd_of), &mut wanted);
                        assert!(!qp.is_null());
                        assert_eq!(ibv_destroy_qp(qp), 0);
                    }
                });
            }
        });
        assert_eq!((ibv_destroy_srq(srq), queues.map(|cq| ibv_destroy_cq(cq))), (0, [0, 0]));
        assert_eq!(ibv_dealloc_pd(pd), 0);
    }
}

#[test]
fn completions_of_sends_and_receives_arrive_in_their_queues() {
    let mut objects = Objects::new();
    // SAFETY: the calls are those of a C program; each object is destroyed after those that use it.
    unsafe {
        let receives = ibv_create_cq(context(), 16, null_mut(), null_mut(), 0);
        assert_eq!(ibv_destroy_qp(objects.qp), 0);
        let mut wanted = init(objects.cq, IBV_QPT_RC);
        wanted.recv_cq = receives;
        objects.qp = ibv_create_qp(objects.pd, &mut wanted);
        objects.connect();
        let mut recv = ibv_recv_wr { wr_id: 1, ..Default::default() };
        let mut bad = null_mut();
        assert_eq!((*context()).ops.post_recv.unwrap()(objects.qp, &mut recv, &mut bad), 0);
        let flags = IBV_SEND_SIGNALED;
        let mut send = ibv_send_wr { wr_id: 2, opcode: IBV_WR_SEND, send_flags: flags, ..Default::default() };
        assert_eq!(objects.post(&mut send).0, 0);
        assert_eq!(objects.poll().wr_id, 2);
        let mut wc = ibv_wc::default();
        while (*context()).ops.poll_cq.unwrap()(receives, 1, &mut wc) == 0 {}
        assert_eq!((wc.wr_id, wc.opcode), (1, IBV_WC_RECV));
        assert_eq!((ibv_destroy_qp(objects.qp), ibv_destroy_cq(receives)), (0, 0));
    }
    objects.qp = null_mut();
}
