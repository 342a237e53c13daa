//! The parameters of DCQCN.

use crate::{ConfigError, Rate, limits};
use core::time::Duration;

/// The parameters of DCQCN's reaction point (Zhu et al., SIGCOMM 2015, section 3.1 and figure 7).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DcqcnConfig {
    /// Initial and highest rate. At most [`crate::HpccConfig::MAX_LINE_RATE`].
    pub line_rate: Rate,
    /// Lowest rate. Above 0, at most the line rate.
    pub min_rate: Rate,
    /// Base RTT, 1 ns to [`crate::HpccConfig::MAX_BASE_RTT`], which makes the window proportional to the rate. `None`: no window limits
    /// in-flight bytes.
    pub base_rtt: Option<Duration>,
    /// `g`: weight of the newest interval in alpha. Above 0, at most 1.
    pub gain: f64,
    /// Interval between updates of alpha. 1 ns to 1 s.
    pub alpha_interval: Duration,
    /// Shortest interval between cuts of the rate. 1 ns to 1 s.
    pub decrease_interval: Duration,
    /// `T`: interval at which the timer raises the rate. 1 ns to 1 s.
    pub increase_interval: Duration,
    /// `B`: payload bytes after which the byte counter raises the rate; at least 1. `None`: only the timer raises it.
    pub byte_counter: Option<u64>,
    /// `F`: while timer and byte counter have each raised the rate fewer times than this since the last cut, the target rate does not
    /// change.
    pub fast_recovery: u32,
    /// `R_AI`: additive increase of the target rate. At most the line rate.
    pub additive_increase: Rate,
    /// `R_HAI`: hyper increase of the target rate. At most the line rate.
    pub hyper_increase: Rate,
    /// Whether every cut sets the target rate to the current rate. If not, a cut keeps it unless the timer has raised the rate since the
    /// last cut.
    pub clamp_target: bool,
}

impl DcqcnConfig {
    /// Returns the paper's parameters, with increases scaled from its 40 Gb/s to `line_rate`. No interval is shorter than `base_rtt`, so
    /// that a cut takes effect before the next.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "the divisor is a constant")]
    pub fn new(line_rate: Rate, base_rtt: Option<Duration>) -> Self {
        let at_least = |micros| Duration::from_micros(micros).max(base_rtt.unwrap_or_default());
        let share = |part: u64| Rate::from_bps((line_rate.as_bps() / part).max(1));
        Self {
            line_rate,
            min_rate: share(1000),
            base_rtt,
            gain: 1.0 / 256.0,
            alpha_interval: at_least(55),
            decrease_interval: at_least(50),
            increase_interval: at_least(55),
            byte_counter: Some(10_000_000),
            fast_recovery: 5,
            additive_increase: share(1000),
            hyper_increase: share(100),
            clamp_target: true,
        }
    }

    /// Returns the parameters with which the authors of HPCC simulate DCQCN at 100 Gb/s; with `base_rtt`, those of their variant with a
    /// window.
    #[must_use]
    pub const fn simulator(base_rtt: Option<Duration>) -> Self {
        Self {
            line_rate: Rate::from_gbps(100),
            min_rate: Rate::from_mbps(100),
            base_rtt,
            gain: 1.0 / 256.0,
            alpha_interval: Duration::from_micros(1),
            decrease_interval: Duration::from_micros(4),
            increase_interval: Duration::from_micros(300),
            byte_counter: None,
            fast_recovery: 1,
            additive_increase: Rate::from_mbps(20),
            hyper_increase: Rate::from_mbps(200),
            clamp_target: false,
        }
    }

    /// Checks that every parameter is within its limits.
    ///
    /// # Errors
    /// Returns the first parameter that is not, with its limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        limits::rates(self.line_rate, self.min_rate)?;
        if let Some(rtt) = self.base_rtt {
            limits::base_rtt(rtt)?;
        }
        limits::gain(self.gain)?;
        for (what, interval) in [
            ("alpha interval", self.alpha_interval),
            ("decrease interval", self.decrease_interval),
            ("increase interval", self.increase_interval),
        ] {
            if interval.is_zero() || interval > Duration::from_secs(1) {
                return Err(ConfigError::Interval { what, interval });
            }
        }
        if self.byte_counter == Some(0) {
            return Err(ConfigError::ByteCounter);
        }
        limits::increase(self.additive_increase, self.line_rate)?;
        limits::increase(self.hyper_increase, self.line_rate)
    }
}
