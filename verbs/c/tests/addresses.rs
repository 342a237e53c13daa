//! Regions whose requests use other addresses than those of the memory: `ibv_reg_mr_iova2`, and zero-based regions.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint};
use std::ptr::null_mut;

/// Waits for one completion. Returns its status.
unsafe fn ended(cq: *mut ibv_cq) -> ibv_wc_status {
    let mut wc = ibv_wc::default();
    // SAFETY: the queue is alive.
    while unsafe { (*context()).ops.poll_cq.unwrap()(cq, 1, &mut wc) } == 0 {}
    wc.status
}

/// WRITEs 64 bytes over the queue pair that is connected to itself. `from` and `to` are addresses with their keys.
unsafe fn write(objects: &Objects, from: (u64, u32), to: (u64, u32)) -> ibv_wc_status {
    let mut sge = ibv_sge { addr: from.0, length: 64, lkey: from.1 };
    let mut wr = ibv_send_wr {
        opcode: IBV_WR_RDMA_WRITE,
        send_flags: IBV_SEND_SIGNALED as c_uint,
        sg_list: &mut sge,
        num_sge: 1,
        ..Default::default()
    };
    (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = to;
    // SAFETY: the request fulfils the contract of the manual page.
    unsafe {
        assert_eq!((*context()).ops.post_send.unwrap()(objects.qp, &mut wr, &mut null_mut()), 0);
        ended(objects.cq)
    }
}

#[test]
fn both_ends_use_the_requested_addresses() {
    let mut objects = Objects::new();
    objects.connect();
    objects.memory[..64].fill(0x5a);
    let memory = objects.memory.as_mut_ptr();
    let rights = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
    // SAFETY: the memory is valid, and the regions are alive, until they are deregistered.
    unsafe {
        let elsewhere = ibv_reg_mr_iova2(objects.pd, memory.cast(), 4096, 0x10_0000, rights);
        let zero_based = rights | IBV_ACCESS_ZERO_BASED;
        let zero = ibv_reg_mr(objects.pd, memory.add(4096).cast(), 4096, zero_based as c_int);
        let third = ibv_reg_mr_iova(objects.pd, memory.cast(), 4096, 8, rights as c_int);
        assert!(!elsewhere.is_null() && !zero.is_null() && !third.is_null());
        assert_eq!(((*elsewhere).addr, (*zero).addr), (memory.cast(), memory.add(4096).cast()));
        let good = IBV_WC_SUCCESS;
        assert_eq!(write(&objects, (0x10_0000, (*elsewhere).lkey), (100, (*zero).rkey)), good);
        assert_eq!(objects.memory[4096 + 100..4096 + 164], [0x5a; 64]);
        assert_eq!(write(&objects, (100, (*zero).lkey), (8 + 1000, (*third).rkey)), good);
        assert_eq!(objects.memory[1000..1064], [0x5a; 64]);
        // The memory's own address is not in the region.
        let own = (memory as u64, (*elsewhere).lkey);
        assert_eq!(write(&objects, own, (0, (*zero).rkey)), IBV_WC_LOC_PROT_ERR);
        for mr in [elsewhere, zero, third] {
            assert_eq!(ibv_dereg_mr(mr), 0);
        }
        // The region would exceed the address space.
        let over = ibv_reg_mr_iova2(objects.pd, memory.cast(), 4096, u64::MAX - 100, rights);
        assert_eq!(refused(over), libc::EINVAL);
    }
}
