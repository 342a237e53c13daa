//! Shared receive queues of identifiers.

use crate::abi::*;
use crate::ibverbs::{ibv_create_srq, ibv_destroy_srq};
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, made, out, status};
use crate::rdmacm::id::Id;
use crate::rdmacm::queue_pair::{self, default_domain};
use crate::rdmacm::xrc;
use std::ffi::c_int;

/// # Safety
/// The caller must pass a domain that is null or alive.
unsafe fn create(id: &Id, pd: *mut ibv_pd, wanted: &mut ibv_srq_init_attr) -> Result<(), Errno> {
    // SAFETY: the identifier is alive, and only this call writes these fields.
    unsafe {
        let abi = id.abi();
        if !(*abi).srq.is_null() {
            return Err(INVALID);
        }
        let pd = if pd.is_null() { default_domain(id.device()?)? } else { pd };
        (*abi).srq = made(ibv_create_srq(pd, wanted))?;
        (*abi).pd = pd;
    }
    Ok(())
}

/// Creates the shared receive queue of an XRC domain for the identifier.
///
/// # Safety
/// The caller must pass attributes whose objects are null or alive.
unsafe fn create_named(id: &Id, wanted: &ibv_srq_init_attr_ex) -> Result<(), Errno> {
    // SAFETY: the identifier is alive, and only this call writes these fields.
    unsafe {
        let abi = id.abi();
        if !(*abi).srq.is_null() {
            return Err(INVALID);
        }
        let given = if wanted.comp_mask & IBV_SRQ_INIT_ATTR_PD != 0 { wanted.pd } else { (*abi).pd };
        let pd = if given.is_null() { default_domain(id.device()?)? } else { given };
        (*abi).srq = xrc::create_srq(id, pd, wanted)?;
        (*abi).pd = pd;
    }
    Ok(())
}

/// Destroys the identifier's shared receive queue, if it has one.
///
/// # Safety
/// The caller must ensure that no queue pair uses it.
pub(crate) unsafe fn destroy(id: &Id) {
    // SAFETY: null, or created by `create` or `create_named`, and destroyed once.
    unsafe {
        let srq = std::mem::replace(&mut (*id.abi()).srq, std::ptr::null_mut());
        if !srq.is_null() {
            ibv_destroy_srq(srq);
            if id.is_target() && id.qp().is_null() {
                queue_pair::destroy_queues(id);
            }
        }
    }
}

/// `rdma_create_srq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq(
    id: *mut rdma_cm_id,
    pd: *mut ibv_pd,
    wanted: *mut ibv_srq_init_attr,
) -> c_int {
    // SAFETY: the contract of the manual page.
    status(|| unsafe {
        let (id, wanted) = (Id::from(id)?, out(wanted)?);
        if id.is_target() {
            let comp_mask = if pd.is_null() { 0 } else { IBV_SRQ_INIT_ATTR_PD };
            let (srq_context, attr) = (wanted.srq_context, wanted.attr);
            let wanted = ibv_srq_init_attr_ex { srq_context, attr, comp_mask, pd, ..Default::default() };
            return create_named(id, &wanted);
        }
        create(id, pd, wanted)
    })
}

/// `rdma_create_srq_ex(3)`: creates a basic queue, or one of an XRC domain.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_srq_ex(id: *mut rdma_cm_id, wanted: *mut ibv_srq_init_attr_ex) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page; the longer structure begins with the fields of the shorter one.
        unsafe {
            let (id, whole) = (Id::from(id)?, *out(wanted)?);
            let has = |field| whole.comp_mask & field != 0;
            if has(IBV_SRQ_INIT_ATTR_TYPE) && whole.srq_type == IBV_SRQT_XRC {
                return create_named(id, &whole);
            }
            if has(IBV_SRQ_INIT_ATTR_TYPE) && whole.srq_type != IBV_SRQT_BASIC {
                return Err(UNSUPPORTED);
            }
            let pd = if has(IBV_SRQ_INIT_ATTR_PD) { whole.pd } else { std::ptr::null_mut() };
            create(id, pd, out(wanted.cast())?)
        }
    })
}

/// `rdma_destroy_srq(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_srq(id: *mut rdma_cm_id) {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe { destroy(Id::from(id)?) };
        Ok(())
    });
}
