//! XRC in a C program: domains by files, queues with numbers, targets that are opened again.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint};
use std::mem::offset_of;
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

/// Returns the verbs that the headers call through the context.
fn verbs() -> &'static verbs_context {
    let whole = context().cast::<u8>().wrapping_sub(offset_of!(verbs_context, context));
    // SAFETY: a context of the library is part of such a structure, and this one is never closed.
    unsafe { &*whole.cast() }
}

unsafe fn open_xrcd(fd: c_int, oflags: c_int) -> *mut ibv_xrcd {
    let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    let mut wanted = ibv_xrcd_init_attr { comp_mask, fd, oflags };
    // SAFETY: passed on.
    unsafe { verbs().open_xrcd.unwrap()(context(), &mut wanted) }
}

unsafe fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: passed on.
    unsafe { verbs().close_xrcd.unwrap()(xrcd) }
}

fn srq_init(objects: &Objects, xrcd: *mut ibv_xrcd) -> ibv_srq_init_attr_ex {
    ibv_srq_init_attr_ex {
        attr: ibv_srq_attr { max_wr: 4, max_sge: 1, srq_limit: 0 },
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ,
        srq_type: IBV_SRQT_XRC,
        pd: objects.pd,
        xrcd,
        cq: objects.cq,
        ..Default::default()
    }
}

unsafe fn target(xrcd: *mut ibv_xrcd) -> *mut ibv_qp {
    let comp_mask = IBV_QP_INIT_ATTR_XRCD;
    let mut wanted = ibv_qp_init_attr_ex { qp_type: IBV_QPT_XRC_RECV, comp_mask, xrcd, ..Default::default() };
    // SAFETY: passed on.
    unsafe { verbs().create_qp_ex.unwrap()(context(), &mut wanted) }
}

unsafe fn open_qp(xrcd: *mut ibv_xrcd, qp_num: u32) -> *mut ibv_qp {
    let comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE;
    let mut wanted =
        ibv_qp_open_attr { comp_mask, qp_num, xrcd, qp_type: IBV_QPT_XRC_RECV, ..Default::default() };
    // SAFETY: passed on.
    unsafe { verbs().open_qp.unwrap()(context(), &mut wanted) }
}

/// Moves a queue pair to RTS, with the peer `peer` on the same port. The attributes that its type does not use have arbitrary values.
unsafe fn connect(qp: *mut ibv_qp, peer: u32) {
    let mut gid = ibv_gid { raw: [0; 16] };
    let modify = |attributes: ibv_qp_attr, mask: c_uint| {
        // SAFETY: the queue pair is alive.
        assert_eq!(unsafe { ibv_modify_qp(qp, &mut attributes.clone(), mask as c_int) }, 0);
    };
    // SAFETY: the context is open.
    assert_eq!(unsafe { ibv_query_gid(context(), 1, 0, &mut gid) }, 0);
    let mut attributes =
        ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: 15, ..Default::default() };
    modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
    (attributes.qp_state, attributes.path_mtu, attributes.dest_qp_num) = (IBV_QPS_RTR, IBV_MTU_1024, peer);
    attributes.ah_attr.is_global = 1;
    attributes.ah_attr.grh.dgid = gid;
    // SAFETY: the queue pair is alive.
    let is_target = unsafe { (*qp).qp_type } == IBV_QPT_XRC_RECV;
    attributes.max_dest_rd_atomic = if is_target { 1 } else { 200 };
    let base = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
    modify(attributes, base | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
    (attributes.qp_state, attributes.timeout) = (IBV_QPS_RTS, 14);
    (attributes.retry_cnt, attributes.rnr_retry, attributes.max_rd_atomic) =
        if is_target { (99, 99, 99) } else { (7, 7, 1) };
    let base = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_SQ_PSN;
    modify(attributes, base | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC);
}

unsafe fn next(cq: *mut ibv_cq) -> ibv_wc {
    let mut wc = ibv_wc::default();
    // SAFETY: the queue is alive.
    while unsafe { (*context()).ops.poll_cq.unwrap()(cq, 1, &mut wc) } == 0 {}
    wc
}

#[test]
fn a_file_identifies_a_domain_for_every_opener() {
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    let fd = file.as_raw_fd();
    // SAFETY: the objects are alive until they are destroyed here.
    unsafe {
        assert_eq!(refused(open_xrcd(fd, 0)), libc::EAGAIN);
        assert_eq!(refused(open_xrcd(9999, libc::O_CREAT)), libc::EBADF);
        let first = open_xrcd(fd, libc::O_CREAT | libc::O_EXCL);
        assert!(!first.is_null() && (*first).context == context());
        assert_eq!(refused(open_xrcd(fd, libc::O_CREAT | libc::O_EXCL)), libc::EINVAL);
        let second = open_xrcd(fd, 0);
        let [own, another] = [(); 2].map(|()| open_xrcd(-1, libc::O_CREAT));
        assert!(!second.is_null() && !own.is_null() && !another.is_null());

        let qp = target(first);
        assert_eq!(((*qp).qp_type, (*qp).state), (IBV_QPT_XRC_RECV, IBV_QPS_RESET));
        assert_eq!(close_xrcd(first), libc::EBUSY);
        // The target is opened by the other handle of its domain, but not by another domain.
        let again = open_qp(second, (*qp).qp_num);
        assert_eq!((*again).qp_num, (*qp).qp_num);
        assert_eq!(refused(open_qp(own, (*qp).qp_num)), libc::EINVAL);
        assert_eq!(refused(open_qp(second, (*qp).qp_num ^ 1)), libc::EINVAL);
        // Both handles refer to the same queue pair, which exists until both are destroyed.
        let (mut attributes, mut init) = Default::default();
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_query_qp(again, &mut attributes, 0, &mut init), 0);
        assert_eq!(close_xrcd(second), libc::EBUSY);
        let number = (*again).qp_num;
        assert_eq!(ibv_destroy_qp(again), 0);
        assert_eq!(refused(open_qp(second, number)), libc::EINVAL);

        assert_eq!([first, second, own, another].map(|xrcd| close_xrcd(xrcd)), [0; 4]);
        assert_eq!(refused(open_xrcd(fd, 0)), libc::EAGAIN, "the last one closed it");
        assert_eq!(close_xrcd(first), libc::ENOENT);
    }
}

#[test]
fn each_posting_call_reaches_the_queue_of_its_number() {
    let objects = Objects::new();
    // SAFETY: the objects are alive until they are destroyed here; the memory is registered for writing.
    unsafe {
        let xrcd = open_xrcd(-1, libc::O_CREAT);
        let create_srq = verbs().create_srq_ex.unwrap();
        let srqs = [(); 2].map(|()| create_srq(context(), &mut srq_init(&objects, xrcd)));
        let numbers = srqs.map(|srq| {
            let mut number = 0;
            assert_eq!(verbs().get_srq_num.unwrap()(srq, &mut number), 0);
            number
        });
        assert!(numbers[0] != numbers[1] && numbers[0] != 0);
        let target = target(xrcd);
        let ops = IBV_QP_EX_WITH_SEND;
        let mut init = ibv_qp_init_attr_ex {
            send_cq: objects.cq,
            cap: ibv_qp_cap { max_send_wr: 4, max_send_sge: 1, ..Default::default() },
            qp_type: IBV_QPT_XRC_SEND,
            comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
            pd: objects.pd,
            send_ops_flags: ops.into(),
            ..Default::default()
        };
        let qp = verbs().create_qp_ex.unwrap()(context(), &mut init);
        connect(target, (*qp).qp_num);
        connect(qp, (*target).qp_num);

        let memory = objects.memory.as_ptr() as u64;
        let mut sge = ibv_sge { addr: memory, length: 64, lkey: (*objects.mr).lkey };
        let mut into = ibv_sge { addr: memory + 4096, ..sge };
        for (id, srq) in [(1, srqs[0]), (2, srqs[1])] {
            let mut wr = ibv_recv_wr { wr_id: id, sg_list: &mut into, num_sge: 1, ..Default::default() };
            assert_eq!((*context()).ops.post_srq_recv.unwrap()(srq, &mut wr, &mut null_mut()), 0);
        }
        // A request of ibv_post_send, to the second queue.
        let mut wr = ibv_send_wr {
            wr_id: 7,
            opcode: IBV_WR_SEND,
            send_flags: IBV_SEND_SIGNALED as c_uint,
            sg_list: &mut sge,
            num_sge: 1,
            ..Default::default()
        };
        wr.qp_type.xrc.remote_srqn = numbers[1];
        assert_eq!((*context()).ops.post_send.unwrap()(qp, &mut wr, &mut null_mut()), 0);
        let mut seen = [next(objects.cq), next(objects.cq)];
        seen.sort_by_key(|wc| wc.wr_id);
        assert_eq!(seen.map(|wc| (wc.wr_id, wc.status)), [(2, 0), (7, 0)]);
        assert_eq!(seen.map(|wc| wc.qp_num), [(*target).qp_num, (*qp).qp_num]);
        // A request of an extended queue pair, to the first queue.
        let ex = ibv_qp_to_qp_ex(qp);
        (*ex).wr_start.unwrap()(ex);
        ((*ex).wr_id, (*ex).wr_flags) = (8, IBV_SEND_SIGNALED as c_uint);
        (*ex).wr_send.unwrap()(ex);
        (*ex).wr_set_xrc_srqn.unwrap()(ex, numbers[0]);
        (*ex).wr_set_sge.unwrap()(ex, sge.lkey, sge.addr, sge.length);
        assert_eq!((*ex).wr_complete.unwrap()(ex), 0);
        let mut seen = [next(objects.cq), next(objects.cq)];
        seen.sort_by_key(|wc| wc.wr_id);
        assert_eq!(seen.map(|wc| (wc.wr_id, wc.status)), [(1, 0), (8, 0)]);
        // A request without an SRQ number is not posted.
        (*ex).wr_start.unwrap()(ex);
        (*ex).wr_send.unwrap()(ex);
        assert_eq!((*ex).wr_complete.unwrap()(ex), libc::EINVAL);

        // Objects in use cannot be destroyed.
        assert_eq!(close_xrcd(xrcd), libc::EBUSY);
        assert_eq!(ibv_destroy_cq(objects.cq), libc::EBUSY);
        assert_eq!([qp, target].map(|qp| ibv_destroy_qp(qp)), [0; 2]);
        assert_eq!(srqs.map(|srq| ibv_destroy_srq(srq)), [0; 2]);
        assert_eq!(close_xrcd(xrcd), 0);
    }
}

#[test]
fn invalid_attributes_are_refused_as_by_the_kernel() {
    let objects = Objects::new();
    // SAFETY: the objects are alive until they are destroyed here.
    unsafe {
        let mut device = ibv_device_attr::default();
        assert_eq!(ibv_query_device(context(), &mut device), 0);
        assert!(device.device_cap_flags & IBV_DEVICE_XRC != 0);
        let mut wanted = ibv_xrcd_init_attr { comp_mask: IBV_XRCD_INIT_ATTR_FD, fd: -1, oflags: 0 };
        assert_eq!(refused(verbs().open_xrcd.unwrap()(context(), &mut wanted)), libc::EINVAL);
        let xrcd = open_xrcd(-1, libc::O_CREAT);
        let create_srq =
            |init: ibv_srq_init_attr_ex| verbs().create_srq_ex.unwrap()(context(), &mut init.clone());
        let whole = srq_init(&objects, xrcd);
        for part in [IBV_SRQ_INIT_ATTR_PD, IBV_SRQ_INIT_ATTR_XRCD, IBV_SRQ_INIT_ATTR_CQ] {
            let init = ibv_srq_init_attr_ex { comp_mask: whole.comp_mask & !part, ..whole };
            assert_eq!(refused(create_srq(init)), libc::EINVAL);
        }
        let matching = ibv_srq_init_attr_ex { srq_type: IBV_SRQT_TM, ..whole };
        assert_eq!(refused(create_srq(matching)), libc::EOPNOTSUPP);
        assert_eq!(refused(create_srq(ibv_srq_init_attr_ex { xrcd: null_mut(), ..whole })), libc::EINVAL);
        // A basic queue has no number.
        let basic = create_srq(ibv_srq_init_attr_ex { srq_type: IBV_SRQT_BASIC, ..whole });
        assert_eq!(verbs().get_srq_num.unwrap()(basic, &mut 0), libc::EINVAL);
        assert_eq!(ibv_destroy_srq(basic), 0);
        assert_eq!(refused(target(null_mut())), libc::EINVAL);
        // A queue of an XRC domain cannot be used by other queue pairs.
        let srq = create_srq(whole);
        let mut rc = ibv_qp_init_attr { srq, ..init(objects.cq, IBV_QPT_RC) };
        assert_eq!(refused(ibv_create_qp(objects.pd, &mut rc)), libc::EINVAL);
        // A target accepts no requests of the program.
        let qp = target(xrcd);
        let mut wr = ibv_send_wr { opcode: IBV_WR_SEND, ..Default::default() };
        assert_eq!((*context()).ops.post_send.unwrap()(qp, &mut wr, &mut null_mut()), libc::EINVAL);
        let mut wr = ibv_recv_wr::default();
        assert_eq!((*context()).ops.post_recv.unwrap()(qp, &mut wr, &mut null_mut()), libc::EINVAL);
        assert_eq!(ibv_destroy_qp(qp), 0);
        assert_eq!(ibv_destroy_srq(srq), 0);
        assert_eq!(close_xrcd(xrcd), 0);
    }
}
