//! Memory windows: separate keys for parts of a region, granted to a peer and revoked without a system call.

use crate::device::Inner;
use crate::errors::BoundsError;
use crate::{Access, Error, MemoryRegion, ProtectionDomain, RemoteBuffer};
use roce::Rkey;
use std::sync::Arc;

pub use roce::{Binding, WindowKind};

/// A memory window. It is bound by [`SendRequest::bind`](crate::SendRequest::bind), and revoked by
/// [`SendRequest::local_invalidate`](crate::SendRequest::local_invalidate), by the peer's
/// [`SendRequest::send_invalidate`](crate::SendRequest::send_invalidate), or when it is dropped.
///
/// ```no_run
/// # use ferroce_verbs::window::{MemoryWindow, WindowKind};
/// # use ferroce_verbs::{Access, MemoryRegion, ProtectionDomain, QueuePair, SendRequest};
/// # fn grant(domain: &ProtectionDomain, memory: &MemoryRegion, qp: &mut QueuePair) -> Result<(), Box<dyn std::error::Error>> {
/// // `memory` was registered with Access::WINDOWS. The peer may write 100 of its bytes, until the next binding.
/// let mut window = domain.memory_window(WindowKind::One)?;
/// let binding = window.binding(memory, 0, 100, Access::REMOTE_WRITE)?;
/// qp.post_send(SendRequest::bind(1, binding))?;
/// let for_the_peer = MemoryWindow::remote(&binding).to_string();
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct MemoryWindow {
    device: Arc<Inner>,
    kind: WindowKind,
    /// The key of the latest binding.
    rkey: Rkey,
}

impl ProtectionDomain {
    /// Creates an unbound memory window.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, the window is of type 1 and the device has several cores, or the core has stopped.
    pub fn memory_window(&self, kind: WindowKind) -> Result<MemoryWindow, Error> {
        let (pd, info) = (self.pd, &self.device.info);
        if kind == WindowKind::One && info.cores > 1 {
            return Err(Error::WindowOfCores { port: info.port.clone(), cores: info.cores });
        }
        let rkey = self.device.on_all(move |state, _| state.endpoint.create_window(pd, kind))??;
        Ok(MemoryWindow { device: self.device.clone(), kind, rkey })
    }
}

impl MemoryWindow {
    /// Returns the window's type.
    #[must_use]
    pub fn kind(&self) -> WindowKind {
        self.kind
    }

    /// Returns the key of the latest [`binding`](Self::binding).
    #[must_use]
    pub fn rkey(&self) -> Rkey {
        self.rkey
    }

    /// Returns the binding to post, with a new key, for `length` bytes of `region` at `offset`. The region needs [`Access::WINDOWS`], and
    /// [`Access::LOCAL_WRITE`] if the peer may write.
    ///
    /// # Errors
    /// Returns an error if the range exceeds the region; the key is then unchanged.
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

    /// Returns the address, length and key of a binding, for the peer.
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
        let _ = self.device.engine.call_all(move |state, _| state.endpoint.destroy_window(rkey));
    }
}
