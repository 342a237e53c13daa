//! The C interface as a program calls it: what it refuses, with rdma-core's errno values, and a message to itself.

use ferroce_dropin::abi::*;
use ferroce_dropin::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A port that receives what it sends, opened once for all tests: a process has one device.
fn context() -> *mut ibv_context {
    struct Shared(*mut ibv_context);
    // SAFETY: any thread may use a context.
    unsafe impl Send for Shared {}
    // SAFETY: as above.
    unsafe impl Sync for Shared {}
    static CONTEXT: OnceLock<Shared> = OnceLock::new();
    let open = || {
        // SAFETY: the first test to get here sets it before the library reads it; no other code of this process does.
        unsafe {
            std::env::set_var("FERROCE_PORT", "ring:interface");
            std::env::set_var("FERROCE_IP", "10.0.0.1/24");
            let mut count = 0;
            let list = ibv_get_device_list(&mut count);
            assert_eq!(count, 1);
            assert!((*list.add(1)).is_null(), "null ends the list");
            let context = ibv_open_device(*list);
            ibv_free_device_list(list);
            assert!(!context.is_null());
            Shared(context)
        }
    };
    CONTEXT.get_or_init(open).0
}

fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// What returns null leaves why in `errno`.
fn refused<T>(object: *mut T) -> c_int {
    assert!(object.is_null());
    errno()
}

/// A queue pair with what it needs, all its own.
struct Objects {
    pd: *mut ibv_pd,
    cq: *mut ibv_cq,
    qp: *mut ibv_qp,
    mr: *mut ibv_mr,
    memory: Vec<u8>,
}

fn init(cq: *mut ibv_cq, kind: c_uint) -> ibv_qp_init_attr {
    let cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 32 };
    ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type: kind, ..Default::default() }
}

impl Objects {
    fn new() -> Self {
        let mut memory = vec![0_u8; 8192];
        // SAFETY: the objects live until dropped, in the order in which they depend on each other; the memory too.
        unsafe {
            let pd = ibv_alloc_pd(context());
            let cq = ibv_create_cq(context(), 16, null_mut(), null_mut(), 0);
            let qp = ibv_create_qp(pd, &mut init(cq, IBV_QPT_RC));
            let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 15);
            assert!(![pd.cast::<c_void>(), cq.cast(), qp.cast(), mr.cast()].contains(&null_mut()));
            Self { pd, cq, qp, mr, memory }
        }
    }

    fn modify(&self, attributes: ibv_qp_attr, mask: c_uint) -> c_int {
        let mut attributes = attributes;
        // SAFETY: the queue pair is alive.
        unsafe { ibv_modify_qp(self.qp, &mut attributes, mask as c_int) }
    }

    fn to_init(&self) -> c_int {
        let attributes =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags: 15, ..Default::default() };
        self.modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    /// To itself.
    fn connect(&self) {
        assert_eq!(self.to_init(), 0);
        // SAFETY: the queue pair and the context are alive.
        let (qpn, gid) = unsafe {
            let mut gid = ibv_gid { raw: [0; 16] };
            assert_eq!(ibv_query_gid(context(), 1, 0, &mut gid), 0);
            ((*self.qp).qp_num, gid)
        };
        let mut attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTR,
            path_mtu: IBV_MTU_1024,
            dest_qp_num: qpn,
            max_dest_rd_atomic: 1,
            ..Default::default()
        };
        attributes.ah_attr.is_global = 1;
        attributes.ah_attr.grh.dgid = gid;
        let rtr = IBV_QP_STATE
            | IBV_QP_AV
            | IBV_QP_PATH_MTU
            | IBV_QP_DEST_QPN
            | IBV_QP_RQ_PSN
            | IBV_QP_MAX_DEST_RD_ATOMIC
            | IBV_QP_MIN_RNR_TIMER;
        assert_eq!(self.modify(attributes, rtr & !IBV_QP_AV), libc::EINVAL, "an attribute is missing");
        assert_eq!(self.modify(attributes, rtr | IBV_QP_TIMEOUT), libc::EINVAL, "one has no place here");
        assert_eq!(self.modify(attributes, rtr), 0);
        let attributes = ibv_qp_attr {
            qp_state: IBV_QPS_RTS,
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            max_rd_atomic: 1,
            ..Default::default()
        };
        let rts = IBV_QP_STATE
            | IBV_QP_TIMEOUT
            | IBV_QP_RETRY_CNT
            | IBV_QP_RNR_RETRY
            | IBV_QP_SQ_PSN
            | IBV_QP_MAX_QP_RD_ATOMIC;
        assert_eq!(self.modify(attributes, rts), 0);
    }

    fn post(&self, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let mut bad = null_mut();
        // SAFETY: as a program calls it, by the context's table.
        let result = unsafe { (*context()).ops.post_send.unwrap()(self.qp, wr, &mut bad) };
        (result, bad)
    }

    fn poll(&self) -> ibv_wc {
        let mut wc = ibv_wc::default();
        loop {
            // SAFETY: there is room for one.
            match unsafe { (*context()).ops.poll_cq.unwrap()(self.cq, 1, &mut wc) } {
                0 => std::thread::yield_now(),
                1 => return wc,
                other => panic!("poll_cq gave {other}"),
            }
        }
    }
}

impl Drop for Objects {
    fn drop(&mut self) {
        // SAFETY: each is alive, and is destroyed once.
        unsafe {
            assert_eq!(ibv_destroy_qp(self.qp), 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
        }
    }
}

#[test]
fn null_is_refused_where_an_object_should_be() {
    // SAFETY: null is what is tried.
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

#[test]
fn memory_is_checked_when_it_is_registered() {
    let objects = Objects::new();
    let address: *mut c_void = objects.memory.as_ptr().cast_mut().cast();
    // SAFETY: the domain is alive; what is not memory is what is tried.
    unsafe {
        let reg = |address, length, access| refused(ibv_reg_mr(objects.pd, address, length, access));
        assert_eq!(reg(address, 0, 1), libc::EINVAL);
        assert_eq!(reg(address, 64, 2), libc::EINVAL, "a peer may write, but not the owner");
        assert_eq!(reg(address, 64, 1 << 30), libc::EINVAL, "no such right");
        assert_eq!(reg(4096 as *mut c_void, 64, 1), libc::EFAULT, "nothing is there");
        let constant = c"read only".as_ptr().cast_mut().cast();
        assert_eq!(reg(constant, 9, 1), libc::EFAULT, "it can't be written");
        assert_eq!(refused(ibv_reg_mr_iova2(objects.pd, address, 64, 7, 1)), libc::EOPNOTSUPP);
    }
}

#[test]
fn queue_pairs_are_checked_when_they_are_made() {
    let objects = Objects::new();
    // SAFETY: the domain and the queue are alive.
    let make = |wanted: ibv_qp_init_attr| unsafe { refused(ibv_create_qp(objects.pd, &mut wanted.clone())) };
    assert_eq!(make(init(null_mut(), IBV_QPT_RC)), libc::EINVAL);
    assert_eq!(make(init(objects.cq, 77)), libc::EINVAL);
    assert_eq!(make(init(objects.cq, IBV_QPT_RAW_PACKET)), libc::EOPNOTSUPP);
    let mut large = init(objects.cq, IBV_QPT_RC);
    large.cap.max_send_sge = 1 << 20;
    assert_eq!(make(large), libc::EINVAL);
}

#[test]
fn what_is_in_use_is_not_destroyed() {
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

fn lkey_of(objects: &Objects) -> u32 {
    // SAFETY: the region is alive.
    unsafe { (*objects.mr).lkey }
}

#[test]
fn a_message_goes_to_itself_and_the_states_are_told() {
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
    // Its own responder refuses and takes it to the error state before the refusal arrives.
    assert_eq!(objects.poll().status, IBV_WC_WR_FLUSH_ERR);
    let (mut attributes, mut init) = (ibv_qp_attr::default(), ibv_qp_init_attr::default());
    // SAFETY: all are alive.
    unsafe { assert_eq!(ibv_query_qp(objects.qp, &mut attributes, 0, &mut init), 0) };
    assert_eq!(
        (attributes.qp_state, attributes.path_mtu, init.cap.max_send_wr),
        (IBV_QPS_ERR, IBV_MTU_1024, 4)
    );
}
