//! Parameters that are not configured: an algorithm's settings take them in once they are known.

use crate::{AlgorithmConfig, DcqcnConfig, DctcpConfig, HpccConfig, Rate, SwiftConfig};

/// Returns `rate` in proportion to a link of `line` where it was chosen for one of `before`; at most `line`.
fn in_proportion(rate: Rate, before: Rate, line: Rate) -> Rate {
    let scaled = u128::from(rate.as_bps()) * u128::from(line.as_bps()) / u128::from(before.as_bps().max(1));
    Rate::from_bps(u64::try_from(scaled).unwrap_or(u64::MAX)).min(line)
}

impl AlgorithmConfig {
    /// Returns the same for a link of another rate: increases that were derived from the link's rate follow it, and the lowest rate is
    /// not above it.
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
            Self::PowerTcp(config) => Self::PowerTcp(hpcc(config)),
            Self::Dctcp(config) => Self::Dctcp(DctcpConfig {
                line_rate,
                min_rate: config.min_rate.min(line_rate),
                additive_increase: config.additive_increase.min(line_rate),
                ..config
            }),
            Self::Dcqcn(config) => Self::Dcqcn(DcqcnConfig {
                line_rate,
                min_rate: config.min_rate.min(line_rate),
                additive_increase: in_proportion(config.additive_increase, config.line_rate, line_rate),
                hyper_increase: in_proportion(config.hyper_increase, config.line_rate, line_rate),
                ..config
            }),
            Self::Swift(config) => Self::Swift(SwiftConfig {
                line_rate,
                min_rate: config.min_rate.min(line_rate),
                additive_increase: config.additive_increase.min(line_rate),
                ..config
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::num::NonZeroU32;
    use core::time::Duration;

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
        let swift =
            |line| AlgorithmConfig::Swift(SwiftConfig { min_rate: least, ..SwiftConfig::new(line, rtt) });
        assert_eq!(swift(fast).at_line_rate(slow), swift(slow));
        let dctcp =
            |line| AlgorithmConfig::Dctcp(DctcpConfig { min_rate: least, ..DctcpConfig::new(line, rtt) });
        assert_eq!(dctcp(fast).at_line_rate(slow), dctcp(slow));
        let slowest = Rate::from_bps(1000);
        for config in [hpcc(fast), dcqcn(fast), swift(fast), dctcp(fast)] {
            assert!(config.at_line_rate(slowest).build().is_ok(), "{config:?}");
        }
    }
}
