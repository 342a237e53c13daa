//! Shared receive queues.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, at, created, injected, out, status};
use crate::ibverbs::completion::Cq;
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::event::Object;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use crate::ibverbs::post::recv_request;
use crate::ibverbs::xrc::{self, Xrcd};
use crate::memory_reserve;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::SharedReceiveQueue;
use verbs::fault::Verb;

#[repr(C)]
pub(crate) struct Srq {
    abi: ibv_srq,
    pub(crate) queue: Lock<SharedReceiveQueue>,
    attributes: ibv_srq_attr,
    /// Number of queue pairs that use the queue, which prevent its destruction.
    pub(crate) users: AtomicUsize,
    /// The domain of an XRC shared receive queue, and the queue that receives its completions.
    pub(crate) xrc: Option<(*mut Xrcd, *mut Cq)>,
}

/// # Safety
/// The caller must pass a live domain.
pub(crate) unsafe fn publish(
    pd: *mut ibv_pd,
    srq_context: *mut c_void,
    attributes: ibv_srq_attr,
    queue: SharedReceiveQueue,
    xrc: Option<(*mut Xrcd, *mut Cq)>,
) -> Result<*mut ibv_srq, Errno> {
    // SAFETY: guaranteed by the caller.
    let (domain, context) = unsafe { (live_objects::find(pd.cast::<Pd>())?, (*pd).context) };
    domain.users.fetch_add(1, Ordering::AcqRel);
    let abi = ibv_srq { context, srq_context, pd, ..Default::default() };
    let id = queue.id();
    let (queue, users) = (Lock::new(Rank::SharedReceives, queue), AtomicUsize::new(0));
    let srq = live_objects::publish(Srq { abi, queue, attributes, users, xrc });
    // SAFETY: the domain's context is open.
    unsafe { Context::from(context) }?.events.register(Object::Srq(id), srq);
    Ok(srq.cast())
}

/// `ibv_create_srq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_srq(pd: *mut ibv_pd, wanted: *mut ibv_srq_init_attr) -> *mut ibv_srq {
    created(|| {
        injected(Verb::CreateSrq)?;
        // SAFETY: the contract of the manual page.
        let (domain, wanted) = unsafe { (live_objects::find(pd.cast::<Pd>())?, out(wanted)?) };
        let attributes = wanted.attr;
        memory_reserve::check_requests(attributes.max_wr, attributes.max_sge)?;
        let queue = domain.domain.shared_receive_queue(attributes.max_wr, attributes.max_sge)?;
        // SAFETY: the domain is alive.
        unsafe { publish(pd, wanted.srq_context, attributes, queue, None) }
    })
}

/// `ibv_destroy_srq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_srq(srq: *mut ibv_srq) -> c_int {
    status(|| {
        let srq = srq.cast::<Srq>();
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find_last(srq) }?;
        if whole.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        let (pd, xrc) = (whole.abi.pd, whole.xrc);
        let id = whole.queue.lock().id();
        // SAFETY: the queue's context is open.
        unsafe { Context::from(whole.abi.context) }?.events.unregister(Object::Srq(id));
        // SAFETY: no queue pair uses the queue, and the program must not use it after this call; the domain lives as long as its queues.
        unsafe {
            drop(live_objects::reclaim(srq)?);
            live_objects::find(pd.cast::<Pd>())?.users.fetch_sub(1, Ordering::AcqRel);
            xrc.map_or(Ok(()), |parts| xrc::release(parts))?;
        }
        Ok(())
    })
}

/// `ibv_modify_srq(3)`: arms the limit. The size of a queue cannot be changed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_modify_srq(srq: *mut ibv_srq, wanted: *mut ibv_srq_attr, mask: c_int) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (srq, wanted) = unsafe { (live_objects::find(srq.cast::<Srq>())?, at(wanted)?) };
        if mask as u32 != IBV_SRQ_LIMIT {
            return Err(INVALID);
        }
        srq.queue.lock().arm(wanted.srq_limit)?;
        Ok(())
    })
}

/// `ibv_query_srq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_query_srq(srq: *mut ibv_srq, into: *mut ibv_srq_attr) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (srq, into) = unsafe { (live_objects::find(srq.cast::<Srq>())?, out(into)?) };
        let report = srq.queue.lock().query()?;
        *into = ibv_srq_attr { srq_limit: report.limit, ..srq.attributes };
        Ok(())
    })
}

/// `ibv_post_srq_recv(3)`
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut ibv_srq,
    first: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    let mut next = first;
    let result = status(|| {
        injected(Verb::PostSrqRecv)?;
        // SAFETY: the contract of the manual page.
        let srq = unsafe { at(srq.cast::<Srq>()) }?;
        let mut queue = srq.queue.lock();
        // SAFETY: the list ends with null.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: the contract of the manual page.
            queue.post_recv(unsafe { recv_request(wr, srq.attributes.max_sge) }?).map_err(Errno::from)?;
            next = wr.next;
        }
        Ok(())
    });
    if result != 0 {
        // SAFETY: null, or room for a pointer.
        if let Ok(bad) = unsafe { out(bad) } {
            *bad = next;
        }
    }
    result
}
