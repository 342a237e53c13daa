//! Prefetches received frames into the cache.

const LINE: usize = 64;
/// Cache lines to prefetch: the headers and the start of the payload. The hardware prefetcher loads the rest.
const LINES: usize = 4;

/// Starts loading the beginning of a frame into the cache. Another core wrote the frame, so a load would miss.
#[inline]
pub fn begin_of(frame: &[u8]) {
    for line in frame.chunks(LINE).take(LINES) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a prefetch has no visible effect, and may be given any address.
        unsafe {
            use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            _mm_prefetch::<_MM_HINT_T0>(line.as_ptr().cast());
        }
        #[cfg(target_arch = "aarch64")]
        // SAFETY: a prefetch has no visible effect, and may be given any address.
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
    fn frames_of_any_length_are_prefetched() {
        for length in [0, 1, 63, 64, 65, 256, 4170] {
            super::begin_of(&vec![0; length]);
        }
    }
}
