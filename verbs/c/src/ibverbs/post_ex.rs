//! Work requests of extended queue pairs (`ibv_wr_start(3)`): one call begins a request, others fill it in, and all are posted together.

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, at, injected, status};
use crate::ibverbs::address::Ah;
use crate::ibverbs::lock::{Guard, Lock, Rank};
use crate::ibverbs::post::{buffers, inline, sge};
use crate::ibverbs::queue_pair::Qp;
use crate::ibverbs::window;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::Condvar;
use verbs::fault::Verb;
use verbs::wire::Feth;
use verbs::xrc::SrqNumber;
use verbs::{Capabilities, Data, Qpn, Remote, Rkey, SendOperation, SendRequest, Sge};

/// The critical section of a queue pair that `ibv_wr_start` opens, and `ibv_wr_complete` or `ibv_wr_abort` closes. ibv_wr_post(3) promises
/// that no other thread enters it meanwhile.
pub(crate) struct Posting {
    batch: Lock<Batch>,
    closed: Condvar,
    limits: Capabilities,
}

impl Posting {
    /// `limits` are those of the queue pair.
    pub(crate) fn new(limits: Capabilities) -> Self {
        Self { batch: Lock::new(Rank::Batch, Batch::default()), closed: Condvar::new(), limits }
    }
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
struct Batch {
    /// The thread that has opened the section. If it opens the section again without closing it, the requests so far are dropped, whereas
    /// rdma-core's drivers would wait permanently.
    owner: Option<libc::pthread_t>,
    /// Whether a thread waits for the section: only then is closing it a system call.
    is_awaited: bool,
    requests: Vec<SendRequest>,
    /// The first error; `ibv_wr_complete` returns it.
    error: Option<Errno>,
}

/// An open section. Dropping it, also in a panic, closes the section and drops the requests.
struct Open<'a> {
    batch: Guard<'a, Batch>,
    closed: &'a Condvar,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let is_awaited = self.batch.is_awaited;
        *self.batch = Batch { requests: std::mem::take(&mut self.batch.requests), ..Batch::default() };
        self.batch.requests.clear();
        if is_awaited {
            self.closed.notify_all();
        }
    }
}

impl Batch {
    fn last(&mut self) -> Result<&mut SendRequest, Errno> {
        self.requests.last_mut().ok_or(INVALID)
    }
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
unsafe fn edit(qp: *mut ibv_qp_ex, change: impl FnOnce(Capabilities, &mut Batch) -> Result<(), Errno>) {
    // SAFETY: guaranteed by the caller.
    let Ok(Qp { posting, .. }) = (unsafe { Qp::from(qp.cast()) }) else { return };
    let mut batch = posting.batch.lock();
    if let Err(errno) = change(posting.limits, &mut batch) {
        batch.error.get_or_insert(errno);
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
        edit(qp, |_, batch| {
            let data = Data::empty();
            batch.requests.push(SendRequest { id, operation, data, signalled, solicited, fence, srq: None });
            Ok(())
        });
    }
}

/// # Safety
/// As [`edit`].
unsafe fn set_data(qp: *mut ibv_qp_ex, data: impl FnOnce(Capabilities) -> Result<Data, Errno>) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        edit(qp, |limits, batch| {
            batch.last()?.data = data(limits)?;
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
            Err(errno) => edit(qp, |_, _| Err(errno)),
        }
    }
}

unsafe extern "C" fn set_address(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, queue_key: u32) {
    // SAFETY: the contract of the manual page.
    unsafe {
        edit(qp, |_, batch| {
            let to = at(ah.cast::<Ah>())?.handle.to(Qpn::new(qpn & 0xff_ffff), queue_key);
            let request = batch.last()?;
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
    let Ok(Qp { posting, .. }) = (unsafe { Qp::from(qp.cast()) }) else { return };
    // SAFETY: pthread_self has no preconditions.
    let this = unsafe { libc::pthread_self() };
    let is_busy = |batch: &mut Batch| {
        let is_busy = batch.owner.is_some_and(|owner| owner != this);
        batch.is_awaited |= is_busy;
        is_busy
    };
    let mut batch = posting.batch.lock_when_free(&posting.closed, is_busy);
    batch.owner = Some(this);
    batch.requests.clear();
    batch.error = None;
}

unsafe extern "C" fn abort(qp: *mut ibv_qp_ex) {
    // SAFETY: the contract of the manual page.
    let _ = unsafe { close(qp, |_, _| Ok(())) };
}

/// Posts the batch, or returns its first error and posts nothing.
unsafe extern "C" fn complete(qp: *mut ibv_qp_ex) -> c_int {
    // SAFETY: the contract of the manual page.
    status(|| unsafe {
        close(qp, |qp, batch| {
            injected(Verb::PostSend)?;
            batch.error.take().map_or(Ok(()), Err)?;
            qp.lock().qp.post_send_all(&mut batch.requests).map_err(Errno::from)
        })
    })
}

/// Calls `last` with the batch, drops the requests that remain in it, and closes the section.
///
/// # Safety
/// As [`edit`].
unsafe fn close(
    qp: *mut ibv_qp_ex,
    last: impl FnOnce(&Qp, &mut Batch) -> Result<(), Errno>,
) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    let qp = unsafe { Qp::from(qp.cast()) }?;
    let mut open = Open { batch: qp.posting.batch.lock(), closed: &qp.posting.closed };
    last(qp, &mut open.batch)
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
            _ => edit(qp, |_, _| Err(INVALID)),
        }
    }
}

/// Records that an operation is not supported with any arguments.
///
/// # Safety
/// As [`edit`].
unsafe fn refuse(qp: *mut ibv_qp_ex) {
    // SAFETY: guaranteed by the caller.
    unsafe { edit(qp, |_, _| Err(UNSUPPORTED)) }
}

unsafe extern "C" fn set_shared_receives(qp: *mut ibv_qp_ex, number: u32) {
    // SAFETY: the contract of the manual page.
    unsafe {
        edit(qp, |_, batch| {
            batch.last()?.srq = Some(SrqNumber::new(number));
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
