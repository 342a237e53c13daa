//! The parameters of HPCC++.

use crate::{ConfigError, Rate, limits};
use core::num::NonZeroU32;
use core::time::Duration;

/// The parameters of rtgwg-00 5 and Figure 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpccConfig {
    /// `T`: base RTT. 1 ns to [`Self::MAX_BASE_RTT`].
    pub base_rtt: Duration,
    /// Rate of the sender's link; initial and highest rate of a flow. At most [`Self::MAX_LINE_RATE`].
    pub line_rate: Rate,
    /// Lowest rate. Above 0, at most the line rate.
    pub min_rate: Rate,
    /// `eta`: target utilisation of the busiest link. Above 0, at most 1.
    pub target_utilisation: f64,
    /// `maxStage`: additive increases before a multiplicative change.
    pub max_stage: u32,
    /// `W_ai` as a rate: `W_ai / T`. At most the line rate.
    pub additive_increase: Rate,
}

impl HpccConfig {
    /// Longest base RTT: 1 s.
    pub const MAX_BASE_RTT: Duration = Duration::from_secs(1);
    /// Highest line rate: 10 Tb/s.
    pub const MAX_LINE_RATE: Rate = Rate::from_gbps(10_000);
    /// `eta` of Figure 3.
    pub const DEFAULT_TARGET_UTILISATION: f64 = 0.95;
    /// `maxStage` of Figure 3. The authors of HPCC simulate with 0, with which a flow uses free bandwidth sooner.
    pub const DEFAULT_MAX_STAGE: u32 = 5;

    /// Returns Figure 3's `eta` and `maxStage`, and `W_ai` for a path that at most `flows` flows share. The lowest rate is a thousandth of
    /// the line rate.
    #[must_use]
    pub fn new(line_rate: Rate, base_rtt: Duration, flows: NonZeroU32) -> Self {
        Self {
            base_rtt,
            line_rate,
            min_rate: Rate::from_bps((line_rate.as_bps() / 1000).max(1)),
            target_utilisation: Self::DEFAULT_TARGET_UTILISATION,
            max_stage: Self::DEFAULT_MAX_STAGE,
            additive_increase: Self::additive_increase(line_rate, Self::DEFAULT_TARGET_UTILISATION, flows),
        }
    }

    /// Returns rtgwg-00 5's rule of thumb, `W_ai = W_init * (1 - eta) / N`, as a rate: the increases of `flows` flows stay within the
    /// headroom that `eta` leaves.
    #[must_use]
    pub fn additive_increase(line_rate: Rate, target_utilisation: f64, flows: NonZeroU32) -> Rate {
        let headroom = line_rate.as_bps() as f64 * (1.0 - target_utilisation);
        Rate::from_bps((headroom / f64::from(flows.get())) as u64)
    }

    /// Returns `W_init`: the bytes that the line rate carries in one base RTT; at least 1.
    #[must_use]
    pub fn initial_window(&self) -> u64 {
        limits::initial_window(self.line_rate, self.base_rtt)
    }

    /// Returns the window at a pacing rate, `W_init * rate / line_rate`: the payload bytes in flight; at least 1. `rate` is at most the line
    /// rate.
    #[must_use]
    #[inline]
    pub fn window_at(&self, rate: Rate) -> u64 {
        limits::window(self.initial_window(), rate, self.line_rate)
    }

    pub(super) const fn bounds(&self) -> Bounds {
        Bounds { least: self.min_rate, additive_increase: self.additive_increase }
    }

    /// Checks that every parameter is within its limits.
    ///
    /// # Errors
    /// Returns the first parameter that is not, with its limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let Self { base_rtt, line_rate, min_rate, target_utilisation, max_stage: _, additive_increase } =
            *self;
        limits::base_rtt(base_rtt)?;
        limits::rates(line_rate, min_rate)?;
        // Written so that NaN fails.
        if !(target_utilisation > 0.0 && target_utilisation <= 1.0) {
            return Err(ConfigError::TargetUtilisation(target_utilisation));
        }
        limits::increase(additive_increase, line_rate)
    }
}

/// The limits of a new rate.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) least: Rate,
    /// `W_ai / T`.
    pub(super) additive_increase: Rate,
}
