//! The only clock. It is read once a turn and its time passed down.

use cc::Instant;

/// Monotonic time since the first clock of the process was created.
///
/// `CLOCK_MONOTONIC` by the vDSO: about 25 ns a read, no system call.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
}

impl Clock {
    /// All clocks of a process agree.
    #[must_use]
    pub fn new() -> Self {
        static ORIGIN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        Self { origin: *ORIGIN.get_or_init(monotonic) }
    }

    /// Now. Never goes back.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(monotonic() - self.origin)
    }
}

/// Returns `CLOCK_MONOTONIC` in ns, as eBPF programs read it: 2^64 of them are 584 years. By itself, since what the standard library does
/// beside it takes a tenth of an idle turn.
#[must_use]
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    debug_assert_eq!(failed, 0, "every Linux has this clock");
    // Neither is negative.
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

impl Default for Clock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_agree_and_never_go_back() {
        let (a, b) = (Clock::new(), Clock::new());
        let first = a.now();
        let second = b.now();
        assert!(first <= second && second <= a.now());
    }
}
