//! Checks of memory at registration, and on-demand paging.
//!
//! The library pins no memory: it copies through the process's own page tables, so any region can be an on-demand region (`ibv_reg_mr(3)`,
//! `IBV_ACCESS_ON_DEMAND`). Such a region is not populated when it is registered. `ibv_advise_mr(3)` populates parts of it.

use crate::abi::*;
use crate::errno::{Errno, INVALID, UNSUPPORTED, status};
use crate::ibverbs::domain::Pd;
use crate::ibverbs::live_objects;
use crate::ibverbs::post::buffers;
use std::ffi::{c_int, c_uint, c_void};

const PAGE: usize = 4096;
/// Maximum number of parts in one `ibv_advise_mr`: the kernel has 16 bits for the size of an array (`struct ib_uverbs_attr`, `len`).
const MAX_PARTS: u32 = u16::MAX as u32 / size_of::<ibv_sge>() as u32;
/// `IBV_ADVISE_MR_FLAG_FLUSH`
const FLUSH: c_uint = 1;

/// Extends a range down to a page boundary. Returns its start and its length in bytes.
fn pages(address: *mut c_void, length: usize) -> Result<(usize, usize), Errno> {
    let start = address.addr() / PAGE * PAGE;
    let end = address.addr().checked_add(length).ok_or(INVALID)?;
    Ok((start, end - start))
}

/// Populates memory that a NIC would pin. Returns `EFAULT` if it cannot be read or, if `write`, cannot be written.
///
/// The kernel does not populate the memory of a device. Before Linux 5.14 it populates none. Such memory is accepted if it can be read.
pub(crate) fn populate(address: *mut c_void, length: usize, write: bool) -> Result<(), Errno> {
    const MADV_POPULATE_READ: c_int = 22;
    const MADV_POPULATE_WRITE: c_int = 23;
    let (start, length) = pages(address, length)?;
    let populate = |advice| {
        // SAFETY: populating changes no byte of the memory, and the kernel refuses unmapped addresses.
        let refused = unsafe { libc::madvise(start as *mut c_void, length, advice) } != 0;
        refused.then(|| std::io::Error::last_os_error().raw_os_error().unwrap_or(0))
    };
    let refused = populate(if write { MADV_POPULATE_WRITE } else { MADV_POPULATE_READ });
    match refused {
        Some(libc::ENOMEM | libc::EFAULT) => Err(Errno(libc::EFAULT)),
        // The memory can be read, so it cannot be written.
        Some(libc::EINVAL) if write && populate(MADV_POPULATE_READ).is_none() => Err(Errno(libc::EFAULT)),
        Some(_) if !is_readable(start, length) => Err(Errno(libc::EFAULT)),
        _ => Ok(()),
    }
}

/// Returns whether each page of a range that begins on a page boundary can be read. The kernel reads it, so no signal is raised.
fn is_readable(start: usize, length: usize) -> bool {
    /// An operation that `rt_sigprocmask(2)` refuses with `EINVAL`, but only after it has read the set.
    const NO_OPERATION: c_int = -1;
    /// Size of the kernel's signal set, bytes.
    const SET: usize = 8;
    (start..start + length).step_by(PAGE).all(|page| {
        // SAFETY: the kernel checks the address, and changes neither the memory nor the mask.
        unsafe { libc::syscall(libc::SYS_rt_sigprocmask, NO_OPERATION, page, 0_usize, SET) };
        std::io::Error::last_os_error().raw_os_error() != Some(libc::EFAULT)
    })
}

/// Returns `EFAULT` for memory that is not mapped. The memory need not be populated.
pub(crate) fn mapped(address: *mut c_void, length: usize) -> Result<(), Errno> {
    let (start, length) = pages(address, length)?;
    // SAFETY: with this flag, Linux only checks whether the range is mapped.
    let refused = unsafe { libc::msync(start as *mut c_void, length, libc::MS_ASYNC) } != 0;
    let errno = std::io::Error::last_os_error().raw_os_error();
    if refused && errno == Some(libc::ENOMEM) { Err(Errno(libc::EFAULT)) } else { Ok(()) }
}

/// Start of a region of the whole address space. No program has memory in the first page.
pub(crate) const WHOLE_START: usize = PAGE;
/// Length of such a region. The mappings of programs end below it.
pub(crate) const WHOLE_LENGTH: usize = isize::MAX as usize - PAGE;

pub(crate) fn capabilities(into: &mut ibv_device_attr_ex) {
    let messages = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV;
    let all = messages | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC;
    into.odp_caps.general_caps = u64::from(IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT);
    into.odp_caps.per_transport_caps.rc_odp_caps = all;
    into.odp_caps.per_transport_caps.uc_odp_caps = messages | IBV_ODP_SUPPORT_WRITE;
    into.odp_caps.per_transport_caps.ud_odp_caps = messages;
    into.xrc_odp_caps = all;
}

/// `ibv_advise_mr(3)`: populates parts of on-demand regions. Without `IBV_ADVISE_MR_FLAG_FLUSH` failures are not reported.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: ib_uverbs_advise_mr_advice,
    flags: c_uint,
    list: *mut ibv_sge,
    count: c_uint,
) -> c_int {
    status(|| {
        // SAFETY: the contract of the manual page.
        let domain = unsafe { live_objects::find(pd.cast::<Pd>()) }?;
        if flags & !FLUSH != 0 {
            return Err(INVALID);
        }
        let write = match advice {
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH => Some(false),
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE => Some(true),
            // This advice populates no pages, so there is nothing to do.
            IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => None,
            _ => return Err(UNSUPPORTED),
        };
        if count == 0 {
            return Err(INVALID);
        }
        // SAFETY: the contract of the manual page.
        for part in unsafe { buffers(list, count, MAX_PARTS) }? {
            domain.check_on_demand(part.lkey, write == Some(true))?;
            let memory = std::ptr::with_exposed_provenance_mut(part.addr as usize);
            let done = write.map_or(Ok(()), |write| populate(memory, part.length as usize, write));
            if flags & FLUSH != 0 {
                done?;
            }
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unmapped_memory_is_refused() {
        let mut there = [0_u8; 100];
        let nowhere = 0x1000 as *mut c_void;
        assert_eq!(populate(there.as_mut_ptr().cast(), 100, true), Ok(()));
        assert_eq!(populate(nowhere, 100, false), Err(Errno(libc::EFAULT)));
        assert_eq!(populate(there.as_mut_ptr().cast(), usize::MAX, true), Err(INVALID));
        assert_eq!(mapped(there.as_mut_ptr().cast(), 100), Ok(()));
        assert_eq!(mapped(nowhere, 100), Err(Errno(libc::EFAULT)));
    }

    /// Returns how many of the first `count` pages at `start` are in memory.
    fn resident(start: *mut c_void, count: usize) -> usize {
        let mut found = vec![0_u8; count];
        // SAFETY: the range is mapped, and `found` has a byte for each page.
        assert_eq!(unsafe { libc::mincore(start, count * PAGE, found.as_mut_ptr()) }, 0);
        found.iter().filter(|page| **page & 1 != 0).count()
    }

    #[test]
    fn registration_allocates_all_pages_and_on_demand_none() {
        const COUNT: usize = 64;
        let (flags, access) = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a new, separate mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), COUNT * PAGE, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        assert_eq!((mapped(start, COUNT * PAGE), resident(start, COUNT)), (Ok(()), 0));
        assert_eq!((populate(start, COUNT * PAGE, true), resident(start, COUNT)), (Ok(()), COUNT));
        // SAFETY: the mapping is no longer used.
        assert_eq!(unsafe { libc::munmap(start, COUNT * PAGE) }, 0);
    }
}
