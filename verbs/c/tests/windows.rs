//! Memory windows and their invalidation, in a C program.

mod common;

use common::*;
use ferroce_c::abi::*;
use ferroce_c::*;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;

/// Returns a request that generates a completion.
fn signalled(opcode: c_uint) -> ibv_send_wr {
    ibv_send_wr { opcode, send_flags: IBV_SEND_SIGNALED as c_uint, ..Default::default() }
}

/// Sends a message of a queue pair to itself through each type of memory window, and invalidates a window in each possible way.
#[test]
fn memory_windows_are_bound_used_and_taken_back() {
    let objects = Objects::new();
    objects.connect();
    // SAFETY: all objects are alive, the memory outlives the requests, and the requests fulfil the contract of the manual pages.
    unsafe {
        let memory = objects.memory.as_ptr() as u64;
        let flags = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) as c_int;
        let whole = ibv_reg_mr(objects.pd, memory as *mut c_void, 4096, flags);
        let alloc = (*context()).ops.alloc_mw.unwrap();
        let (free, bind_one) = ((*context()).ops.dealloc_mw.unwrap(), (*context()).ops.bind_mw.unwrap());
        assert_eq!(refused(alloc(objects.pd, 3)), libc::EINVAL);
        let (one, two) = (alloc(objects.pd, IBV_MW_TYPE_1), alloc(objects.pd, IBV_MW_TYPE_2));
        let info = ibv_mw_bind_info {
            mr: whole,
            addr: memory + 64,
            length: 64,
            mw_access_flags: IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE,
        };

        // Type 2: bound by a work request, and invalidated by the SEND after the WRITE.
        let rkey = (*two).rkey ^ 0x55;
        let mut bind = signalled(IBV_WR_BIND_MW);
        bind.__bindgen_anon_2.bind_mw =
            ibv_send_wr__bindgen_ty_4__bindgen_ty_1 { mw: two, rkey, bind_info: info };
        assert_eq!(objects.post(&mut bind).0, 0);
        assert_eq!((objects.poll().opcode, ibv_dereg_mr(whole)), (IBV_WC_BIND_MW, libc::EBUSY));
        let mut sge = ibv_sge { addr: memory + 4096, length: 8, lkey: (*objects.mr).lkey };
        (sge.addr as *mut u64).write(0x1122_3344_5566_7788);
        let mut write = signalled(IBV_WR_RDMA_WRITE);
        (write.sg_list, write.num_sge) = (&mut sge, 1);
        write.wr.rdma = ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: memory + 64, rkey };
        let mut empty = ibv_recv_wr { wr_id: 7, ..Default::default() };
        let mut bad = null_mut();
        assert_eq!((*context()).ops.post_recv.unwrap()(objects.qp, &mut empty, &mut bad), 0);
        let mut send = signalled(IBV_WR_SEND_WITH_INV);
        send.__bindgen_anon_1.invalidate_rkey = rkey;
        write.next = &mut send;
        assert_eq!(objects.post(&mut write).0, 0);
        let mut seen: Vec<_> = (0..3).map(|_| objects.poll()).collect();
        seen.sort_by_key(|wc| wc.opcode);
        assert_eq!(
            seen.iter().map(|wc| wc.opcode).collect::<Vec<_>>(),
            [IBV_WC_SEND, IBV_WC_RDMA_WRITE, IBV_WC_RECV]
        );
        assert!(seen.iter().all(|wc| wc.status == IBV_WC_SUCCESS));
        assert_eq!(seen[2].wc_flags, IBV_WC_WITH_INV as c_uint);
        assert_eq!(seen[2].__bindgen_anon_1.invalidated_rkey, rkey);
        assert_eq!(((memory + 64) as *const u64).read_volatile(), 0x1122_3344_5566_7788);

        // Type 1: bound by its verb, which returns the new rkey immediately. A binding to an empty range unbinds it.
        let before = (*one).rkey;
        let mut bind = ibv_mw_bind { wr_id: 9, send_flags: IBV_SEND_SIGNALED as c_uint, bind_info: info };
        assert_eq!(bind_one(objects.qp, one, &mut bind), 0);
        assert_ne!((*one).rkey, before);
        write.wr.rdma.rkey = (*one).rkey;
        write.next = null_mut();
        assert_eq!(objects.post(&mut write).0, 0);
        assert_eq!((objects.poll().wr_id, objects.poll().status), (9, IBV_WC_SUCCESS));
        bind.bind_info = ibv_mw_bind_info::default();
        assert_eq!(bind_one(objects.qp, one, &mut bind), 0);
        assert_eq!((objects.poll().status, ibv_dereg_mr(whole)), (IBV_WC_SUCCESS, 0));

        // The invalidation of an invalid key fails the queue pair.
        let mut invalidate = signalled(IBV_WR_LOCAL_INV);
        invalidate.__bindgen_anon_1.invalidate_rkey = rkey;
        assert_eq!(objects.post(&mut invalidate).0, 0);
        assert_eq!(objects.poll().status, IBV_WC_LOC_QP_OP_ERR);
        assert_eq!(ibv_dealloc_pd(objects.pd), libc::EBUSY);
        assert_eq!((free(one), free(two)), (0, 0));
    }
}

/// Writes eight bytes atomically, by a request and by the call of an extended queue pair.
#[test]
fn an_eight_byte_word_is_written_atomically() {
    let objects = Objects::new();
    objects.connect();
    let start = objects.memory.as_ptr() as u64;
    // SAFETY: all objects are alive, the memory outlives the requests, and the requests fulfil the contract of the manual pages.
    unsafe {
        let mut sge = ibv_sge { addr: start, length: 8, lkey: (*objects.mr).lkey };
        (start as *mut u64).write(0x0102_0304_0506_0708);
        let mut write = signalled(IBV_WR_ATOMIC_WRITE);
        (write.sg_list, write.num_sge) = (&mut sge, 1);
        write.wr.rdma =
            ibv_send_wr__bindgen_ty_2__bindgen_ty_1 { remote_addr: start + 4096, rkey: (*objects.mr).rkey };
        assert_eq!(objects.post(&mut write).0, 0);
        let done = objects.poll();
        assert_eq!((done.status, done.opcode), (IBV_WC_SUCCESS, IBV_WC_ATOMIC_WRITE));
        assert_eq!(((start + 4096) as *const u64).read_volatile(), 0x0102_0304_0506_0708);
        write.wr.rdma.remote_addr += 4;
        assert_eq!(objects.post(&mut write).0, libc::EINVAL, "not aligned");

        let extended = objects.qp.cast::<ibv_qp_ex>();
        let word = 0x1112_1314_1516_1718_u64;
        ((*extended).wr_id, (*extended).wr_flags) = (3, IBV_SEND_SIGNALED as c_uint);
        (*extended).wr_start.unwrap()(extended);
        (*extended).wr_atomic_write.unwrap()(
            extended,
            (*objects.mr).rkey,
            start + 4104,
            (&raw const word).cast(),
        );
        assert_eq!((*extended).wr_complete.unwrap()(extended), 0);
        assert_eq!((objects.poll().wr_id, ((start + 4104) as *const u64).read_volatile()), (3, word));
    }
}

/// The calls of an extended queue pair: bind, flush, invalidate. `ibv_wr_complete` returns errors.
#[test]
fn extended_queue_pairs_bind_flush_and_invalidate() {
    type Flush = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);
    let objects = Objects::new();
    // The queue pair is its own peer, which may flush.
    objects.connect_with(15 | 1 << 8);
    let memory = objects.memory.as_ptr() as u64;
    // SAFETY: all objects are alive, the memory outlives the requests, and the calls fulfil the contract of the manual pages.
    unsafe {
        let flags = (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_MW_BIND) as c_int;
        let whole = ibv_reg_mr(objects.pd, memory as *mut c_void, 4096, flags | 1 << 8);
        let window = (*context()).ops.alloc_mw.unwrap()(objects.pd, IBV_MW_TYPE_2);
        let rkey = (*window).rkey ^ 1;
        let access = IBV_ACCESS_REMOTE_WRITE;
        let info = ibv_mw_bind_info { mr: whole, addr: memory, length: 4096, mw_access_flags: access };
        let qp = objects.qp.cast::<ibv_qp_ex>();
        let flush = std::mem::offset_of!(ibv_qp_ex, wr_atomic_write) + size_of::<usize>();
        let flush = qp.byte_add(flush).cast::<Flush>().read();
        (*qp).wr_flags = IBV_SEND_SIGNALED as c_uint;

        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_bind_mw.unwrap()(qp, window, rkey, &info);
        flush(qp, (*whole).rkey, memory, 4096, 1, 0);
        (*qp).wr_local_inv.unwrap()(qp, rkey);
        assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
        let seen: Vec<_> = (0..3).map(|_| objects.poll()).map(|wc| (wc.status, wc.opcode)).collect();
        let ok = IBV_WC_SUCCESS;
        assert_eq!(seen, [(ok, IBV_WC_BIND_MW), (ok, 8), (ok, IBV_WC_LOCAL_INV)]);

        let wrong_rights = ibv_mw_bind_info { mw_access_flags: IBV_ACCESS_MW_BIND, ..info };
        let no_region = ibv_mw_bind_info { mr: null_mut(), ..info };
        for wrong in [wrong_rights, no_region] {
            (*qp).wr_start.unwrap()(qp);
            (*qp).wr_bind_mw.unwrap()(qp, window, rkey, &wrong);
            assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
        }
        for (placement, selectivity) in [(0, 0), (4, 0), (1, 2)] {
            (*qp).wr_start.unwrap()(qp);
            flush(qp, rkey, memory, 1, placement, selectivity);
            assert_eq!((*qp).wr_complete.unwrap()(qp), libc::EINVAL);
        }

        // Binds the window again, and invalidates it by a message to itself.
        let mut empty = ibv_recv_wr { wr_id: 7, ..Default::default() };
        let mut bad = null_mut();
        assert_eq!((*context()).ops.post_recv.unwrap()(objects.qp, &mut empty, &mut bad), 0);
        (*qp).wr_start.unwrap()(qp);
        (*qp).wr_bind_mw.unwrap()(qp, window, rkey ^ 2, &info);
        (*qp).wr_send_inv.unwrap()(qp, rkey ^ 2);
        assert_eq!((*qp).wr_complete.unwrap()(qp), 0);
        let mut seen: Vec<_> = (0..3).map(|_| objects.poll()).collect();
        seen.sort_by_key(|wc| wc.opcode);
        assert_eq!(seen[2].__bindgen_anon_1.invalidated_rkey, rkey ^ 2);
        assert_eq!(ibv_dereg_mr(whole), 0);
        assert_eq!((*context()).ops.dealloc_mw.unwrap()(window), 0);
    }
}

#[test]
fn the_device_reports_its_window_capabilities() {
    let mut attributes = ibv_device_attr::default();
    // SAFETY: the context is open, and there is room for the attributes.
    assert_eq!(unsafe { ibv_query_device(context(), &mut attributes) }, 0);
    let flags = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_MEM_MGT_EXTENSIONS;
    assert_eq!(attributes.device_cap_flags & flags, flags);
    assert_eq!(attributes.max_mw, attributes.max_mr);
}
