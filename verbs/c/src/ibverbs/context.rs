//! An open device, as `struct ibv_context` with the table of verbs that programs call directly.

use crate::abi::*;
use crate::errno::{Errno, INVALID};
use crate::ibverbs::device::Configured;
use crate::ibverbs::event::AsyncEvents;
use crate::ibverbs::live_objects;
use crate::ibverbs::{
    completion, device_memory, flow, on_demand, parent, post, query, queue_pair, srq, unsupported, window,
    work_queue, xrc,
};
use std::ffi::c_int;
use std::mem::offset_of;
use std::sync::atomic::AtomicUsize;
use verbs::Device;

/// The value of `abi_compat` in an `ibv_context` that is part of a `verbs_context`.
const EXTENDED: usize = usize::MAX;

/// A context. The program's pointer is the address of the `ibv_context` at the end of `abi`.
#[repr(C)]
pub(crate) struct Context {
    abi: verbs_context,
    pub(crate) device: Device,
    pub(crate) configured: &'static Configured,
    pub(crate) events: AsyncEvents,
    /// Bytes of allocated device memory.
    pub(crate) device_memory: AtomicUsize,
}

impl Context {
    pub(crate) fn open(
        configured: &'static Configured,
        device: *mut ibv_device,
    ) -> Result<*mut ibv_context, Errno> {
        let opened = configured.open()?;
        let events = AsyncEvents::new(&opened).inspect_err(|_| configured.close(&opened))?;
        let abi = verbs_context { context: table(device, events.descriptor()), ..extended() };
        let device_memory = AtomicUsize::new(0);
        let context = live_objects::publish(Self { abi, device: opened, configured, events, device_memory });
        // SAFETY: the context was created above.
        Ok(unsafe { &raw mut (*context).abi.context })
    }

    /// # Safety
    /// The caller must pass null, or a context that it does not use after this call.
    pub(crate) unsafe fn close(context: *mut ibv_context) -> Result<(), Errno> {
        let whole = Self::around(context)?;
        // SAFETY: guaranteed by the caller.
        let context = unsafe { live_objects::reclaim(whole) }?;
        let (configured, device) = (context.configured, context.device.clone());
        drop(context);
        configured.close(&device);
        Ok(())
    }

    /// Returns the structure that contains the program's `ibv_context`.
    fn around(context: *mut ibv_context) -> Result<*mut Self, Errno> {
        if context.is_null() {
            return Err(INVALID);
        }
        Ok(context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context)).cast())
    }

    /// # Safety
    /// The caller must pass null or an open context.
    pub(crate) unsafe fn from<'a>(context: *mut ibv_context) -> Result<&'a Self, Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe { live_objects::find(Self::around(context)?) }
    }
}

/// Returns the verbs that the headers call without checking for null.
fn table(device: *mut ibv_device, events: c_int) -> ibv_context {
    ibv_context {
        device,
        ops: ibv_context_ops {
            _compat_query_device: Some(query::ibv_query_device),
            _compat_query_port: Some(query::ibv_query_port),
            alloc_mw: Some(window::alloc_mw),
            bind_mw: Some(window::bind_mw),
            dealloc_mw: Some(window::dealloc_mw),
            poll_cq: Some(completion::poll_cq),
            req_notify_cq: Some(completion::req_notify_cq),
            post_srq_recv: Some(srq::post_srq_recv),
            post_send: Some(post::post_send),
            post_recv: Some(post::post_recv),
            ..unsupported::table()
        },
        cmd_fd: events,
        async_fd: events,
        num_comp_vectors: 1,
        mutex: Default::default(),
        abi_compat: std::ptr::without_provenance_mut(EXTENDED),
    }
}

/// Returns the later verbs. The headers return `EOPNOTSUPP` for those that are missing.
fn extended() -> verbs_context {
    verbs_context {
        query_port: Some(query::query_port),
        query_device_ex: Some(query::query_device_ex),
        create_qp_ex: Some(queue_pair::create_qp_ex),
        create_cq_ex: Some(completion::create_cq_ex),
        open_xrcd: Some(xrc::open_xrcd),
        close_xrcd: Some(xrc::close_xrcd),
        create_srq_ex: Some(xrc::create_srq_ex),
        get_srq_num: Some(xrc::get_srq_num),
        open_qp: Some(xrc::open_qp),
        advise_mr: Some(on_demand::advise_mr),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        alloc_td: Some(parent::alloc_td),
        dealloc_td: Some(parent::dealloc_td),
        alloc_parent_domain: Some(parent::alloc_parent_domain),
        create_wq: Some(work_queue::create_wq),
        modify_wq: Some(work_queue::modify_wq),
        destroy_wq: Some(work_queue::destroy_wq),
        create_rwq_ind_table: Some(work_queue::create_table),
        destroy_rwq_ind_table: Some(work_queue::destroy_table),
        ibv_create_flow: Some(flow::create_flow),
        ibv_destroy_flow: Some(flow::destroy_flow),
        sz: size_of::<verbs_context>(),
        ..Default::default()
    }
}
