//! Memory regions.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, UNSUPPORTED, created, injected, set, status};
use crate::ibverbs::device_memory::Dm;
use crate::ibverbs::domain::{Pd, rights};
use crate::ibverbs::live_objects;
use crate::ibverbs::lock::{Lock, Rank};
use crate::ibverbs::on_demand::{WHOLE_LENGTH, WHOLE_START, mapped, populate};
use std::cell::UnsafeCell;
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::null_mut;
use std::sync::atomic::Ordering;
use verbs::fault::Verb;
use verbs::{Access, MemoryRegion};

#[repr(C)]
struct Mr {
    /// Written with the lock held.
    abi: UnsafeCell<ibv_mr>,
    inner: Lock<RegionState>,
    /// The device memory of the region, or null.
    dm: *mut Dm,
}

struct RegionState {
    region: MemoryRegion,
    wanted: Wanted,
}

/// The parameters of a region, as a program requests it.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) pd: *mut ibv_pd,
    pub(crate) address: *mut c_void,
    pub(crate) length: usize,
    pub(crate) iova: u64,
    pub(crate) flags: c_uint,
}

// SAFETY: the pointers are only returned to the program, or looked up among live objects.
unsafe impl Send for Wanted {}

/// The parameters of a region, as the core registers it.
pub(crate) struct Placed {
    pub(crate) start: *mut u8,
    pub(crate) length: usize,
    pub(crate) iova: u64,
    pub(crate) access: Access,
}

impl Wanted {
    fn writable(&self) -> bool {
        self.flags & IBV_ACCESS_LOCAL_WRITE != 0
    }

    fn on_demand(&self) -> bool {
        self.flags & IBV_ACCESS_ON_DEMAND != 0
    }

    /// Returns the access rights, or `EINVAL` if they contradict each other.
    pub(crate) fn access(&self) -> Result<Access, Errno> {
        let remote_writes = self.flags & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) != 0;
        // IBA 10.6.3.1: a region that a peer may write must allow local writes.
        if remote_writes && !self.writable() {
            return Err(INVALID);
        }
        rights(self.flags & !IBV_ACCESS_ZERO_BASED)
    }

    fn place(&self) -> Result<Placed, Errno> {
        let &Self { address, length, .. } = self;
        let access = self.access()?;
        if length == 0 {
            return Err(INVALID);
        }
        if self.on_demand() && address.is_null() && length == usize::MAX {
            // A peer with access to all addresses could access one that is not mapped, which would end the process.
            if access != Access::LOCAL_READ && access != Access::LOCAL_WRITE {
                return Err(UNSUPPORTED);
            }
            let start = std::ptr::with_exposed_provenance_mut(WHOLE_START);
            return Ok(Placed { start, length: WHOLE_LENGTH, iova: WHOLE_START as u64, access });
        }
        if self.on_demand() {
            mapped(address, length)?;
        } else {
            populate(address, length, self.writable())?;
        }
        let iova = if self.flags & IBV_ACCESS_ZERO_BASED != 0 { 0 } else { self.iova };
        Ok(Placed { start: address.cast(), length, iova, access })
    }

    /// # Safety
    /// The caller must ensure that the domain is alive.
    unsafe fn domain<'a>(&self) -> Result<&'a Pd, Errno> {
        // SAFETY: guaranteed by the caller.
        unsafe { live_objects::find(self.pd.cast::<Pd>()) }
    }

    /// Counts the region with this key in its domain.
    fn join(&self, domain: &Pd, lkey: u32) {
        if self.on_demand() {
            domain.on_demand.lock().insert(lkey, self.writable());
        }
        domain.users.fetch_add(1, Ordering::AcqRel);
    }

    fn leave(&self, domain: &Pd, lkey: u32) {
        domain.on_demand.lock().remove(&lkey);
        domain.users.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Registers `placed`, and passes the region to the program.
///
/// # Safety
/// The caller must ensure that the domain is alive, and keep the memory until the region is deregistered.
pub(crate) unsafe fn publish(wanted: Wanted, placed: &Placed, dm: *mut Dm) -> Result<*mut ibv_mr, Errno> {
    let &Placed { start, length, iova, access } = placed;
    // SAFETY: guaranteed by the caller.
    let domain = unsafe { wanted.domain() }?;
    // SAFETY: the caller keeps the memory valid, and a C program has no Rust references to it.
    let region = unsafe { MemoryRegion::register_raw_as(&domain.domain, start, length, iova, access) }?;
    let abi = ibv_mr {
        context: domain.context(),
        pd: wanted.pd,
        addr: wanted.address,
        length: wanted.length,
        handle: 0,
        lkey: region.lkey().get(),
        rkey: region.remote().rkey,
    };
    wanted.join(domain, abi.lkey);
    let inner = Lock::new(Rank::Region, RegionState { region, wanted });
    Ok(live_objects::publish(Mr { abi: UnsafeCell::new(abi), inner, dm }).cast())
}

/// # Safety
/// The caller must fulfil the conditions of [`publish`].
unsafe fn register(wanted: Wanted) -> Result<*mut ibv_mr, Errno> {
    injected(Verb::RegMr)?;
    // SAFETY: guaranteed by the caller.
    unsafe {
        wanted.domain()?;
        publish(wanted, &wanted.place()?, null_mut())
    }
}

/// `ibv_reg_mr(3)`
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    let wanted = Wanted { pd, address, length, iova: address as u64, flags: access as c_uint };
    // SAFETY: the contract of the manual page.
    created(|| unsafe { register(wanted) })
}

/// `ibv_reg_mr_iova(3)`: requests address the first byte of the memory as `iova`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the contract of the manual page.
    created(|| unsafe { register(Wanted { pd, address, length, iova, flags: access as c_uint }) })
}

/// Registers as [`ibv_reg_mr_iova`] does, and accepts optional rights as well.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_reg_mr_iova2(
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    iova: u64,
    access: c_uint,
) -> *mut ibv_mr {
    // SAFETY: the contract of the manual page.
    created(|| unsafe { register(Wanted { pd, address, length, iova, flags: access }) })
}

impl Mr {
    /// # Safety
    /// The caller must ensure that the region and the changed domain are alive, and keep the memory until the region is deregistered.
    unsafe fn change(&self, change: impl FnOnce(&mut Wanted)) -> Result<(), Errno> {
        let mut inner = self.inner.lock();
        let before = inner.wanted;
        let mut wanted = before;
        change(&mut wanted);
        if !self.dm.is_null() {
            return Err(UNSUPPORTED);
        }
        // SAFETY: guaranteed by the caller.
        let (old, new) = unsafe { (before.domain()?, wanted.domain()?) };
        if inner.region.windows()? > 0 {
            return Err(BUSY);
        }
        let Placed { start, length, iova, access } = wanted.place()?;
        // SAFETY: guaranteed by the caller.
        unsafe { inner.region.change(&new.domain, start, length, iova, access) }?;
        let lkey = inner.region.lkey().get();
        before.leave(old, lkey);
        wanted.join(new, lkey);
        inner.wanted = wanted;
        // SAFETY: the lock is held. A program must not read the structure during its own call.
        let abi = unsafe { &mut *self.abi.get() };
        (abi.pd, abi.addr, abi.length) = (wanted.pd, wanted.address, wanted.length);
        Ok(())
    }
}

/// `ibv_rereg_mr(3)`: the keys of the region stay the same. On failure the region is unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    address: *mut c_void,
    length: usize,
    access: c_int,
) -> c_int {
    let flags = flags as c_uint;
    let has = |flag| flags & flag != 0;
    if flags & !IBV_REREG_MR_FLAGS_SUPPORTED != 0
        || (has(IBV_REREG_MR_CHANGE_TRANSLATION) && (address.is_null() || length == 0))
        || (has(IBV_REREG_MR_CHANGE_ACCESS) && access < 0)
    {
        set(INVALID);
        return IBV_REREG_MR_ERR_INPUT;
    }
    let failed = status(|| {
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find(mr.cast::<Mr>()) }?;
        if flags == 0 {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        unsafe {
            whole.change(|wanted| {
                if has(IBV_REREG_MR_CHANGE_TRANSLATION) {
                    (wanted.address, wanted.length, wanted.iova) = (address, length, address as u64);
                }
                if has(IBV_REREG_MR_CHANGE_PD) {
                    wanted.pd = pd;
                }
                if has(IBV_REREG_MR_CHANGE_ACCESS) {
                    wanted.flags = access as c_uint;
                }
            })
        }
    });
    if failed == 0 { 0 } else { IBV_REREG_MR_ERR_CMD }
}

/// `ibv_dereg_mr(3)`: returns when the core no longer accesses the memory; `EBUSY` while memory windows are bound to it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ibv_dereg_mr(mr: *mut ibv_mr) -> c_int {
    status(|| {
        let mr = mr.cast::<Mr>();
        // SAFETY: the contract of the manual page.
        let whole = unsafe { live_objects::find_last(mr) }?;
        let (wanted, lkey, windows) = {
            let inner = whole.inner.lock();
            // A core that has stopped has no windows.
            (inner.wanted, inner.region.lkey().get(), inner.region.windows().unwrap_or(0))
        };
        // IBA 10.6.7.2.6: first the windows, then the region.
        if windows > 0 {
            return Err(BUSY);
        }
        // SAFETY: the program must not use the region after this call; the domain and the device memory live as long as their regions.
        unsafe {
            let dm = live_objects::reclaim(mr)?.dm;
            wanted.leave(wanted.domain()?, lkey);
            if !dm.is_null() {
                live_objects::find(dm)?.users.fetch_sub(1, Ordering::AcqRel);
            }
        }
        Ok(())
    })
}
