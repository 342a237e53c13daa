//! The error of an algorithm's parameters.

use crate::Rate;
use core::fmt;
use core::time::Duration;

/// The error for a parameter that is out of its limits.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)]
pub enum ConfigError {
    /// `eta` is not above 0 and at most 1.
    TargetUtilisation(f64),
    /// `T` is not between 1 ns and [`crate::HpccConfig::MAX_BASE_RTT`].
    BaseRtt(Duration),
    /// The line rate is not between 1 b/s and [`crate::HpccConfig::MAX_LINE_RATE`].
    LineRate(Rate),
    /// The lowest rate is 0 or above the line rate.
    MinRate { min_rate: Rate, line_rate: Rate },
    /// The additive increase is above the line rate.
    AdditiveIncrease { additive_increase: Rate, line_rate: Rate },
    /// A smoothing gain is not above 0 and at most 1.
    Gain(f64),
    /// An interval is not between 1 ns and 1 s.
    Interval { what: &'static str, interval: Duration },
    /// A delay is above 1 s.
    Delay { what: &'static str, interval: Duration },
    /// The byte counter is 0.
    ByteCounter,
    /// The window is 0 bytes, with which nothing could be sent.
    NoWindow,
    /// The pacing rate is 0, with which nothing could be sent.
    NoRate,
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use crate::HpccConfig as C;
        match self {
            Self::TargetUtilisation(eta) => {
                write!(f, "target utilisation is {eta}: it must be above 0 and at most 1, normally 0.95")
            }
            Self::BaseRtt(rtt) => {
                write!(f, "base round trip is {rtt:?}: it must be from 1ns to {:?}", C::MAX_BASE_RTT)
            }
            Self::LineRate(rate) => {
                write!(f, "line rate is {rate}: it must be from 1 b/s to {}", C::MAX_LINE_RATE)
            }
            Self::MinRate { min_rate, line_rate } => {
                write!(f, "lowest rate is {min_rate}: it must be from 1 b/s to the line rate, {line_rate}")
            }
            Self::AdditiveIncrease { additive_increase, line_rate } => {
                write!(
                    f,
                    "additive increase is {additive_increase}: it must be at most the line rate, {line_rate}"
                )
            }
            Self::Gain(gain) => {
                write!(f, "gain is {gain}: it must be above 0 and at most 1, such as 0.0625")
            }
            Self::Interval { what, interval } => {
                write!(f, "{what} is {interval:?}: it must be from 1ns to 1s")
            }
            Self::Delay { what, interval } => write!(f, "{what} is {interval:?}: it must be at most 1s"),
            Self::ByteCounter => f.write_str(
                "byte counter is 0: it must be at least 1; leave it out to raise by the timer alone",
            ),
            Self::NoWindow => {
                f.write_str("window is 0 bytes: it must be at least 1, or nothing is ever sent")
            }
            Self::NoRate => {
                f.write_str("pacing rate is 0: it must be at least 1 b/s; leave it out to not pace")
            }
        }
    }
}

impl core::error::Error for ConfigError {}
