//! Memory that is kept back for verbs that create something, so that they fail with `ENOMEM` when the process may have no more
//! (`RLIMIT_AS`, `RLIMIT_DATA`). Without it the process would end: Rust's collections abort where C tests for null.
//!
//! When an allocation fails, the allocator returns a piece of the reserve to the system and tries again. A verb that creates something
//! completes the reserve first, and refuses if it cannot. Other verbs allocate little, and go on with what is left.

use crate::errno::Errno;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering};

/// Bytes of a piece.
const PIECE: usize = 1 << 20;
/// Together they are more than any verb allocates, but for its queues: see [`check_requests`].
static PIECES: [AtomicPtr<c_void>; 16] = [const { AtomicPtr::new(null_mut()) }; 16];

/// Maps all pieces that the allocator has returned to the system; `ENOMEM` if it gets no memory.
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

/// Refuses a queue for so many completions if the process may not have the memory.
pub(crate) fn check_completions(depth: u32) -> Result<(), Errno> {
    check(depth as usize * 256)
}

/// As [`check_completions`], for a queue of requests of up to `buffers` buffers each.
pub(crate) fn check_requests(depth: u32, buffers: u32) -> Result<(), Errno> {
    // Both are the program's numbers, and what exceeds the device's limits is refused as such.
    check(depth.min(1 << 16) as usize * (512 + 32 * buffers.min(64) as usize))
}

/// A generous number of bytes: what is mapped here and unmapped again takes no memory.
fn check(bytes: usize) -> Result<(), Errno> {
    if bytes > PIECE {
        unmap(map(bytes)?, bytes);
    }
    Ok(())
}

/// Maps memory that nothing touches: the limits count it, and no page is used.
fn map(bytes: usize) -> Result<*mut c_void, Errno> {
    let (rights, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE);
    // SAFETY: a new mapping, where the kernel has room.
    let memory = unsafe { libc::mmap(null_mut(), bytes, rights, kind, -1, 0) };
    if memory == libc::MAP_FAILED { Err(Errno(libc::ENOMEM)) } else { Ok(memory) }
}

fn unmap(memory: *mut c_void, bytes: usize) {
    // SAFETY: `map` returned it for as many bytes, and its only owner passes it here.
    unsafe { libc::munmap(memory, bytes) };
}

/// Returns a piece to the system, or false if none is left.
#[cold]
fn give_back() -> bool {
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
        if !memory.is_null() || !give_back() {
            return memory;
        }
    }
}

/// The system's allocator, and the reserve behind it.
struct Allocator;

#[global_allocator]
static ALLOCATOR: Allocator = Allocator;

// SAFETY: every block is one of `System`, which keeps the contract; a call that failed has changed nothing and may be repeated.
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
