//! An owned packet buffer.

use crate::io::{Burst, PacketBuf};
use dpdk_sys::rte_mbuf;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

/// An owned `rte_mbuf` of one segment with a reference count of one. Dropping it returns it to its pool.
///
/// It has the layout of a pointer, so DPDK's burst functions accept an array of them.
#[repr(transparent)]
pub struct Mbuf(NonNull<rte_mbuf>);

// SAFETY: an mbuf is memory with one owner, and any thread may use its pool.
unsafe impl Send for Mbuf {}

impl Mbuf {
    /// Takes ownership of a buffer from DPDK.
    ///
    /// # Safety
    /// The caller must own `mbuf`, which must come from a pool that outlives it. `deref_mut` relies on [`is_plain`](Self::is_plain): the
    /// caller must drop the buffer if that returns false.
    pub(super) unsafe fn from_raw(mbuf: NonNull<rte_mbuf>) -> Self {
        Self(mbuf)
    }

    fn head(&self) -> &rte_mbuf {
        // SAFETY: this value owns the mbuf, so it is allocated and nothing else writes to it.
        unsafe { self.0.as_ref() }
    }

    /// Returns true if the buffer has one segment and one reference. Buffers from drivers do, unless the driver splits or shares frames.
    pub(super) fn is_plain(&self) -> bool {
        let head = self.head();
        head.nb_segs() == 1 && head.refcnt() == 1
    }

    fn start(&self) -> *mut u8 {
        let head = self.head();
        // SAFETY: DPDK keeps `data_off` within the buffer.
        unsafe { head.buf_addr().add(usize::from(head.data_off())) }
    }
}

impl Deref for Mbuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `data_len` bytes from the start lie within the buffer. They are initialised, because a pool's memory is mapped zeroed,
        // and no other thread of this process has them. Drivers copy what a peer can write (vhost dequeues, memif's rings, af_packet's,
        // tap) before they return a buffer. A process with access to DPDK's memory (vhost-user behind virtio, memif with zero-copy) could
        // still write to them. A user who names such a port trusts that process not to, because it could also write the pointers of this
        // mbuf. A frame changed after its ICRC was checked gives a peer nothing that it could not have sent: the ICRC is no signature, and
        // `roce` reads each header field once and uses that value from then on.
        unsafe { std::slice::from_raw_parts(self.start(), usize::from(self.head().data_len())) }
    }
}

impl DerefMut for Mbuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`; `is_plain` held when the buffer was received, so no other mbuf shares the bytes.
        unsafe { std::slice::from_raw_parts_mut(self.start(), usize::from(self.head().data_len())) }
    }
}

impl PacketBuf for Mbuf {
    fn capacity(&self) -> usize {
        let head = self.head();
        usize::from(head.buf_len() - head.data_off())
    }

    fn set_len(&mut self, len: usize) {
        let capacity = self.capacity();
        assert!(len <= capacity, "a frame of {len} bytes in a buffer for {capacity}");
        // SAFETY: this value owns the mbuf.
        let head = unsafe { self.0.as_mut() };
        // Cannot truncate: the capacity has 16 bits.
        head.set_len(len as u16);
    }

    fn free_all(from: &mut Burst<Self>) {
        // SAFETY: this frees `count` owned buffers once: the array's length is 0 before, so nothing uses or drops them afterwards. An
        // `Mbuf` is a transparent pointer.
        unsafe {
            let count = from.len();
            from.set_len(0);
            dpdk_sys::ferroce_mbuf_free_bulk(from.as_mut_ptr().cast(), count as u32);
        }
    }
}

impl Drop for Mbuf {
    fn drop(&mut self) {
        // SAFETY: this value owns the mbuf, and is dropped.
        unsafe { dpdk_sys::ferroce_mbuf_free(self.0.as_ptr()) };
    }
}

impl std::fmt::Debug for Mbuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mbuf({} bytes of {})", self.len(), self.capacity())
    }
}
