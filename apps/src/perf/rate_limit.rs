//! A limit on the rate at which a bandwidth tool posts messages, as perftest's `--rate_limit` in software.

use clap::ValueEnum;

/// The flags of the limit.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(next_help_heading = "Queues (each side its own)")]
pub struct RateArgs {
    /// Send no more than this on all queue pairs together, in Gb/s or the unit of --rate_units
    #[arg(long = "rate_limit", value_name = "RATE", value_parser = above_zero)]
    pub rate_limit: Option<f64>,
    /// Unit of --rate_limit: g (Gb/s), M (2^20 bytes per second) or p (packets of the path MTU per second)
    #[arg(long = "rate_units", value_name = "UNIT", default_value = "g", requires = "rate_limit")]
    rate_units: RateUnit,
    /// Messages that --rate_limit lets through at once, besides what a delay of up to 1 ms held back [default: those of -l]
    #[arg(long = "burst_size", value_name = "COUNT", requires = "rate_limit",
          value_parser = clap::value_parser!(u32).range(1..=16384))]
    burst_size: Option<u32>,
}

/// The unit of `--rate_limit`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum RateUnit {
    #[default]
    #[value(name = "g")]
    Gigabits,
    #[value(name = "M")]
    Mebibytes,
    #[value(name = "p")]
    Packets,
}

fn above_zero(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| format!("`{text}`: no rate; write a number above 0, such as 2.5"))
}

impl RateArgs {
    /// Returns the limit for messages of `size` bytes in packets of `mtu` bytes, with at least `post_list` messages at once; `None` without
    /// `--rate_limit`.
    pub fn limit(&self, size: u64, mtu: u32, post_list: u32) -> Option<RateLimit> {
        let rate = self.rate_limit?;
        let (size, packets) = (size.max(1) as f64, size.max(1).div_ceil(u64::from(mtu.max(1))) as f64);
        let messages_per_second = match self.rate_units {
            RateUnit::Gigabits => rate * 125e6 / size,
            RateUnit::Mebibytes => rate * 1_048_576.0 / size,
            RateUnit::Packets => rate / packets,
        };
        let burst = self.burst_size.unwrap_or(0).max(post_list);
        Some(RateLimit { messages_per_second, burst: burst.into(), lapsed: 0 })
    }
}

/// A rate of messages, and the number that may be posted at once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RateLimit {
    messages_per_second: f64,
    burst: u64,
    /// Messages that the rate allowed and that were not posted within the catch-up time.
    lapsed: u64,
}

impl RateLimit {
    /// Time whose messages may be posted late after a delay, s.
    const CATCH_UP: f64 = 1e-3;

    /// Returns how many messages may be posted at `nanos` ns after the start of a run in which `posted` messages were posted.
    pub fn allowed(&mut self, nanos: u64, posted: u64) -> u64 {
        let earned = (self.messages_per_second * nanos as f64 / 1e9) as u64;
        let used = posted.saturating_add(self.lapsed);
        let available = earned.saturating_add(self.burst).saturating_sub(used);
        let most = self.burst.saturating_add((self.messages_per_second * Self::CATCH_UP) as u64);
        self.lapsed = self.lapsed.saturating_add(available.saturating_sub(most));
        available.min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(rate: f64, rate_units: RateUnit) -> RateLimit {
        let args = RateArgs { rate_limit: Some(rate), rate_units, burst_size: None };
        args.limit(4096, 1024, 2).unwrap()
    }

    #[test]
    fn a_rate_in_each_unit_is_one_of_messages() {
        assert_eq!(limit(0.032768, RateUnit::Gigabits).allowed(1_000_000_000, 1000), 2);
        assert_eq!(limit(4.0, RateUnit::Mebibytes).allowed(500_000_000, 511), 3);
        assert_eq!(limit(4000.0, RateUnit::Packets).allowed(1_000_000_000, 999), 3);
        assert_eq!(limit(1e300, RateUnit::Gigabits).allowed(u64::MAX, 0), u64::MAX);
        assert_eq!(RateArgs::default().limit(1, 1024, 1), None);
    }

    /// The rate is 4,000 messages per second: 4 per millisecond.
    #[test]
    fn the_burst_after_a_delay_is_bounded() {
        let mut limit = limit(16_000.0, RateUnit::Packets);
        assert_eq!(limit.allowed(1_000_000_000, 0), 2 + 4, "and not 4,002");
        assert_eq!(limit.allowed(1_000_000_000, 6), 0);
        assert_eq!(limit.allowed(1_001_000_000, 6), 4);
    }
}
