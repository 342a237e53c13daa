//! Reserves memory, so that verbs that create objects fail with `ENOMEM` when the process reaches a limit (`RLIMIT_AS`, `RLIMIT_DATA`).
//! Without the reserve the process would abort, because Rust's collections abort where C code tests for null.
//!
//! When an allocation fails, the allocator returns a piece of the reserve to the system and retries. A verb that creates an object
//! completes the reserve first, and fails if it cannot. Other verbs allocate little, and use the rest of the reserve.

use crate::errno::Errno;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Size of a piece, bytes.
const PIECE: usize = 1 << 20;
/// The sum of the pieces exceeds the allocations of any verb, except for its queues: see [`check_requests`].
static PIECES: [AtomicPtr<c_void>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

/// Maps the pieces that the allocator has returned to the system. Returns `ENOMEM` if it cannot.
pub(crate) fn complete() -> Result<(), Errno> {
    for piece in &PIECES {
        if !piece.load(Ordering::Acquire).is_null() {
            continue;
        }
        let new = map(PIECE)?;
        if piece.compare_exchange(null_mut(), new, Ordering::AcqRel, Ordering::Acquire).is_err() {
            unmap(new, PIECE);
        }
    }
    Ok(())
}

/// Returns `ENOMEM` if the process cannot map the memory for a queue of `depth` completions.
pub(crate) fn check_completions(depth: u32) -> Result<(), Errno> {
    check(depth as usize * 256)
}

/// Returns `ENOMEM` if the process cannot map the memory for a queue of `depth` requests with up to `buffers` buffers each.
pub(crate) fn check_requests(depth: u32, buffers: u32) -> Result<(), Errno> {
    // Both numbers are the program's. Later checks refuse those that exceed the device's limits.
    check(depth.min(1 << 16) as usize * (512 + 32 * buffers.min(64) as usize))
}

/// Checks that `bytes` can be mapped. They are unmapped again, so no memory is used.
fn check(bytes: usize) -> Result<(), Errno> {
    if bytes > PIECE {
        unmap(map(bytes)?, bytes);
    }
    Ok(())
}

/// Maps memory that is never accessed: it counts against the limits, but uses no pages.
fn map(bytes: usize) -> Result<*mut c_void, Errno> {
    let (rights, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, at an address that the kernel chooses.
    let memory = unsafe { libc::mmap(null_mut(), bytes, rights, kind, -1, 0) };
    if memory == libc::MAP_FAILED { Err(Errno(libc::ENOMEM)) } else { Ok(memory) }
}

fn unmap(memory: *mut c_void, bytes: usize) {
    // SAFETY: `map` returned the mapping with this size, and its only owner passes it here.
    unsafe { libc::munmap(memory, bytes) };
}

/// Returns a piece to the system. Returns `false` if none is left.
#[cold]
fn release_piece() -> bool {
    let taken =
        PIECES.iter().map(|piece| piece.swap(null_mut(), Ordering::AcqRel)).find(|taken| !taken.is_null());
    if let Some(piece) = taken {
        unmap(piece, PIECE);
    }
    taken.is_some()
}

fn with_reserve(mut allocate: impl FnMut() -> *mut u8) -> *mut u8 {
    loop {
        let memory = allocate();
        if !memory.is_null() || !release_piece() {
            return memory;
        }
    }
}

/// The system's allocator, with the reserve.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: every block is allocated and freed by `System`, which fulfils the contract; a failed call has no effect and may be repeated.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        with_reserve(|| unsafe { System.alloc(layout) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: passed on.
        with_reserve(|| unsafe { System.alloc_zeroed(layout) })
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: passed on.
        with_reserve(|| unsafe { System.realloc(memory, layout, size) })
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}
