//! The instructions that touch registered memory: all in one place, so that a fault in one of them is known by its address.
//!
//! Each is a leaf function that keeps nothing on the stack and returns 0. If the memory is not there, [`super::faults`] has it go on
//! at a place behind them, which returns 1. To the compiler each is opaque, so that a race with the application is a
//! race of the hardware's accesses, as DMA has it.

#[cfg_attr(target_arch = "aarch64", path = "routines/aarch64.rs")]
#[cfg_attr(target_arch = "x86_64", path = "routines/x86_64.rs")]
mod instructions;

pub(super) use instructions::after;

unsafe extern "C" {
    /// Moves 16 bytes or more.
    fn ferroce_memory_sixteens(to: *mut u8, from: *const u8, length: usize) -> u32;
    /// Moves fewer than 16 bytes.
    fn ferroce_memory_few(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn ferroce_memory_store(at: *mut u64, value: *const u64) -> u32;
    fn ferroce_memory_fetch_add(at: *mut u64, word: *mut u64) -> u32;
    fn ferroce_memory_compare_swap(at: *mut u64, word: *mut u64, swap: u64) -> u32;
    // Positions in the code, which are never called.
    fn ferroce_memory_end();
    fn ferroce_memory_gone();
}

/// The memory that an instruction touched is not there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gone;

const fn checked(outcome: u32) -> Result<(), Gone> {
    if outcome == 0 { Ok(()) } else { Err(Gone) }
}

/// Moves bytes from or to registered memory.
///
/// # Safety
/// `from` is registered for reads and `to` for writes of `length` bytes, or they are the caller's own; they don't overlap.
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> Result<(), Gone> {
    // SAFETY: the caller's promise.
    checked(unsafe { instructions::copy(to, from, length) })
}

/// # Safety
/// As for [`copy`]: 8 bytes, aligned to 8.
pub(super) unsafe fn store(at: *mut u64, value: u64) -> Result<(), Gone> {
    // SAFETY: the caller's promise.
    checked(unsafe { ferroce_memory_store(at, &value) })
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn fetch_add(at: *mut u64, add: u64) -> Result<u64, Gone> {
    let mut word = add;
    // SAFETY: the caller's promise.
    checked(unsafe { ferroce_memory_fetch_add(at, &mut word) })?;
    Ok(word)
}

/// # Safety
/// As for [`store`].
pub(super) unsafe fn compare_swap(at: *mut u64, compare: u64, swap: u64) -> Result<u64, Gone> {
    let mut word = compare;
    // SAFETY: the caller's promise.
    checked(unsafe { ferroce_memory_compare_swap(at, &mut word, swap) })?;
    Ok(word)
}
