//! Resolution of names, and endpoints that one call creates.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::device::devices;
use crate::rdmacm::errno::{Errno, INVALID, out, status};
use crate::rdmacm::events;
use crate::rdmacm::id::{Id, rdma_bind_addr, rdma_destroy_id};
use crate::rdmacm::queue_pair;
use crate::rdmacm::resolve::{rdma_resolve_addr, rdma_resolve_route};
use crate::rdmacm::shared;
use std::ffi::{c_char, c_int};

/// Timeout of the resolution of an address or a route, ms.
const RESOLVE_TIMEOUT_MS: c_int = 2000;

/// `rdma_getaddrinfo(3)`: returns 0, a code of `getaddrinfo(3)`, or -1 with `errno` set. Without names the result contains the hints'
/// addresses.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    let named = !node.is_null() || !service.is_null();
    if result.is_null() || (!named && hints.is_null()) {
        return status(|| Err(INVALID));
    }
    // SAFETY: null, or the program's hints, whose addresses have the lengths in the hints; the program provides the place for the result.
    unsafe {
        let hints = hints.as_ref().copied().unwrap_or_default();
        let info = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        let Some(place) = info.as_mut() else { return libc::EAI_MEMORY };
        let failed = if named { find(node, service, &hints, place) } else { copy_hints(&hints, place) };
        let failed = if failed == 0 && place.ai_src_len == 0 {
            copy(hints.ai_src_addr, hints.ai_src_len, &mut place.ai_src_addr, &mut place.ai_src_len)
        } else {
            failed
        };
        if failed == 0 {
            *result = info;
        } else {
            rdma_freeaddrinfo(info);
        }
        failed
    }
}

/// Copies the hints, for a program that provides the addresses.
///
/// # Safety
/// The caller must pass hints whose destination has the length in the hints.
unsafe fn copy_hints(hints: &rdma_addrinfo, info: &mut rdma_addrinfo) -> c_int {
    (info.ai_flags, info.ai_family) = (hints.ai_flags, hints.ai_family);
    (info.ai_qp_type, info.ai_port_space) = (hints.ai_qp_type, hints.ai_port_space);
    // SAFETY: guaranteed by the caller.
    unsafe { copy(hints.ai_dst_addr, hints.ai_dst_len, &mut info.ai_dst_addr, &mut info.ai_dst_len) }
}

/// Copies an address, if there is one. Returns 0 or `EAI_MEMORY`.
///
/// # Safety
/// The caller must pass null or an address of `length` bytes.
unsafe fn copy(
    from: *const sockaddr,
    length: libc::socklen_t,
    to: &mut *mut sockaddr,
    to_length: &mut libc::socklen_t,
) -> c_int {
    if from.is_null() || length == 0 {
        return 0;
    }
    let bytes = length as usize;
    // SAFETY: calloc allocated the block, which is at least as large as the copied bytes; `rdma_freeaddrinfo` frees it.
    unsafe {
        let place = libc::calloc(1, bytes.max(size_of::<libc::sockaddr_storage>())).cast::<u8>();
        if place.is_null() {
            return libc::EAI_MEMORY;
        }
        place.copy_from_nonoverlapping(from.cast(), bytes);
        (*to, *to_length) = (place.cast(), length);
    }
    0
}

/// Resolves names, as `getaddrinfo(3)` does.
///
/// # Safety
/// The caller must pass texts that are null or NUL-terminated.
unsafe fn find(
    node: *const c_char,
    service: *const c_char,
    hints: &rdma_addrinfo,
    info: &mut rdma_addrinfo,
) -> c_int {
    let passive = hints.ai_flags as u32 & RAI_PASSIVE != 0;
    let flag = |ours: u32, theirs: c_int| if hints.ai_flags as u32 & ours != 0 { theirs } else { 0 };
    // SAFETY: all-zero bytes are valid hints; each text is null or NUL-terminated; the result is freed below.
    unsafe {
        let mut asked: libc::addrinfo = std::mem::zeroed();
        asked.ai_flags = flag(RAI_PASSIVE, libc::AI_PASSIVE) | flag(RAI_NUMERICHOST, libc::AI_NUMERICHOST);
        asked.ai_family =
            if matches!(hints.ai_family, libc::AF_INET | libc::AF_INET6) { hints.ai_family } else { 0 };
        asked.ai_socktype = libc::SOCK_STREAM;
        let mut found = std::ptr::null_mut();
        let failed = libc::getaddrinfo(node, service, &asked, &mut found);
        if failed != 0 {
            return failed;
        }
        describe(hints, (*found).ai_family, info);
        let (address, length) = if passive {
            (&mut info.ai_src_addr, &mut info.ai_src_len)
        } else {
            (&mut info.ai_dst_addr, &mut info.ai_dst_len)
        };
        let failed = copy((*found).ai_addr.cast(), (*found).ai_addrlen, address, length);
        libc::freeaddrinfo(found);
        failed
    }
}

/// Fills in the properties of an address from the hints. If only one of queue pair type and port space is given, it determines the other.
fn describe(hints: &rdma_addrinfo, family: c_int, info: &mut rdma_addrinfo) {
    let datagrams = hints.ai_qp_type == IBV_QPT_UD as c_int || hints.ai_port_space == RDMA_PS_UDP as c_int;
    let or = |given: c_int, else_: c_int| if given == 0 { else_ } else { given };
    let kind = if datagrams { (IBV_QPT_UD, RDMA_PS_UDP) } else { (IBV_QPT_RC, RDMA_PS_TCP) };
    (info.ai_flags, info.ai_family) = (hints.ai_flags, family);
    info.ai_qp_type = or(hints.ai_qp_type, kind.0 as c_int);
    info.ai_port_space = or(hints.ai_port_space, kind.1 as c_int);
}

/// `rdma_freeaddrinfo(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    // SAFETY: a list of `rdma_getaddrinfo`, of which each block is freed once.
    while let Some(info) = unsafe { next.as_ref() } {
        let (this, following) = (next, info.ai_next);
        // SAFETY: as above.
        unsafe {
            libc::free(info.ai_src_addr.cast());
            libc::free(info.ai_dst_addr.cast());
            libc::free(this.cast());
        }
        next = following;
    }
}

/// `rdma_create_ep(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut rdma_cm_id,
    info: *mut rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> c_int {
    status(|| {
        devices()?;
        // SAFETY: the contract of the manual page.
        unsafe {
            let (place, info) = (out(id)?, *out(info)?);
            let made = Id::create(std::ptr::null_mut(), std::ptr::null_mut(), info.ai_port_space as u32)?;
            let abi = made.cast::<rdma_cm_id>();
            (*abi).qp_type = info.ai_qp_type as u32;
            if let Err(errno) = prepare(&*made, &info, pd, wanted) {
                rdma_destroy_id(abi);
                return Err(errno);
            }
            *place = abi;
        }
        Ok(())
    })
}

/// # Safety
/// The caller must fulfil the contract of rdma_create_ep(3).
unsafe fn prepare(
    id: &Id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let called = |result: c_int| if result == 0 { Ok(()) } else { Err(crate::rdmacm::errno::last()) };
    // SAFETY: guaranteed by the caller.
    unsafe {
        if info.ai_flags as u32 & RAI_PASSIVE != 0 {
            called(rdma_bind_addr(id.abi(), info.ai_src_addr))?;
            id.lock().template = wanted.as_ref().map(|wanted| (pd as usize, *wanted));
            return Ok(());
        }
        called(rdma_resolve_addr(id.abi(), info.ai_src_addr, info.ai_dst_addr, RESOLVE_TIMEOUT_MS))?;
        called(rdma_resolve_route(id.abi(), RESOLVE_TIMEOUT_MS))?;
        let Some(wanted) = wanted.as_mut() else { return Ok(()) };
        wanted.qp_type = info.ai_qp_type as u32;
        queue_pair::create(id, pd, wanted)
    }
}

/// `rdma_destroy_ep(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_destroy_ep(id: *mut rdma_cm_id) {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe {
            queue_pair::destroy(Id::from(id)?);
            shared::destroy(Id::from(id)?);
            Id::destroy(id.cast());
        }
        Ok(())
    });
}

/// Moves a connection request's identifier to its own channel. Creates its queue pair if its listener has a template.
///
/// # Safety
/// The caller must pass a domain and attributes whose objects are null or alive.
unsafe fn ready(child: &Id, template: Option<(usize, ibv_qp_init_attr)>) -> Result<(), Errno> {
    // SAFETY: guaranteed by the caller.
    unsafe {
        child.migrate(std::ptr::null_mut())?;
        let Some((pd, mut wanted)) = template else { return Ok(()) };
        wanted.qp_type = (*child.abi()).qp_type;
        queue_pair::create(child, pd as *mut ibv_pd, &mut wanted)
    }
}

/// `rdma_get_request(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_request(listener: *mut rdma_cm_id, id: *mut *mut rdma_cm_id) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        unsafe {
            let (listener, place) = (Id::from(listener)?, out(id)?);
            listener.drop_event();
            let event = events::next(listener.channel())?;
            if (*event).event != RDMA_CM_EVENT_CONNECT_REQUEST {
                events::rdma_ack_cm_event(event);
                return Err(INVALID);
            }
            let child = (*event).id.cast::<Id>();
            let template = listener.lock().template;
            ready(&*child, template).inspect_err(|_| {
                events::rdma_ack_cm_event(event);
                Id::destroy(child);
            })?;
            let child = &*child;
            // The program may read the private data of the request until its next call.
            (*child.abi()).event = event;
            *place = child.abi();
        }
        Ok(())
    })
}

/// `rdma_get_devices(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let devices = devices().unwrap_or_default();
    // SAFETY: null, or room for a number; calloc accepts any sizes, and the list has room for all devices and the terminating null pointer.
    unsafe {
        let list = libc::calloc(devices.len() + 1, size_of::<*mut ibv_context>()).cast::<*mut ibv_context>();
        if let Some(count) = count.as_mut() {
            *count = if list.is_null() { 0 } else { devices.len() as c_int };
        }
        if !list.is_null() {
            devices.iter().enumerate().for_each(|(at, device)| list.add(at).write(device.context));
        }
        list
    }
}

/// `rdma_free_devices(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: null, or a list that `rdma_get_devices` allocated by calloc.
    unsafe { libc::free(list.cast()) };
}
