//! The process's only clock. Each turn reads it once and passes the time down.

use cc::Instant;

/// Monotonic time since the process created its first clock.
///
/// A read takes about 25 ns, because `CLOCK_MONOTONIC` is read through the vDSO, without a system call.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: u64,
}

impl Clock {
    /// Returns a clock with the origin that all clocks of the process share.
    #[must_use]
    pub fn new() -> Self {
        static ORIGIN: std::sync::OnceLock<u64> = std::sync::OnceLock::new();
        Self { origin: *ORIGIN.get_or_init(monotonic) }
    }

    /// Returns the `CLOCK_MONOTONIC` time of an instant, which is the same in all processes.
    pub(crate) fn since_boot(&self, instant: Instant) -> Instant {
        Instant::from_nanos(instant.as_nanos().saturating_add(self.origin))
    }

    /// Returns the current time, which never decreases.
    #[must_use]
    pub fn now(&self) -> Instant {
        Instant::from_nanos(monotonic() - self.origin)
    }
}

/// Returns `CLOCK_MONOTONIC` in ns, as eBPF programs read it. It fits 64 bits for 584 years. Calls `clock_gettime` directly, because the
/// checks of `std::time::Instant` take a tenth of an idle turn.
#[must_use]
pub fn monotonic() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid timespec to write to.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut time) };
    debug_assert_eq!(failed, 0, "every Linux has this clock");
    // Both are non-negative.
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
    fn clocks_agree_and_are_monotonic() {
        let (a, b) = (Clock::new(), Clock::new());
        let first = a.now();
        let second = b.now();
        assert!(first <= second && second <= a.now());
    }
}
