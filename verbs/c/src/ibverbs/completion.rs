//! Completion queues: their creation, polling and notification.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, at, count, created, injected, status};
use crate::ibverbs::channel::{Channel, Events};
use crate::ibverbs::completion_ex;
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::event::Object;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use crate::memory_reserve;
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use verbs::fault::Verb;
use verbs::{Completion, CompletionOpcode, CompletionQueue, CompletionStatus};

/// Number of successive empty polls after which each further one yields the CPU.
const IDLE_POLLS: u32 = 64;

/// A completion queue. `ibv_cq_ex` begins with the fields of `ibv_cq`.
#[repr(C)]
pub(crate) struct Cq {
    abi: UnsafeCell<ibv_cq_ex>,
    pub(crate) queue: Lock<CompletionQueue>,
    idle_polls: AtomicU32,
    /// Number of queue pairs that use the queue, which prevent its destruction.
    pub(crate) users: AtomicUsize,
    pub(crate) events: Events,
    /// The completion of the last `ibv_start_poll` or `ibv_next_poll`.
    pub(crate) current: UnsafeCell<ibv_wc>,
}

impl Cq {
    /// Passes up to `most` completions to `take`, converted to `ibv_wc`.
    pub(crate) fn poll(&self, most: usize, mut take: impl FnMut(ibv_wc)) -> Result<(), Errno> {
        let mut queue = self.queue.lock();
        let found = queue.poll_each(most, |completion| take(work_completion(completion)));
        drop(queue);
        let found = found.map_err(|error| {
            tracing::error!("{error}");
            Errno(libc::EIO)
        })?;
        self.yield_when_idle(found);
        Ok(())
    }

    /// Returns the program's context, which events of the queue contain.
    pub(crate) fn user(&self) -> *mut c_void {
        // SAFETY: set when the queue was created, and never changed.
        unsafe { (*self.abi.get()).cq_context }
    }

    fn context(&self) -> *mut ibv_context {
        // SAFETY: set when the queue was created, and never changed.
        unsafe { (*self.abi.get()).context }
    }

    fn channel(&self) -> *mut ibv_comp_channel {
        // SAFETY: set when the queue was created, and never changed.
        unsafe { (*self.abi.get()).channel }
    }
}

impl Cq {
    /// Yields the CPU after many empty polls: if more threads poll than there are CPUs, the program's peer may need the CPU. The call costs
    /// little if no other thread is ready to run.
    fn yield_when_idle(&self, found: usize) {
        if found > 0 {
            self.idle_polls.store(0, Ordering::Relaxed);
        } else if self.idle_polls.fetch_add(1, Ordering::Relaxed) >= IDLE_POLLS {
            std::thread::yield_now();
        }
    }
}

/// # Safety
/// The caller must pass an open context, and null or a live channel.
unsafe fn create(
    context: *mut ibv_context,
    depth: u32,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
) -> Result<*mut Cq, Errno> {
    // SAFETY: guaranteed by the caller.
    let whole = unsafe { Context::from(context) }?;
    memory_reserve::check_completions(depth)?;
    let mut queue = whole.device.create_cq(depth)?;
    // SAFETY: guaranteed by the caller.
    let channel_of = unsafe { live_objects::find_any(channel.cast::<Channel>()) }?;
    if let Some(channel) = channel_of {
        queue.bind_channel(channel.channel())?;
    }
    let abi = ibv_cq_ex { context, channel, cq_context: user, cqe: depth as c_int, ..completion_ex::table() };
    let id = queue.id();
    let (queue, users) = (Lock::new(Rank::CompletionQueue, queue), AtomicUsize::new(0));
    let idle_polls = AtomicU32::new(0);
    let events = Events::default();
    let current = UnsafeCell::new(ibv_wc::default());
    let abi = UnsafeCell::new(abi);
    let cq = live_objects::publish(Cq { abi, queue, idle_polls, users, events, current });
    if let Some(channel) = channel_of {
        channel.join(cq);
    }
    whole.events.register(Object::Cq(id), cq);
    Ok(cq)
}

/// Rejects every completion vector except 0, which is the only one.
fn first_vector(vector: u32) -> Result<(), Errno> {
    if vector == 0 { Ok(()) } else { Err(INVALID) }
}

/// `ibv_create_cq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_create_cq(
    context: *mut ibv_context,
    depth: c_int,
    user: *mut c_void,
    channel: *mut ibv_comp_channel,
    vector: c_int,
) -> *mut ibv_cq {
    created(|| {
        injected(Verb::CreateCq)?;
        let depth = u32::try_from(depth).map_err(|_| INVALID)?;
        first_vector(vector as u32)?;
        // SAFETY: the contract of the manual page.
        Ok(unsafe { create(context, depth, user, channel) }?.cast())
    })
}

/// `ibv_create_cq_ex(3)`
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    wanted: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    created(|| {
        injected(Verb::CreateCq)?;
        // SAFETY: the contract of the manual page.
        let wanted = unsafe { at(wanted) }?;
        let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if wanted.wc_flags & !completion_ex::FIELDS != 0 || wanted.comp_mask & !known != 0 {
            return Err(UNSUPPORTED);
        }
        if wanted.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD != 0 {
            // SAFETY: the contract of the manual page.
            unsafe { live_objects::find(wanted.parent_domain.cast::<Pd>()) }?.check_parent()?;
        }
        first_vector(wanted.comp_vector)?;
        // SAFETY: the contract of the manual page.
        Ok(unsafe { create(context, wanted.cqe, wanted.cq_context, wanted.channel) }?.cast())
    })
}

/// `ibv_destroy_cq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_destroy_cq(cq: *mut ibv_cq) -> c_int {
    status(|| {
        let cq = cq.cast::<Cq>();
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(cq) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: the queue is alive, and its channel lives as long as its queues.
        unsafe {
            if let Some(channel) = (*cq).channel().cast::<Channel>().as_ref() {
                channel.leave(cq);
            }
            (*cq).events.wait_until_acknowledged();
            let id = (*cq).queue.lock().id();
            Context::from((*cq).context())?.events.unregister(Object::Cq(id));
        }
        // SAFETY: no queue pair uses the queue, and the program must not use it after this call.
        drop(unsafe { live_objects::reclaim(cq) }?);
        Ok(())
    })
}

/// `ibv_resize_cq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_resize_cq(cq: *mut ibv_cq, depth: c_int) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let cq = unsafe { live_objects::find(cq.cast::<Cq>()) }?;
        let wanted = u32::try_from(depth).map_err(|_| INVALID)?;
        memory_reserve::complete()?;
        memory_reserve::check_completions(wanted)?;
        let mut queue = cq.queue.lock();
        queue.resize(wanted)?;
        // SAFETY: the lock is held. A program that reads the field at the same time reads one word.
        unsafe { (&raw mut (*cq.abi.get()).cqe).write(depth) };
        Ok(())
    })
}

pub(crate) fn status_code(status: CompletionStatus) -> ibv_wc_status {
    match status {
        CompletionStatus::Success => IBV_WC_SUCCESS,
        CompletionStatus::LocalLength => IBV_WC_LOC_LEN_ERR,
        CompletionStatus::LocalProtection => IBV_WC_LOC_PROT_ERR,
        CompletionStatus::LocalQpOperation => IBV_WC_LOC_QP_OP_ERR,
        CompletionStatus::Bind => IBV_WC_MW_BIND_ERR,
        CompletionStatus::Flushed => IBV_WC_WR_FLUSH_ERR,
        CompletionStatus::BadResponse => IBV_WC_BAD_RESP_ERR,
        CompletionStatus::RemoteInvalidRequest => IBV_WC_REM_INV_REQ_ERR,
        CompletionStatus::RemoteAccess => IBV_WC_REM_ACCESS_ERR,
        CompletionStatus::RemoteOperation => IBV_WC_REM_OP_ERR,
        CompletionStatus::RetryExceeded => IBV_WC_RETRY_EXC_ERR,
        CompletionStatus::RnrRetryExceeded => IBV_WC_RNR_RETRY_EXC_ERR,
    }
}

pub(crate) fn opcode_code(opcode: CompletionOpcode) -> ibv_wc_opcode {
    match opcode {
        CompletionOpcode::Send => IBV_WC_SEND,
        CompletionOpcode::Write => IBV_WC_RDMA_WRITE,
        CompletionOpcode::Read => IBV_WC_RDMA_READ,
        CompletionOpcode::FetchAdd => IBV_WC_FETCH_ADD,
        CompletionOpcode::CompareSwap => IBV_WC_COMP_SWAP,
        CompletionOpcode::AtomicWrite => IBV_WC_ATOMIC_WRITE,
        // `IBV_WC_FLUSH`, which these headers do not declare yet.
        CompletionOpcode::Flush => 8,
        CompletionOpcode::Bind => IBV_WC_BIND_MW,
        CompletionOpcode::LocalInvalidate => IBV_WC_LOCAL_INV,
        CompletionOpcode::Recv => IBV_WC_RECV,
        CompletionOpcode::RecvWithWrite => IBV_WC_RECV_RDMA_WITH_IMM,
    }
}

pub(crate) fn work_completion(completion: &Completion) -> ibv_wc {
    let mut wc = ibv_wc {
        wr_id: completion.id,
        status: status_code(completion.status),
        opcode: opcode_code(completion.opcode),
        byte_len: completion.length,
        qp_num: completion.qpn.get(),
        ..Default::default()
    };
    if let Some(source) = completion.source {
        wc.src_qp = source.get();
        wc.wc_flags |= IBV_WC_GRH as c_uint;
    }
    if let Some(immediate) = completion.immediate {
        wc.__bindgen_anon_1.imm_data = u32::from_ne_bytes(immediate);
        wc.wc_flags |= IBV_WC_WITH_IMM as c_uint;
    }
    if let Some(rkey) = completion.invalidated {
        wc.__bindgen_anon_1.invalidated_rkey = rkey.get();
        wc.wc_flags |= IBV_WC_WITH_INV as c_uint;
    }
    wc
}

/// `ibv_poll_cq(3)`
pub(crate) unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, most: c_int, into: *mut ibv_wc) -> c_int {
    count(|| {
        injected(Verb::PollCq)?;
        // SAFETY: the contract of the manual page.
        let cq = unsafe { at(cq.cast::<Cq>()) }?;
        let most = usize::try_from(most).map_err(|_| INVALID)?;
        if into.is_null() {
            return if most == 0 { Ok(0) } else { Err(INVALID) };
        }
        let mut found = 0;
        cq.poll(most, |completion| {
            // SAFETY: the program has room for `most` completions.
            unsafe { into.add(found).write(completion) };
            found += 1;
        })?;
        Ok(found as c_int)
    })
}

/// `ibv_req_notify_cq(3)`
pub(crate) unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    status(|| {
        injected(Verb::ReqNotifyCq)?;
        // SAFETY: the contract of the manual page.
        let cq = unsafe { at(cq.cast::<Cq>()) }?;
        cq.queue.lock().arm(solicited_only != 0);
        Ok(())
    })
}
