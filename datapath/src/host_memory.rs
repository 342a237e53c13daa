//! Access to registered memory of this process.
//!
//! The application may read and write registered memory at any time, as it may with memory that a NIC accesses by DMA. So no Rust reference
//! to it is ever formed. `routines` copies bytes with instructions that are opaque to the compiler. A racing copy yields unspecified bytes,
//! and has no other effect. The application may also unmap the memory, or truncate the file that it maps. On x86-64 and arm64 the access
//! then returns an error, through `faults`.

#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
pub(crate) mod faults;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
mod portable;
#[cfg(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri)))]
mod routines;

#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
use portable as routines;
#[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), not(miri))))]
pub(crate) use portable::faults;

use faults::Recovery;
use roce::{AccessError, Memory, Slice};
use std::cell::Cell;
use std::sync::atomic::{Ordering, fence};

/// The memory of this process. Every [`Slice`] passed to it must lie in registered memory.
#[derive(Debug)]
pub struct HostMemory {
    is_logged: Cell<bool>,
    _recovery: Recovery,
}

impl HostMemory {
    /// Creates the access to this process's memory.
    ///
    /// # Safety
    /// The caller must pass only slices of an endpoint. Its regions must be valid for reads and writes of their whole length until they are
    /// deregistered from that endpoint. On x86-64 and arm64 their addresses may also become unmapped, as long as no memory other than
    /// registered memory is mapped there.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self { is_logged: Cell::new(false), _recovery: Recovery::begin() }
    }

    #[inline]
    fn checked<T>(&self, slice: Slice, outcome: Result<T, routines::Unmapped>) -> Result<T, AccessError> {
        outcome.map_err(|routines::Unmapped| {
            self.log_once(slice);
            AccessError::Vanished
        })
    }

    #[cold]
    fn log_once(&self, slice: Slice) {
        if !self.is_logged.replace(true) {
            let (address, length) = (slice.address(), slice.len());
            tracing::warn!(
                "registered memory [{address:#x}, +{length}): no longer mapped, or beyond the end of its file, so the \
                 request that uses it fails; deregister memory before unmapping it"
            );
        }
    }
}

impl Memory for HostMemory {
    #[inline]
    fn place(&mut self, to: Slice, bytes: &[u8]) -> Result<(), AccessError> {
        assert_eq!(to.len() as usize, bytes.len(), "a slice is as long as what is put there");
        // SAFETY: the slice lies in a registered region (the contract of `new`), and its length is that of `bytes`.
        self.checked(to, unsafe { place(pointer(to), bytes) })
    }

    #[inline]
    fn gather(&self, from: Slice, into: &mut [u8]) -> Result<(), AccessError> {
        assert_eq!(from.len() as usize, into.len(), "a slice is as long as what is taken there");
        // SAFETY: the slice lies in a registered region (the contract of `new`), and its length is that of `into`.
        self.checked(from, unsafe { routines::copy(into.as_mut_ptr(), pointer(from), into.len()) })
    }

    fn store(&mut self, at: Slice, bytes: [u8; 8]) -> Result<(), AccessError> {
        // SAFETY: `word` checks size and alignment; the slice lies in a registered region (the contract of `new`).
        self.checked(at, unsafe { routines::store(word(at), u64::from_ne_bytes(bytes)) })
    }

    fn flush(&mut self) {
        // The core's stores are in coherent caches.
        fence(Ordering::SeqCst);
    }

    fn fetch_add(&mut self, at: Slice, add: u64) -> Result<u64, AccessError> {
        // SAFETY: see `store`.
        self.checked(at, unsafe { routines::fetch_add(word(at), add) })
    }

    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> Result<u64, AccessError> {
        // SAFETY: see `store`.
        self.checked(at, unsafe { routines::compare_swap(word(at), compare, swap) })
    }
}

/// Copies a packet's payload to registered memory. A program that polls the memory sees packets in order. It sees the last byte or last
/// aligned word of each packet after its other bytes, as with a PCIe NIC.
///
/// # Safety
/// As [`copy_in`].
#[inline]
unsafe fn place(to: *mut u8, bytes: &[u8]) -> Result<(), routines::Unmapped> {
    if cfg!(target_arch = "x86_64") {
        // x86-64 does not reorder stores.
        // SAFETY: the caller vouches for `to`.
        return unsafe { routines::copy(to, bytes.as_ptr(), bytes.len()) };
    }
    let (first, last) = bytes.split_at(bytes.len() - last_word(to.addr(), bytes.len()));
    fence(Ordering::Release);
    if !first.is_empty() {
        // SAFETY: the caller vouches for `to`; this is the first part of it.
        unsafe { routines::copy(to, first.as_ptr(), first.len()) }?;
        fence(Ordering::Release);
    }
    // SAFETY: the caller vouches for `to`; this is the rest of it.
    unsafe { routines::copy(to.add(first.len()), last.as_ptr(), last.len()) }
}

/// Returns the size of the largest aligned store that ends at the end of `length` bytes at `address`: 8, 4, 2, 1, or 0 if there are no
/// bytes.
fn last_word(address: usize, length: usize) -> usize {
    let is_one_store = |size: &usize| *size <= length && (address + length).is_multiple_of(*size);
    [8, 4, 2, 1].into_iter().find(is_one_store).unwrap_or(0)
}

fn pointer(slice: Slice) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(slice.address() as usize)
}

fn word(at: Slice) -> *mut u64 {
    assert!(at.len() == 8 && at.address().is_multiple_of(8), "an atomic is 8 aligned bytes (IBA 9.4.5)");
    pointer(at).cast()
}

/// Copies `bytes` to registered memory.
///
/// # Safety
/// The caller must pass a `to` that is valid for writes of `bytes.len()` bytes, with the provenance of its allocation or exposed
/// provenance.
///
/// # Errors
/// Returns [`AccessError::Vanished`] if the memory is not mapped and a core exists. Without a core, the fault is the program's.
pub unsafe fn copy_in(to: *mut u8, bytes: &[u8]) -> Result<(), AccessError> {
    // SAFETY: the caller vouches for `to`, and `bytes` is a slice.
    unsafe { routines::copy(to, bytes.as_ptr(), bytes.len()) }.map_err(|_| AccessError::Vanished)
}

/// Copies registered memory to `into`.
///
/// # Safety
/// The caller must pass a `from` that is valid for reads of `into.len()` bytes, with the provenance of its allocation or exposed
/// provenance.
///
/// # Errors
/// Returns [`AccessError::Vanished`] if the memory is not mapped and a core exists. Without a core, the fault is the program's.
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) -> Result<(), AccessError> {
    // SAFETY: the caller vouches for `from`, and `into` is a slice.
    unsafe { routines::copy(into.as_mut_ptr(), from, into.len()) }.map_err(|_| AccessError::Vanished)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Distance between tested lengths. Larger under Miri, which is slow.
    const STEP: usize = if cfg!(miri) { 19 } else { 1 };

    #[test]
    fn the_last_store_is_one_aligned_word_or_a_byte() {
        for (address, length, last) in [
            (0x1000, 4096, 8),
            (0x1000, 8, 8),
            (0x1004, 8, 4),
            (0x1004, 4, 4),
            (0x1000, 7, 1),
            (0x1000, 6, 2),
            (0x1001, 7, 4),
            (0x1007, 1, 1),
            (0x1000, 0, 0),
        ] {
            assert_eq!(last_word(address, length), last, "{length} bytes at {address:#x}");
        }
    }

    #[test]
    fn payloads_are_exact_at_every_alignment() {
        for start in 0..9 {
            for length in (0..40).chain(120..140).chain([255, 256, 257, 4096]).step_by(STEP) {
                let bytes: Vec<u8> = (0..length).map(|n| (n * 7 + start) as u8).collect();
                let mut memory = vec![0xee_u8; start + length + 9];
                // SAFETY: the range lies in `memory`, which nothing else uses meanwhile.
                unsafe { place(memory.as_mut_ptr().add(start), &bytes) }.unwrap();
                assert_eq!(memory[start..start + length], bytes, "{length} bytes at {start}");
                assert!(memory[..start].iter().chain(&memory[start + length..]).all(|&b| b == 0xee));
            }
        }
    }

    #[test]
    fn copies_are_exact_at_every_alignment() {
        for start in (0..9).chain([15, 16, 31, 32, 33]) {
            for length in (0..40).chain(120..140).chain(255..396).chain([1024, 4095, 4096]).step_by(STEP) {
                let bytes: Vec<u8> = (0..length).map(|n| (n * 7 + start) as u8).collect();
                let mut memory = vec![0xee_u8; start + length + 9];
                let address = memory.as_mut_ptr();
                let mut back = vec![0; length];
                // SAFETY: both ranges lie in `memory`, which nothing else uses meanwhile.
                unsafe {
                    copy_in(address.add(start), &bytes).unwrap();
                    copy_out(address.add(start), &mut back).unwrap();
                }
                assert_eq!(back, bytes, "{length} bytes at {start}");
                assert!(memory[..start].iter().chain(&memory[start + length..]).all(|&b| b == 0xee));
            }
        }
    }
}
