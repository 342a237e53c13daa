//! XRC: targets and shared receive queues in a domain of the library's own, as in librdmacm.

use crate::abi::*;
use crate::device::Device;
use crate::errno::{Errno, UNSUPPORTED, made};
use crate::id::Id;
use crate::queue_pair;
use std::mem::offset_of;
use std::ptr::null_mut;

/// The verbs that the headers call by the context.
fn verbs(device: &Device) -> &'static verbs_context {
    let whole = device.context.cast::<u8>().wrapping_sub(offset_of!(verbs_context, context));
    // SAFETY: libibverbs' contexts are parts of such a structure, and this one is never closed.
    unsafe { &*whole.cast() }
}

fn default_domain(device: &Device) -> Result<*mut ibv_xrcd, Errno> {
    device.xrc_domain.get_or_make(|| {
        let open = verbs(device).open_xrcd.ok_or(UNSUPPORTED)?;
        let comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
        let mut wanted = ibv_xrcd_init_attr { comp_mask, fd: -1, oflags: libc::O_CREAT };
        // SAFETY: the context is open.
        made(unsafe { open(device.context, &mut wanted) })
    })
}

/// Creates a target. Of the attributes it uses only `qp_context`.
///
/// # Safety
/// The attributes' context is any.
pub(crate) unsafe fn create_target(id: &Id, wanted: &ibv_qp_init_attr) -> Result<*mut ibv_qp, Errno> {
    let device = id.device()?;
    let mut attributes = ibv_qp_init_attr_ex {
        qp_context: wanted.qp_context,
        qp_type: IBV_QPT_XRC_RECV,
        comp_mask: IBV_QP_INIT_ATTR_XRCD,
        xrcd: default_domain(device)?,
        ..Default::default()
    };
    let create = verbs(device).create_qp_ex.ok_or(UNSUPPORTED)?;
    // SAFETY: the context is open, the domain alive.
    made(unsafe { create(device.context, &mut attributes) })
}

/// Makes a shared receive queue of an XRC domain for `id`, with a completion queue if none is named.
///
/// # Safety
/// The named objects are alive.
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
        // SAFETY: the identifier is alive, and its fields are this call's to fill.
        attributes.cq = unsafe { queue_pair::receive_queue(id, wanted.attr.max_wr) }?;
    }
    let create = verbs(device).create_srq_ex.ok_or(UNSUPPORTED)?;
    // SAFETY: the context is open, and the rest is alive.
    made(unsafe { create(device.context, &mut attributes) })
}
