//! Memory of a socket that the device reads or writes.

use crate::abi::*;
use crate::ibverbs::{ibv_dereg_mr, ibv_reg_mr};
use crate::rdmacm::errno::{Errno, made};
use datapath::host_memory;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const ALIGNMENT: usize = 4096;

/// Registered bytes. A peer may write them at any time, so they are only copied, never borrowed.
pub(super) struct Registered {
    start: NonNull<u8>,
    layout: Layout,
    /// `None` in tests without a device.
    region: Option<NonNull<ibv_mr>>,
}

// SAFETY: this object owns the memory, and any thread may use a region of libibverbs.
unsafe impl Send for Registered {}

impl Registered {
    /// # Safety
    /// The caller must pass a live domain that outlives this object.
    pub(super) unsafe fn new(pd: *mut ibv_pd, length: usize, access: u32) -> Result<Self, Errno> {
        let mut memory = Self::allocate(length)?;
        // SAFETY: the domain is alive, and the memory has `length` bytes.
        let region = unsafe { ibv_reg_mr(pd, memory.start.as_ptr().cast(), length, access as i32) };
        memory.region = NonNull::new(made(region)?);
        Ok(memory)
    }

    fn allocate(length: usize) -> Result<Self, Errno> {
        let none = Errno(libc::ENOMEM);
        let layout = Layout::from_size_align(length.max(1), ALIGNMENT).map_err(|_| none)?;
        // SAFETY: the layout has at least one byte.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).ok_or(none)?;
        Ok(Self { start, layout, region: None })
    }

    #[cfg(test)]
    pub(super) fn unregistered(length: usize) -> Self {
        Self::allocate(length).unwrap()
    }

    pub(super) fn len(&self) -> usize {
        self.layout.size()
    }

    pub(super) fn address(&self) -> u64 {
        self.start.as_ptr() as u64
    }

    pub(super) fn lkey(&self) -> u32 {
        // SAFETY: the region is registered as long as this object lives.
        self.region.map_or(0, |region| unsafe { region.as_ref().lkey })
    }

    pub(super) fn rkey(&self) -> u32 {
        // SAFETY: as above.
        self.region.map_or(0, |region| unsafe { region.as_ref().rkey })
    }

    /// Copies bytes into the memory at `at`. Panics if they do not fit.
    pub(super) fn write(&mut self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len() && bytes.len() <= self.len() - at);
        // SAFETY: the assertion checks that the range is in the memory.
        let copied = unsafe { host_memory::copy_in(self.start.as_ptr().add(at), bytes) };
        assert!(copied.is_ok(), "the memory is mapped");
    }

    /// Copies bytes out of the memory from `at`. Panics if there are fewer.
    pub(super) fn read(&self, at: usize, into: &mut [u8]) {
        assert!(at <= self.len() && into.len() <= self.len() - at);
        // SAFETY: as above.
        let copied = unsafe { host_memory::copy_out(self.start.as_ptr().add(at), into) };
        assert!(copied.is_ok(), "the memory is mapped");
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        // SAFETY: `new` registered and allocated the memory; nothing refers to it afterwards.
        unsafe {
            if let Some(region) = self.region {
                ibv_dereg_mr(region.as_ptr());
            }
            dealloc(self.start.as_ptr(), self.layout);
        }
    }
}
