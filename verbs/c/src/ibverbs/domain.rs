//! Protection domains, and the access rights of regions and queue pairs.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, created, injected, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use crate::ibverbs::parent::Parts;
use std::collections::HashMap;
use std::ffi::{c_int, c_uint};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::fault::Verb;
use verbs::{Access, ProtectionDomain};

/// Rights that a program may request and that have no effect here (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;
/// The supported rights. On-demand regions and those with huge pages are ordinary ones, because no memory is pinned.
const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | FLUSH_GLOBAL;
/// `IBV_ACCESS_FLUSH_GLOBAL`, of rdma-core 45 and later. Its `IBV_ACCESS_FLUSH_PERSISTENT` is refused, because no memory is persistent.
const FLUSH_GLOBAL: c_uint = 1 << 8;

#[repr(C)]
pub(crate) struct Pd {
    abi: ibv_pd,
    pub(crate) domain: ProtectionDomain,
    /// Number of objects in the domain, which prevent its deallocation.
    pub(crate) users: AtomicUsize,
    /// On-demand regions by their lkey, and whether they allow local writes.
    pub(crate) on_demand: Lock<HashMap<u32, bool>>,
    parts: Option<Parts>,
}

impl Pd {
    pub(crate) fn new(context: *mut ibv_context, domain: ProtectionDomain, parts: Option<Parts>) -> Self {
        let on_demand = Lock::new(Rank::OnDemand, HashMap::new());
        Self { abi: ibv_pd { context, handle: 0 }, domain, users: AtomicUsize::new(0), on_demand, parts }
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.abi.context
    }

    /// Returns `EINVAL` unless this is a parent domain.
    pub(crate) fn check_parent(&self) -> Result<(), Errno> {
        self.parts.map(drop).ok_or(INVALID)
    }

    /// Returns `ENOENT` if no on-demand region has this `lkey`. Returns `EPERM` if `write` is set and the region does not allow local
    /// writes.
    pub(crate) fn check_on_demand(&self, lkey: u32, write: bool) -> Result<(), Errno> {
        let writable = *self.on_demand.lock().get(&lkey).ok_or(Errno(libc::ENOENT))?;
        if write && !writable { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }
}

pub(crate) fn rights(flags: c_uint) -> Result<Access, Errno> {
    if flags & !(KNOWN | OPTIONAL) != 0 {
        return Err(INVALID);
    }
    let named = [
        (IBV_ACCESS_LOCAL_WRITE, Access::LOCAL_WRITE),
        (IBV_ACCESS_REMOTE_WRITE, Access::REMOTE_WRITE),
        (IBV_ACCESS_REMOTE_READ, Access::REMOTE_READ),
        (IBV_ACCESS_REMOTE_ATOMIC, Access::REMOTE_ATOMIC),
        (IBV_ACCESS_MW_BIND, Access::WINDOWS),
        (FLUSH_GLOBAL, Access::REMOTE_FLUSH),
    ];
    let given = named.into_iter().filter(|(flag, _)| flags & flag != 0);
    Ok(given.fold(Access::LOCAL_READ, |all, (_, access)| all | access))
}

/// `ibv_alloc_pd(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    created(|| {
        injected(Verb::AllocPd)?;
        // SAFETY: the contract of the manual page.
        let domain = unsafe { Context::from(context) }?.device.allocate_pd()?;
        Ok(live_objects::publish(Pd::new(context, domain, None)).cast())
    })
}

/// `ibv_dealloc_pd(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        let pd = pd.cast::<Pd>();
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(pd) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: no object in the domain is left, and the program must not use it after this call.
        let parts = unsafe { live_objects::reclaim(pd) }?.parts;
        // SAFETY: the parts of a parent domain live as long as the parent domain.
        parts.map_or(Ok(()), |parts| unsafe { parts.release() })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_access_flags_are_refused() {
        assert_eq!(rights(0), Ok(Access::LOCAL_READ));
        assert_eq!(rights(15), Ok(Access::ALL));
        assert_eq!(rights(15 | IBV_ACCESS_RELAXED_ORDERING), Ok(Access::ALL));
        assert_eq!(rights(IBV_ACCESS_ZERO_BASED), Err(INVALID));
        assert_eq!(rights(15 | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB), Ok(Access::ALL));
        assert_eq!(rights(1 << 9), Err(INVALID));
    }
}
