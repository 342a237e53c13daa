//! Points in time, in ns. This crate has no clock: callers provide the time.

use core::ops::{Add, Sub};
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chooses; up to 584 years.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The origin.
    pub const ZERO: Self = Self(0);

    /// Creates the point `nanos` ns after the origin.
    #[must_use]
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the nanoseconds since the origin.
    #[must_use]
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Instant {
    #[must_use]
    #[inline]
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(nanos(time)))
    }
}

/// Saturates. In 64 bits, because this runs several times per packet.
#[inline]
fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos().into())
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates instead of wrapping: a timer too far in the future never fires.
    #[inline]
    fn add(self, time: Duration) -> Self {
        self.after(time)
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    /// Saturates at the origin.
    #[inline]
    fn sub(self, before: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_stops_at_the_ends() {
        let end = Instant::from_nanos(u64::MAX);
        assert_eq!(end + Duration::from_secs(1), end);
        assert_eq!(Instant::from_nanos(5) - Duration::from_nanos(9), Instant::ZERO);
        assert_eq!(Instant::ZERO.saturating_since(end), Duration::ZERO);
    }
}
