//! The short way: addresses from names, and an endpoint in one call.

use crate::abi::*;
use crate::device::device;
use crate::errno::{Errno, INVALID, out, status};
use crate::events;
use crate::id::{Id, rdma_bind_addr, rdma_destroy_id, rdma_resolve_addr, rdma_resolve_route};
use crate::queue_pair;
use crate::shared;
use std::ffi::{c_char, c_int};

/// How long an address may take to be resolved.
const PATIENCE_MS: c_int = 2000;

/// `rdma_getaddrinfo(3)`: 0, or a code of `getaddrinfo(3)`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_getaddrinfo(
    node: *const c_char,
    service: *const c_char,
    hints: *const rdma_addrinfo,
    result: *mut *mut rdma_addrinfo,
) -> c_int {
    if result.is_null() || (node.is_null() && service.is_null()) {
        return libc::EAI_NONAME;
    }
    // SAFETY: null, or the program's hints.
    let hints = unsafe { hints.as_ref() }.copied().unwrap_or_default();
    let flag = |ours: u32, theirs: c_int| if hints.ai_flags as u32 & ours != 0 { theirs } else { 0 };
    // SAFETY: all-zero bytes are hints; each text is null or NUL-terminated; what is found is freed below.
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
        let made = translate(&hints, &*found);
        libc::freeaddrinfo(found);
        match made {
            Some(made) => {
                *result = made;
                0
            }
            None => libc::EAI_MEMORY,
        }
    }
}

/// # Safety
/// What was found is `getaddrinfo`'s.
unsafe fn translate(hints: &rdma_addrinfo, found: &libc::addrinfo) -> Option<*mut rdma_addrinfo> {
    // SAFETY: both blocks are calloc's, and as large as what is written; `rdma_freeaddrinfo` frees them.
    unsafe {
        let info = libc::calloc(1, size_of::<rdma_addrinfo>()).cast::<rdma_addrinfo>();
        let length = found.ai_addrlen as usize;
        let address = libc::calloc(1, length.max(size_of::<libc::sockaddr_storage>())).cast::<u8>();
        if info.is_null() || address.is_null() {
            libc::free(info.cast());
            libc::free(address.cast());
            return None;
        }
        address.copy_from_nonoverlapping(found.ai_addr.cast(), length);
        (*info).ai_flags = hints.ai_flags;
        (*info).ai_family = found.ai_family;
        let datagrams =
            hints.ai_qp_type == IBV_QPT_UD as c_int || hints.ai_port_space == RDMA_PS_UDP as c_int;
        let or = |given: c_int, else_: c_int| if given == 0 { else_ } else { given };
        let kind = if datagrams { (IBV_QPT_UD, RDMA_PS_UDP) } else { (IBV_QPT_RC, RDMA_PS_TCP) };
        (*info).ai_qp_type = or(hints.ai_qp_type, kind.0 as c_int);
        (*info).ai_port_space = or(hints.ai_port_space, kind.1 as c_int);
        if hints.ai_flags as u32 & RAI_PASSIVE != 0 {
            (*info).ai_src_addr = address.cast();
            (*info).ai_src_len = found.ai_addrlen;
        } else {
            (*info).ai_dst_addr = address.cast();
            (*info).ai_dst_len = found.ai_addrlen;
        }
        Some(info)
    }
}

/// `rdma_freeaddrinfo(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_freeaddrinfo(info: *mut rdma_addrinfo) {
    let mut next = info;
    // SAFETY: a list of `rdma_getaddrinfo`'s, each block freed once.
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
        device()?;
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
/// As for `rdma_create_ep`.
unsafe fn prepare(
    id: &Id,
    info: &rdma_addrinfo,
    pd: *mut ibv_pd,
    wanted: *mut ibv_qp_init_attr,
) -> Result<(), Errno> {
    let called = |result: c_int| if result == 0 { Ok(()) } else { Err(crate::errno::last()) };
    // SAFETY: the caller's promise.
    unsafe {
        if info.ai_flags as u32 & RAI_PASSIVE != 0 {
            called(rdma_bind_addr(id.abi(), info.ai_src_addr))?;
            id.lock().template = wanted.as_ref().map(|wanted| (pd as usize, *wanted));
            return Ok(());
        }
        called(rdma_resolve_addr(id.abi(), info.ai_src_addr, info.ai_dst_addr, PATIENCE_MS))?;
        called(rdma_resolve_route(id.abi(), PATIENCE_MS))?;
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
            let child = &*(*event).id.cast::<Id>();
            child.migrate(std::ptr::null_mut())?;
            let template = listener.lock().template;
            if let Some((pd, mut wanted)) = template {
                wanted.qp_type = (*child.abi()).qp_type;
                queue_pair::create(child, pd as *mut ibv_pd, &mut wanted).inspect_err(|_| {
                    events::rdma_ack_cm_event(event);
                })?;
            }
            // The program may read the request's private data until its next call.
            (*child.abi()).event = event;
            *place = child.abi();
        }
        Ok(())
    })
}

/// `rdma_get_devices(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_get_devices(count: *mut c_int) -> *mut *mut ibv_context {
    let device = device();
    // SAFETY: null, or room for a number; calloc takes any sizes, and the list has room for two.
    unsafe {
        if let Some(count) = count.as_mut() {
            *count = c_int::from(device.is_ok());
        }
        let list = libc::calloc(2, size_of::<*mut ibv_context>()).cast::<*mut ibv_context>();
        if let (false, Ok(device)) = (list.is_null(), device) {
            list.write(device.context);
        }
        list
    }
}

/// `rdma_free_devices(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rdma_free_devices(list: *mut *mut ibv_context) {
    // SAFETY: null, or what `rdma_get_devices` got from calloc.
    unsafe { libc::free(list.cast()) };
}
