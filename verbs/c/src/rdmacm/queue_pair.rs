//! Queue pairs of identifiers, and their completion queues.

use crate::abi::*;
use crate::ibverbs::{
    ibv_alloc_pd, ibv_create_comp_channel, ibv_create_cq, ibv_create_qp, ibv_destroy_comp_channel,
    ibv_destroy_cq, ibv_destroy_qp,
};
use crate::rdmacm::connect;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, injected, made, out, status};
use crate::rdmacm::id::Id;
use crate::rdmacm::xrc;
use std::ffi::c_int;
use verbs::fault::Verb;

pub(crate) fn default_domain(device: &Device) -> Result<*mut ibv_pd, Errno> {
    // SAFETY: the context is open.
    device.domain.get_or_create(|| made(unsafe { ibv_alloc_pd(device.context) }))
}

/// Creates a completion queue with its own channel.
///
/// # Safety
/// The caller must ensure that the identifier's device is open.
unsafe fn queue(id: &Id, depth: u32) -> Result<(*mut ibv_comp_channel, *mut ibv_cq), Errno> {
    let context = id.device()?.context;
    // SAFETY: the context is open; the channel is destroyed if the queue cannot be created.
    unsafe {
        let channel = made(ibv_create_comp_channel(context))?;
        let cq = made(ibv_create_cq(context, depth.max(1) as c_int, id.abi().cast(), channel, 0));
        cq.map(|cq| (channel, cq)).inspect_err(|_| {
            ibv_destroy_comp_channel(channel);
        })
    }
}

/// Creates the identifier's own completion queue for receives.
///
/// # Safety
/// The caller must pass a live identifier without such a queue.
pub(crate) unsafe fn receive_queue(id: &Id, depth: u32) -> Result<*mut ibv_cq, Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let abi = id.abi();
        ((*abi).recv_cq_channel, (*abi).recv_cq) = queue(id, depth)?;
        Ok((*abi).recv_cq)
    }
}

/// # Safety
/// The caller must pass a domain and attributes whose objects are null or alive.
pub(crate) unsafe fn create(id: &Id, pd: *mut ibv_pd, wanted: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    if !id.qp().is_null() {
        return Err(INVALID);
    }
    let pd = if pd.is_null() { default_domain(id.device()?)? } else { pd };
    let mut attributes = *wanted;
    // SAFETY: the identifier is alive, and only this call writes these fields.
    unsafe {
        let abi = id.abi();
        (*abi).pd = pd;
        if attributes.qp_type == IBV_QPT_XRC_RECV {
            put(id, xrc::create_target(id, &attributes)?);
            return make_ready(id).inspect_err(|_| destroy(id));
        }
        // As in librdmacm, the identifier does not destroy completion queues that the program provides.
        let qp = complete(id, &mut attributes)
            .and_then(|()| made(ibv_create_qp(pd, &mut attributes)))
            .inspect_err(|_| destroy_queues(id))?;
        put(id, qp);
    }
    // As in rdma-core, the program receives the attributes of the created queue pair.
    *wanted = attributes;
    let ready = make_ready(id);
    // SAFETY: the queue pair was created above.
    ready.inspect_err(|_| unsafe { destroy(id) })
}

/// Creates the queues that the program does not provide.
///
/// # Safety
/// As [`create`].
unsafe fn complete(id: &Id, attributes: &mut ibv_qp_init_attr) -> Result<(), Errno> {
    // SAFETY: the identifier is alive, and only this call writes these fields.
    unsafe {
        let abi = id.abi();
        if attributes.send_cq.is_null() {
            ((*abi).send_cq_channel, (*abi).send_cq) = queue(id, attributes.cap.max_send_wr)?;
            attributes.send_cq = (*abi).send_cq;
        }
        if attributes.srq.is_null() {
            attributes.srq = (*abi).srq;
        }
        if attributes.recv_cq.is_null() && attributes.qp_type != IBV_QPT_XRC_SEND {
            attributes.recv_cq = receive_queue(id, attributes.cap.max_recv_wr)?;
        }
    }
    Ok(())
}

/// Replaces the identifier's queue pair by `qp`, which may be null. Returns the previous one, when no thread modifies it.
///
/// # Safety
/// The caller must pass null or a live queue pair. No other thread may create or destroy the identifier's queue pair.
unsafe fn put(id: &Id, qp: *mut ibv_qp) -> *mut ibv_qp {
    let _guard = id.lock_queue_pair();
    // SAFETY: the identifier is alive.
    unsafe { (&raw mut (*id.abi()).qp).replace(qp) }
}

/// Moves the queue pair through the transitions that need no peer.
fn make_ready(id: &Id) -> Result<(), Errno> {
    connect::modify(id, IBV_QPS_INIT)?;
    if id.is_datagram() {
        connect::modify(id, IBV_QPS_RTR)?;
        connect::modify(id, IBV_QPS_RTS)?;
    }
    Ok(())
}

/// # Safety
/// The caller must not use the identifier's completion queues after this call.
pub(crate) unsafe fn destroy_queues(id: &Id) {
    // SAFETY: created by `queue`, or null; each is destroyed once.
    unsafe {
        let abi = id.abi();
        for (cq, channel) in [
            (&raw mut (*abi).send_cq, &raw mut (*abi).send_cq_channel),
            (&raw mut (*abi).recv_cq, &raw mut (*abi).recv_cq_channel),
        ] {
            let (queue, comp_channel) =
                (cq.replace(std::ptr::null_mut()), channel.replace(std::ptr::null_mut()));
            if !comp_channel.is_null() {
                ibv_destroy_cq(queue);
                ibv_destroy_comp_channel(comp_channel);
            }
        }
    }
}

/// # Safety
/// The caller must not use the queue pair after this call.
pub(crate) unsafe fn destroy(id: &Id) {
    // SAFETY: the queue pair is null or owned by the identifier, and is destroyed once.
    unsafe {
        let qp = put(id, std::ptr::null_mut());
        if !qp.is_null() {
            // Another queue pair may soon have this number.
            let _ = id.with_cm_connection(|cm_connection| {
                cm_connection.qpn = None;
                Ok(())
            });
            ibv_destroy_qp(qp);
        }
        // A shared receive queue of an XRC domain still uses the completion queues.
        if (*id.abi()).srq.is_null() || !id.is_target() {
            destroy_queues(id);
        }
    }
}

/// `rdma_create_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        injected(Verb::RdmaCreateQp)?;
        // SAFETY: the contract of the manual page.
        unsafe { create(Id::from(id)?, pd, out(wanted)?) }
    })
}

/// `rdma_create_qp_ex(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_qp_ex(id: *mut rdma_cm_id, wanted: *mut ibv_qp_init_attr_ex) -> c_int {
    status(|| {
        injected(Verb::RdmaCreateQp)?;
        // SAFETY: the contract of the manual page; the longer structure begins with the fields of the shorter one.
        unsafe {
            let (id, mask, pd) = (Id::from(id)?, out(wanted)?.comp_mask, out(wanted)?.pd);
            if mask & !IBV_QP_INIT_ATTR_PD != 0 {
                return Err(UNSUPPORTED);
            }
            let pd = if mask & IBV_QP_INIT_ATTR_PD == 0 { std::ptr::null_mut() } else { pd };
            create(id, pd, out(wanted.cast())?)
        }
    })
}

/// `rdma_destroy_qp(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_qp(id: *mut rdma_cm_id) {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe { destroy(Id::from(id)?) };
        Ok(())
    });
}
