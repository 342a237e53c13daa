//! A pool of packet buffers.

use super::eal::{self, Eal};
use super::mbuf::Mbuf;
use super::prepare::PortError;
use crate::io::{BURST, Burst};
use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Buffers that a registered thread keeps to itself: the most that DPDK allows is 512.
const CACHE: u32 = 256;
const ANY_SOCKET: i32 = -1;
/// The buffer that came back last leaves first, without a lock. Otherwise, if another core frees what this one sends (two ports in one
/// process), a queue would go round through all buffers, 40 MB or more, and find none in a cache.
const ORDER: &CStr = c"lf_stack";
/// Debian's packages with the drivers of such pools: DPDK begins each as one of rings.
const DRIVERS: &str = "librte-mempool-stack23 and librte-mempool-ring23";

/// Buffers of one size. If some are still in use when the pool is dropped, in another port's queue for example, its memory stays.
pub(super) struct Pool(NonNull<dpdk_sys::rte_mempool>);

// SAFETY: a pool's functions may be called from any thread.
unsafe impl Send for Pool {}
// SAFETY: and from several at once.
unsafe impl Sync for Pool {}

impl Pool {
    /// `buffers` buffers with room for `room` bytes each, besides DPDK's headroom. In one piece, they are one array, which can be
    /// registered with the kernel.
    pub(super) fn new(_: Eal, buffers: u32, room: usize, in_one_piece: bool) -> Result<Self, PortError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let refused = |why: String| PortError::Pool { buffers, room, why };
        let full = u16::try_from(room + dpdk_sys::RTE_PKTMBUF_HEADROOM as usize)
            .map_err(|_| refused(format!("a buffer has at most {} bytes", u16::MAX)))?;
        if buffers == 0 {
            return Err(refused("a pool has at least one buffer".into()));
        }
        let name =
            CString::new(format!("ferroce{}", NEXT.fetch_add(1, Ordering::Relaxed))).expect("has no NUL");
        let cache = CACHE.min(buffers / 4);
        let (name, order) = (name.as_ptr(), ORDER.as_ptr());
        // SAFETY: the EAL runs, and both are NUL-terminated texts.
        let pool = unsafe {
            if in_one_piece {
                dpdk_sys::ferroce_mbuf_pool_in_one_piece(name, buffers, cache, full, order)
            } else {
                dpdk_sys::rte_pktmbuf_pool_create_by_ops(name, buffers, cache, 0, full, ANY_SOCKET, order)
            }
        };
        NonNull::new(pool).map(Self).ok_or_else(|| {
            let why = eal::errno();
            // DPDK's answer if it has no such pools.
            let missing = why == eal::words(libc::EINVAL);
            refused(if missing { format!("{why} (are {DRIVERS} installed?)") } else { why })
        })
    }

    pub(super) fn raw(&self) -> *mut dpdk_sys::rte_mempool {
        self.0.as_ptr()
    }

    pub(super) fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool lives.
        let mbuf = NonNull::new(unsafe { dpdk_sys::ferroce_mbuf_alloc(self.raw()) })?;
        // SAFETY: fresh from the pool, of one segment; the pool is freed only when none is out.
        Some(unsafe { Mbuf::from_raw(mbuf) })
    }

    /// Fills `into`, which is empty, with as many as the pool has at once: all that fit, one, or none.
    pub(super) fn alloc_burst(&self, into: &mut Burst<Mbuf>) {
        assert!(into.is_empty(), "what is in it would be lost");
        // SAFETY: the pool lives, and the array has room for `BURST` buffers: an `Mbuf` is a transparent pointer.
        let failed =
            unsafe { dpdk_sys::ferroce_mbuf_alloc_bulk(self.raw(), into.as_mut_ptr().cast(), BURST as u32) };
        if failed == 0 {
            // SAFETY: DPDK wrote `BURST` buffers there, fresh from the pool, without another owner.
            unsafe { into.set_len(BURST) };
        } else if let Some(one) = self.alloc() {
            into.push(one);
        }
    }

    /// Buffers that are out.
    pub(super) fn in_use(&self) -> u32 {
        // SAFETY: the pool lives.
        unsafe { dpdk_sys::rte_mempool_in_use_count(self.raw()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let out = self.in_use();
        if out != 0 {
            tracing::debug!("{out} buffers are out: their pool stays");
            return;
        }
        // SAFETY: no buffer is out, and nothing else can take one: alloc needs the pool.
        unsafe { dpdk_sys::rte_mempool_free(self.raw()) };
    }
}
