//! Queue pairs: their creation, queries and destruction. `modify.rs` changes their states.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, at, created, injected, out, status};
use crate::ibverbs::completion::Cq;
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::event::Object;
use crate::ibverbs::flow;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Guard, Lock, Rank};
use crate::ibverbs::post_ex;
use crate::ibverbs::srq::Srq;
use crate::ibverbs::work_queue::{self, Table};
use crate::ibverbs::xrc::{self, Xrcd};
use crate::memory_reserve;
use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use verbs::congestion::Congestion;
use verbs::fault::Verb;
use verbs::service::Any;
use verbs::state::State;
use verbs::{Capabilities, Qpn, QueuePair, Service};

/// A queue pair. `ibv_qp_ex` begins with the fields of `ibv_qp`.
#[repr(C)]
pub(crate) struct Qp {
    abi: UnsafeCell<ibv_qp_ex>,
    /// Slot of `wr_flush`, which only headers of rdma-core 45 and later declare.
    _later: UnsafeCell<Option<post_ex::Flush>>,
    /// Whether the queue pair was created for `ibv_wr_start` and the related calls.
    extended: bool,
    pub(crate) posting: post_ex::Posting,
    /// Shared with the queue pairs that `ibv_open_qp` returned for the same target.
    inner: Arc<Lock<Inner>>,
    /// The domain of an XRC target, or null.
    xrcd: *mut Xrcd,
    pub(crate) flows: AtomicUsize,
    /// The indirection table over whose queues the queue pair distributes frames, or null.
    pub(crate) table: AtomicPtr<Table>,
}

/// State that only one thread at a time uses.
pub(crate) struct Inner {
    pub(crate) qp: QueuePair<Any>,
    /// The attributes that the program has set, for `ibv_query_qp`.
    pub(crate) attributes: ibv_qp_attr,
    init: ibv_qp_init_attr,
    /// The congestion control from `ferroce_set_congestion`.
    pub(crate) congestion: Option<Congestion>,
}

// SAFETY: the library does not dereference the pointers, but only compares them and returns them to the program.
unsafe impl Send for Inner {}

impl Qp {
    /// # Safety
    /// The caller must pass null or a live queue pair.
    pub(crate) unsafe fn from<'a>(qp: *mut ibv_qp) -> Result<&'a Self, Errno> {
        // SAFETY: guaranteed by the caller; all fields that change are in cells.
        unsafe { at(qp.cast::<Self>()) }
    }

    /// Looks up a queue pair for a verb that changes it. Returns an error for a destroyed one.
    ///
    /// # Safety
    /// As [`live_objects::find`].
    pub(crate) unsafe fn find<'a>(qp: *mut ibv_qp) -> Result<&'a Self, Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe { live_objects::find(qp.cast::<Self>()) }
    }

    pub(crate) fn base(&self) -> ibv_qp {
        // SAFETY: only `state` changes after the creation, and it is one word.
        unsafe { (*self.abi.get()).qp_base }
    }

    pub(crate) fn lock(&self) -> Guard<'_, Inner> {
        self.inner.lock()
    }

    pub(crate) fn show_state(&self, state: ibv_qp_state) {
        // SAFETY: the caller holds the lock. A program that reads the field at the same time reads one word.
        unsafe { (&raw mut (*self.abi.get()).qp_base.state).write(state) };
    }
}

fn capabilities(cap: &ibv_qp_cap) -> Capabilities {
    Capabilities {
        max_send: cap.max_send_wr,
        max_recv: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline: cap.max_inline_data,
    }
}

/// The largest inline size, bytes, that a queue pair allows without a request of the program.
const LIST_INLINE: u32 = 64;

/// # Safety
/// The caller must pass a domain, completion queues and a shared receive queue that are null or alive.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    extended: bool,
) -> Result<*mut ibv_qp, Errno> {
    if init.qp_type == IBV_QPT_RAW_PACKET {
        flow::check_permission()?;
    }
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { live_objects::find(pd.cast::<Pd>()) }?;
    let service = match init.qp_type {
        IBV_QPT_RC => Service::Rc,
        IBV_QPT_UC => Service::Uc,
        IBV_QPT_UD => Service::Ud,
        IBV_QPT_XRC_SEND => {
            xrc::receive_nothing(init);
            Service::Xrc
        }
        IBV_QPT_RAW_PACKET => Service::Raw,
        _ => return Err(INVALID),
    };
    // SAFETY: guaranteed by the caller.
    let [send, recv] = [init.send_cq, init.recv_cq].map(|cq| unsafe { live_objects::find(cq.cast::<Cq>()) });
    let (send, recv) = (send?, recv?);
    // A queue has room for at least one request. The inline size is at least that of the list of buffers, because programs rely on that
    // with NICs.
    init.cap.max_send_wr = init.cap.max_send_wr.max(1);
    let list = init.cap.max_send_sge.saturating_mul(size_of::<ibv_sge>() as u32);
    init.cap.max_inline_data = init.cap.max_inline_data.max(list.min(LIST_INLINE));
    // SAFETY: guaranteed by the caller.
    let srq = unsafe { live_objects::find_any(init.srq.cast::<Srq>()) }?;
    for (depth, buffers) in
        [(init.cap.max_send_wr, init.cap.max_send_sge), (init.cap.max_recv_wr, init.cap.max_recv_sge)]
    {
        memory_reserve::check_requests(depth, buffers)?;
    }
    let builder = {
        let queue = send.queue.lock();
        domain.domain.queue_pair(&queue, &queue)
    };
    // Another thread may pass the same queues in the opposite order, so only one of them is locked at a time.
    let mut builder = builder.receive_completions(&recv.queue.lock());
    if let Some(srq) = srq {
        builder = builder.receive_from(&srq.queue.lock());
    }
    let builder = builder.service(service).capabilities(capabilities(&init.cap));
    let qp = builder.signal_all(init.sq_sig_all != 0).build_reset()?;
    let base = ibv_qp {
        // SAFETY: the domain is alive.
        context: unsafe { (*pd).context },
        qp_context: init.qp_context,
        pd,
        send_cq: init.send_cq,
        recv_cq: init.recv_cq,
        srq: init.srq,
        qp_num: qp.qpn().get(),
        state: IBV_QPS_RESET,
        qp_type: init.qp_type,
        ..Default::default()
    };
    if let Some(srq) = srq {
        srq.users.fetch_add(1, Ordering::AcqRel);
    }
    for users in [&domain.users, &send.users, &recv.users] {
        users.fetch_add(1, Ordering::AcqRel);
    }
    // SAFETY: the context is that of the domain, which is alive.
    Ok(unsafe { publish(base, Inner::new(qp, init), extended, null_mut()) })
}

impl Inner {
    pub(crate) fn new(qp: QueuePair<Any>, init: &ibv_qp_init_attr) -> Arc<Lock<Self>> {
        let attributes = ibv_qp_attr { cap: init.cap, ..Default::default() };
        let inner = Self { qp, attributes, init: *init, congestion: None };
        Arc::new(Lock::new(Rank::QueuePair, inner))
    }
}

/// Passes a queue pair to the program.
///
/// # Safety
/// The caller must pass a `base` whose context is null or open.
pub(crate) unsafe fn publish(
    base: ibv_qp,
    inner: Arc<Lock<Inner>>,
    extended: bool,
    xrcd: *mut Xrcd,
) -> *mut ibv_qp {
    let abi = UnsafeCell::new(post_ex::table(base));
    let (flows, table) = (AtomicUsize::new(0), AtomicPtr::default());
    let limits = inner.lock().qp.capabilities();
    let (posting, _later) = (post_ex::Posting::new(limits), UnsafeCell::new(None));
    let qp = live_objects::publish(Qp { abi, _later, extended, posting, inner, xrcd, flows, table });
    // SAFETY: the slot is in `abi`, or is `_later`, which follows it directly; no other thread has the queue pair yet.
    unsafe { qp.byte_add(post_ex::FLUSH_SLOT).cast::<Option<post_ex::Flush>>().write(Some(post_ex::flush)) };
    // SAFETY: guaranteed by the caller.
    if let Ok(context) = unsafe { Context::from(base.context) } {
        context.events.register(Object::Qp(Qpn::new(base.qp_num)), qp);
    }
    qp.cast()
}

/// `ibv_create_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    created(|| {
        injected(Verb::CreateQp)?;
        // SAFETY: the contract of the manual page.
        unsafe { create(pd, out(init)?, false) }
    })
}

/// `ibv_create_qp_ex(3)`
pub(crate) unsafe extern "C" fn create_qp_ex(
    _context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    created(|| {
        injected(Verb::CreateQp)?;
        // SAFETY: the contract of the manual page.
        let wanted = unsafe { out(init) }?;
        let operations = wanted.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0;
        let flags = wanted.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS != 0;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | work_queue::SPREAD;
        if wanted.comp_mask & !known != 0
            || (operations && wanted.send_ops_flags & !post_ex::OPERATIONS != 0)
            || (flags && wanted.create_flags != 0)
        {
            return Err(UNSUPPORTED);
        }
        if wanted.qp_type == IBV_QPT_XRC_RECV {
            let named = wanted.comp_mask & IBV_QP_INIT_ATTR_XRCD != 0;
            // SAFETY: the longer structure begins with the fields of the shorter one; the contract of the manual page.
            return unsafe {
                xrc::create_target(if named { wanted.xrcd } else { null_mut() }, out(init.cast())?)
            };
        }
        if wanted.comp_mask & work_queue::SPREAD != 0 {
            // SAFETY: the contract of the manual page.
            return unsafe { work_queue::create_spread(wanted) };
        }
        // SAFETY: the longer structure begins with the fields of the shorter one; the contract of the manual page.
        unsafe { create(wanted.pd, out(init.cast())?, operations) }
    })
}

/// `ibv_destroy_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_qp(qp: *mut ibv_qp) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find_last(qp.cast::<Qp>()) }?;
        if whole.flows.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        let (base, xrcd) = (whole.base(), whole.xrcd);
        let (pd, srq, cqs) = (base.pd, base.srq, [base.send_cq, base.recv_cq]);
        // SAFETY: the queue pair's context is open.
        unsafe { Context::from(base.context) }?.events.unregister_as(Object::Qp(Qpn::new(base.qp_num)), qp);
        let qpn = whole.lock().qp.qpn();
        // SAFETY: the program must not use the queue pair after this call.
        let table = unsafe { live_objects::reclaim(qp.cast::<Qp>()) }?.table.into_inner();
        // SAFETY: completion queues live as long as their queue pairs.
        unsafe { discard_completions(cqs, qpn) }?;
        // SAFETY: null, or alive as long as the queue pairs that distribute frames over it.
        if let Some(table) = unsafe { table.as_ref() } {
            table.users.fetch_sub(1, Ordering::AcqRel);
        }
        if !xrcd.is_null() {
            // SAFETY: an XRC domain lives as long as its targets.
            unsafe { live_objects::find(xrcd) }?.users.fetch_sub(1, Ordering::AcqRel);
            return Ok(());
        }
        // SAFETY: the domain and the completion queues live as long as their queue pairs.
        let users = unsafe { [&live_objects::find(pd.cast::<Pd>())?.users, users(cqs[0])?, users(cqs[1])?] };
        // SAFETY: null, or alive as long as its queue pairs.
        if let Some(srq) = unsafe { srq.cast::<Srq>().as_ref() } {
            srq.users.fetch_sub(1, Ordering::AcqRel);
        }
        for users in users {
            users.fetch_sub(1, Ordering::AcqRel);
        }
        Ok(())
    })
}

/// Removes the completions of a queue pair that was reset or destroyed, as mlx4 and mlx5 do. Afterwards programs free the objects to which
/// the ids of the requests point.
///
/// # Safety
/// The caller must pass completion queues that are null or alive.
pub(crate) unsafe fn discard_completions([send, recv]: [*mut ibv_cq; 2], qpn: Qpn) -> Result<(), Errno> {
    // Most queue pairs use one completion queue for both.
    for cq in [Some(send), Some(recv).filter(|&recv| recv != send)].into_iter().flatten() {
        // SAFETY: guaranteed by the caller.
        if let Some(cq) = unsafe { live_objects::find_any(cq.cast::<Cq>()) }? {
            // Fails only if the core has stopped. The program may then poll the earlier completions.
            let _ = cq.queue.lock().discard(qpn);
        }
    }
    Ok(())
}

/// # Safety
/// The caller must pass a live queue.
pub(crate) unsafe fn users<'a>(cq: *mut ibv_cq) -> Result<&'a AtomicUsize, Errno> {
    // SAFETY: guaranteed by the caller.
    Ok(&unsafe { live_objects::find(cq.cast::<Cq>()) }?.users)
}

pub(crate) fn state_code(state: State) -> ibv_qp_state {
    match state {
        State::Reset => IBV_QPS_RESET,
        State::Init => IBV_QPS_INIT,
        State::ReadyToReceive => IBV_QPS_RTR,
        State::ReadyToSend => IBV_QPS_RTS,
        State::SendQueueDrained => IBV_QPS_SQD,
        State::SendQueueError => IBV_QPS_SQE,
        State::Error => IBV_QPS_ERR,
    }
}

/// `ibv_query_qp(3)`: returns all attributes, with any mask.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp(
    qp: *mut ibv_qp,
    attributes: *mut ibv_qp_attr,
    _mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (qp, attributes, init) = unsafe { (Qp::find(qp)?, out(attributes)?, out(init)?) };
        let inner = qp.lock();
        let report = inner.qp.query()?;
        let state = state_code(report.state);
        *attributes = inner.attributes;
        attributes.qp_state = state;
        attributes.cur_qp_state = state;
        attributes.sq_psn = report.send_psn.get();
        attributes.rq_psn = report.expected_psn.get();
        *init = inner.init;
        qp.show_state(state);
        Ok(())
    })
}

/// Returns the extended form of a queue pair, or null if it was not created as an extended one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    // SAFETY: the contract of the function.
    let extended = unsafe { Qp::find(qp) }.is_ok_and(|whole| whole.extended);
    if extended { qp.cast() } else { null_mut() }
}

/// `ibv_query_qp_data_in_order(3)`: data may arrive out of order after a loss.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_qp_data_in_order(
    _qp: *mut ibv_qp,
    _opcode: ibv_wr_opcode,
    _flags: u32,
) -> c_int {
    0
}
