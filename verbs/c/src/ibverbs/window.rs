//! Memory windows.

use crate::abi::*;
use crate::errno::{Errno, INVALID, at, created, out, status};
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::queue_pair::Qp;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::Ordering;
use verbs::window::{Binding, MemoryWindow, WindowKind};
use verbs::{Access, Lkey, Rkey, SendRequest};

/// The rights that a binding may contain. A window grants no rights to its owner, so `LOCAL_WRITE` has no effect. Programs set it together
/// with the rights of peers, as they do for regions.
const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_ZERO_BASED;

/// A memory window. The program reads its rkey in `abi`, where `ibv_bind_mw` changes it.
#[repr(C)]
struct Mw {
    abi: ibv_mw,
    /// Deallocates the window in the core when dropped.
    _window: MemoryWindow,
}

/// `ibv_alloc_mw(3)`
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: ibv_mw_type) -> *mut ibv_mw {
    created(|| {
        // SAFETY: the contract of the manual page.
        let domain = unsafe { live_objects::find(pd.cast::<Pd>()) }?;
        let window = domain.domain.memory_window(match kind {
            IBV_MW_TYPE_1 => WindowKind::One,
            IBV_MW_TYPE_2 => WindowKind::Two,
            _ => return Err(INVALID),
        })?;
        domain.users.fetch_add(1, Ordering::AcqRel);
        // SAFETY: the domain is alive.
        let context = unsafe { (*pd).context };
        let abi = ibv_mw { context, pd, rkey: window.rkey().get(), handle: 0, type_: kind };
        Ok(live_objects::publish(Mw { abi, _window: window }).cast())
    })
}

/// `ibv_dealloc_mw(3)`: the window may be bound.
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let pd = unsafe { live_objects::find_last(mw.cast::<Mw>()) }?.abi.pd;
        // SAFETY: the program must not use the window after this call.
        drop(unsafe { live_objects::reclaim(mw.cast::<Mw>()) }?);
        // SAFETY: the domain lives as long as its windows.
        unsafe { live_objects::find(pd.cast::<Pd>()) }?.users.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}

/// Returns the binding that a program requests for a window, with this `rkey`.
///
/// # Safety
/// The caller must pass a window and a region that are null or alive.
pub(crate) unsafe fn binding(mw: *mut ibv_mw, rkey: u32, info: &ibv_mw_bind_info) -> Result<Binding, Errno> {
    let flags = info.mw_access_flags;
    if flags & !KNOWN != 0 {
        return Err(INVALID);
    }
    // SAFETY: guaranteed by the caller.
    let (window, lkey) = unsafe { (at(mw)?.rkey, info.mr.as_ref().map(|mr| mr.lkey)) };
    if lkey.is_none() && info.length > 0 {
        return Err(INVALID);
    }
    let named = [
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
    ];
    let given = named.into_iter().filter(|(flag, _)| flags & flag != 0);
    Ok(Binding {
        window: Rkey::new(window),
        rkey: Rkey::new(rkey),
        lkey: Lkey::new(lkey.unwrap_or(0)),
        address: info.addr,
        length: info.length,
        access: given.fold(Access::LOCAL_READ, |all, (_, access)| all | access),
        zero_based: flags & IBV_ACCESS_ZERO_BASED != 0,
    })
}

/// `ibv_bind_mw(3)`, for a type 1 window: posts the binding, and stores its new rkey in the window.
pub(crate) unsafe extern "C" fn bind_mw(qp: *mut ibv_qp, mw: *mut ibv_mw, bind: *mut ibv_mw_bind) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let (whole, mw, bind) = unsafe { (Qp::from(qp)?, out(mw)?, at(bind)?) };
        let rkey = Rkey::new(mw.rkey).next().get();
        // SAFETY: the contract of the manual page.
        let binding = unsafe { binding(mw, rkey, &bind.bind_info) }?;
        let flag = |flag: ibv_send_flags| bind.send_flags & flag as c_uint != 0;
        let (signalled, fence) = (flag(IBV_SEND_SIGNALED), flag(IBV_SEND_FENCE));
        let request = SendRequest { signalled, fence, ..SendRequest::bind(bind.wr_id, binding) };
        whole.lock().qp.post_send(request)?;
        mw.rkey = rkey;
        Ok(())
    })
}
