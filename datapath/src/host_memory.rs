//! Registered memory as the owning process sees it.
//!
//! The application may read and write registered memory at any moment, as it may with memory that a NIC's DMA
//! engine uses. So no Rust reference is ever formed over it: bytes are moved by [`copy_in`] and [`copy_out`], which
//! touch it by atomic operations (a few bytes) or by instructions that are opaque to the compiler (all else), never by plain
//! loads and stores that it could reason about. What a racing copy yields is unspecified bytes, nothing worse.

use roce::{Memory, Slice};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

/// From this length on, moves of 32 bytes where the CPU has them, else a string instruction.
const LONG: usize = 256;
/// From this length on, moves of 16 bytes.
const SHORT: usize = 16;

/// The process's own memory. Every [`Slice`] it is given must lie in memory that is registered and alive.
#[derive(Debug)]
pub struct HostMemory(());

impl HostMemory {
    /// The memory of this process.
    ///
    /// # Safety
    /// Every [`Slice`] passed to it must come from an endpoint whose regions were all registered with addresses valid
    /// for reads and writes of their whole length, until they are deregistered from that endpoint.
    #[must_use]
    pub unsafe fn new() -> Self {
        Self(())
    }
}

impl Memory for HostMemory {
    fn place(&mut self, to: Slice, bytes: &[u8]) {
        assert_eq!(to.len() as usize, bytes.len(), "a slice is as long as what is put there");
        // SAFETY: the slice lies in a live region (`new`'s contract), and its length is `bytes`'.
        unsafe { copy_in(pointer(to), bytes) }
    }

    fn gather(&self, from: Slice, into: &mut [u8]) {
        assert_eq!(from.len() as usize, into.len(), "a slice is as long as what is taken there");
        // SAFETY: as in `place`.
        unsafe { copy_out(pointer(from), into) }
    }

    fn store(&mut self, at: Slice, bytes: [u8; 8]) {
        // SAFETY: `atomic` checks size and alignment; the slice lies in a live region (`new`'s contract).
        unsafe { atomic(at) }.store(u64::from_ne_bytes(bytes), Ordering::Release);
    }

    fn flush(&mut self) {
        // What the core's stores wrote is in the caches, which are coherent.
        std::sync::atomic::fence(Ordering::SeqCst);
    }

    fn fetch_add(&mut self, at: Slice, add: u64) -> u64 {
        // SAFETY: `atomic` checks size and alignment; the slice lies in a live region (`new`'s contract).
        unsafe { atomic(at) }.fetch_add(add, Ordering::SeqCst)
    }

    fn compare_swap(&mut self, at: Slice, compare: u64, swap: u64) -> u64 {
        // SAFETY: as in `fetch_add`.
        let result =
            unsafe { atomic(at) }.compare_exchange(compare, swap, Ordering::SeqCst, Ordering::SeqCst);
        result.unwrap_or_else(|found| found)
    }
}

fn pointer(slice: Slice) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(slice.address() as usize)
}

/// # Safety
/// The slice lies in live memory.
unsafe fn atomic<'a>(at: Slice) -> &'a AtomicU64 {
    assert!(at.len() == 8 && at.address().is_multiple_of(8), "an atomic is 8 aligned bytes (IBA 9.4.5)");
    // SAFETY: aligned to 8 and 8 bytes long by the assertion, alive by the caller; all other accesses to registered
    // memory in this crate are atomic or opaque to the compiler.
    unsafe { AtomicU64::from_ptr(pointer(at).cast()) }
}

/// Copies `bytes` to registered memory.
///
/// # Safety
/// `to` is valid for writes of `bytes.len()` bytes, and its provenance was exposed or it is the allocation's own.
pub unsafe fn copy_in(to: *mut u8, bytes: &[u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= LONG {
        // SAFETY: the caller's promise for `to`; `bytes` is a slice.
        return unsafe { move_long(to, bytes.as_ptr(), bytes.len()) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= SHORT {
        // SAFETY: as above, and there are 16 bytes at least.
        return unsafe { move_sixteens(to, bytes.as_ptr(), bytes.len()) };
    }
    let (head, words, tail) = split(to, bytes.len());
    for at in (0..head).chain(head + words..head + words + tail) {
        // SAFETY: `at` is inside; a byte is always aligned.
        unsafe { AtomicU8::from_ptr(to.add(at)) }.store(bytes[at], Ordering::Relaxed);
    }
    for at in (head..head + words).step_by(8) {
        let word = u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        // SAFETY: `split` makes `to + at` aligned to 8 with 8 bytes inside.
        unsafe { AtomicU64::from_ptr(to.add(at).cast()) }.store(word, Ordering::Relaxed);
    }
}

/// Copies registered memory to `into`.
///
/// # Safety
/// `from` is valid for reads of `into.len()` bytes, and its provenance was exposed or it is the allocation's own.
pub unsafe fn copy_out(from: *const u8, into: &mut [u8]) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if into.len() >= LONG {
        // SAFETY: the caller's promise for `from`; `into` is a slice.
        return unsafe { move_long(into.as_mut_ptr(), from, into.len()) };
    }
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if into.len() >= SHORT {
        // SAFETY: as above, and there are 16 bytes at least.
        return unsafe { move_sixteens(into.as_mut_ptr(), from, into.len()) };
    }
    let from = from.cast_mut();
    let (head, words, tail) = split(from, into.len());
    for at in (0..head).chain(head + words..head + words + tail) {
        // SAFETY: `at` is inside; a byte is always aligned. Only loaded.
        into[at] = unsafe { AtomicU8::from_ptr(from.add(at)) }.load(Ordering::Relaxed);
    }
    for at in (head..head + words).step_by(8) {
        // SAFETY: `split` makes `from + at` aligned to 8 with 8 bytes inside. Only loaded.
        let word = unsafe { AtomicU64::from_ptr(from.add(at).cast()) }.load(Ordering::Relaxed);
        into[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    }
}

/// Bytes before the first aligned word, in whole aligned words, and after them.
fn split(start: *mut u8, length: usize) -> (usize, usize, usize) {
    let head = (start as usize).wrapping_neg() % 8;
    let head = head.min(length);
    let words = (length - head) / 8 * 8;
    (head, words, length - head - words)
}

/// The same by 16 bytes at a time, the last of them over what was copied before: no byte is left for a slower way. A string
/// instruction would take as long to start.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, they don't overlap, and `length` is 16 at least.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_sixteens(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise: all addresses lie between the first byte and 16 before the end of either range; the
    // registers that change are declared.
    unsafe {
        std::arch::asm!(
            "movups {tail}, [{from} + {length} - 16]",
            "lea {last}, [{to} + {length} - 16]",
            "jmp 3f",
            "2:",
            "movups {sixteen}, [{from}]",
            "movups [{to}], {sixteen}",
            "add {from}, 16",
            "add {to}, 16",
            "3:",
            "cmp {to}, {last}",
            "jb 2b",
            "movups [{last}], {tail}",
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            length = in(reg) length,
            last = out(reg) _,
            tail = out(xmm_reg) _,
            sixteen = out(xmm_reg) _,
            options(nostack),
        );
    }
}

/// Moves [`LONG`] bytes or more.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, they don't overlap, and `length` is [`LONG`] at least.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_long(to: *mut u8, from: *const u8, length: usize) {
    if std::arch::is_x86_feature_detected!("avx") {
        // SAFETY: the CPU has it; the rest is the caller's promise.
        unsafe { move_thirty_twos(to, from, length) }
    } else {
        // SAFETY: the caller's promise.
        unsafe { move_bytes(to, from, length) }
    }
}

/// By 32 bytes at a time, stores aligned: a packet's payload begins in the middle of a cache line, and stores across two cost twice.
/// The first 32 and the last 128 are moved in part twice, so that no byte is left for a slower way. A string instruction takes 7 to
/// 16 ns longer for 1 KiB, and up to 8 for 4 KiB.
///
/// # Safety
/// As [`move_long`]; and the CPU has AVX.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[target_feature(enable = "avx")]
unsafe fn move_thirty_twos(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise: all addresses lie in either range, since the loop ends 128 bytes before their end at the
    // latest, and skips 32 at most where there are 256; all registers that a function may change are declared.
    unsafe {
        std::arch::asm!(
            "lea r8, [rdi + rdx - 128]",
            "lea r9, [rsi + rdx - 128]",
            "vmovups ymm0, [rsi]",
            "vmovups [rdi], ymm0",
            "mov rax, rdi",
            "neg rax",
            "and rax, 31",
            "add rsi, rax",
            "add rdi, rax",
            "2:",
            "vmovups ymm0, [rsi]",
            "vmovups ymm1, [rsi + 32]",
            "vmovups ymm2, [rsi + 64]",
            "vmovups ymm3, [rsi + 96]",
            "vmovups [rdi], ymm0",
            "vmovups [rdi + 32], ymm1",
            "vmovups [rdi + 64], ymm2",
            "vmovups [rdi + 96], ymm3",
            "add rsi, 128",
            "add rdi, 128",
            "cmp rdi, r8",
            "jb 2b",
            "vmovups ymm0, [r9]",
            "vmovups ymm1, [r9 + 32]",
            "vmovups ymm2, [r9 + 64]",
            "vmovups ymm3, [r9 + 96]",
            "vmovups [r8], ymm0",
            "vmovups [r8 + 32], ymm1",
            "vmovups [r8 + 64], ymm2",
            "vmovups [r8 + 96], ymm3",
            "vzeroupper",
            inout("rdi") to => _,
            inout("rsi") from => _,
            in("rdx") length,
            clobber_abi("sysv64"),
            options(nostack),
        );
    }
}

/// A copy that is one instruction to the compiler, so that a race with the application is a race of the hardware's
/// accesses, as DMA has it.
///
/// # Safety
/// `from` is valid for reads and `to` for writes of `length` bytes, and they don't overlap.
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn move_bytes(to: *mut u8, from: *const u8, length: usize) {
    // SAFETY: the caller's promise; the direction flag is clear on entry to asm (System V ABI), and the three registers
    // it changes are declared.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") length => _,
            inout("rdi") to => _,
            inout("rsi") from => _,
            options(nostack, preserves_flags),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_are_exact_at_every_alignment() {
        for start in (0..9).chain([15, 16, 31, 32, 33]) {
            for length in (0..40).chain(LONG - 1..LONG + 140).chain([1024, 4095, 4096]) {
                let bytes: Vec<u8> = (0..length).map(|n| (n * 7 + start) as u8).collect();
                let mut memory = vec![0xee_u8; start + length + 9];
                let address = memory.as_mut_ptr();
                let mut back = vec![0; length];
                // SAFETY: both ranges lie in `memory`, which nobody else touches meanwhile.
                unsafe {
                    copy_in(address.add(start), &bytes);
                    copy_out(address.add(start), &mut back);
                }
                assert_eq!(back, bytes, "{length} bytes at {start}");
                assert!(memory[..start].iter().chain(&memory[start + length..]).all(|&b| b == 0xee));
            }
        }
    }
}
