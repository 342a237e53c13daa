//! Data rates in bit/s, and the time that bytes take at them.

use crate::Instant;
use core::fmt;
use core::time::Duration;

/// A data rate in whole bits per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(u64);

impl Rate {
    /// Creates a rate of `bits` per second.
    #[must_use]
    pub const fn from_bps(bits: u64) -> Self {
        Self(bits)
    }

    /// Creates a rate of `megabits` (10⁶) per second; saturates.
    #[must_use]
    pub const fn from_mbps(megabits: u64) -> Self {
        Self(megabits.saturating_mul(1_000_000))
    }

    /// Creates a rate of `gigabits` (10⁹) per second; saturates.
    #[must_use]
    pub const fn from_gbps(gigabits: u64) -> Self {
        Self(gigabits.saturating_mul(1_000_000_000))
    }

    /// Returns the rate of `bytes` in `time`, rounded down; `u64::MAX` b/s if `time` is zero.
    #[must_use]
    pub fn of(bytes: u64, time: Duration) -> Self {
        let bits = u128::from(bytes) * 8_000_000_000;
        Self(bits.checked_div(time.as_nanos()).and_then(|bits| u64::try_from(bits).ok()).unwrap_or(u64::MAX))
    }

    /// Returns the rate in bits per second.
    #[must_use]
    pub const fn as_bps(self) -> u64 {
        self.0
    }

    /// Returns the time that `bytes` take, rounded up to a nanosecond; [`Duration::MAX`] at rate 0.
    #[must_use]
    #[inline]
    pub fn time_for(self, bytes: u64) -> Duration {
        self.nanos_for(bytes).map_or(Duration::MAX, Duration::from_nanos)
    }

    /// Returns when `bytes` that start at `start` have been transmitted; the largest time at rate 0.
    #[must_use]
    #[inline]
    pub fn passed_at(self, start: Instant, bytes: u64) -> Instant {
        Instant::from_nanos(start.as_nanos().saturating_add(self.nanos_for(bytes).unwrap_or(u64::MAX)))
    }

    /// Returns the nanoseconds that `bytes` take, rounded up; `None` at rate 0.
    #[inline]
    fn nanos_for(self, bytes: u64) -> Option<u64> {
        if self.0 == 0 {
            return None;
        }
        // The product of any packet's bytes fits into 64 bits, which avoids the 128-bit division.
        Some(match bytes.checked_mul(8_000_000_000) {
            Some(product) => product.div_ceil(self.0),
            None => {
                let nanos = (u128::from(bytes) * 8_000_000_000).div_ceil(u128::from(self.0));
                u64::try_from(nanos).unwrap_or(u64::MAX)
            }
        })
    }

    /// Returns the bytes that are transmitted in `time`, rounded down.
    #[must_use]
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the product of two 64-bit numbers fits into 128 bits; the divisors are constants"
    )]
    pub fn bytes_in(self, time: Duration) -> u64 {
        // Computed for every packet, with round trips, which need no 128-bit division.
        if time.as_secs() == 0
            && let Some(product) = self.0.checked_mul(time.subsec_nanos().into())
        {
            return product / 8_000_000_000;
        }
        // 64 bits of ns (584 years) keep the product within 128 bits.
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let bits = u128::from(self.0) * u128::from(nanos) / 1_000_000_000;
        u64::try_from(bits / 8).unwrap_or(u64::MAX)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bits @ 1_000_000_000.. => write!(f, "{:.2} Gb/s", bits as f64 / 1e9),
            bits @ 1_000_000.. => write!(f, "{:.2} Mb/s", bits as f64 / 1e6),
            bits => write!(f, "{bits} b/s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_in_a_time_are_the_same_by_either_division() {
        for bps in [0, 1, 7_999_999_999, 10_000_000_000, 400_000_000_000, u64::MAX / 20_000, u64::MAX] {
            for nanos in [0, 1, 799, 20_000, 999_999_999, 1_000_000_000, 3_000_000_007] {
                let exact = u128::from(bps) * u128::from(nanos) / 8_000_000_000;
                let bytes = Rate::from_bps(bps).bytes_in(Duration::from_nanos(nanos));
                assert_eq!(u128::from(bytes), exact.min(u64::MAX.into()), "{bps} b/s for {nanos} ns");
            }
        }
    }

    #[test]
    fn a_rate_is_that_of_bytes_in_a_time() {
        let millis = Duration::from_millis;
        assert_eq!(Rate::of(1_250_000, millis(1)), Rate::from_gbps(10));
        assert_eq!(Rate::of(1, Duration::MAX), Rate::from_bps(0));
        assert_eq!(Rate::of(1, Duration::ZERO), Rate::of(u64::MAX, Duration::from_nanos(1)));
    }

    #[test]
    fn rates_and_times_saturate() {
        assert_eq!(Rate::from_bps(u64::MAX).bytes_in(Duration::MAX), u64::MAX);
        assert_eq!([Rate::from_mbps(u64::MAX), Rate::from_gbps(u64::MAX)], [Rate::from_bps(u64::MAX); 2]);
        assert_eq!(Rate::from_bps(1).time_for(u64::MAX), Duration::from_nanos(u64::MAX));
    }

    #[test]
    fn a_kilobyte_at_100_gbps_takes_80_ns() {
        assert_eq!(Rate::from_gbps(100).time_for(1000), Duration::from_nanos(80));
        assert_eq!(Rate::from_gbps(100).bytes_in(Duration::from_nanos(4160)), 52_000);
        assert_eq!(Rate::default().time_for(1), Duration::MAX);
        let start = Instant::from_nanos(7);
        assert_eq!(Rate::from_gbps(100).passed_at(start, 1000), start + Duration::from_nanos(80));
        assert_eq!(Rate::default().passed_at(start, 1), Instant::from_nanos(u64::MAX));
        // On both sides of the limit of 64 bits.
        assert_eq!(Rate::from_gbps(8).time_for(2_305_843_009), Duration::from_nanos(2_305_843_009));
        assert_eq!(Rate::from_gbps(8).time_for(2_305_843_010), Duration::from_nanos(2_305_843_010));
    }
}
