//! A hint to the processor.

/// The bytes of one line of a cache.
const LINE: usize = 64;
/// Lines that headers and the begin of a payload lie in. From there on the processor sees for itself what comes next.
const LINES: usize = 4;

/// Has the begin of a frame fetched into the cache while the caller does something else: another core wrote it last.
#[inline]
pub fn begin_of(frame: &[u8]) {
    for line in frame.chunks(LINE).take(LINES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a hint reads nothing that the program could see, and may name any address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: as above.
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{}]", in(reg) line.as_ptr(), options(nostack, preserves_flags, readonly));
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = line;
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn any_frame_will_do() {
        for length in [0, 1, 63, 64, 65, 256, 4170] {
            super::begin_of(&vec![0; length]);
        }
    }
}
