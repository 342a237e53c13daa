//! Registered memory: keys, regions, windows, and checked ranges, with which every access is made.

mod key;
mod key_space;
mod memory_window;
mod region;

use crate::AccessError;
pub use key::{Lkey, ParseQpnError, Qpn, Rkey, SrqNumber};
pub use region::{Region, RegionTable};

pub(crate) use key_space::KeySpace;

/// Range of registered memory whose access was checked.
///
/// Only the region table creates one, so a `Slice` proves the check.
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

    /// Returns the length in bytes.
    #[must_use]
    pub const fn len(self) -> u32 {
        self.length
    }

    /// Returns whether it has no bytes.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.length == 0
    }
}

/// Access to registered memory. The application may write the memory at any time, so an implementation must not form a Rust reference to
/// it; bytes are copied in and out.
///
/// # Errors
/// Returns [`AccessError::Vanished`] if the memory is registered but no longer mapped: the application unmapped it, or truncated its file.
/// Some bytes may have been written.
#[allow(clippy::missing_errors_doc)]
pub trait Memory {
    /// Writes `bytes` to `to`; the lengths must be equal.
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError>;
    /// Reads `from` into `into`; the lengths must be equal.
    fn gather(&self, from: Slice, into: &mut [u8]) -> Result<(), AccessError>;
    /// Writes 8 aligned bytes atomically, after all bytes that were placed before (IBA annex A19: ATOMIC WRITE).
    fn store(&mut self, at: Slice, bytes: [u8; 8]) -> Result<(), AccessError> {
        self.place(at, &bytes)
    }
    /// Makes all bytes that were placed before globally visible (IBA annex A19: FLUSH to global visibility).
    fn flush(&mut self) {}
    /// Adds `add` to the 8-byte integer at `at`, wrapping, in host byte order. Returns the original value.
    fn fetch_add(&mut self, at: Slice, add: u64) -> Result<u64, AccessError>;
    /// Stores `swap` at `at` if the value there is `compare`. Returns the original value.
    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> Result<u64, AccessError>;
}
