//! Accesses registered memory on processors without routines of our own: by volatile loads and atomics, which the compiler may not reason
//! about. A fault is the program's: memory that vanishes ends it.

use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// Nothing here finds that out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, with exposed provenance or their own; they don't overlap.
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
    // No atomics: the source may be memory that can only be read, such as a slice.
    // SAFETY: the callers below stay inside, and a byte is always aligned.
    let load = |at| unsafe { from.add(at).read_volatile() };
    let (head, words, tail) = split(to, length);
    for at in (0..head).chain(head + words..head + words + tail) {
        // SAFETY: `at` is inside; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(load(at), Ordering::Relaxed);
    }
    for at in (head..head + words).step_by(8) {
        let word = std::array::from_fn(|i| load(at + i));
        // SAFETY: `split` returns `at` such that `to + at` is aligned to 8 with 8 bytes inside.
        unsafe { AtomicU64::from_ptr(to.add(at).cast()) }.store(u64::from_ne_bytes(word), Ordering::Relaxed);
    }
    Ok(())
}

/// # Safety
/// As for [`copy`]: 8 bytes, aligned to 8.
pub(super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Gone> {
    // SAFETY: the caller's promise.
    unsafe { AtomicU64::from_ptr(at) }.store(value, Ordering::Release);
    Ok(())
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Gone> {
    // SAFETY: the caller's promise.
    Ok(unsafe { AtomicU64::from_ptr(at) }.fetch_add(add, Ordering::SeqCst))
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Gone> {
    // SAFETY: the caller's promise.
    let word = unsafe { AtomicU64::from_ptr(at) };
    Ok(word.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst).unwrap_or_else(|found| found))
}

/// Faults are not recovered.
pub(crate) mod faults {
    pub(crate) const PERIOD: std::time::Duration = std::time::Duration::MAX;

    #[derive(Debug)]
    pub(crate) struct Recovery(());

    impl Recovery {
        pub(crate) const fn begin() -> Self {
            Self(())
        }
    }

    pub(crate) const fn renew() {}

    pub(crate) const fn hear() {}
}

/// Bytes before the first aligned word, in whole aligned words, and after them.
fn split(start: *mut u8, length: usize) -> (usize, usize, usize) {
    let head = (start as usize).wrapping_neg() % 8;
    let head = head.min(length);
    let words = (length - head) / 8 * 8;
    (head, words, length - head - words)
}
