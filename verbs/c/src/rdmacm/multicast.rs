//! Multicast groups of datagram identifiers.
//!
//! RoCE has no subnet manager that manages groups: the address of a group is its GID, as in Linux (`cma_iboe_join_multicast`). The event of
//! a join is therefore reported immediately.

use crate::abi::*;
use crate::ibverbs::{ibv_attach_mcast, ibv_detach_mcast};
use crate::rdmacm::address;
use crate::rdmacm::datagram::QKEY;
use crate::rdmacm::errno::{Errno, INVALID, UNSUPPORTED, out, status, verb};
use crate::rdmacm::events::{Parameters, QueuedEvent};
use crate::rdmacm::id::Id;
use libc::sockaddr;
use std::ffi::{c_int, c_void};
use std::net::IpAddr;

/// Destination QPN of every datagram to a group (IBA 3.5.3).
const GROUP_QPN: u32 = 0xff_ffff;
/// Types of membership in `rdma_join_multicast_ex`: send and receive, and send only.
const FULL: u32 = 0;
const SENDS: u32 = 1;
/// Fields that such a call must set.
const ADDRESS: u32 = 1;
const FLAGS: u32 = 2;

/// Attaches the identifier's queue pair to a group, or detaches it.
fn change(id: &Id, group: IpAddr, joins: bool) -> Result<(), Errno> {
    let gid = ibv_gid { raw: address::gid(group) };
    let qp = id.qp();
    if qp.is_null() {
        return Ok(());
    }
    // SAFETY: the identifier owns the queue pair, which is alive, and the GID outlives the call.
    let result = unsafe { if joins { ibv_attach_mcast(qp, &gid, 0) } else { ibv_detach_mcast(qp, &gid, 0) } };
    verb(result)
}

/// Reads the address of a group.
///
/// # Safety
/// The caller must pass null, or an address as long as its family requires.
unsafe fn group(address: *const sockaddr) -> Result<IpAddr, Errno> {
    // SAFETY: guaranteed by the caller.
    let group = unsafe { address::read(address) }?.ip();
    if group.is_multicast() { Ok(group) } else { Err(INVALID) }
}

/// Joins a group, and reports the parameters for sending to it to the program.
fn join(id: &Id, group: IpAddr, receives: bool, context: *mut c_void) -> Result<(), Errno> {
    if !id.is_datagram() {
        return Err(INVALID);
    }
    let device = id.device()?;
    let source = id.lock().source.ok_or(INVALID)?.ip();
    let source = if address::is_any(source) { device.address_towards(group)? } else { source };
    let mut ah_attr = ibv_ah_attr { is_global: 1, port_num: 1, ..Default::default() };
    ah_attr.grh.dgid = ibv_gid { raw: address::gid(group) };
    ah_attr.grh.sgid_index = device.gid_index(source)?;
    ah_attr.grh.hop_limit = 64;
    let attached = if receives { change(id, group, true) } else { Ok(()) };
    let ud =
        rdma_ud_param { ah_attr, private_data: context, qp_num: GROUP_QPN, qkey: QKEY, ..Default::default() };
    let (kind, status) = match attached {
        Ok(()) => (RDMA_CM_EVENT_MULTICAST_JOIN, 0),
        Err(Errno(errno)) => (RDMA_CM_EVENT_MULTICAST_ERROR, -errno),
    };
    id.report_event(QueuedEvent {
        id: id.abi().cast(),
        listener: std::ptr::null_mut(),
        kind,
        status,
        parameters: Parameters::Group(ud),
        private: Vec::new(),
    });
    // SAFETY: the identifier is alive.
    unsafe { id.complete() }
}

/// `rdma_join_multicast(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast(
    id: *mut rdma_cm_id,
    address: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the contract of the manual page.
    status(|| unsafe { join(Id::from(id)?, group(address)?, true, context) })
}

/// `rdma_join_multicast_ex`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut rdma_cm_id,
    wanted: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe {
            let (id, wanted) = (Id::from(id)?, out(wanted)?);
            if wanted.comp_mask != ADDRESS | FLAGS {
                return Err(INVALID);
            }
            if !matches!(wanted.join_flags, FULL | SENDS) {
                return Err(UNSUPPORTED);
            }
            join(id, group(wanted.addr.cast())?, wanted.join_flags == FULL, context)
        }
    })
}

/// `rdma_leave_multicast(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_leave_multicast(id: *mut rdma_cm_id, address: *mut sockaddr) -> c_int {
    // SAFETY: the contract of the manual page.
    status(|| unsafe { change(Id::from(id)?, group(address)?, false) })
}
