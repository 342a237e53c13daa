//! Device memory (`ibv_alloc_dm(3)`). The device is software, so this is memory of the process, up to 1 MiB for each context.

use crate::abi::*;
use crate::errno::{BUSY, Errno, INVALID, at, created, status};
use crate::ibverbs::context::Context;
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::region::{self, Placed, Wanted};
use datapath::host_memory::{copy_in, copy_out};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::{c_int, c_uint, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicUsize, Ordering};
use verbs::Access;

/// Limit of each context, bytes.
pub(crate) const SIZE: usize = 1 << 20;
/// Offsets and lengths of copies must be multiples of this, as on NICs with device memory.
const UNIT: u64 = 4;

#[repr(C)]
pub(crate) struct Dm {
    abi: ibv_dm,
    start: NonNull<u8>,
    length: usize,
    layout: Layout,
    /// Number of regions in the memory, which prevent its freeing.
    pub(crate) users: AtomicUsize,
}

impl Dm {
    /// Returns a pointer to the byte at `offset`, if the `length` bytes from there are in the memory and both numbers are multiples of
    /// [`UNIT`].
    fn part(&self, offset: u64, length: usize) -> Result<*mut u8, Errno> {
        let fault = Errno(libc::EFAULT);
        let end = offset.checked_add(length as u64).ok_or(fault)?;
        if end > self.length as u64 || !offset.is_multiple_of(UNIT) || !(length as u64).is_multiple_of(UNIT) {
            return Err(fault);
        }
        Ok(self.start.as_ptr().wrapping_add(offset as usize))
    }
}

/// `ibv_alloc_dm(3)`
pub(crate) unsafe extern "C" fn alloc_dm(
    context: *mut ibv_context,
    wanted: *mut ibv_alloc_dm_attr,
) -> *mut ibv_dm {
    created(|| {
        // SAFETY: the contract of the manual page.
        let (whole, wanted) = unsafe { (Context::from(context)?, at(wanted)?) };
        let &ibv_alloc_dm_attr { length, log_align_req, comp_mask } = wanted;
        if comp_mask != 0 || length == 0 || length > SIZE {
            return Err(INVALID);
        }
        let none = Errno(libc::ENOMEM);
        // Aligned to at least a page, so that regions and their atomics are aligned.
        let alignment = 1_usize.checked_shl(log_align_req.max(12)).filter(|&it| it <= SIZE).ok_or(none)?;
        let layout = Layout::from_size_align(length, alignment).map_err(|_| none)?;
        let taken = &whole.device_memory;
        let fits = |taken: usize| taken.checked_add(length).filter(|&all| all <= SIZE);
        taken.fetch_update(Ordering::AcqRel, Ordering::Relaxed, fits).map_err(|_| none)?;
        // SAFETY: the layout has at least one byte.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else {
            taken.fetch_sub(length, Ordering::AcqRel);
            return Err(none);
        };
        let (memcpy_to_dm, memcpy_from_dm) = (Some(copy_to as _), Some(copy_from as _));
        let abi = ibv_dm { context, memcpy_to_dm, memcpy_from_dm, comp_mask: 0, handle: 0 };
        Ok(live_objects::publish(Dm { abi, start, length, layout, users: AtomicUsize::new(0) }).cast())
    })
}

/// `ibv_free_dm(3)`: `EBUSY` while the memory has regions.
pub(crate) unsafe extern "C" fn free_dm(dm: *mut ibv_dm) -> c_int {
    status(|| {
        let dm = dm.cast::<Dm>();
        // SAFETY: the contract of the manual page.
        if unsafe { live_objects::find_last(dm) }?.users.load(Ordering::Acquire) > 0 {
            return Err(BUSY);
        }
        // SAFETY: the memory has no regions, and the program must not use it after this call.
        let dm = unsafe { live_objects::reclaim(dm) }?;
        // SAFETY: allocated with this layout, and no region refers to it.
        unsafe { dealloc(dm.start.as_ptr(), dm.layout) };
        // SAFETY: the context outlives its device memory.
        unsafe { Context::from(dm.abi.context) }?.device_memory.fetch_sub(dm.length, Ordering::AcqRel);
        Ok(())
    })
}

/// `ibv_memcpy_to_dm(3)`
unsafe extern "C" fn copy_to(dm: *mut ibv_dm, offset: u64, from: *const c_void, length: usize) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let to = unsafe { live_objects::find(dm.cast::<Dm>()) }?.part(offset, length)?;
        if from.is_null() || length == 0 {
            return if length == 0 { Ok(()) } else { Err(INVALID) };
        }
        // SAFETY: the part is in the memory; the program has `length` bytes.
        unsafe { copy_in(to, std::slice::from_raw_parts(from.cast(), length)) }
            .map_err(|_| Errno(libc::EFAULT))
    })
}

/// `ibv_memcpy_from_dm(3)`
unsafe extern "C" fn copy_from(into: *mut c_void, dm: *mut ibv_dm, offset: u64, length: usize) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let from = unsafe { live_objects::find(dm.cast::<Dm>()) }?.part(offset, length)?;
        if into.is_null() || length == 0 {
            return if length == 0 { Ok(()) } else { Err(INVALID) };
        }
        // SAFETY: the part is in the memory; the program has room for `length` bytes.
        unsafe { copy_out(from, std::slice::from_raw_parts_mut(into.cast(), length)) }
            .map_err(|_| Errno(libc::EFAULT))
    })
}

/// `ibv_reg_dm_mr(3)`: requests address the first byte of the region as 0.
pub(crate) unsafe extern "C" fn reg_dm_mr(
    pd: *mut ibv_pd,
    dm: *mut ibv_dm,
    offset: u64,
    length: usize,
    flags: c_uint,
) -> *mut ibv_mr {
    created(|| {
        let dm = dm.cast::<Dm>();
        // SAFETY: the contract of the manual page.
        let (_, whole) = unsafe { (live_objects::find(pd.cast::<Pd>())?, live_objects::find(dm)?) };
        let wanted = Wanted { pd, address: null_mut(), length, iova: 0, flags };
        let access = wanted.access()?;
        let end = offset.checked_add(length as u64).ok_or(INVALID)?;
        if end > whole.length as u64
            || flags & IBV_ACCESS_ZERO_BASED == 0
            || flags & IBV_ACCESS_ON_DEMAND != 0
        {
            return Err(INVALID);
        }
        let start = whole.start.as_ptr().wrapping_add(offset as usize);
        let placed = match length {
            // An empty region is allowed and grants nothing, but a region of the core has at least one byte.
            0 => Placed { start: whole.start.as_ptr(), length: 1, iova: 0, access: Access::LOCAL_READ },
            _ => Placed { start, length, iova: 0, access },
        };
        // SAFETY: the domain is alive, and the memory is not freed while it has regions.
        let mr = unsafe { region::publish(wanted, &placed, dm) }?;
        whole.users.fetch_add(1, Ordering::AcqRel);
        Ok(mr)
    })
}
