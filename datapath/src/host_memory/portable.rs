//! Accesses registered memory on processors for which there are no routines, with volatile loads and atomics, which the compiler may not
//! optimise. A fault is not recovered: missing memory kills the program.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// The error for missing memory, which this module never returns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmapped;

/// # Safety
/// The caller must pass a `from` that is valid for reads and a `to` that is valid for writes of `length` bytes. Both must have exposed
/// provenance or that of their allocations. They must not overlap.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Unmapped> {
    // Not atomic, because the source may be read-only memory.
    // SAFETY: `at` is below `length` in the calls below, and a byte is always aligned.
    let load = |at| unsafe { from.add(at).read_volatile() };
    let (head, words, tail) = split(to, length);
    for at in (0..head).chain(head + words..head + words + tail) {
        // SAFETY: `at` is below `length`, and a byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(load(at), Ordering::Relaxed);
    }
    for at in (head..head + words).step_by(8) {
        let word = std::array::from_fn(|i| load(at + i));
        // SAFETY: `split` returns offsets for which `to + at` is aligned to 8 and has 8 bytes within the range.
        unsafe { AtomicU64::from_ptr(to.add(at).cast()) }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
    Ok(())
}

/// # Safety
/// The caller must pass an address that is valid for reads and writes of 8 bytes and aligned to 8.
pub(super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for `at`.
    unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
    Ok(())
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Unmapped> {
    // SAFETY: the caller vouches for `at`.
    Ok(unsafe { AtomicU64::from_ptr(at) }.fetch_add(add, Ordering::SeqCst))
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Unmapped> {
    // SAFETY: the caller vouches for `at`.
    let word = unsafe { AtomicU64::from_ptr(at) };
    Ok(word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found))
}

/// Does nothing, because faults are not recovered here.
pub(crate) mod faults {
    pub(crate) const PERIOD: std::time::Duration = std::time::Duration::MAX;

    #[derive(Debug)]
    pub(crate) struct Recovery(());

    impl Recovery {
        pub(crate) const fn begin() -> Self {
            Self(())
        }
    }

    pub(crate) const fn reinstall() {}

    pub(crate) const fn unblock_signals() {}
}

/// Returns the bytes before the first aligned word, those in whole aligned words, and the rest.
fn split(start: *mut u8, length: usize) -> (usize, usize, usize) {
    let head = (start as usize).wrapping_neg() % 8;
    let head = head.min(length);
    let words = (length - head) / 8 * 8;
    (head, words, length - head - words)
}
