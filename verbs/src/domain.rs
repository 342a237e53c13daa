//! Protection domains and registered memory.

use crate::device::Inner;
use crate::errors::BoundsError;
use crate::fault::{self, Verb};
use crate::{Access, CompletionQueue, Error, QueuePairBuilder, RemoteBuffer};
use datapath::engine::CoreState;
use datapath::host_memory::{copy_in, copy_out};
use roce::qp::Sge;
use roce::{Lkey, PdId, Region};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const PAGE: usize = 4096;

/// Panic message of a copy from or to unmapped memory. The contract of `register_raw` forbids unmapping the memory of a region.
const MAPPED: &str = "a region's memory is mapped while the region lives";

/// A protection domain: its queue pairs can access its regions and no others.
///
/// ```
/// # use ferroce_verbs::{Access, CompletionQueue, Device, Error, MemoryRegion, QueuePair};
/// fn queue_pair(device: &Device, cq: &CompletionQueue) -> Result<(QueuePair, MemoryRegion), Error> {
///     let domain = device.allocate_pd()?;
///     let memory = MemoryRegion::alloc(&domain, 1 << 20, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
///     Ok((domain.queue_pair(cq, cq).build()?, memory))
/// }
/// ```
#[derive(Clone, Debug)]
pub struct ProtectionDomain {
    pub(crate) device: Arc<Inner>,
    pub(crate) pd: PdId,
}

impl ProtectionDomain {
    /// Returns a builder for a queue pair.
    pub fn queue_pair(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QueuePairBuilder {
        QueuePairBuilder::new(self, send_cq, recv_cq)
    }
}

/// A memory region. Peers may read and write it at any time, so it provides no references into its memory: bytes are copied in and out.
/// When it is dropped, all cores first deregister it and the memory windows bound to it, and then the memory is freed.
///
/// ```no_run
/// # use ferroce_verbs::{Access, MemoryRegion, ProtectionDomain};
/// # fn register(domain: &ProtectionDomain) -> Result<(), Box<dyn std::error::Error>> {
/// let memory = MemoryRegion::alloc(domain, 1 << 20, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
/// memory.write(0, b"hello")?;
/// let first = memory.sge(0, 4096)?; // a local buffer, for a request
/// let text = memory.remote().to_string(); // for the peer, which parses a RemoteBuffer
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryRegion {
    device: Arc<Inner>,
    pd: PdId,
    region: Region,
    start: NonNull<u8>,
    length: usize,
    /// Layout of the memory, if the region owns and frees it.
    owned: Option<Layout>,
}

// SAFETY: any thread may access the memory: all accesses are copies that are atomic or opaque to the compiler.
unsafe impl Send for MemoryRegion {}
// SAFETY: as above; `&self` returns no reference into it.
unsafe impl Sync for MemoryRegion {}

impl MemoryRegion {
    /// Allocates `length` zeroed bytes, page-aligned, and registers them.
    ///
    /// # Errors
    /// Returns an error if there is too little memory, a limit is exceeded, or the core has stopped.
    pub fn alloc(pd: &ProtectionDomain, length: usize, access: Access) -> Result<Self, Error> {
        let none = Error::OutOfMemory { length };
        // An allocation has at least one byte. Registration rejects a length of 0.
        let Ok(layout) = Layout::from_size_align(length.max(1), PAGE) else { return Err(none) };
        // SAFETY: the layout has at least one byte.
        let Some(start) = NonNull::new(unsafe { alloc_zeroed(layout) }) else { return Err(none) };
        match Self::register(pd, start, length, None, access) {
            Ok(region) => {
                Ok(Self { device: pd.device.clone(), pd: pd.pd, region, start, length, owned: Some(layout) })
            }
            Err(error) => {
                // SAFETY: allocated above with this layout, and not registered.
                unsafe { dealloc(start.as_ptr(), layout) };
                Err(error)
            }
        }
    }

    /// Registers memory that the caller owns.
    ///
    /// # Safety
    /// The caller must keep `length` bytes at `address` valid for reads and writes until the region is dropped. The caller must not use a
    /// Rust reference to them while the peer or a posted request may access them.
    ///
    /// # Errors
    /// Returns an error if the address is null, a limit is exceeded, or the core has stopped.
    pub unsafe fn register_raw(
        pd: &ProtectionDomain,
        address: *mut u8,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let start =
            NonNull::new(address).ok_or_else(|| Error::value("address", "null", "a buffer".into()))?;
        let region = Self::register(pd, start, length, None, access)?;
        Ok(Self { device: pd.device.clone(), pd: pd.pd, region, start, length, owned: None })
    }

    /// Like [`register_raw`](Self::register_raw), but requests of both sides address the first byte as `origin`: 0 creates a zero-based
    /// region.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`register_raw`](Self::register_raw).
    ///
    /// # Errors
    /// As [`register_raw`](Self::register_raw), and if the region would exceed the address space.
    pub unsafe fn register_raw_as(
        pd: &ProtectionDomain,
        address: *mut u8,
        length: usize,
        origin: u64,
        access: Access,
    ) -> Result<Self, Error> {
        let start =
            NonNull::new(address).ok_or_else(|| Error::value("address", "null", "a buffer".into()))?;
        let region = Self::register(pd, start, length, Some(origin), access)?;
        Ok(Self { device: pd.device.clone(), pd: pd.pd, region, start, length, owned: None })
    }

    fn register(
        pd: &ProtectionDomain,
        start: NonNull<u8>,
        length: usize,
        origin: Option<u64>,
        access: Access,
    ) -> Result<Region, Error> {
        fault::check_call::<Error>(Verb::RegMr)?;
        if length == 0 {
            return Err(Error::value("length of a memory region", 0, "at least 1 byte".into()));
        }
        let address = start.as_ptr().expose_provenance() as u64;
        let (domain, length, origin) = (pd.pd, length as u64, origin.unwrap_or(address));
        let region = pd
            .device
            .on_all(move |state, _| state.endpoint.register_as(domain, address, length, origin, access));
        Ok(region??)
    }

    /// Re-registers a region of [`register_raw`](Self::register_raw) with another domain, memory, origin and rights. Its keys stay the
    /// same.
    ///
    /// # Safety
    /// The caller must fulfil the conditions of [`register_raw`](Self::register_raw) for the new memory.
    ///
    /// # Errors
    /// Returns an error if the region's memory was allocated by [`alloc`](Self::alloc), the domain is another device's, memory windows are
    /// bound to the region, or registration would refuse the memory. The region is then unchanged.
    pub unsafe fn change(
        &mut self,
        pd: &ProtectionDomain,
        address: *mut u8,
        length: usize,
        origin: u64,
        access: Access,
    ) -> Result<(), Error> {
        let start =
            NonNull::new(address).ok_or_else(|| Error::value("address", "null", "a buffer".into()))?;
        if self.owned.is_some() {
            return Err(Error::value("region", "allocated by alloc()", "one of register_raw()".into()));
        }
        if !Arc::ptr_eq(&pd.device, &self.device) {
            return Err(Error::OtherDevice { what: "the protection domain" });
        }
        let address = start.as_ptr().expose_provenance() as u64;
        let wanted = Region { address, origin, length: length as u64, access, ..self.region };
        self.region = self.change_on_all(pd.pd, wanted)?;
        (self.pd, self.start, self.length) = (pd.pd, start, length);
        Ok(())
    }

    /// Changes the region on all cores or on none. A core refuses if memory windows are bound to the region on that core.
    fn change_on_all(&self, pd: PdId, wanted: Region) -> Result<Region, Error> {
        let (lkey, engine) = (self.region.lkey, &self.device.engine);
        let changed = engine.call_all(move |state, _| state.endpoint.change_region(lkey, pd, &wanted))?;
        let refused = changed.iter().find_map(|changed| changed.as_ref().err()).copied();
        let Some(refused) = refused else { return Ok(wanted) };
        let (pd, before) = (self.pd, self.region);
        for (core, _) in changed.iter().enumerate().filter(|(_, changed)| changed.is_ok()) {
            let back = move |state: &mut CoreState, _| state.endpoint.change_region(lkey, pd, &before);
            engine.call_on(core, back)??;
        }
        Err(refused.into())
    }

    fn check(&self, offset: usize, length: usize) -> Result<*mut u8, BoundsError> {
        match offset.checked_add(length) {
            // SAFETY: `offset` is at most the region's length, so the result is in the same allocation or one past its end.
            Some(end) if end <= self.length => Ok(unsafe { self.start.as_ptr().add(offset) }),
            _ => Err(BoundsError { offset, length, region: self.length }),
        }
    }

    /// Copies bytes out of the region, starting at `offset`.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the region; then nothing is copied.
    ///
    /// # Panics
    /// Panics if the memory was unmapped since it was registered.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), BoundsError> {
        let from = self.check(offset, into.len())?;
        // SAFETY: checked to lie in the region, which is valid for reads while `self` lives.
        unsafe { copy_out(from, into) }.expect(MAPPED);
        Ok(())
    }

    /// Copies bytes into the region, starting at `offset`.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the region; then nothing is copied.
    ///
    /// # Panics
    /// Panics if the memory was unmapped since it was registered.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BoundsError> {
        let to = self.check(offset, bytes.len())?;
        // SAFETY: checked to lie in the region, which is valid for writes while `self` lives.
        unsafe { copy_in(to, bytes) }.expect(MAPPED);
        Ok(())
    }

    /// Returns the current value of one byte: cheap enough to poll while a peer WRITEs it.
    ///
    /// # Errors
    /// Returns an error if `offset` is outside the region.
    pub fn byte(&self, offset: usize) -> Result<u8, BoundsError> {
        let at = self.check(offset, 1)?;
        // SAFETY: checked to lie in the region; a byte is always aligned.
        Ok(unsafe { AtomicU8::from_ptr(at) }.load(Ordering::Acquire))
    }

    /// Returns a buffer for a work request.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the region.
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge, BoundsError> {
        let address = self.address_of(offset, length as usize)?;
        Ok(Sge { address, length, lkey: self.region.lkey })
    }

    pub(crate) fn address_of(&self, offset: usize, length: usize) -> Result<u64, BoundsError> {
        self.check(offset, length)?;
        Ok(self.region.origin + offset as u64)
    }

    /// Returns the number of memory windows that are bound to the region.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn windows(&self) -> Result<u32, Error> {
        let lkey = self.region.lkey;
        let bound = self.device.engine.call_all(move |state, _| state.endpoint.windows_of(lkey))?;
        Ok(bound.into_iter().sum::<Result<u32, _>>()?)
    }

    /// Returns the key for local work requests, for programs that create [`Sge`]s themselves.
    #[must_use]
    pub fn lkey(&self) -> Lkey {
        self.region.lkey
    }

    /// Returns the data that a peer needs to access the region. Programs exchange it by any means.
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        let Region { origin, length, rkey, .. } = self.region;
        RemoteBuffer { address: origin, length, rkey: rkey.get() }
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the length is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        let lkey = self.region.lkey;
        let let_go =
            match self.device.engine.call_all(move |state, _| state.endpoint.deregister_with_windows(lkey)) {
                Ok(results) => results.iter().all(Result::is_ok),
                // A core that has stopped has no regions.
                Err(_) => true,
            };
        if let (true, Some(layout)) = (let_go, self.owned) {
            // SAFETY: allocated with this layout, and every core has deregistered it. If a core had refused, the memory would leak, because
            // the core could still access it.
            unsafe { dealloc(self.start.as_ptr(), layout) };
        }
    }
}
