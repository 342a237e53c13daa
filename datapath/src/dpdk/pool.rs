//! A pool of packet buffers.

use super::eal::{self, Eal};
use super::mbuf::Mbuf;
use super::prepare::PortError;
use crate::io::{BURST, Burst};
use std::ffi::{CStr, CString};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

/// Buffers in the cache of each registered thread; DPDK allows up to 512.
const CACHE: u32 = 256;
const ANY_SOCKET: i32 = -1;
/// The mempool driver: a lock-free stack, which reuses the last freed buffer first. With two ports in one process, another core may free
/// the buffers that this one sends. With a ring, a queue would then cycle through all buffers, 40 MB or more, and the CPU's caches would
/// contain none of them.
const ORDER: &CStr = c"lf_stack";
/// The drivers that a pool needs: DPDK first creates each pool with its default, the ring driver, and then selects [`ORDER`].
const DRIVERS: [&str; 2] = ["mempool_stack", "mempool_ring"];

/// A pool of buffers of one size. If buffers are still in use when it is dropped, for example in another port's queue, its memory is not
/// freed.
pub(super) struct Pool(NonNull<dpdk_sys::rte_mempool>);

// SAFETY: any thread may call a mempool's functions.
unsafe impl Send for Pool {}
// SAFETY: several threads may call them at the same time.
unsafe impl Sync for Pool {}

impl Pool {
    /// Creates a pool of `buffers` buffers of `room` bytes each, plus DPDK's headroom. With `in_one_piece`, they form one contiguous array,
    /// which can be registered with the kernel.
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
        // SAFETY: the EAL runs, and both pointers are NUL-terminated strings.
        let pool = unsafe {
            if in_one_piece {
                dpdk_sys::ferroce_mbuf_pool_in_one_piece(name, buffers, cache, full, order)
            } else {
                dpdk_sys::rte_pktmbuf_pool_create_by_ops(name, buffers, cache, 0, full, ANY_SOCKET, order)
            }
        };
        NonNull::new(pool).map(Self).ok_or_else(|| {
            let why = eal::errno();
            // DPDK returns this error if the driver is not loaded.
            let missing = why == eal::words(libc::EINVAL);
            let [stack, ring] = DRIVERS.map(dpdk_sys::package);
            refused(if missing { format!("{why} (are {stack} and {ring} installed?)") } else { why })
        })
    }

    pub(super) fn raw(&self) -> *mut dpdk_sys::rte_mempool {
        self.0.as_ptr()
    }

    pub(super) fn alloc(&self) -> Option<Mbuf> {
        // SAFETY: the pool is allocated.
        let mbuf = NonNull::new(unsafe { dpdk_sys::ferroce_mbuf_alloc(self.raw()) })?;
        // SAFETY: the buffer was just allocated, with one segment, and the pool is not freed while a buffer is in use.
        Some(unsafe { Mbuf::from_raw(mbuf) })
    }

    /// Fills the empty `into` with [`BURST`] buffers, or with one if the pool has fewer, or with none.
    pub(super) fn alloc_burst(&self, into: &mut Burst<Mbuf>) {
        assert!(into.is_empty(), "what is in it would be lost");
        // SAFETY: the pool is allocated, and the array has room for `BURST` buffers: an `Mbuf` is a transparent pointer.
        let failed =
            unsafe { dpdk_sys::ferroce_mbuf_alloc_bulk(self.raw(), into.as_mut_ptr().cast(), BURST as u32) };
        if failed == 0 {
            // SAFETY: DPDK wrote `BURST` newly allocated buffers there.
            unsafe { into.set_len(BURST) };
        } else if let Some(one) = self.alloc() {
            into.push(one);
        }
    }

    pub(super) fn in_use(&self) -> u32 {
        // SAFETY: the pool is allocated.
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
        // SAFETY: no buffer is in use, and none can be allocated: `alloc` needs the pool.
        unsafe { dpdk_sys::rte_mempool_free(self.raw()) };
    }
}
