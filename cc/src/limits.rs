//! Checks and formulas that several controllers share.

use crate::{ConfigError, HpccConfig, Rate};
use core::time::Duration;

/// Checks that the base RTT is from 1 ns to [`HpccConfig::MAX_BASE_RTT`].
pub fn base_rtt(rtt: Duration) -> Result<(), ConfigError> {
    if rtt.is_zero() || rtt > HpccConfig::MAX_BASE_RTT {
        return Err(ConfigError::BaseRtt(rtt));
    }
    Ok(())
}

/// Checks that the line rate is from 1 b/s to [`HpccConfig::MAX_LINE_RATE`], and the lowest rate from 1 b/s to the line rate.
pub fn rates(line_rate: Rate, min_rate: Rate) -> Result<(), ConfigError> {
    if line_rate.as_bps() == 0 || line_rate > HpccConfig::MAX_LINE_RATE {
        return Err(ConfigError::LineRate(line_rate));
    }
    if min_rate.as_bps() == 0 || min_rate > line_rate {
        return Err(ConfigError::MinRate { min_rate, line_rate });
    }
    Ok(())
}

/// Returns a time in ns. Avoids the 128-bit arithmetic of [`Duration::as_nanos`]; saturates at 584 years.
#[inline]
pub const fn nanos(time: Duration) -> f64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(time.subsec_nanos() as u64) as f64
}

/// Checks that an increase is at most the line rate.
pub fn increase(increase: Rate, line_rate: Rate) -> Result<(), ConfigError> {
    if increase > line_rate {
        return Err(ConfigError::AdditiveIncrease { additive_increase: increase, line_rate });
    }
    Ok(())
}

/// Checks that a smoothing gain is above 0 and at most 1. Written so that NaN fails.
pub fn gain(gain: f64) -> Result<(), ConfigError> {
    if gain > 0.0 && gain <= 1.0 { Ok(()) } else { Err(ConfigError::Gain(gain)) }
}

/// Returns `W_init`: the bytes that the line rate carries in one base RTT; at least 1.
pub fn initial_window(line_rate: Rate, base_rtt: Duration) -> u64 {
    line_rate.bytes_in(base_rtt).max(1)
}

/// Returns `W_init * R / R_max`; at least 1, so that one packet can always be sent.
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
    // Computed for every packet, without the 128-bit division if 64 bits are sufficient.
    let share = match initial.checked_mul(rate) {
        Some(product) => product / line_rate,
        // Not above W_init, since the rate is not above the line rate.
        None => (u128::from(initial) * u128::from(rate) / u128::from(line_rate)) as u64,
    };
    share.max(1)
}

/// Returns `rate * (1 - cut)`, at least `least`.
pub fn reduce(rate: Rate, cut: f64, least: Rate) -> Rate {
    Rate::from_bps((rate.as_bps() as f64 * (1.0 - cut)) as u64).max(least)
}
