//! Checks and sums that several controllers share.

use crate::{ConfigError, HpccConfig, Rate};
use core::time::Duration;

/// The base round trip is within its limits.
pub fn base_rtt(rtt: Duration) -> Result<(), ConfigError> {
    if rtt.is_zero() || rtt > HpccConfig::MAX_BASE_RTT {
        return Err(ConfigError::BaseRtt(rtt));
    }
    Ok(())
}

/// The line rate is within its limits, and the lowest rate not above it.
pub fn rates(line_rate: Rate, min_rate: Rate) -> Result<(), ConfigError> {
    if line_rate.as_bps() == 0 || line_rate > HpccConfig::MAX_LINE_RATE {
        return Err(ConfigError::LineRate(line_rate));
    }
    if min_rate.as_bps() == 0 || min_rate > line_rate {
        return Err(ConfigError::MinRate { min_rate, line_rate });
    }
    Ok(())
}

/// A time as a float of ns: without the 128 bits that [`Duration::as_nanos`] has for those of centuries.
#[inline]
pub const fn nanos(time: Duration) -> f64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos() as u64) as f64
}

/// An increase is not above the line rate.
pub fn increase(increase: Rate, line_rate: Rate) -> Result<(), ConfigError> {
    if increase > line_rate {
        return Err(ConfigError::AdditiveIncrease { additive_increase: increase, line_rate });
    }
    Ok(())
}

/// A smoothing gain is above 0 and at most 1. Written so that NaN fails.
pub fn gain(gain: f64) -> Result<(), ConfigError> {
    if gain > 0.0 && gain <= 1.0 { Ok(()) } else { Err(ConfigError::Gain(gain)) }
}

/// `W_init`: what the line rate carries in one base round trip, in bytes; at least 1.
pub fn initial_window(line_rate: Rate, base_rtt: Duration) -> u64 {
    line_rate.bytes_in(base_rtt).max(1)
}

/// `W_init * R / R_max`; at least 1, so that one packet may always leave.
#[inline]
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the line rate is above 0; the product of two 64-bit numbers fits into 128 bits"
)]
pub fn window(initial: u64, rate: Rate, line_rate: Rate) -> u64 {
    if rate == line_rate {
        return initial.max(1);
    }
    let (rate, line_rate) = (rate.as_bps(), line_rate.as_bps());
    // Computed with every packet, so without the long division if 64 bits are enough.
    let share = match initial.checked_mul(rate) {
        Some(product) => product / line_rate,
        // Not above W_init, since the rate is not above the line rate.
        None => (u128::from(initial) * u128::from(rate) / u128::from(line_rate)) as u64,
    };
    share.max(1)
}

/// `rate * (1 - cut)`, not below `least`.
pub fn reduce(rate: Rate, cut: f64, least: Rate) -> Rate {
    // A float's cast to an integer stops at the integer's ends.
    Rate::from_bps((rate.as_bps() as f64 * (1.0 - cut)) as u64).max(least)
}
