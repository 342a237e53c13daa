//! One packet buffer.

use crate::io::{Burst, PacketBuf};
use dpdk_sys::rte_mbuf;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An `rte_mbuf` that belongs to the owner of this value: one segment, referred to once. Dropping it returns it to its pool.
///
/// It is a bare pointer, so that a burst of them is what DPDK's burst functions take.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf is plain memory that one holder owns; its pool may be used from any thread.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes a buffer that DPDK handed over.
    ///
    /// # Safety
    /// `mbuf` has no other holder, one segment, from a pool that outlives it.
    pub(super) unsafe fn from_raw(mbuf: NonNull<rte_mbuf>) -> Self {
        Self(mbuf)
    }

    fn head(&self) -> &rte_mbuf {
        // SAFETY: the mbuf is ours, so it is alive and nothing else writes it.
        unsafe { self.0.as_ref() }
    }

    /// One segment, referred to once: a driver's frames are so unless it was configured to split or to share.
    pub(super) fn is_plain(&self) -> bool {
        let head = self.head();
        head.nb_segs == 1 && head.refcnt == 1
    }

    fn start(&self) -> *mut u8 {
        let head = self.head();
        // SAFETY: DPDK keeps `data_off` within the buffer.
        unsafe { head.buf_addr.cast::<u8>().add(usize::from(head.data_off)) }
    }
}

impl Deref for Mbuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `data_len` bytes from the start lie within the buffer, are initialised (a pool's memory is mapped
        // zeroed) and belong to us: no thread of this process has them. The drivers of other ports copy what a peer can write
        // (vhost dequeues, memif's rings, af_packet's, tap) before they hand it over. A process that was lent DPDK's memory
        // (vhost-user behind virtio, memif with zero-copy) can write them all the same; that it does not is what naming such a
        // port promises. It could as well write the pointers of this very mbuf, so no copy of the bytes would keep it out. What
        // it may gain by changing a frame after its ICRC was checked is what it could have sent: the ICRC is no signature, and
        // `roce` reads each header field once, into a value that every later check and use goes by.
        unsafe { std::slice::from_raw_parts(self.start(), usize::from(self.head().data_len)) }
    }
}

impl DerefMut for Mbuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `is_plain` held when it came, so nothing shares the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start(), usize::from(self.head().data_len)) }
    }
}

impl PacketBuf for Mbuf {
    fn capacity(&self) -> usize {
        let head = self.head();
        usize::from(head.buf_len - head.data_off)
    }

    fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "a frame of {len} bytes in a buffer for {capacity}");
        // SAFETY: the mbuf is ours alone.
        let head = unsafe { self.0.as_mut() };
        // `buf_len` has 16 bits, so `len` fits into them.
        head.data_len = len as u16;
        head.pkt_len = len as u32;
    }

    fn free_all(from: &mut Burst<Self>) {
        // SAFETY: the buffers are ours, and gone from the array when this returns: its length is 0 before any look at it. An `Mbuf` is a
        // transparent pointer.
        unsafe {
            let count = from.len();
            from.set_len(0);
            dpdk_sys::ferroce_mbuf_free_bulk(from.as_mut_ptr().cast(), count as u32);
        }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: the mbuf is ours, and gone after this.
        unsafe { dpdk_sys::ferroce_mbuf_free(self.0.as_ptr()) };
    }
}

impl std::fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mbuf({} bytes of {})", self.len(), self.capacity())
    }
}
