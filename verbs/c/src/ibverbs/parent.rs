//! Parent domains and thread domains (`ibv_alloc_parent_domain(3)`, `ibv_alloc_td(3)`).
//!
//! A program that creates objects with a thread domain promises that only one thread at a time uses them. The library locks nevertheless,
//! because an uncontended lock costs little compared with a work request. The allocators of a parent domain are not called: a provider may
//! call them for its own queues, but the library's queues are rings that the core shares.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, at, created, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use std::ffi::c_int;
use std::sync::atomic::{AtomicUsize, Ordering};

#[repr(C)]
pub(crate) struct Td {
    abi: ibv_td,
    /// Number of parent domains with this thread domain, which prevent its deallocation.
    users: AtomicUsize,
}

/// The objects that a parent domain refers to.
#[derive(Clone, Copy)]
pub(crate) struct Parts {
    pd: *mut Pd,
    /// Null if the parent domain was created without one.
    td: *mut Td,
}

/// `ibv_alloc_td(3)`
pub(crate) unsafe extern "C" fn alloc_td(
    context: *mut ibv_context,
    wanted: *mut ibv_td_init_attr,
) -> *mut ibv_td {
    created(|| {
        // SAFETY: the contract of the manual page.
        let (_, wanted) = unsafe { (Context::from(context)?, at(wanted)?) };
        if wanted.comp_mask != 0 {
            return Err(INVALID);
        }
        Ok(live_objects::publish(Td { abi: ibv_td { context }, users: AtomicUsize::new(0) }).cast())
    })
}

/// `ibv_dealloc_td(3)`: `EBUSY` while a parent domain uses the thread domain.
pub(crate) unsafe extern "C" fn dealloc_td(td: *mut ibv_td) -> c_int {
    status(|| {
        let td = td.cast::<Td>();
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(td) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: no parent domain uses it, and the program must not use it after this call.
        drop(unsafe { live_objects::reclaim(td) }?);
        Ok(())
    })
}

/// `ibv_alloc_parent_domain(3)`: creates another handle of a protection domain.
pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut ibv_context,
    wanted: *mut ibv_parent_domain_init_attr,
) -> *mut ibv_pd {
    const KNOWN: u32 = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
    created(|| {
        // SAFETY: the contract of the manual page.
        let (_, wanted) = unsafe { (Context::from(context)?, at(wanted)?) };
        let (pd, td) = (wanted.pd.cast::<Pd>(), wanted.td.cast::<Td>());
        // SAFETY: the contract of the manual page.
        let (domain, thread) = unsafe { (live_objects::find(pd)?, live_objects::find_any(td)?) };
        if wanted.comp_mask & !KNOWN != 0 || domain.context() != context {
            return Err(INVALID);
        }
        domain.users.fetch_add(1, Ordering::AcqRel);
        if let Some(thread) = thread {
            thread.users.fetch_add(1, Ordering::AcqRel);
        }
        Ok(live_objects::publish(Pd::new(context, domain.domain.clone(), Some(Parts { pd, td }))).cast())
    })
}

impl Parts {
    /// Releases both objects after the parent domain was deallocated.
    ///
    /// # Safety
    /// The caller must ensure that both are alive, as they are while a parent domain refers to them.
    pub(crate) unsafe fn release(self) -> Result<(), Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            live_objects::find(self.pd)?.users.fetch_sub(1, Ordering::AcqRel);
            if let Some(thread) = live_objects::find_any(self.td)? {
                thread.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    }
}
