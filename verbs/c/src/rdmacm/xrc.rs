//! XRC: targets and shared receive queues in a domain that the library creates, as in librdmacm.

use crate::abi::*;
use crate::ibverbs::queue_pair::create_qp_ex;
use crate::ibverbs::xrc::{create_srq_ex, open_xrcd};
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::{Errno, made};
use crate::rdmacm::id::Id;
use crate::rdmacm::queue_pair;
use std::ptr::null_mut;

fn default_domain(device: &Device) -> Result<*mut ibv_xrcd, Errno> {
    device.xrc_domain.get_or_create(|| {
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut wanted = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is open.
        made(unsafe { open_xrcd(device.context, &mut wanted) })
    })
}

/// Creates a target. Of the attributes it uses only `qp_context`.
///
/// # Safety
/// The caller must pass an identifier whose device is open.
pub(crate) unsafe fn create_target(id: &Id, wanted: &ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    let device = id.device()?;
    let mut attributes = ibv_qp_init_attr_ex {
        qp_context: wanted.qp_context,
        qp_type: IBV_QPT_XRC_RECV,
        comp_mask: IBV_QP_INIT_ATTR_XRCD,
        xrcd: default_domain(device)?,
        ..Default::default()
    };
    // SAFETY: the context is open, and the domain is alive.
    made(unsafe { create_qp_ex(device.context, &mut attributes) })
}

/// Creates a shared receive queue of an XRC domain for `id`, with its own completion queue unless the attributes contain one.
///
/// # Safety
/// The caller must pass a domain and attributes whose objects are null or alive.
pub(crate) unsafe fn create_srq(
    id: &Id,
    pd: *mut ibv_pd,
    wanted: &ibv_srq_init_attr_ex,
) -> Result<*mut ibv_srq, Errno> {
    let device = id.device()?;
    let has = |part| wanted.comp_mask & part != 0;
    let mut attributes = ibv_srq_init_attr_ex {
        srq_context: wanted.srq_context,
        attr: wanted.attr,
        comp_mask: IBV_SRQ_INIT_ATTR_TYPE
            | IBV_SRQ_INIT_ATTR_PD
            | IBV_SRQ_INIT_ATTR_XRCD
            | IBV_SRQ_INIT_ATTR_CQ,
        srq_type: IBV_SRQT_XRC,
        pd,
        xrcd: if has(IBV_SRQ_INIT_ATTR_XRCD) { wanted.xrcd } else { null_mut() },
        cq: if has(IBV_SRQ_INIT_ATTR_CQ) { wanted.cq } else { null_mut() },
        ..Default::default()
    };
    if attributes.xrcd.is_null() {
        attributes.xrcd = default_domain(device)?;
    }
    if attributes.cq.is_null() {
        // SAFETY: the identifier is alive, and only this call writes these fields.
        attributes.cq = unsafe { queue_pair::receive_queue(id, wanted.attr.max_wr) }?;
    }
    // SAFETY: the context is open, and the caller guarantees the rest.
    made(unsafe { create_srq_ex(device.context, &mut attributes) })
}
