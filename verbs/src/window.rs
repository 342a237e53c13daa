//! Memory windows: a key of its own to a part of a region, lent to a peer and taken back without a system call.

use crate::device::Inner;
use crate::{Access, BoundsError, Error, MemoryRegion, ProtectionDomain, RemoteBuffer};
use roce::{Binding, Rkey, WindowKind};
use std::sync::Arc;

/// A memory window. It is bound by [`SendRequest::bind`](crate::SendRequest::bind), and taken back by
/// [`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate), by the peer's
/// [`SendRequest::send_invalidate`](crate::SendRequest::send_invalidate), or when it is dropped.
#[derive(Debug)]
pub struct MemoryWindow {
    device: Arc<Inner>,
    kind: WindowKind,
    /// As the newest binding has it.
    rkey: Rkey,
}

impl ProtectionDomain {
    /// Makes a memory window that is bound to nothing.
    ///
    /// # Errors
    /// Returns an error if a limit is passed, or the core has stopped.
    pub fn memory_window(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let pd = self.pd;
        let rkey = self.device.engine.call(move |station, _| station.endpoint.create_window(pd, kind))??;
        Ok(MemoryWindow { device: self.device.clone(), kind, rkey })
    }
}

impl MemoryWindow {
    /// Which rules it has.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Its key, as the newest [`binding`](Self::binding) has it.
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// What to post to bind it, with a fresh key, to `length` bytes of `region` from `offset` on. The region needs
    /// [`Access::WINDOWS`], and [`Access::LOCAL_WRITE`] where the peer may write.
    ///
    /// # Errors
    /// Returns an error if the range leaves the region; the key stays as it was.
    pub fn binding(
        &mut self,
        region: &MemoryRegion,
        offset: usize,
        length: usize,
        access: Access,
    ) -> Result<Binding, BoundsError> {
        let address = region.address_of(offset, length)?;
        let window = self.rkey;
        self.rkey = window.next();
        let (rkey, lkey, length) = (self.rkey, region.lkey(), length as u64);
        Ok(Binding { window, rkey, lkey, address, length, access, zero_based: false })
    }

    /// What to tell the peer of a binding.
    #[must_use]
    pub fn remote(binding: &Binding) -> RemoteBuffer {
        let address = if binding.zero_based { 0 } else { binding.address };
        RemoteBuffer { address, length: binding.length, rkey: binding.rkey.get() }
    }
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        let rkey = self.rkey;
        // A stopped core has no windows left.
        let _ = self.device.engine.call(move |station, _| station.endpoint.destroy_window(rkey));
    }
}
