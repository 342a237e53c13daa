//! The routines on arm64.

use super::{ferroce_memory_end, ferroce_memory_few, ferroce_memory_gone, ferroce_memory_sixteens};
use std::arch::global_asm;

global_asm!(
    r#"
    .pushsection .text.ferroce_memory, "ax", @progbits
    .irp name, begin, sixty_fours, sixteens, few, store, fetch_add, compare_swap, end, gone
    .globl ferroce_memory_\name
    .hidden ferroce_memory_\name
    .type ferroce_memory_\name, @function
    .endr

    .p2align 6
ferroce_memory_begin:

    // By 64 bytes, the last of them in part twice.
ferroce_memory_sixty_fours:
    .cfi_startproc
    add x3, x0, x2
    add x4, x1, x2
    sub x3, x3, #64
    sub x4, x4, #64
2:
    ldp q0, q1, [x1]
    ldp q2, q3, [x1, #32]
    add x1, x1, #64
    stp q0, q1, [x0]
    stp q2, q3, [x0, #32]
    add x0, x0, #64
    cmp x0, x3
    b.lo 2b
    ldp q0, q1, [x4]
    ldp q2, q3, [x4, #32]
    stp q0, q1, [x3]
    stp q2, q3, [x3, #32]
    mov w0, #0
    ret
    .cfi_endproc

    // By 16 bytes, the last of them over what was copied before.
    .p2align 5
ferroce_memory_sixteens:
    .cfi_startproc
    add x3, x0, x2
    add x4, x1, x2
    ldr q1, [x4, #-16]
    sub x3, x3, #16
    b 3f
2:
    ldr q0, [x1], #16
    str q0, [x0], #16
3:
    cmp x0, x3
    b.lo 2b
    str q1, [x3]
    mov w0, #0
    ret
    .cfi_endproc

    // Fewer than 16 bytes, by at most two moves. A word is written once: a program may wait for it, and change it as soon as it is there.
    .p2align 5
ferroce_memory_few:
    .cfi_startproc
    add x3, x0, x2
    add x4, x1, x2
    cmp x2, #8
    b.lo 4f
    ldr x5, [x1]
    ldr x6, [x4, #-8]
    b.eq 8f
    str x5, [x0]
8:
    str x6, [x3, #-8]
    mov w0, #0
    ret
4:
    cmp x2, #4
    b.lo 5f
    ldr w5, [x1]
    ldr w6, [x4, #-4]
    b.eq 8f
    str w5, [x0]
8:
    str w6, [x3, #-4]
    mov w0, #0
    ret
5:
    cmp x2, #2
    b.lo 6f
    ldrh w5, [x1]
    ldrh w6, [x4, #-2]
    b.eq 8f
    strh w5, [x0]
8:
    strh w6, [x3, #-2]
    mov w0, #0
    ret
6:
    cbz x2, 7f
    ldrb w5, [x1]
    strb w5, [x0]
7:
    mov w0, #0
    ret
    .cfi_endproc

    // Atomics: the store releases; the other two are sequentially consistent, as compilers write them for CPUs without LSE. The second
    // argument is the caller's own word.
ferroce_memory_store:
    .cfi_startproc
    ldr x2, [x1]
    stlr x2, [x0]
    mov w0, #0
    ret
    .cfi_endproc

ferroce_memory_fetch_add:
    .cfi_startproc
    ldr x2, [x1]
2:
    ldaxr x3, [x0]
    add x4, x3, x2
    stlxr w5, x4, [x0]
    cbnz w5, 2b
    str x3, [x1]
    mov w0, #0
    ret
    .cfi_endproc

ferroce_memory_compare_swap:
    .cfi_startproc
    ldr x3, [x1]
2:
    ldaxr x4, [x0]
    cmp x4, x3
    b.ne 3f
    stlxr w5, x2, [x0]
    cbnz w5, 2b
3:
    clrex
    str x4, [x1]
    mov w0, #0
    ret
    .cfi_endproc

ferroce_memory_end:

ferroce_memory_gone:
    .cfi_startproc
    mov w0, #1
    ret
    .cfi_endproc
    .popsection
"#
);

unsafe extern "C" {
    /// Copies 64 bytes or more.
    fn ferroce_memory_sixty_fours(to: *mut u8, from: *const u8, length: usize) -> u32;
    // A label, which is never called.
    fn ferroce_memory_begin();
}

/// # Safety
/// As for [`copy`](super::copy).
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> u32 {
    // SAFETY: the caller vouches for both addresses, and each routine is called with a length that it accepts.
    unsafe {
        match length {
            128.. => ferroce_memory_sixty_fours(to, from, length),
            16.. => ferroce_memory_sixteens(to, from, length),
            _ => ferroce_memory_few(to, from, length),
        }
    }
}

/// Returns the address at which execution continues after a fault of the instruction at `at`, or `None` if that is not in these routines.
pub(in crate::host_memory) fn after(at: usize) -> Option<usize> {
    let [begin, end, gone] = [
        ferroce_memory_begin as *const () as usize,
        ferroce_memory_end as *const () as usize,
        ferroce_memory_gone as *const () as usize,
    ];
    (begin..end).contains(&at).then_some(gone)
}
