//! The only clock. It is read once a turn and its time passed down.

use cc::Instant;

/// Monotonic time since the first clock of the process was made.
///
/// `CLOCK_MONOTONIC` by the vDSO: about 25 ns a read, no system call.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    origin: std::time::Instant,
}

impl Clock {
    /// All clocks of a process agree.
    #[must_use]
    pub fn new() -> Self {
        static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        Self { origin: *ORIGIN.get_or_init(std::time::Instant::now) }
    }

    /// Now. Never goes back.
    #[must_use]
    pub fn now(&self) -> Instant {
        // 2^64 ns are 584 years.
        Instant::from_nanos(self.origin.elapsed().as_nanos() as u64)
    }
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
