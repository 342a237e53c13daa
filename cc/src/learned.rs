//! Line rate and base RTT that are measured while a device runs, and the settings that are derived from them.

use crate::{Algorithm, AlgorithmConfig, DcqcnConfig, DctcpConfig, HpccConfig, Parameters, Rate};
use core::time::Duration;

/// Returns `rate`, chosen for a link of rate `before`, scaled to one of rate `line`; at most `line`.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "the product of two 64-bit numbers fits into 128 bits, and the divisor is at least 1"
)]
fn in_proportion(rate: Rate, before: Rate, line: Rate) -> Rate {
    let scaled = u128::from(rate.as_bps()) * u128::from(line.as_bps()) / u128::from(before.as_bps().max(1));
    Rate::from_bps(u64::try_from(scaled).unwrap_or(u64::MAX)).min(line)
}

/// Returns a parameter after its derived value has changed. If it had another value, it was configured, and does not change.
fn derived<T: PartialEq>(parameter: T, before: T, now: T) -> T {
    if parameter == before { now } else { parameter }
}

impl AlgorithmConfig {
    /// Returns the settings for a link of another rate. The increases of HPCC++ and DCQCN are scaled with it; that of DCTCP, a
    /// configured one of a registered algorithm, and every lowest rate are limited to `line_rate`. A fixed window does not change.
    #[must_use]
    pub fn at_line_rate(self, line_rate: Rate) -> Self {
        let hpcc = |config: HpccConfig| HpccConfig {
            line_rate,
            min_rate: config.min_rate.min(line_rate),
            additive_increase: in_proportion(config.additive_increase, config.line_rate, line_rate),
            ..config
        };
        match self {
            Self::Fixed { .. } => self,
            Self::Hpcc(config) => Self::Hpcc(hpcc(config)),
            Self::HpccFair(config) => Self::HpccFair(hpcc(config)),
            Self::HpccReceiver(config) => Self::HpccReceiver(hpcc(config)),
            Self::Registered(registration, parameters) => {
                let additive_increase = parameters.additive_increase.map(|rate| rate.min(line_rate));
                let hpcc = hpcc(parameters.hpcc);
                Self::Registered(registration, Parameters { hpcc, additive_increase, ..parameters })
            }
            Self::Dctcp(config) => Self::Dctcp(DctcpConfig {
                line_rate,
                min_rate: config.min_rate.min(line_rate),
                additive_increase: config.additive_increase.min(line_rate),
                ..config
            }),
            Self::Dcqcn(config) => {
                let [before, now] =
                    [config.line_rate, line_rate].map(|line| DcqcnConfig::new(line, config.base_rtt));
                let increase =
                    |of: fn(&DcqcnConfig) -> Rate| derived(of(&config), of(&before), of(&now)).min(line_rate);
                Self::Dcqcn(DcqcnConfig {
                    line_rate,
                    min_rate: config.min_rate.min(line_rate),
                    additive_increase: increase(|config| config.additive_increase),
                    hyper_increase: increase(|config| config.hyper_increase),
                    ..config
                })
            }
        }
    }
}

impl AlgorithmConfig {
    /// Returns the settings for a path of another base RTT, clamped to 1 ns to [`HpccConfig::MAX_BASE_RTT`]. DCTCP keeps lowest
    /// rate and gain, DCQCN its lowest rate, and their other parameters become the defaults. A fixed window, and DCQCN without a base RTT,
    /// do not change.
    #[must_use]
    pub fn at_base_rtt(self, base_rtt: Duration) -> Self {
        let base_rtt = in_limits(base_rtt);
        match self {
            Self::Fixed { .. } => self,
            Self::Hpcc(config) => Self::Hpcc(HpccConfig { base_rtt, ..config }),
            Self::HpccFair(config) => Self::HpccFair(HpccConfig { base_rtt, ..config }),
            Self::HpccReceiver(config) => Self::HpccReceiver(HpccConfig { base_rtt, ..config }),
            Self::Registered(registration, parameters) => {
                let hpcc = HpccConfig { base_rtt, ..parameters.hpcc };
                Self::Registered(registration, Parameters { hpcc, ..parameters })
            }
            Self::Dctcp(config) => Self::Dctcp(dctcp(config, base_rtt)),
            Self::Dcqcn(config) => Self::Dcqcn(dcqcn(config, base_rtt)),
        }
    }
}

impl Algorithm {
    /// Changes the base RTT, as [`AlgorithmConfig::at_base_rtt`], and keeps the rate. A fixed window, DCQCN and HPCC++ at the receiver keep
    /// their settings.
    pub fn set_base_rtt(&mut self, base_rtt: Duration) {
        let base_rtt = in_limits(base_rtt);
        match self {
            Self::Fixed(_) | Self::Dcqcn(_) | Self::HpccReceiver(_) => {}
            Self::Hpcc(running) => running.config_mut().base_rtt = base_rtt,
            Self::Dctcp(running) => *running.config_mut() = dctcp(*running.config(), base_rtt),
            Self::Registered(running) => running.set_base_rtt(base_rtt),
        }
    }
}

fn in_limits(base_rtt: Duration) -> Duration {
    base_rtt.clamp(Duration::from_nanos(1), HpccConfig::MAX_BASE_RTT)
}

fn dctcp(config: DctcpConfig, base_rtt: Duration) -> DctcpConfig {
    let [before, now] =
        [config.base_rtt, base_rtt].map(|rtt| DctcpConfig::new(config.line_rate, rtt).additive_increase);
    DctcpConfig { base_rtt, additive_increase: derived(config.additive_increase, before, now), ..config }
}

fn dcqcn(config: DcqcnConfig, base_rtt: Duration) -> DcqcnConfig {
    if config.base_rtt.is_none() {
        return config;
    }
    let before = DcqcnConfig::new(config.line_rate, config.base_rtt);
    let now = DcqcnConfig::new(config.line_rate, Some(base_rtt));
    let interval = |of: fn(&DcqcnConfig) -> Duration| derived(of(&config), of(&before), of(&now));
    DcqcnConfig {
        base_rtt: Some(base_rtt),
        alpha_interval: interval(|config| config.alpha_interval),
        decrease_interval: interval(|config| config.decrease_interval),
        increase_interval: interval(|config| config.increase_interval),
        ..config
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CongestionController, SWIFT};
    use core::num::NonZeroU32;

    #[test]
    fn settings_of_another_link_are_those_made_for_it() {
        let (fast, slow, rtt) = (Rate::from_gbps(10_000), Rate::from_gbps(25), Duration::from_micros(20));
        let least = Rate::from_mbps(1);
        let hpcc = |line| {
            let config = HpccConfig::new(line, rtt, NonZeroU32::MIN);
            AlgorithmConfig::Hpcc(HpccConfig { min_rate: least, ..config })
        };
        assert_eq!(hpcc(fast).at_line_rate(slow), hpcc(slow));
        let dcqcn =
            |line| AlgorithmConfig::Dcqcn(DcqcnConfig { min_rate: least, ..DcqcnConfig::new(line, None) });
        assert_eq!(dcqcn(fast).at_line_rate(slow), dcqcn(slow));
        let swift = |line| {
            let config = HpccConfig { min_rate: least, ..HpccConfig::new(line, rtt, NonZeroU32::MIN) };
            AlgorithmConfig::Registered(&SWIFT, config.into())
        };
        assert_eq!(swift(fast).at_line_rate(slow), swift(slow));
        let dctcp =
            |line| AlgorithmConfig::Dctcp(DctcpConfig { min_rate: least, ..DctcpConfig::new(line, rtt) });
        assert_eq!(dctcp(fast).at_line_rate(slow), dctcp(slow));
        let longer = Duration::from_millis(1);
        for config in [hpcc(fast), dcqcn(fast), swift(fast), dctcp(fast)] {
            let mut running = config.build().unwrap();
            running.set_base_rtt(longer);
            let expected = config.at_base_rtt(longer).build().unwrap();
            assert_eq!(running.window(), expected.window(), "{config:?}");
            for extreme in [Duration::ZERO, Duration::MAX] {
                assert!(config.at_base_rtt(extreme).build().is_ok(), "{config:?}");
            }
        }
        let slowest = Rate::from_bps(1000);
        for config in [hpcc(fast), dcqcn(fast), swift(fast), dctcp(fast)] {
            assert!(config.at_line_rate(slowest).build().is_ok(), "{config:?}");
        }
    }
}
