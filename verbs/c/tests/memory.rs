//! Changed regions, on-demand regions, device memory and parent domains of a C program.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Mutex;

/// All tests share the context's device memory, so only one test uses it at a time.
static DEVICE_MEMORY: Mutex<()> = Mutex::new(());

/// Returns the table of verbs before the `ibv_context`, as the headers find it.
fn table() -> &'static verbs_context {
    // SAFETY: every context of the library has such a table, which lives as long as the context.
    unsafe { &*context().byte_sub(std::mem::offset_of!(verbs_context, context)).cast::<verbs_context>() }
}

#[test]
fn regions_on_demand_are_populated_when_advised() {
    let objects = Objects::new();
    let advise = |advice, flags, lkey, addr: u64| {
        let mut part = ibv_sge { addr, length: 64, lkey };
        // SAFETY: the domain is alive, and the table is before the `ibv_context`, as the headers find it.
        unsafe { table().advise_mr.unwrap()(objects.pd, advice, flags, &mut part, 1) }
    };
    let [read, write, no_fault] = [0, 1, 2];
    // SAFETY: this test owns the mapping; the regions are deregistered before it is unmapped.
    unsafe {
        let (protection, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let memory = libc::mmap(null_mut(), 4096, protection, kind, -1, 0);
        let resident = || {
            let mut there = 0_u8;
            assert_eq!(libc::mincore(memory, 4096, &mut there), 0);
            there & 1 == 1
        };
        let flags = (IBV_ACCESS_ON_DEMAND | IBV_ACCESS_LOCAL_WRITE) as i32;
        let mr = ibv_reg_mr(objects.pd, memory, 4096, flags | IBV_ACCESS_REMOTE_WRITE as i32);
        assert!(!resident(), "registration populates nothing");
        let (lkey, start) = ((*mr).lkey, memory as u64);
        assert_eq!((advise(no_fault, 1, lkey, start), resident()), (0, false));
        assert_eq!((advise(write, 1, lkey, start), resident()), (0, true));
        assert_eq!(
            (advise(write, 2, lkey, start), advise(9, 1, lkey, start)),
            (libc::EINVAL, libc::EOPNOTSUPP)
        );
        assert_eq!(advise(read, 1, (*objects.mr).lkey, start), libc::ENOENT, "that one is not on demand");
        assert_eq!((advise(read, 1, lkey, 4096), advise(read, 0, lkey, 4096)), (libc::EFAULT, 0));
        assert_eq!(ibv_dereg_mr(mr), 0);
        assert_eq!(advise(read, 1, lkey, start), libc::ENOENT);
        assert_eq!(refused(ibv_reg_mr(objects.pd, 4096 as *mut c_void, 64, flags)), libc::EFAULT);

        // The whole address space, only for its owner.
        assert_eq!(refused(ibv_reg_mr(objects.pd, null_mut(), usize::MAX, flags | 2)), libc::EOPNOTSUPP);
        let all = ibv_reg_mr(objects.pd, null_mut(), usize::MAX, flags);
        assert!(!all.is_null());
        objects.connect();
        let (to, from) = (start, objects.memory.as_ptr() as u64);
        (from as *mut u64).write(0x0102_0304_0506_0708);
        let mut into = ibv_sge { addr: to, length: 8, lkey: (*all).lkey };
        let mut recv = ibv_recv_wr { sg_list: &mut into, num_sge: 1, ..Default::default() };
        let mut bad = null_mut();
        assert_eq!((*context()).ops.post_recv.unwrap()(objects.qp, &mut recv, &mut bad), 0);
        let mut of = ibv_sge { addr: from, length: 8, lkey: (*all).lkey };
        let mut send =
            ibv_send_wr { sg_list: &mut of, num_sge: 1, opcode: IBV_WR_SEND, ..Default::default() };
        assert_eq!(objects.post(&mut send).0, 0);
        assert_eq!((objects.poll().status, (to as *const u64).read_volatile()), (0, 0x0102_0304_0506_0708));
        assert_eq!((ibv_dereg_mr(all), libc::munmap(memory, 4096)), (0, 0));
    }
}

#[test]
fn memory_without_rights_is_registered_on_demand_only() {
    const MIB: usize = 1 << 20;
    const TIB: usize = 1 << 40;
    let objects = Objects::new();
    let write = IBV_ACCESS_LOCAL_WRITE as i32;
    // SAFETY: this test owns the mappings, and no request accesses them.
    unsafe {
        let map = |length, rights| {
            let start =
                libc::mmap(null_mut(), length, rights, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1, 0);
            assert_ne!(start, libc::MAP_FAILED);
            start
        };
        let register = |start, length, flags| {
            let mr = ibv_reg_mr(objects.pd, start, length, flags);
            if mr.is_null() { errno() } else { ibv_dereg_mr(mr) }
        };
        let memory = map(2 * MIB, libc::PROT_READ | libc::PROT_WRITE);
        let behind = memory.byte_add(MIB);
        assert_eq!(libc::mprotect(behind, MIB, libc::PROT_NONE), 0);
        for flags in [0, write] {
            assert_eq!(register(memory, MIB, flags), 0);
            assert_eq!(register(behind, MIB, flags), libc::EFAULT, "no rights");
            assert_eq!(register(memory, MIB + 1, flags), libc::EFAULT, "its last byte has no rights");
            assert_eq!(register(memory, TIB, flags), libc::EFAULT, "not mapped to its end");
            assert_eq!(register(behind, MIB, flags | IBV_ACCESS_ON_DEMAND as i32), 0);
        }
        assert_eq!(libc::mprotect(behind, MIB, libc::PROT_READ), 0);
        assert_eq!((register(behind, MIB, 0), register(behind, MIB, write)), (0, libc::EFAULT));
        assert_eq!(libc::munmap(memory, 2 * MIB), 0);
    }
}

/// WRITEs 8 bytes with these addresses and keys. Returns the completion's status.
fn write(objects: &Objects, (addr, lkey): (u64, u32), (remote_addr, rkey): (u64, u32)) -> ibv_wc_status {
    let mut sge = ibv_sge { addr, length: 8, lkey };
    let mut wr =
        ibv_send_wr { sg_list: &mut sge, num_sge: 1, opcode: IBV_WR_RDMA_WRITE, ..Default::default() };
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr, rkey };
    assert_eq!(objects.post(&mut wr).0, 0);
    objects.poll().status
}

const ACCESS: i32 = IBV_REREG_MR_CHANGE_ACCESS as i32;
const PLACE: i32 = IBV_REREG_MR_CHANGE_TRANSLATION as i32;
const DOMAIN: i32 = IBV_REREG_MR_CHANGE_PD as i32;

#[test]
fn a_region_changes_and_keeps_its_keys() {
    let objects = Objects::new();
    objects.connect();
    let memory = objects.memory.as_ptr() as u64;
    // SAFETY: all objects are alive until they are destroyed at the end; invalid arguments are refused.
    unsafe {
        let mr = ibv_reg_mr(objects.pd, memory as *mut c_void, 64, IBV_ACCESS_LOCAL_WRITE as i32);
        let (from, rkey) = ((memory + 4096, (*objects.mr).lkey), (*mr).rkey);
        let rereg = |flags, pd, address: u64, length, access| {
            let code = ibv_rereg_mr(mr, flags, pd, address as *mut c_void, length, access);
            (code, if code == 0 { 0 } else { errno() })
        };
        let none = null_mut();
        let (input, command) = (IBV_REREG_MR_ERR_INPUT, IBV_REREG_MR_ERR_CMD);
        assert_eq!(rereg(8, none, 0, 0, 0), (input, libc::EINVAL));
        assert_eq!(rereg(PLACE, none, memory, 0, 0), (input, libc::EINVAL));
        assert_eq!(rereg(0, none, 0, 0, 0), (command, libc::EINVAL));
        assert_eq!(rereg(DOMAIN, none, 0, 0, 0), (command, libc::EINVAL));
        assert_eq!(rereg(PLACE, none, 4096, 64, 0), (command, libc::EFAULT));
        assert_eq!(rereg(ACCESS, none, 0, 0, 2), (command, libc::EINVAL));

        // The peer may now write, also at another address; the keys are the same.
        assert_eq!(rereg(ACCESS, none, 0, 0, 3), (0, 0));
        assert_eq!(write(&objects, from, (memory, rkey)), IBV_WC_SUCCESS);
        assert_eq!(rereg(PLACE, none, memory + 1024, 128, 0), (0, 0));
        assert_eq!(((*mr).addr as u64, (*mr).length, (*mr).rkey), (memory + 1024, 128, rkey));
        assert_eq!(write(&objects, from, (memory + 1144, rkey)), IBV_WC_SUCCESS);

        // In another domain the queue pair cannot access the region, and the region prevents the deallocation of that domain.
        let other = ibv_alloc_pd(context());
        assert_eq!((rereg(DOMAIN, other, 0, 0, 0), (*mr).pd), ((0, 0), other));
        assert_eq!(ibv_dealloc_pd(other), libc::EBUSY);
        assert_ne!(write(&objects, from, (memory + 1024, rkey)), IBV_WC_SUCCESS);
        assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(other)), (0, 0));
    }
}

#[test]
fn a_region_that_windows_are_bound_to_does_not_change() {
    let objects = Objects::new();
    objects.connect();
    let memory = objects.memory.as_ptr() as u64;
    let flags = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) as i32;
    // SAFETY: all objects are alive until they are destroyed at the end.
    unsafe {
        let mr = ibv_reg_mr(objects.pd, memory as *mut c_void, 64, flags);
        let window = (*context()).ops.alloc_mw.unwrap()(objects.pd, IBV_MW_TYPE_1);
        let bind_info =
            ibv_mw_bind_info { mr, addr: memory, length: 64, mw_access_flags: IBV_ACCESS_REMOTE_WRITE };
        let mut bind = ibv_mw_bind { wr_id: 1, send_flags: IBV_SEND_SIGNALED, bind_info };
        assert_eq!((*context()).ops.bind_mw.unwrap()(objects.qp, window, &mut bind), 0);
        assert_eq!(objects.poll().status, IBV_WC_SUCCESS);
        let changed = ibv_rereg_mr(mr, ACCESS, null_mut(), null_mut(), 0, flags);
        assert_eq!((changed, errno()), (IBV_REREG_MR_ERR_CMD, libc::EBUSY));
        assert_eq!(((*context()).ops.dealloc_mw.unwrap()(window), ibv_dereg_mr(mr)), (0, 0));
    }
}

#[test]
fn device_memory_is_bounded_aligned_and_counted() {
    let objects = Objects::new();
    objects.connect();
    let (alloc, free) = (table().alloc_dm.unwrap(), table().free_dm.unwrap());
    let _alone = DEVICE_MEMORY.lock();
    let make = |length, log_align_req, comp_mask| {
        // SAFETY: the context is open.
        unsafe { alloc(context(), &mut ibv_alloc_dm_attr { length, log_align_req, comp_mask }) }
    };
    for (length, alignment, mask) in [(0, 0, 0), ((1 << 20) + 1, 0, 0), (64, 0, 1)] {
        assert_eq!(refused(make(length, alignment, mask)), libc::EINVAL);
    }
    assert_eq!(refused(make(64, 40, 0)), libc::ENOMEM);
    // SAFETY: all objects are alive until they are destroyed at the end; invalid arguments are refused.
    unsafe {
        let dm = make(100, 6, 0);
        assert_eq!(refused(make(1 << 20, 0, 0)), libc::ENOMEM, "a part of it is taken");
        let (to, from) = ((*dm).memcpy_to_dm.unwrap(), (*dm).memcpy_from_dm.unwrap());
        let mut bytes = *b"twelve bytes";
        assert_eq!(to(dm, 88, bytes.as_ptr().cast(), 12), 0);
        for (offset, length) in [(3, 4), (4, 3), (104, 4), (0, 104), (u64::MAX - 3, 8)] {
            assert_eq!(to(dm, offset, bytes.as_ptr().cast(), length), libc::EFAULT);
            assert_eq!(from(bytes.as_mut_ptr().cast(), dm, offset, length), libc::EFAULT);
        }
        let reg = table().reg_dm_mr.unwrap();
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
        let zero = access | IBV_ACCESS_ZERO_BASED;
        for (offset, length, flags) in [(0, 104, zero), (96, 8, zero), (0, 100, access), (u64::MAX, 1, zero)]
        {
            assert_eq!(refused(reg(objects.pd, dm, offset, length, flags)), libc::EINVAL);
        }
        let empty = reg(objects.pd, dm, 100, 0, zero);
        let from = (objects.memory.as_ptr() as u64, lkey_of(&objects));
        assert_ne!(write(&objects, from, (0, (*empty).rkey)), IBV_WC_SUCCESS, "it has no byte");
        assert_eq!((ibv_dereg_mr(empty), free(dm)), (0, 0));
    }
}

#[test]
fn a_peer_writes_device_memory_by_its_offset() {
    let objects = Objects::new();
    objects.connect();
    let _alone = DEVICE_MEMORY.lock();
    // SAFETY: all objects are alive until they are destroyed at the end.
    unsafe {
        let mut wanted = ibv_alloc_dm_attr { length: 64, log_align_req: 0, comp_mask: 0 };
        let dm = table().alloc_dm.unwrap()(context(), &mut wanted);
        let flags = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ZERO_BASED;
        let mr = table().reg_dm_mr.unwrap()(objects.pd, dm, 32, 32, flags);
        let memory = objects.memory.as_ptr() as u64;
        (memory as *mut u64).write(0x0102_0304_0506_0708);
        assert_eq!(write(&objects, (memory, lkey_of(&objects)), (8, (*mr).rkey)), IBV_WC_SUCCESS);
        let mut word = 0_u64;
        assert_eq!((*dm).memcpy_from_dm.unwrap()((&raw mut word).cast(), dm, 40, 8), 0);
        assert_eq!(word, 0x0102_0304_0506_0708);
        let changed = ibv_rereg_mr(mr, ACCESS, null_mut(), null_mut(), 0, 1);
        assert_eq!((changed, errno()), (IBV_REREG_MR_ERR_CMD, libc::EOPNOTSUPP));
        let free = table().free_dm.unwrap();
        assert_eq!((free(dm), ibv_dereg_mr(mr), free(dm)), (libc::EBUSY, 0, 0));
        assert_eq!(free(dm), libc::ENOENT);
    }
}

#[test]
fn a_region_of_a_parent_domain_works_in_its_protection_domain() {
    let objects = Objects::new();
    objects.connect();
    // SAFETY: all objects are alive until they are destroyed at the end; invalid arguments are refused.
    unsafe {
        let td = table().alloc_td.unwrap()(context(), &mut ibv_td_init_attr { comp_mask: 0 });
        let make = |pd, comp_mask| {
            let mut wanted = ibv_parent_domain_init_attr { pd, td, comp_mask, ..Default::default() };
            table().alloc_parent_domain.unwrap()(context(), &mut wanted)
        };
        assert_eq!(refused(make(null_mut(), 0)), libc::EINVAL);
        assert_eq!(refused(make(objects.pd, 4)), libc::EINVAL);
        let parent = make(objects.pd, 0);
        let start = objects.memory.as_ptr() as u64;
        // A queue pair of the protection domain can use a region of its parent domain.
        let mr = ibv_reg_mr(parent, start as *mut c_void, 64, 3);
        assert_eq!(write(&objects, (start, (*mr).lkey), (start + 8, (*mr).rkey)), IBV_WC_SUCCESS);
        let mut cq =
            ibv_cq_init_attr_ex { cqe: 4, comp_mask: IBV_CQ_INIT_ATTR_MASK_PD, ..Default::default() };
        cq.parent_domain = objects.pd;
        assert_eq!(
            refused(table().create_cq_ex.unwrap()(context(), &mut cq)),
            libc::EINVAL,
            "no parent domain"
        );
        cq.parent_domain = parent;
        assert_eq!(ibv_destroy_cq(table().create_cq_ex.unwrap()(context(), &mut cq).cast()), 0);
        let free_td = table().dealloc_td.unwrap();
        assert_eq!((ibv_dealloc_pd(parent), free_td(td)), (libc::EBUSY, libc::EBUSY));
        assert_eq!((ibv_dereg_mr(mr), ibv_dealloc_pd(parent), free_td(td)), (0, 0, 0));
    }
}
