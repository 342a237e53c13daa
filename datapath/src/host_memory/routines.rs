//! The instructions that access registered memory, in one place, so that a fault in one of them is recognised by its address.
//!
//! Each routine is a leaf function that uses no stack and returns 0. If the memory is missing, [`super::faults`] continues at a label after
//! the routines, where 1 is returned. The routines are opaque to the compiler, so a race with the application is a race of hardware
//! accesses, as with DMA.

#[cfg_attr(target_arch = "aarch64", path = "routines/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "routines/x86_64.rs")]
mod instructions;

pub(super) use instructions::after;

unsafe extern "C" {
    /// Copies 16 bytes or more.
    fn ferroce_memory_sixteens(to: *mut u8, from: *const u8, length: usize) -> u32;
    /// Copies fewer than 16 bytes.
    fn ferroce_memory_few(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn ferroce_memory_store(at: *mut u64, value: *const u64) -> u32;
    fn ferroce_memory_fetch_add(at: *mut u64, word: *mut u64) -> u32;
    fn ferroce_memory_compare_swap(at: *mut u64, word: *mut u64, swap: u64) -> u32;
    // Labels, which are never called.
    fn ferroce_memory_end();
    fn ferroce_memory_gone();
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Unmapped;

const fn checked(outcome: u32) -> Result<(), Unmapped> {
    if outcome == 0 { Ok(()) } else { Err(Unmapped) }
}

/// Copies bytes from or to registered memory.
///
/// # Safety
/// The caller must pass a `from` that is registered for reads and a `to` that is registered for writes of `length` bytes. Either may be
/// memory of its own instead. They must not overlap.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for both addresses.
    checked(unsafe { instructions::copy(to, from, length) })
}

/// # Safety
/// The caller must pass 8 registered bytes, aligned to 8.
pub(super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Unmapped> {
    // SAFETY: the caller vouches for `at`, and `value` is a local variable.
    checked(unsafe { ferroce_memory_store(at, &value) })
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Unmapped> {
    let mut word = add;
    // SAFETY: the caller vouches for `at`, and `word` is a local variable.
    checked(unsafe { ferroce_memory_fetch_add(at, &mut word) })?;
    Ok(word)
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Unmapped> {
    let mut word = compare;
    // SAFETY: the caller vouches for `at`, and `word` is a local variable.
    checked(unsafe { ferroce_memory_compare_swap(at, &mut word, swap) })?;
    Ok(word)
}
