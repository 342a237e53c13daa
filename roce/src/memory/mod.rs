//! Registered memory: keys, regions, windows, and the checked ranges that alone reach it.

mod key;
mod key_space;
mod memory_window;
mod region;

use crate::AccessError;
pub use key::{Lkey, ParseQpnError, Qpn, Rkey, SrqNumber};
pub use region::{Region, RegionTable};

pub(crate) use key_space::KeySpace;

/// A stretch of registered memory that was checked for the access it is used for.
///
/// Only the region table creates one, so a `Slice` is the proof of the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slice {
    address: u64,
    length: u32,
}

impl Slice {
    pub(crate) const fn new(address: u64, length: u32) -> Self {
        Self { address, length }
    }

    /// Returns the first address, in the address space of the process that registered it.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }

    /// Bytes.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.length
    }

    /// Returns true if it contains no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }
}

/// Registered memory. The application may write it at any moment, so no implementation may form a Rust
/// reference over it; bytes are copied in and out.
///
/// # Errors
/// Returns [`AccessError::Vanished`] if the memory is registered but no longer there: the application unmapped it, or
/// shortened the file behind it. Some of its bytes may have been written.
#[allow(clippy::missing_errors_doc)]
pub trait Memory {
    /// Writes `bytes` to `to`; the lengths are equal.
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError>;
    /// Reads `from` into `into`; the lengths are equal.
    fn gather(&self, from: Slice, into: &mut [u8]) -> Result<(), AccessError>;
    /// Writes 8 aligned bytes at once, after all that was placed before (IBA annex A19: ATOMIC WRITE).
    fn store(&mut self, at: Slice, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.place(at, &bytes)
    }
    /// When it returns, all that was placed before is seen by everyone (IBA annex A19: FLUSH to global visibility).
    fn flush(&mut self) {}
    /// Adds `add` to the 8-byte integer at `at`, wrapping, in host byte order; returns the value before.
    fn fetch_add(&mut self, at: Slice, add: u64) -> Result<u64, AccessError>;
    /// Stores `swap` at `at` if the value there is `compare`; returns the value before.
    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> Result<u64, AccessError>;
}
