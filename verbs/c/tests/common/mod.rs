//! Objects of a C program: one device for all tests of a process, and a queue pair with its objects.
#![allow(dead_code, reason = "each test file uses its part")]

use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::OnceLock;

/// Returns a context on a port that receives the frames that it sends. It is opened once for all tests, because a process has one device.
pub fn context() -> *mut ibv_context {
    struct Shared(*mut ibv_context);
    // SAFETY: any thread may use a context.
    unsafe impl Send for Shared {}
    // SAFETY: as above.
    unsafe impl Sync for Shared {}
    static CONTEXT: OnceLock<Shared> = OnceLock::new();
    let open = || {
        // SAFETY: the first test sets the variables before the library reads them; no other code of this process sets any.
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

pub fn errno() -> c_int {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// Returns the errno of a call that returned null.
pub fn refused<T>(object: *mut T) -> c_int {
    assert!(object.is_null());
    errno()
}

/// A queue pair with its own protection domain, completion queue and memory region.
pub struct Objects {
    pub pd: *mut ibv_pd,
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub mr: *mut ibv_mr,
    pub memory: Vec<u8>,
}

pub fn init(cq: *mut ibv_cq, kind: c_uint) -> ibv_qp_init_attr {
    let cap =
        ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 32 };
    ibv_qp_init_attr { send_cq: cq, recv_cq: cq, cap, qp_type: kind, ..Default::default() }
}

impl Objects {
    pub fn new() -> Self {
        let mut memory = vec![0_u8; 8192];
        // SAFETY: the objects and the memory live until they are dropped, in the order of their dependencies.
        unsafe {
            let pd = ibv_alloc_pd(context());
            let cq = ibv_create_cq(context(), 16, null_mut(), null_mut(), 0);
            let qp = ibv_create_qp(pd, &mut init(cq, IBV_QPT_RC));
            let mr = ibv_reg_mr(pd, memory.as_mut_ptr().cast(), memory.len(), 15);
            assert!(![pd.cast::<c_void>(), cq.cast(), qp.cast(), mr.cast()].contains(&null_mut()));
            Self { pd, cq, qp, mr, memory }
        }
    }

    pub fn modify(&self, attributes: ibv_qp_attr, mask: c_uint) -> c_int {
        let mut attributes = attributes;
        // SAFETY: the queue pair is alive.
        unsafe { ibv_modify_qp(self.qp, &mut attributes, mask as c_int) }
    }

    pub fn to_init(&self) -> c_int {
        self.to_init_with(15)
    }

    /// Moves the queue pair to INIT, with these access rights of the peer.
    pub fn to_init_with(&self, qp_access_flags: c_uint) -> c_int {
        let attributes =
            ibv_qp_attr { qp_state: IBV_QPS_INIT, port_num: 1, qp_access_flags, ..Default::default() };
        self.modify(attributes, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
    }

    /// Connects the queue pair to itself.
    pub fn connect(&self) {
        self.connect_with(15);
    }

    pub fn connect_with(&self, qp_access_flags: c_uint) {
        assert_eq!(self.to_init_with(qp_access_flags), 0);
        self.ready();
    }

    /// Moves the queue pair from INIT to RTS.
    pub fn ready(&self) {
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

    pub fn post(&self, wr: &mut ibv_send_wr) -> (c_int, *mut ibv_send_wr) {
        let mut bad = null_mut();
        // SAFETY: the call is that of a C program, through the context's table.
        let result = unsafe { (*context()).ops.post_send.unwrap()(self.qp, wr, &mut bad) };
        (result, bad)
    }

    pub fn poll(&self) -> ibv_wc {
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
            // The pointer is null if the test has destroyed the queue pair.
            assert!(self.qp.is_null() || ibv_destroy_qp(self.qp) == 0);
            assert_eq!(ibv_destroy_cq(self.cq), 0);
            assert_eq!(ibv_dereg_mr(self.mr), 0);
            assert_eq!(ibv_dealloc_pd(self.pd), 0);
        }
    }
}

pub fn lkey_of(objects: &Objects) -> u32 {
    // SAFETY: the region is alive.
    unsafe { (*objects.mr).lkey }
}

/// Returns the name and version of each symbol that a version script exports.
pub fn exported(script: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut version = None;
    script.lines().filter_map(move |line| {
        let line = line.split("/*").next().unwrap_or(line).trim();
        if let Some(name) = line.strip_suffix(" {") {
            version = Some(name);
            return None;
        }
        let name = line.strip_suffix(';').filter(|name| !name.contains([':', '}', ' ']))?;
        Some((name, version?))
    })
}
