//! The other processes of the interface, for `librdmacm.so.1`: an interface of this project's two libraries, not of rdma-core's.

use crate::abi::ibv_context;
use crate::errno::{Errno, INVALID, at, count};
use crate::ibverbs::context::Context;
use crate::ibverbs::query::ip_of;
use datapath::siblings::{Claim, ClaimError, Farewell, Siblings};
use std::ffi::c_int;
use verbs::management::Mad;

/// The processes that share the interface of an open context, once it has queue pair 1.
///
/// # Safety
/// Null, or an open context.
unsafe fn siblings<'a>(context: *mut ibv_context) -> Result<Option<&'a Siblings>, Errno> {
    // SAFETY: the caller's promise.
    let context = unsafe { Context::from(context) }?;
    Ok(context.management.get().ok_or(INVALID)?.siblings())
}

/// The process's slot, the top 6 bits of its communication ids; 64 if the port is not on an interface that processes share; or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_siblings_slot(context: *mut ibv_context) -> c_int {
    // SAFETY: null, or an open context.
    count(|| Ok(unsafe { siblings(context) }?.map_or(64, |siblings| siblings.slot().into())))
}

/// Takes a service at a GID, or at all addresses of a family, or releases it: 0, or -1 if another process has it. `flags`: 1 for its family
/// alone, 2 for a place that others may have too, 4 to listen.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_siblings_claim(
    context: *mut ibv_context,
    service: u64,
    place: *const [u8; 16],
    flags: c_int,
    take: c_int,
) -> c_int {
    count(|| {
        // SAFETY: null, or as said above.
        let (siblings, place) = unsafe { (siblings(context)?, at(place)?) };
        let Some(siblings) = siblings else { return Ok(0) };
        let has = |flag| flags & flag != 0;
        let (family_only, shared, listens) = (has(1), has(2), has(4));
        let claim = Claim { service, at: ip_of(*place), family_only, shared, listens };
        if take == 0 {
            siblings.release(&claim);
            return Ok(0);
        }
        let taken = siblings.claim(&claim).inspect_err(|error| match error {
            ClaimError::Taken { .. } => {}
            // An errno says neither which process has the name nor what to do.
            error => tracing::error!("service {service:#x}: {error}"),
        });
        taken.map(|()| 0).map_err(|error| Errno(error.errno()))
    })
}

/// Returns 1 if this process answers a request for a service at a GID that it does not listen to, otherwise 0, or -1 for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_siblings_answers(
    context: *mut ibv_context,
    service: u64,
    place: *const [u8; 16],
) -> c_int {
    count(|| {
        // SAFETY: null, or as said above.
        let (siblings, place) = unsafe { (siblings(context)?, at(place)?) };
        Ok(siblings.is_none_or(|siblings| siblings.answers_for(service, ip_of(*place))).into())
    })
}

/// Returns 1 if this process answers a message to a communication id that it does not know, otherwise 0, or -1 for an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_siblings_answers_to(context: *mut ibv_context, id: u32) -> c_int {
    // SAFETY: null, or an open context.
    count(|| Ok(unsafe { siblings(context) }?.is_none_or(|siblings| siblings.answers_to(id)).into()))
}

/// Has another process send `mad` from a GID to a GID if this one dies, for the connection of a communication id; null ends that.
/// 0, or -1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ferroce_siblings_farewell(
    context: *mut ibv_context,
    id: u32,
    source: *const [u8; 16],
    destination: *const [u8; 16],
    mad: *const Mad,
) -> c_int {
    count(|| {
        // SAFETY: null, or an open context.
        let Some(siblings) = (unsafe { siblings(context) })? else { return Ok(0) };
        if mad.is_null() {
            siblings.forget(id);
            return Ok(0);
        }
        // SAFETY: null, or as said above.
        let (source, destination, mad) = unsafe { (at(source)?, at(destination)?, at(mad)?) };
        let (source, destination) = (ip_of(*source), ip_of(*destination));
        siblings.remember(&Farewell { id, source, destination, mad: *mad });
        Ok(0)
    })
}
