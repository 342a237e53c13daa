//! Multicast groups of datagram queue pairs.

use crate::abi::*;
use crate::errno::{Errno, at, status};
use crate::ibverbs::query::ip_of;
use crate::ibverbs::queue_pair::Qp;
use std::ffi::c_int;
use std::net::IpAddr;

/// # Safety
/// The caller must pass null or a pointer to a GID.
unsafe fn group(gid: *const ibv_gid) -> Result<IpAddr, Errno> {
    // SAFETY: guaranteed by the caller; any 16 bytes are a GID.
    unsafe { at(gid).map(|gid| ip_of(gid.raw)) }
}

/// `ibv_attach_mcast(3)`; RoCE has no LIDs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_attach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (qp, group) = unsafe { (Qp::find(qp)?, group(gid)?) };
        Ok(qp.lock().qp.attach(group)?)
    })
}

/// `ibv_detach_mcast(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_detach_mcast(qp: *mut ibv_qp, gid: *const ibv_gid, _lid: u16) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (qp, group) = unsafe { (Qp::find(qp)?, group(gid)?) };
        Ok(qp.lock().qp.detach(group)?)
    })
}
