//! A process at its memory limit (`RLIMIT_AS`): verbs that create objects fail with `ENOMEM`, and existing objects keep working.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_void};
use std::ptr::null_mut;

/// The previous limit of the address space. Dropping it restores the limit.
struct Limited(libc::rlimit);

impl Limited {
    /// Limits the address space to `spare` bytes more than its current size.
    fn to(spare: usize) -> Self {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        let pages: usize = pages.split(' ').next().unwrap().parse().unwrap();
        let mut before = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: there is room for the limit.
        assert_eq!(unsafe { libc::getrlimit(libc::RLIMIT_AS, &mut before) }, 0);
        let limited = Self(before);
        Self::set(libc::rlimit { rlim_cur: (pages * 4096 + spare) as u64, ..before });
        limited
    }

    fn set(limit: libc::rlimit) {
        // SAFETY: the limit is that of this process.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_AS, &limit) }, 0);
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        Self::set(self.0);
    }
}

/// All memory that `malloc` can still allocate, as a list of blocks.
struct AllocatedMemory(*mut *mut c_void);

impl AllocatedMemory {
    fn of_all() -> Self {
        let mut last = null_mut();
        for size in [1 << 20, 1 << 16, 1 << 12, 256, 64, 16] {
            loop {
                // SAFETY: a block has room for a pointer.
                unsafe {
                    let block = libc::malloc(size).cast::<*mut c_void>();
                    if block.is_null() {
                        break;
                    }
                    block.write(last);
                    last = block.cast();
                }
            }
        }
        Self(last.cast())
    }
}

impl Drop for AllocatedMemory {
    fn drop(&mut self) {
        while !self.0.is_null() {
            // SAFETY: each block begins with the pointer to the previous one.
            unsafe {
                let block = self.0;
                self.0 = block.read().cast();
                libc::free(block.cast());
            }
        }
    }
}

/// Verbs that failed, with their errno. Filling it allocates no memory.
struct Refused([Option<(&'static str, c_int)>; 16]);

impl Refused {
    fn iter(&self) -> impl Iterator<Item = &(&'static str, c_int)> {
        self.0.iter().flatten()
    }
}

/// Creates one object of each kind, and destroys it.
fn create_all(objects: &Objects) -> Refused {
    let mut refused = Refused([None; 16]);
    let mut place = refused.0.iter_mut();
    let mut try_one = |name, object: *mut c_void, destroy: &dyn Fn() -> c_int| {
        if object.is_null() {
            *place.next().unwrap() = Some((name, errno()));
        } else {
            assert_eq!(destroy(), 0, "{name}");
        }
    };
    let table = context();
    // SAFETY: all objects are alive, and each is destroyed once.
    unsafe {
        let more = &*table.byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>();
        let pd = ibv_alloc_pd(table);
        try_one("pd", pd.cast(), &|| ibv_dealloc_pd(pd));
        for (name, depth) in [("cq", 16), ("deep cq", 1 << 20)] {
            let cq = ibv_create_cq(table, depth, null_mut(), null_mut(), 0);
            try_one(name, cq.cast(), &|| ibv_destroy_cq(cq));
        }
        let channel = ibv_create_comp_channel(table);
        try_one("channel", channel.cast(), &|| ibv_destroy_comp_channel(channel));
        let attr = ibv_srq_attr { max_wr: 64, max_sge: 1, srq_limit: 0 };
        let srq = ibv_create_srq(objects.pd, &mut ibv_srq_init_attr { attr, ..Default::default() });
        try_one("srq", srq.cast(), &|| ibv_destroy_srq(srq));
        for (name, depth) in [("qp", 4), ("deep qp", 1 << 15)] {
            let mut wanted = init(objects.cq, IBV_QPT_RC);
            (wanted.cap.max_send_wr, wanted.cap.max_recv_wr) = (depth, depth);
            let qp = ibv_create_qp(objects.pd, &mut wanted);
            try_one(name, qp.cast(), &|| ibv_destroy_qp(qp));
        }
        let memory = objects.memory.as_ptr().cast_mut().cast();
        let mr = ibv_reg_mr(objects.pd, memory, 4096, 1);
        try_one("mr", mr.cast(), &|| ibv_dereg_mr(mr));
        let mw = more.context.ops.alloc_mw.unwrap()(objects.pd, IBV_MW_TYPE_2);
        try_one("mw", mw.cast(), &|| more.context.ops.dealloc_mw.unwrap()(mw));
        let td = more.alloc_td.unwrap()(table, &mut ibv_td_init_attr { comp_mask: 0 });
        try_one("td", td.cast(), &|| more.dealloc_td.unwrap()(td));
        let mut length = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        let dm = more.alloc_dm.unwrap()(table, &mut length);
        try_one("dm", dm.cast(), &|| more.free_dm.unwrap()(dm));
    }
    refused
}

/// Posts a WRITE from the queue pair to itself, and polls its completion.
fn write(objects: &Objects) {
    let (start, lkey) = (objects.memory.as_ptr() as u64, lkey_of(objects));
    let mut sge = ibv_sge { addr: start, length: 64, lkey };
    let mut wr = ibv_send_wr { sg_list: &mut sge, num_sge: 1, ..Default::default() };
    (wr.opcode, wr.send_flags) = (IBV_WR_RDMA_WRITE, IBV_SEND_SIGNALED);
    // SAFETY: the region is alive.
    let rkey = unsafe { (*objects.mr).rkey };
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: start + 4096, rkey };
    assert_eq!(objects.post(&mut wr).0, 0);
    assert_eq!(objects.poll().status, IBV_WC_SUCCESS);
}

#[test]
fn creation_fails_without_memory_and_transfers_continue() {
    let objects = Objects::new();
    objects.connect();
    write(&objects);
    assert_eq!(create_all(&objects).iter().next(), None);
    let mut refusals = 0;
    for spare in (0..=24 << 20).step_by(1 << 18) {
        for is_short in [false, true] {
            let limited = Limited::to(spare);
            let allocated = is_short.then(AllocatedMemory::of_all);
            let refused = create_all(&objects);
            write(&objects);
            drop((allocated, limited));
            for (name, errno) in refused.iter() {
                assert_eq!(*errno, libc::ENOMEM, "{name}, {spare} B to spare");
            }
            refusals += refused.iter().count();
            assert!(!is_short || refused.iter().count() > 0, "{spare} B to spare");
        }
    }
    assert!(refusals > 100, "{refusals}");
    assert_eq!(create_all(&objects).iter().next(), None, "memory is there again");
    write(&objects);
}
