//! Algorithms that the enum [`Algorithm`](crate::Algorithm) does not contain: [`BUILT_IN`](crate::BUILT_IN), and those of other crates.

use crate::{Ack, ConfigError, CongestionController, HpccConfig, PathTelemetry, Rate, limits};
use alloc::boxed::Box;
use core::ops::{Deref, DerefMut};
use core::time::Duration;

/// The feedback with which an algorithm computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Feedback {
    /// Telemetry: calls of [`CongestionController::on_telemetry`] and [`CongestionController::on_inflight`]. Packets request it as for HPCC++.
    Telemetry,
    /// ECN marks: [`Ack::ce_bytes`](crate::Ack::ce_bytes), and CNPs. Data packets are ECN-capable.
    Marks,
    /// Acknowledgements and their round trips only.
    Delay,
}

/// An algorithm under a name.
///
/// ```
/// use ferroce_cc::{Ack, AlgorithmConfig, CongestionController, Feedback, HpccConfig, Rate, Registration};
///
/// /// Halves the rate on a loss, and never raises it.
/// #[derive(Debug)]
/// struct Halving(HpccConfig, Rate);
///
/// impl CongestionController for Halving {
///     fn on_ack(&mut self, _: &Ack) {}
///     fn on_loss(&mut self, _: ferroce_cc::Instant) {
///         self.1 = Rate::from_bps(self.1.as_bps() / 2);
///     }
///     fn window(&self) -> u64 {
///         self.0.initial_window()
///     }
///     fn pacing_rate(&self) -> Option<Rate> {
///         Some(self.1)
///     }
/// }
///
/// static HALVING: Registration = Registration {
///     name: "halving",
///     feedback: Feedback::Delay,
///     flows: 1,
///     keys: &[],
///     build: |parameters| Box::new(Halving(parameters.hpcc, parameters.hpcc.line_rate)),
/// };
///
/// # fn main() -> Result<(), ferroce_cc::ConfigError> {
/// let config = HpccConfig::new(Rate::from_gbps(100), std::time::Duration::from_micros(5), std::num::NonZeroU32::MIN);
/// let algorithm = AlgorithmConfig::Registered(&HALVING, config.into()).build()?;
/// assert_eq!(algorithm.name(), "halving");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Registration {
    /// Name in settings and reports. No other algorithm has it.
    pub name: &'static str,
    /// Feedback with which the algorithm computes.
    pub feedback: Feedback,
    /// Number of flows on a link from which [`HpccConfig::additive_increase`] follows, unless the setting `flows` has another.
    pub flows: u32,
    /// Settings that this algorithm has in addition to those of all algorithms with its feedback, each with the default that the reference
    /// shows: the fields of [`Parameters`] that it uses.
    pub keys: &'static [(&'static str, &'static str)],
    /// Creates the controller of a queue pair. The parameters are within their limits.
    pub build: fn(&Parameters) -> Box<dyn CongestionController + Send>,
}

/// Registrations with the same name are equal.
impl PartialEq for Registration {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for Registration {}

/// The parameters of a registered algorithm. `None` means the algorithm's default.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameters {
    /// Rates and base RTT; `eta` and the additive increase of an algorithm with telemetry.
    pub hpcc: HpccConfig,
    /// Increase of the rate per round trip. At most the line rate.
    pub additive_increase: Option<Rate>,
    /// Weight of the newest measurement, in a decrease or in an average. Above 0, at most 1.
    pub gain: Option<f64>,
    /// Queueing delay that is allowed to every flow beyond the base RTT. At most 1 s.
    pub hop_delay: Option<Duration>,
    /// Further delay that is allowed to a flow of one packet in flight. At most 1 s.
    pub flow_delay: Option<Duration>,
}

impl From<HpccConfig> for Parameters {
    fn from(hpcc: HpccConfig) -> Self {
        Self { hpcc, additive_increase: None, gain: None, hop_delay: None, flow_delay: None }
    }
}

impl Parameters {
    /// Checks that every parameter is within its limits.
    ///
    /// # Errors
    /// Returns the first parameter that is not, with its limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        self.hpcc.validate()?;
        for (what, delay) in [("hop delay", self.hop_delay), ("flow delay", self.flow_delay)] {
            if let Some(interval) = delay.filter(|&delay| delay > Duration::from_secs(1)) {
                return Err(ConfigError::Delay { what, interval });
            }
        }
        self.gain.map_or(Ok(()), limits::gain)?;
        limits::increase(self.additive_increase.unwrap_or_default(), self.hpcc.line_rate)
    }
}

/// The controller of a registered algorithm, with limits on its results: the window is at least 1 byte, and the rate is from the configured
/// lowest rate to the line rate.
#[derive(Debug)]
pub struct Registered {
    registration: &'static Registration,
    line_rate: Rate,
    min_rate: Rate,
    controller: Box<dyn CongestionController + Send>,
}

impl Registered {
    /// Creates a controller.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(registration: &'static Registration, parameters: &Parameters) -> Result<Self, ConfigError> {
        parameters.validate()?;
        let HpccConfig { line_rate, min_rate, .. } = parameters.hpcc;
        Ok(Self { registration, line_rate, min_rate, controller: (registration.build)(parameters) })
    }

    /// Returns the algorithm's registration.
    #[must_use]
    pub const fn registration(&self) -> &'static Registration {
        self.registration
    }

    /// Returns the rate of the sender's link.
    #[must_use]
    pub const fn line_rate(&self) -> Rate {
        self.line_rate
    }

    // These precede the methods of the same names that `Deref` provides.

    /// Passes copies to the controller. Otherwise the compiler would have to assume, for all other algorithms too, that the controller keeps
    /// the references.
    #[cold]
    #[inline(never)]
    pub(crate) fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        let (ack, path) = (*ack, *path);
        self.controller.on_telemetry(&ack, &path);
    }

    /// As [`on_telemetry`](Self::on_telemetry).
    #[cold]
    #[inline(never)]
    pub(crate) fn on_ack(&mut self, ack: &Ack) {
        let ack = *ack;
        self.controller.on_ack(&ack);
    }

    #[cold]
    pub(crate) fn window(&self) -> u64 {
        self.controller.window().max(1)
    }

    #[cold]
    pub(crate) fn pacing_rate(&self) -> Option<Rate> {
        self.controller.pacing_rate().map(|rate| rate.clamp(self.min_rate, self.line_rate))
    }
}

impl Deref for Registered {
    type Target = dyn CongestionController + Send;

    fn deref(&self) -> &Self::Target {
        &*self.controller
    }
}

impl DerefMut for Registered {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.controller
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlgorithmConfig, Instant};
    use alloc::vec::Vec;
    use core::num::NonZeroU32;
    use core::time::Duration;

    /// Returns extreme windows and rates, one pair after the other.
    #[derive(Debug)]
    struct Extreme(usize);

    const EXTREMES: [(u64, Option<Rate>); 3] =
        [(0, Some(Rate::from_bps(0))), (u64::MAX, Some(Rate::from_bps(u64::MAX))), (5000, None)];

    impl CongestionController for Extreme {
        fn on_ack(&mut self, _: &Ack) {
            self.0 += 1;
        }

        fn window(&self) -> u64 {
            EXTREMES[self.0].0
        }

        fn pacing_rate(&self) -> Option<Rate> {
            EXTREMES[self.0].1
        }
    }

    static EXTREME: Registration = Registration {
        name: "extreme",
        feedback: Feedback::Marks,
        flows: 1,
        keys: &[],
        build: |_| Box::new(Extreme(0)),
    };

    #[test]
    fn windows_and_rates_of_a_registered_algorithm_are_limited() {
        let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(5), NonZeroU32::MIN);
        let mut algorithm = AlgorithmConfig::Registered(&EXTREME, config.into()).build().unwrap();
        let mut found = Vec::new();
        for _ in 0..EXTREMES.len() {
            found.push((algorithm.window(), algorithm.pacing_rate()));
            let (now, rtt) = (Instant::ZERO, None);
            let ack = Ack { now, seq: 1, next: 2, acked_bytes: 1, ce_bytes: 0, rtt };
            if found.len() < EXTREMES.len() {
                algorithm.on_ack(&ack);
            }
        }
        assert_eq!(found, [(1, Some(config.min_rate)), (u64::MAX, Some(config.line_rate)), (5000, None)]);
    }

    #[test]
    fn a_registered_algorithm_has_the_feedback_of_its_registration() {
        let config = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(5), NonZeroU32::MIN);
        let algorithm = AlgorithmConfig::Registered(&EXTREME, config.into());
        assert!(algorithm.wants_ecn() && algorithm.as_hpcc().is_none());
        assert_eq!((algorithm.name(), algorithm.line_rate()), ("extreme", Some(config.line_rate)));
        let wrong = HpccConfig { min_rate: Rate::from_bps(0), ..config };
        assert!(AlgorithmConfig::Registered(&EXTREME, wrong.into()).build().is_err());
    }
}
