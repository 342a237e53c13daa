//! Work requests of extended queue pairs (`ibv_wr_start(3)`): one call begins a request, others fill it in, and all are posted together.

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, at, injected, status};
use crate::ibverbs::address::Ah;
use crate::ibverbs::post::{buffers, inline, sge};
use crate::ibverbs::queue_pair::{Inner, Qp};
use crate::ibverbs::window;
use std::ffi::{c_int, c_uint, c_void};
use verbs::fault::Verb;
use verbs::wire::Feth;
use verbs::xrc::SrqNumber;
use verbs::{Capabilities, Data, Qpn, Remote, Rkey, SendOperation, SendRequest, Sge};

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct WorkRequestBatch {
    requests: Vec<SendRequest>,
    /// The first error; `ibv_wr_complete` returns it.
    error: Option<Errno>,
}

/// The operations that a program may request.
pub(crate) const OPERATIONS: u64 = (IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_SEND
    | IBV_QP_EX_WITH_SEND_WITH_IMM
    | IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW
    | IBV_QP_EX_WITH_ATOMIC_WRITE) as u64
    | WITH_FLUSH;

/// `IBV_QP_EX_WITH_FLUSH`, of rdma-core 45 and later.
const WITH_FLUSH: u64 = 1 << 11;

/// `wr_flush`: key, address, bytes, placement, selectivity.
pub(crate) type Flush = unsafe extern "C" fn(*mut ibv_qp_ex, u32, u64, usize, u8, u8);

/// The offset of `wr_flush` in a queue pair, after the last function of older headers.
pub(crate) const FLUSH_SLOT: usize = std::mem::offset_of!(ibv_qp_ex, wr_atomic_write) + size_of::<usize>();

/// Returns the table of functions. Every slot is set, because programs call them without checking for null.
pub(crate) fn table(base: ibv_qp) -> ibv_qp_ex {
    ibv_qp_ex {
        qp_base: base,
        wr_atomic_cmp_swp: Some(compare_swap),
        wr_atomic_fetch_add: Some(fetch_add),
        wr_bind_mw: Some(bind_mw),
        wr_local_inv: Some(local_invalidate),
        wr_rdma_read: Some(read),
        wr_rdma_write: Some(write),
        wr_rdma_write_imm: Some(write_immediate),
        wr_send: Some(send),
        wr_send_imm: Some(send_immediate),
        wr_send_inv: Some(send_invalidate),
        wr_send_tso: Some(send_tso),
        wr_set_ud_addr: Some(set_address),
        wr_set_xrc_srqn: Some(set_shared_receives),
        wr_set_inline_data: Some(set_inline),
        wr_set_inline_data_list: Some(set_inline_list),
        wr_set_sge: Some(set_buffer),
        wr_set_sge_list: Some(set_buffers),
        wr_start: Some(start),
        wr_complete: Some(complete),
        wr_abort: Some(abort),
        wr_atomic_write: Some(atomic_write),
        ..Default::default()
    }
}

/// Changes the batch. `ibv_wr_complete` returns the first error.
///
/// # Safety
/// The caller must pass a live queue pair.
unsafe fn edit(qp: *mut ibv_qp_ex, change: impl FnOnce(&mut Inner) -> Result<(), Errno>) {
    // SAFETY: guaranteed by the caller.
    let Ok(whole) = (unsafe { Qp::from(qp.cast()) }) else { return };
    let mut inner = whole.lock();
    if let Err(errno) = change(&mut inner) {
        inner.batch.error.get_or_insert(errno);
    }
}

/// # Safety
/// As [`edit`].
unsafe fn begin(qp: *mut ibv_qp_ex, operation: SendOperation) {
    // SAFETY: guaranteed by the caller; the program sets both fields before this call.
    unsafe {
        let (id, flags) = ((*qp).wr_id, (*qp).wr_flags);
        let flag = |flag: ibv_send_flags| flags & flag as c_uint != 0;
        let (signalled, solicited) = (flag(IBV_SEND_SIGNALED), flag(IBV_SEND_SOLICITED));
        let fence = flag(IBV_SEND_FENCE);
        edit(qp, |inner| {
            let data = Data::empty();
            inner.batch.requests.push(SendRequest {
                id,
                operation,
                data,
                signalled,
                solicited,
                fence,
                srq: None,
            });
            Ok(())
        });
    }
}

/// # Safety
/// As [`edit`].
unsafe fn set_data(qp: *mut ibv_qp_ex, data: impl FnOnce(Capabilities) -> Result<Data, Errno>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        edit(qp, |inner| {
            let data = data(inner.qp.capabilities())?;
            inner.batch.requests.last_mut().ok_or(INVALID)?.data = data;
            Ok(())
        });
    }
}

fn remote(address: u64, rkey: u32) -> Remote {
    Remote { address, rkey: Rkey::new(rkey) }
}

unsafe extern "C" fn compare_swap(qp: *mut ibv_qp_ex, rkey: u32, address: u64, compare: u64, swap: u64) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::CompareSwap { remote: remote(address, rkey), compare, swap }) }
}

unsafe extern "C" fn fetch_add(qp: *mut ibv_qp_ex, rkey: u32, address: u64, add: u64) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::FetchAdd { remote: remote(address, rkey), add }) }
}

unsafe extern "C" fn read(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::Read { remote: remote(address, rkey) }) }
}

unsafe extern "C" fn write(qp: *mut ibv_qp_ex, rkey: u32, address: u64) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::Write { remote: remote(address, rkey), immediate: None }) }
}

unsafe extern "C" fn write_immediate(qp: *mut ibv_qp_ex, rkey: u32, address: u64, immediate: __be32) {
    let immediate = Some(immediate.to_ne_bytes());
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::Write { remote: remote(address, rkey), immediate }) }
}

unsafe extern "C" fn send(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::Send { immediate: None }) }
}

unsafe extern "C" fn send_immediate(qp: *mut ibv_qp_ex, immediate: __be32) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::Send { immediate: Some(immediate.to_ne_bytes()) }) }
}

unsafe extern "C" fn send_invalidate(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::SendInvalidate { rkey: Rkey::new(rkey) }) }
}

unsafe extern "C" fn local_invalidate(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the contract of the manual page.
    unsafe { begin(qp, SendOperation::LocalInvalidate { rkey: Rkey::new(rkey) }) }
}

unsafe extern "C" fn bind_mw(qp: *mut ibv_qp_ex, mw: *mut ibv_mw, rkey: u32, info: *const ibv_mw_bind_info) {
    // SAFETY: the contract of the manual page.
    unsafe {
        match at(info).and_then(|info| window::binding(mw, rkey, info)) {
            Ok(binding) => begin(qp, SendOperation::Bind(binding)),
            Err(errno) => edit(qp, |_| Err(errno)),
        }
    }
}

unsafe extern "C" fn set_address(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, queue_key: u32) {
    // SAFETY: the contract of the manual page.
    unsafe {
        edit(qp, |inner| {
            let to = at(ah.cast::<Ah>())?.handle.to(Qpn::new(qpn & 0xff_ffff), queue_key);
            let request = inner.batch.requests.last_mut().ok_or(INVALID)?;
            let SendOperation::Send { immediate } = request.operation else { return Err(INVALID) };
            request.operation = SendOperation::SendTo { to, immediate };
            Ok(())
        });
    }
}

unsafe extern "C" fn set_buffer(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    let one: Sge = sge(ibv_sge { addr, length, lkey });
    // SAFETY: the contract of the manual page.
    unsafe { set_data(qp, |_| Ok(Data::from(one))) }
}

unsafe extern "C" fn set_buffers(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_sge) {
    // SAFETY: the contract of the manual page.
    unsafe {
        set_data(qp, |limits| {
            Ok(Data::Buffers(buffers(list, count, limits.max_send_sge)?.map(sge).collect()))
        });
    }
}

unsafe extern "C" fn set_inline(qp: *mut ibv_qp_ex, address: *mut c_void, length: usize) {
    let one = ibv_data_buf { addr: address, length };
    // SAFETY: the contract of the manual page; the list lives through the call.
    unsafe { set_inline_list(qp, 1, &one) }
}

unsafe extern "C" fn set_inline_list(qp: *mut ibv_qp_ex, count: usize, list: *const ibv_data_buf) {
    // SAFETY: the contract of the manual page.
    unsafe {
        set_data(qp, |Capabilities { max_inline: limit, .. }| {
            if list.is_null() || count > limit as usize {
                return Err(INVALID);
            }
            let all = std::slice::from_raw_parts(list, count).iter().map(|buffer| {
                let length = u32::try_from(buffer.length).map_err(|_| INVALID)?;
                Ok(ibv_sge { addr: buffer.addr as u64, length, lkey: 0 })
            });
            inline(all.collect::<Result<Vec<_>, Errno>>()?.into_iter(), limit)
        });
    }
}

unsafe extern "C" fn start(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of the manual page.
    unsafe { abort(qp) }
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of the manual page.
    unsafe {
        edit(qp, |inner| {
            inner.batch.requests.clear();
            inner.batch.error = None;
            Ok(())
        });
    }
}

/// Posts the batch, or returns its first error.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    status(|| {
        injected(Verb::PostSend)?;
        // SAFETY: the contract of the manual page.
        let mut inner = unsafe { Qp::from(qp.cast()) }?.lock();
        let Inner { qp, batch, .. } = &mut *inner;
        let error = batch.error.take();
        if let Some(error) = error {
            batch.requests.clear();
            return Err(error);
        }
        qp.post_send_list(batch.requests.drain(..)).map_err(|list| Errno::from(list.error))?;
        Ok(())
    })
}

/// `ibv_wr_flush(3)`
pub(crate) unsafe extern "C" fn flush(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    address: u64,
    length: usize,
    placement: u8,
    selectivity: u8,
) {
    const GLOBAL: u8 = 1;
    const PERSISTENT: u8 = 2;
    let legal = placement != 0 && placement & !(GLOBAL | PERSISTENT) == 0 && selectivity <= 1;
    // SAFETY: the contract of the manual page.
    unsafe {
        match u32::try_from(length) {
            Ok(length) if legal => {
                let to = Feth::new(placement & GLOBAL != 0, placement & PERSISTENT != 0, selectivity == 1);
                begin(qp, SendOperation::Flush { remote: remote(address, rkey), length, to });
            }
            _ => edit(qp, |_| Err(INVALID)),
        }
    }
}

/// Records that an operation is not supported with any arguments.
///
/// # Safety
/// As [`edit`].
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: guaranteed by the caller.
    unsafe { edit(qp, |_| Err(UNSUPPORTED)) }
}

unsafe extern "C" fn set_shared_receives(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: the contract of the manual page.
    unsafe {
        edit(qp, |inner| {
            inner.batch.requests.last_mut().ok_or(INVALID)?.srq = Some(SrqNumber::new(number));
            Ok(())
        });
    }
}

unsafe extern "C" fn send_tso(qp: *mut ibv_qp_ex, _header: *mut c_void, _size: u16, _segment: u16) {
    // SAFETY: the contract of the manual page.
    unsafe { refuse(qp) }
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, address: u64, word: *const c_void) {
    // SAFETY: the contract of the manual page: null, or 8 bytes, aligned or not.
    unsafe {
        begin(qp, SendOperation::AtomicWrite { remote: remote(address, rkey) });
        set_data(qp, |_| match word.is_null() {
            true => Err(INVALID),
            false => Ok(Data::inline(&word.cast::<[u8; 8]>().read_unaligned())),
        });
    }
}
