use crate::{Access, BoundsError, CompletionQueue, Error, QueuePairBuilder};
use roce::Rkey;
use roce::qp::{Remote, Sge};
use serde::{Deserialize, Serialize};

/// A protection domain: its queue pairs reach its regions, and no others.
#[derive(Clone, Debug)]
pub struct ProtectionDomain {}

impl ProtectionDomain {
    /// A queue pair to be configured.
    #[must_use]
    pub fn queue_pair(&self, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> QueuePairBuilder {
        let _ = (send_cq, recv_cq);
        QueuePairBuilder::new()
    }
}

/// Registered memory. The network reads and writes it at any moment, so there is no reference into it: bytes are
/// copied in and out. Dropped, it is first taken from the core and then freed.
#[derive(Debug)]
pub struct MemoryRegion {}

impl MemoryRegion {
    /// Allocates `length` zeroed bytes, page-aligned, and registers them.
    ///
    /// # Errors
    /// Where there is no memory, a limit is passed, or the core has stopped.
    pub fn alloc(pd: &ProtectionDomain, length: usize, access: Access) -> Result<Self, Error> {
        let _ = (pd, access);
        Err(Error::OutOfMemory { length })
    }

    /// Registers memory that the caller keeps.
    ///
    /// # Safety
    /// `length` bytes at `address` must be valid for reads and writes until the region is dropped, and no Rust
    /// reference to them may be in use while the peer or a posted request may touch them.
    ///
    /// # Errors
    /// Where a limit is passed or the core has stopped.
    pub unsafe fn register_raw(
        pd: &ProtectionDomain,
        address: *mut u8,
        length: usize,
        access: Access,
    ) -> Result<Self, Error> {
        let _ = (pd, address, access);
        Err(Error::OutOfMemory { length })
    }

    /// Copies bytes out, from `offset` on.
    ///
    /// # Errors
    /// Where the range leaves the region; nothing is copied then.
    pub fn read(&self, offset: usize, into: &mut [u8]) -> Result<(), BoundsError> {
        Err(BoundsError { offset, length: into.len(), region: 0 })
    }

    /// Copies bytes in, from `offset` on.
    ///
    /// # Errors
    /// Where the range leaves the region; nothing is copied then.
    pub fn write(&self, offset: usize, bytes: &[u8]) -> Result<(), BoundsError> {
        Err(BoundsError { offset, length: bytes.len(), region: 0 })
    }

    /// One byte as it stands now: cheap enough to spin on while a peer WRITEs it.
    ///
    /// # Errors
    /// Where `offset` leaves the region.
    pub fn byte(&self, offset: usize) -> Result<u8, BoundsError> {
        Err(BoundsError { offset, length: 1, region: 0 })
    }

    /// A buffer for a work request.
    ///
    /// # Errors
    /// Where the range leaves the region.
    pub fn sge(&self, offset: usize, length: u32) -> Result<Sge, BoundsError> {
        Err(BoundsError { offset, length: length as usize, region: 0 })
    }

    /// What a peer must know to reach the region; exchange it by any means.
    #[must_use]
    pub fn remote(&self) -> RemoteBuffer {
        RemoteBuffer { address: 0, length: 0, rkey: 0 }
    }

    /// Bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }

    /// Whether it has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// A peer's memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoteBuffer {
    /// Where it starts, as its owner sees it.
    pub address: u64,
    /// Bytes.
    pub length: u64,
    /// Its remote key.
    pub rkey: u32,
}

impl RemoteBuffer {
    /// The remote side of a work request, `offset` bytes in. The peer checks it.
    #[must_use]
    pub fn at(&self, offset: u64) -> Remote {
        Remote { address: self.address.wrapping_add(offset), rkey: Rkey::new(self.rkey) }
    }
}
