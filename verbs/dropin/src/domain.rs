//! Protection domains and memory regions.

use crate::abi::*;
use crate::context::Context;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, object, status};
use crate::live;
use crate::lock::{Lock, Rank};
use crate::on_demand::{WHOLE_LENGTH, WHOLE_START, mapped, populate};
use std::collections::HashMap;
use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::{Access, MemoryRegion, ProtectionDomain};

/// Rights that may be asked for and that change nothing here (`IBV_ACCESS_OPTIONAL_RANGE`).
const OPTIONAL: c_uint = 0x3ff0_0000;
/// Rights that there are. Regions on demand and those of huge pages are as any other: nothing is pinned.
const KNOWN: c_uint = IBV_ACCESS_LOCAL_WRITE
    | IBV_ACCESS_REMOTE_WRITE
    | IBV_ACCESS_REMOTE_READ
    | IBV_ACCESS_REMOTE_ATOMIC
    | IBV_ACCESS_MW_BIND
    | IBV_ACCESS_ON_DEMAND
    | IBV_ACCESS_HUGETLB
    | FLUSH_GLOBAL;
/// `IBV_ACCESS_FLUSH_GLOBAL`, of rdma-core 45 and later. Its `IBV_ACCESS_FLUSH_PERSISTENT` is refused: nothing here outlives power.
const FLUSH_GLOBAL: c_uint = 1 << 8;

/// Rights of peers.
const REMOTE: c_uint =
    IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC | FLUSH_GLOBAL;

/// A protection domain.
#[repr(C)]
pub(crate) struct Pd {
    abi: ibv_pd,
    pub(crate) domain: ProtectionDomain,
    /// Objects made in it, which keep it from being freed.
    pub(crate) users: AtomicUsize,
    /// Regions on demand by their local key, and whether their owner may write them.
    on_demand: Lock<HashMap<u32, bool>>,
}

impl Pd {
    fn new(context: *mut ibv_context, domain: ProtectionDomain) -> Self {
        let on_demand = Lock::new(Rank::OnDemand, HashMap::new());
        Self { abi: ibv_pd { context, handle: 0 }, domain, users: AtomicUsize::new(0), on_demand }
    }

    pub(crate) fn context(&self) -> *mut ibv_context {
        self.abi.context
    }

    /// Whether `lkey` is that of a region on demand, which its owner may write if `write`.
    pub(crate) fn check_on_demand(&self, lkey: u32, write: bool) -> Result<(), Errno> {
        let writable = *self.on_demand.lock().get(&lkey).ok_or(Errno(libc::ENOENT))?;
        if write && !writable { Err(Errno(libc::EPERM)) } else { Ok(()) }
    }
}

#[repr(C)]
struct Mr {
    abi: ibv_mr,
    region: MemoryRegion,
}

/// The rights of a region or of a queue pair.
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
    object(|| {
        // SAFETY: the contract of the manual page.
        let domain = unsafe { Context::from(context) }?.device.allocate_pd()?;
        Ok(live::give(Pd::new(context, domain)).cast())
    })
}

/// `ibv_dealloc_pd(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    status(|| {
        let pd = pd.cast::<Pd>();
        // SAFETY: the contract of the manual page.
        if unsafe { live::find_last(pd) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: nothing made of it is left, and the program gives it up.
        drop(unsafe { live::take(pd) }?);
        Ok(())
    })
}

/// # Safety
/// The domain is alive, and the memory stays until the region is deregistered.
unsafe fn register(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    flags: c_uint,
) -> Result<*mut ibv_mr, Errno> {
    // SAFETY: passed on.
    let domain = unsafe { live::find(pd.cast::<Pd>()) }?;
    let zero_based = flags & IBV_ACCESS_ZERO_BASED != 0;
    let flags = flags & !IBV_ACCESS_ZERO_BASED;
    let iova = if zero_based { 0 } else { iova };
    let access = rights(flags)?;
    let remote_writes = flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
    // IBA 10.6.3.1: who lets a peer write may write too.
    if length == 0 || (remote_writes && flags & IBV_ACCESS_LOCAL_WRITE == 0) {
        return Err(INVALID);
    }
    let writable = flags & IBV_ACCESS_LOCAL_WRITE != 0;
    let on_demand = flags & IBV_ACCESS_ON_DEMAND != 0;
    let whole = on_demand && address.is_null() && length == usize::MAX;
    let (start, size, iova) = if whole {
        // A peer that may reach any address reaches those that nothing is mapped to, and the process ends.
        if flags & REMOTE != 0 {
            return Err(UNSUPPORTED);
        }
        (WHOLE_START as *mut c_void, WHOLE_LENGTH, WHOLE_START as u64)
    } else {
        if on_demand {
            mapped(address, length)?
        } else {
            populate(address, length, writable)?
        };
        (address, length, iova)
    };
    // SAFETY: the caller keeps the memory; a program in C holds no references.
    let region = unsafe { MemoryRegion::register_raw_as(&domain.domain, start.cast(), size, iova, access) }?;
    let abi = ibv_mr {
        // SAFETY: the domain is alive.
        context: unsafe { (*pd).context },
        pd,
        addr: address,
        length,
        handle: 0,
        lkey: region.lkey().get(),
        rkey: region.remote().rkey,
    };
    if on_demand {
        domain.on_demand.lock().insert(abi.lkey, writable);
    }
    domain.users.fetch_add(1, Ordering::AcqRel);
    Ok(live::give(Mr { abi, region }).cast())
}

/// `ibv_reg_mr(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    object(|| unsafe { register(pd, address, length, address as u64, access as c_uint) })
}

/// `ibv_reg_mr_iova(3)`: requests call the memory's first byte `iova`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    object(|| unsafe { register(pd, address, length, iova, access as c_uint) })
}

/// As [`ibv_reg_mr_iova`], with rights that are only asked for where they help.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: passed on.
    object(|| unsafe { register(pd, address, length, iova, access) })
}

/// `ibv_dereg_mr(3)`: returns when the core has let go of the memory; `EBUSY` while memory windows are bound to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        let mr = mr.cast::<Mr>();
        // SAFETY: the contract of the manual page.
        let Mr { abi, region } = unsafe { live::find_last(mr) }?;
        let (pd, lkey) = (abi.pd, abi.lkey);
        // IBA 10.6.7.2.6: first the windows, then the region.
        if region.windows()? > 0 {
            return Err(BUSY);
        }
        // SAFETY: the program gives it up.
        drop(unsafe { live::take(mr) }?);
        // SAFETY: the domain lives as long as its regions.
        let domain = unsafe { live::find(pd.cast::<Pd>()) }?;
        domain.on_demand.lock().remove(&lkey);
        domain.users.fetch_sub(1, Ordering::AcqRel);
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rights_that_there_are_not_are_refused() {
        assert_eq!(rights(0), Ok(Access::LOCAL_READ));
        assert_eq!(rights(15), Ok(Access::ALL));
        assert_eq!(rights(15 | IBV_ACCESS_RELAXED_ORDERING), Ok(Access::ALL));
        assert_eq!(rights(IBV_ACCESS_ZERO_BASED), Err(INVALID));
        assert_eq!(rights(15 | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_HUGETLB), Ok(Access::ALL));
        assert_eq!(rights(1 << 9), Err(INVALID));
    }
}
