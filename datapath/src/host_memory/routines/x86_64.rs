//! The routines on x86-64.

use super::{ferroce_memory_end, ferroce_memory_few, ferroce_memory_gone, ferroce_memory_sixteens};
use std::arch::global_asm;

global_asm!(
    r#"
    .pushsection .text.ferroce_memory, "ax", @progbits
    .irp name, begin, thirty_twos, narrow, sixteens, few, bytes, store, fetch_add, compare_swap, end, gone_wide, gone
    .globl ferroce_memory_\name
    .hidden ferroce_memory_\name
    .type ferroce_memory_\name, @function
    .endr

    .p2align 6
ferroce_memory_begin:

    # By 32 bytes, stores aligned: a payload begins in the middle of a cache line, and stores across two cost twice. The first 32 and
    # the last 128 are moved in part twice, so that no byte is left for a slower way. A string instruction takes 7 to 16 ns longer for
    # 1 KiB, and up to 8 for 4 KiB. The loop ends 128 bytes before the end at the latest, and 32 at most are skipped of 256.
ferroce_memory_thirty_twos:
    .cfi_startproc
    lea r8, [rdi + rdx - 128]
    lea r9, [rsi + rdx - 128]
    vmovups ymm0, [rsi]
    vmovups [rdi], ymm0
    mov rax, rdi
    neg rax
    and rax, 31
    add rsi, rax
    add rdi, rax
2:
    vmovups ymm0, [rsi]
    vmovups ymm1, [rsi + 32]
    vmovups ymm2, [rsi + 64]
    vmovups ymm3, [rsi + 96]
    vmovups [rdi], ymm0
    vmovups [rdi + 32], ymm1
    vmovups [rdi + 64], ymm2
    vmovups [rdi + 96], ymm3
    add rsi, 128
    add rdi, 128
    cmp rdi, r8
    jb 2b
    vmovups ymm0, [r9]
    vmovups ymm1, [r9 + 32]
    vmovups ymm2, [r9 + 64]
    vmovups ymm3, [r9 + 96]
    vmovups [r8], ymm0
    vmovups [r8 + 32], ymm1
    vmovups [r8 + 64], ymm2
    vmovups [r8 + 96], ymm3
    vzeroupper
    xor eax, eax
    ret
    .cfi_endproc

    # From here on no register is wider than 16 bytes.
ferroce_memory_narrow:

    # By 16 bytes, the last of them over what was copied before.
    .p2align 5
ferroce_memory_sixteens:
    .cfi_startproc
    movups xmm1, [rsi + rdx - 16]
    lea rcx, [rdi + rdx - 16]
    jmp 3f
2:
    movups xmm0, [rsi]
    movups [rdi], xmm0
    add rsi, 16
    add rdi, 16
3:
    cmp rdi, rcx
    jb 2b
    movups [rcx], xmm1
    xor eax, eax
    ret
    .cfi_endproc

    # Fewer than 16 bytes, by at most two moves. A word is written once: a program may wait for it, and change it as soon as it is there.
    .p2align 5
ferroce_memory_few:
    .cfi_startproc
    cmp rdx, 8
    jb 4f
    mov rax, [rsi]
    mov rcx, [rsi + rdx - 8]
    je 8f
    mov [rdi], rax
8:
    mov [rdi + rdx - 8], rcx
    xor eax, eax
    ret
4:
    cmp rdx, 4
    jb 5f
    mov eax, [rsi]
    mov ecx, [rsi + rdx - 4]
    je 8f
    mov [rdi], eax
8:
    mov [rdi + rdx - 4], ecx
    xor eax, eax
    ret
5:
    cmp rdx, 2
    jb 6f
    movzx eax, word ptr [rsi]
    movzx ecx, word ptr [rsi + rdx - 2]
    je 8f
    mov [rdi], ax
8:
    mov [rdi + rdx - 2], cx
    xor eax, eax
    ret
6:
    test rdx, rdx
    je 7f
    movzx eax, byte ptr [rsi]
    mov [rdi], al
7:
    xor eax, eax
    ret
    .cfi_endproc

ferroce_memory_bytes:
    .cfi_startproc
    mov rcx, rdx
    rep movsb
    xor eax, eax
    ret
    .cfi_endproc

    # Atomics. On x86-64 a store releases; the other two are sequentially consistent. The second argument is the caller's own word.
ferroce_memory_store:
    .cfi_startproc
    mov rax, [rsi]
    mov [rdi], rax
    xor eax, eax
    ret
    .cfi_endproc

ferroce_memory_fetch_add:
    .cfi_startproc
    mov rax, [rsi]
    lock xadd [rdi], rax
    mov [rsi], rax
    xor eax, eax
    ret
    .cfi_endproc

ferroce_memory_compare_swap:
    .cfi_startproc
    mov rax, [rsi]
    lock cmpxchg [rdi], rdx
    mov [rsi], rax
    xor eax, eax
    ret
    .cfi_endproc

ferroce_memory_end:

ferroce_memory_gone_wide:
    .cfi_startproc
    vzeroupper
ferroce_memory_gone:
    mov eax, 1
    ret
    .cfi_endproc
    .popsection
"#
);

unsafe extern "C" {
    /// Copies 256 bytes or more. Requires AVX.
    fn ferroce_memory_thirty_twos(to: *mut u8, from: *const u8, length: usize) -> u32;
    fn ferroce_memory_bytes(to: *mut u8, from: *const u8, length: usize) -> u32;
    // Labels, which are never called.
    fn ferroce_memory_begin();
    fn ferroce_memory_narrow();
    fn ferroce_memory_gone_wide();
}

/// # Safety
/// As for [`copy`](super::copy).
#[inline]
pub(super) unsafe fn copy(to: *mut u8, from: *const u8, length: usize) -> u32 {
    // SAFETY: the caller vouches for both addresses, each routine is called with a length that it accepts, and the first only with AVX.
    unsafe {
        match length {
            256.. if std::arch::is_x86_feature_detected!("avx") => {
                ferroce_memory_thirty_twos(to, from, length)
            }
            256.. => ferroce_memory_bytes(to, from, length),
            16.. => ferroce_memory_sixteens(to, from, length),
            _ => ferroce_memory_few(to, from, length),
        }
    }
}

/// Returns the address at which execution continues after a fault of the instruction at `at`, or `None` if that is not in these routines.
pub(in crate::host_memory) fn after(at: usize) -> Option<usize> {
    let [begin, narrow, end, wide, gone] = [
        ferroce_memory_begin as *const () as usize,
        ferroce_memory_narrow as *const () as usize,
        ferroce_memory_end as *const () as usize,
        ferroce_memory_gone_wide as *const () as usize,
        ferroce_memory_gone as *const () as usize,
    ];
    match at {
        _ if (begin..narrow).contains(&at) => Some(wide),
        _ if (narrow..end).contains(&at) => Some(gone),
        _ => None,
    }
}
