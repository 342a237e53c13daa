//! Verbs with counts and lengths at their limits. Each array ends at a page without access rights, so that reading beyond the last element
//! ends the test with SIGSEGV.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_void};
use std::marker::PhantomData;
use std::ptr::null_mut;

const PAGE: usize = 4096;

/// A copy of a list that ends at a page without access rights.
struct Guarded<T> {
    start: *mut c_void,
    length: usize,
    kind: PhantomData<T>,
}

impl<T: Copy> Guarded<T> {
    fn new(list: &[T]) -> Self {
        let (rights, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        assert!(size_of_val(list) <= PAGE);
        // SAFETY: a new mapping of two pages; the second page loses all access rights.
        let start = unsafe {
            let start = libc::mmap(null_mut(), 2 * PAGE, rights, kind, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            assert_eq!(libc::mprotect(start.byte_add(PAGE), PAGE, libc::PROT_NONE), 0);
            start
        };
        let guarded = Self { start, length: list.len(), kind: PhantomData };
        // SAFETY: the list fits into the first page.
        unsafe { std::ptr::copy_nonoverlapping(list.as_ptr(), guarded.list(), list.len()) };
        guarded
    }

    fn list(&self) -> *mut T {
        // SAFETY: `new` checked that the list fits into the first page.
        unsafe { self.start.byte_add(PAGE - self.length * size_of::<T>()).cast() }
    }
}

impl<T> Drop for Guarded<T> {
    fn drop(&mut self) {
        // SAFETY: `new` mapped both pages.
        unsafe { libc::munmap(self.start, 2 * PAGE) };
    }
}

/// Maximum number of buffers of a request in these tests (`common::init`).
const MAX_SGE: usize = 2;
/// Counts above the maximum, and negative ones.
const TOO_MANY: [c_int; 5] = [MAX_SGE as c_int + 1, c_int::MAX - 1, c_int::MAX, c_int::MIN, -1];

/// Returns the maximum number of buffers of a request, of 8 bytes each.
fn parts(objects: &Objects) -> Guarded<ibv_sge> {
    let part = ibv_sge { addr: objects.memory.as_ptr() as u64, length: 8, lkey: lkey_of(objects) };
    Guarded::new(&[part; MAX_SGE])
}

#[test]
fn a_send_with_too_many_buffers_is_refused_before_one_is_read() {
    let objects = Objects::new();
    objects.connect();
    let list = parts(&objects);
    for send_flags in [IBV_SEND_SIGNALED, IBV_SEND_SIGNALED | IBV_SEND_INLINE] {
        let request = |num_sge| {
            let mut wr = ibv_send_wr { sg_list: list.list(), num_sge, send_flags, ..Default::default() };
            wr.opcode = IBV_WR_RDMA_WRITE;
            // SAFETY: the region is alive.
            let (remote_addr, rkey) = unsafe { ((*objects.mr).addr as u64, (*objects.mr).rkey) };
            wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
            wr
        };
        for count in TOO_MANY {
            let mut wr = request(count);
            assert_eq!(objects.post(&mut wr), (libc::EINVAL, &raw mut wr), "{count}");
        }
        for count in 0..=MAX_SGE as c_int {
            assert_eq!(objects.post(&mut request(count)).0, 0, "{count}");
            assert_eq!(objects.poll().status, IBV_WC_SUCCESS, "{count}");
        }
    }
}

#[test]
fn a_receive_with_too_many_buffers_is_refused_before_one_is_read() {
    let objects = Objects::new();
    assert_eq!(objects.to_init(), 0);
    let list = parts(&objects);
    let attr = ibv_srq_attr { max_wr: 4, max_sge: MAX_SGE as u32, srq_limit: 0 };
    // SAFETY: all objects are alive until they are destroyed at the end; the list has the maximum number of elements.
    unsafe {
        let srq = ibv_create_srq(objects.pd, &mut ibv_srq_init_attr { attr, ..Default::default() });
        assert!(!srq.is_null());
        let post = |num_sge| {
            let mut wr = ibv_recv_wr { sg_list: list.list(), num_sge, ..Default::default() };
            let (mut one, mut other) = (null_mut(), null_mut());
            let to_pair = (*context()).ops.post_recv.unwrap()(objects.qp, &mut wr, &mut one);
            let to_shared = (*context()).ops.post_srq_recv.unwrap()(srq, &mut wr, &mut other);
            assert!(to_pair == 0 || (one, other) == (&raw mut wr, &raw mut wr));
            (to_pair, to_shared)
        };
        for count in TOO_MANY {
            assert_eq!(post(count), (libc::EINVAL, libc::EINVAL), "{count}");
        }
        for count in 0..=MAX_SGE as c_int {
            assert_eq!(post(count), (0, 0), "{count}");
        }
        assert_eq!(ibv_destroy_srq(srq), 0);
    }
}

#[test]
fn a_draft_with_too_many_buffers_is_refused_before_one_is_read() {
    let objects = Objects::new();
    let list = parts(&objects);
    let one = Guarded::new(&[ibv_data_buf { addr: objects.memory.as_ptr() as *mut c_void, length: 8 }]);
    let plain = init(objects.cq, IBV_QPT_RC);
    let mut wanted = ibv_qp_init_attr_ex {
        send_cq: plain.send_cq,
        recv_cq: plain.recv_cq,
        cap: plain.cap,
        qp_type: IBV_QPT_RC,
        comp_mask: IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
        pd: objects.pd,
        send_ops_flags: IBV_QP_EX_WITH_SEND as u64,
        ..Default::default()
    };
    // SAFETY: the calls are those of a C program; the queue pair is destroyed at the end.
    unsafe {
        let table = context().byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let qp = (*table).create_qp_ex.unwrap()(context(), &mut wanted);
        assert!(!qp.is_null());
        let ex = ibv_qp_to_qp_ex(qp);
        let draft = |set: &dyn Fn()| {
            (*ex).wr_start.unwrap()(ex);
            (*ex).wr_send.unwrap()(ex);
            set();
            (*ex).wr_complete.unwrap()(ex)
        };
        for count in [MAX_SGE + 1, i32::MAX as usize, u32::MAX as usize, u32::MAX as usize + 1, usize::MAX] {
            let set = || (*ex).wr_set_sge_list.unwrap()(ex, count, list.list());
            assert_eq!(draft(&set), libc::EINVAL, "{count}");
        }
        for count in [i32::MAX as usize, u32::MAX as usize, usize::MAX] {
            let set = || (*ex).wr_set_inline_data_list.unwrap()(ex, count, one.list());
            assert_eq!(draft(&set), libc::EINVAL, "{count}");
        }
        for length in [33, i32::MAX as usize, u32::MAX as usize + 9, usize::MAX] {
            let set = || (*ex).wr_set_inline_data.unwrap()(ex, (*one.list()).addr, length);
            assert_eq!(draft(&set), libc::EINVAL, "{length}");
        }
        assert_eq!(ibv_destroy_qp(qp), 0);
    }
}

#[test]
fn advice_with_too_many_parts_is_refused_before_one_is_read() {
    let objects = Objects::new();
    let flags = (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE) as c_int;
    // SAFETY: the calls are those of a C program; the memory outlives the region.
    unsafe {
        let table = context().byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let mr = ibv_reg_mr(objects.pd, objects.memory.as_ptr() as *mut c_void, 8192, flags);
        let part = ibv_sge { addr: objects.memory.as_ptr() as u64, length: 8, lkey: (*mr).lkey };
        let list = Guarded::new(&[part; 2]);
        let advise = |count| (*table).advise_mr.unwrap()(objects.pd, 0, 0, list.list(), count);
        for (count, result) in [(0, libc::EINVAL), (1, 0), (2, 0)] {
            assert_eq!(advise(count), result, "{count}");
        }
        for count in [4096, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
            assert_eq!(advise(count), libc::EINVAL, "{count}");
        }
        assert_eq!(ibv_dereg_mr(mr), 0);
    }
}

#[test]
fn polling_writes_as_many_completions_as_there_are() {
    let objects = Objects::new();
    objects.connect();
    let into = Guarded::new(&[ibv_wc::default()]);
    // SAFETY: at most one completion is outstanding, and there is room for one.
    let poll = |most| unsafe { (*context()).ops.poll_cq.unwrap()(objects.cq, most, into.list()) };
    let mut wr = ibv_send_wr { opcode: IBV_WR_RDMA_WRITE, ..Default::default() };
    wr.send_flags = IBV_SEND_SIGNALED;
    assert_eq!(objects.post(&mut wr).0, 0);
    assert_eq!((poll(0), poll(-1), poll(c_int::MIN)), (0, -1, -1));
    let found = loop {
        match poll(c_int::MAX) {
            0 => std::thread::yield_now(),
            found => break found,
        }
    };
    assert_eq!(found, 1);
}

#[test]
fn sizes_of_objects_beyond_the_limits_are_refused() {
    let objects = Objects::new();
    // SAFETY: the calls are those of a C program; they create no objects.
    unsafe {
        let mut device = ibv_device_attr::default();
        assert_eq!(ibv_query_device(context(), &mut device), 0);
        for depth in [0, -1, c_int::MIN, device.max_cqe + 1, c_int::MAX] {
            let cq = ibv_create_cq(context(), depth, null_mut(), null_mut(), 0);
            assert_eq!(refused(cq), libc::EINVAL, "{depth}");
            assert_eq!(ibv_resize_cq(objects.cq, depth), libc::EINVAL, "{depth}");
        }
        for vector in [1, -1, c_int::MIN, c_int::MAX] {
            let cq = ibv_create_cq(context(), 16, null_mut(), null_mut(), vector);
            assert_eq!(refused(cq), libc::EINVAL, "{vector}");
        }
        for field in 0..4 {
            let most = if field < 2 { device.max_qp_wr } else { device.max_sge };
            for value in [most as u32 + 1, i32::MAX as u32, i32::MAX as u32 + 1, u32::MAX] {
                let mut wanted = init(objects.cq, IBV_QPT_RC);
                let ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, .. } = &mut wanted.cap;
                *[max_send_wr, max_recv_wr, max_send_sge, max_recv_sge][field] = value;
                assert_eq!(refused(ibv_create_qp(objects.pd, &mut wanted)), libc::EINVAL, "{field} {value}");
            }
        }
        for (max_wr, max_sge) in [
            (0, 1),
            (device.max_srq_wr as u32 + 1, 1),
            (u32::MAX, 1),
            (i32::MAX as u32, 1),
            (4, device.max_srq_sge as u32 + 1),
            (4, u32::MAX),
        ] {
            let attr = ibv_srq_attr { max_wr, max_sge, srq_limit: 0 };
            let srq = ibv_create_srq(objects.pd, &mut ibv_srq_init_attr { attr, ..Default::default() });
            assert_eq!(refused(srq), libc::EINVAL, "{max_wr} {max_sge}");
        }
    }
}

#[test]
fn indices_of_tables_beyond_their_ends_are_refused() {
    let (mut gid, mut key) = (ibv_gid { raw: [0; 16] }, 0);
    // SAFETY: the calls are those of a C program.
    unsafe {
        for index in [-1, c_int::MIN, c_int::MAX, 1 << 20] {
            let found = (ibv_query_gid(context(), 1, index, &mut gid), errno());
            assert_eq!(found, (-1, libc::EINVAL), "GID {index}");
            let found = (ibv_query_pkey(context(), 1, index, &mut key), errno());
            assert_eq!(found, (-1, libc::EINVAL), "P_Key {index}");
        }
        for port in [0, 2, 255] {
            let found = (ibv_query_gid(context(), port, 0, &mut gid), errno());
            assert_eq!(found, (-1, libc::EINVAL), "port {port}");
        }
        let mut entry = std::mem::zeroed::<ibv_gid_entry>();
        let table = context();
        let size = size_of::<ibv_gid_entry>();
        for (size, flags) in [(0, 0), (size - 1, 0), (size, 1)] {
            let found = _ibv_query_gid_ex(table, 1, 0, &mut entry, flags, size);
            assert_ne!(found, 0, "size {size}, flags {flags}");
        }
    }
}
