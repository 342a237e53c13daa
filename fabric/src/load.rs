//! A meter of the load of an egress port, with AECN's quantities.

use crate::egress::Snapshot;
use cc::{Instant, Rate};
use roce::wire::format::aecn::Load;
use std::time::Duration;

/// CONGA's alpha: the share of the discounted bytes that is subtracted in each [`DRE_STEPS`]-th of the period.
const DRE_GAIN: f64 = 1.0 / DRE_STEPS as f64;
const DRE_STEPS: u32 = 8;
/// `txRate` is measured over the last half of the period, between departures, and updated every eighth. A sender that receives it with
/// every packet smooths it over a round trip. Measured over a whole period, it would be late and rates would oscillate.
const RATE_STEPS: u32 = 8;
const RATE_PARTS: usize = 4;

/// A meter of a link's load as AECN reports it (draft-shi-ippm-advanced-ecn-00, Table 1 and section 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadMeter {
    /// `T`.
    period: Duration,
    bytes_per_nano: f64,
    queue_limit: u64,
    /// Waiting bytes above which the link is congested.
    threshold: u64,
    /// Start of the last parts, and `txBytes` then, oldest first.
    parts: [(Instant, u64); RATE_PARTS],
    /// `qlen` at the start of the last two parts, older first.
    queues: [u64; 2],
    /// `txRate / B` over the last parts.
    busy: f64,
    /// Discounting rate estimator: bytes, and the time of the last discount.
    discounted: f64,
    discounted_at: Instant,
}

/// Returns the default threshold: an eighth of the link's capacity in the period.
fn eighth(rate: Rate, period: Duration) -> u64 {
    rate.bytes_in(period) / 8
}

impl LoadMeter {
    /// Creates a meter. Without `threshold`, it is an eighth of the link's capacity in the period.
    pub(crate) fn new(rate: Rate, period: Duration, queue_limit: u64, threshold: Option<u64>) -> Self {
        let period = period.max(Duration::from_nanos(1));
        Self {
            period,
            bytes_per_nano: rate.as_bps() as f64 / 8e9,
            queue_limit: queue_limit.max(1),
            threshold: threshold.unwrap_or_else(|| eighth(rate, period)),
            parts: [(Instant::ZERO, 0); RATE_PARTS],
            queues: [0; 2],
            busy: 0.0,
            discounted: 0.0,
            discounted_at: Instant::ZERO,
        }
    }

    /// Changes the link's rate. Measurements at the old rate remain until their parts have passed.
    pub(crate) fn change_rate(&mut self, rate: Rate, threshold: Option<u64>) {
        self.bytes_per_nano = rate.as_bps() as f64 / 8e9;
        self.threshold = threshold.unwrap_or_else(|| eighth(rate, self.period));
    }

    pub(crate) fn on_departure(&mut self, at: &Snapshot, bytes: u64) -> Load {
        let (newest, _) = self.parts[RATE_PARTS - 1];
        if at.time.saturating_since(newest) >= self.period / RATE_STEPS {
            let (since, before) = self.parts[0];
            let (sent, elapsed) = (at.tx_bytes.saturating_sub(before), at.time.saturating_since(since));
            self.busy = sent as f64 / (self.bytes_per_nano * elapsed.as_nanos() as f64);
            self.parts.rotate_left(1);
            self.parts[RATE_PARTS - 1] = (at.time, at.tx_bytes);
            self.queues = [self.queues[1], at.queue];
        }
        self.discount(at.time);
        self.discounted += bytes as f64;
        let held = self.bytes_per_nano * self.period.as_nanos() as f64;
        // As hosts compute it (rtgwg-00 4.2 line 5): packets that arrive together by chance are not a standing queue.
        let standing = at.queue.min(self.queues[0]);
        Load {
            inflight: Load::share(standing as f64 / held + self.busy),
            rate: Load::share(self.discounted / held),
            queue: Load::share(at.queue as f64 / self.queue_limit as f64),
            delay: u8::try_from(at.sojourn.as_micros()).unwrap_or(u8::MAX),
            congested: u8::from(at.queue > self.threshold),
        }
    }

    /// Returns the in-flight share with `waiting` bytes, at the last measured rate.
    pub(crate) fn inflight(&self, waiting: u64) -> f64 {
        waiting as f64 / (self.bytes_per_nano * self.period.as_nanos() as f64) + self.busy
    }

    pub(crate) const fn period(&self) -> Duration {
        self.period
    }

    fn discount(&mut self, now: Instant) {
        let step = (self.period / DRE_STEPS).max(Duration::from_nanos(1));
        let steps = now.saturating_since(self.discounted_at).as_nanos() / step.as_nanos();
        if steps == 0 {
            return;
        }
        // After 128 steps, less than 10^-7 of the bytes is left.
        for _ in 0..steps.min(128) {
            self.discounted *= 1.0 - DRE_GAIN;
        }
        self.discounted_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A meter of a link of 1 byte/ns, which carries 100 kB per period; its queue has at most 1 MB.
    fn meter() -> LoadMeter {
        LoadMeter::new(Rate::from_gbps(8), Duration::from_micros(100), 1_000_000, None)
    }

    fn at(micros: u64, tx_bytes: u64, queue: u64) -> Snapshot {
        let time = Instant::from_nanos(micros * 1000);
        Snapshot { time, tx_bytes, queue, reported: (tx_bytes, queue), sojourn: Duration::from_nanos(queue) }
    }

    #[test]
    fn a_load_is_the_drafts_formula() {
        let mut meter = meter();
        assert_eq!(meter.on_departure(&at(0, 0, 0), 1000).inflight, 0);
        for part in 1..=4 {
            meter.on_departure(&at(25 * part, 12_500 * part, 30_000), 1000);
        }
        // Half of B * T was sent in the last 100 µs, and a quarter of B * T is queued: 0.5 + 0.25.
        let load = meter.on_departure(&at(125, 62_500, 25_000), 1000);
        assert_eq!((load.inflight, load.queue, load.delay, load.congested), (96, 3, 25, 1));
        assert_eq!(meter.on_departure(&at(126, 62_500, 0), 1000).inflight, 64, "no queue any more");
        // The rate is updated every eighth. Then half of the last 100 µs had a rate of 1.0, and half of 0.5.
        assert_eq!(meter.on_departure(&at(137, 74_500, 0), 1000).inflight, 64);
        meter.on_departure(&at(150, 87_500, 0), 1000);
        assert_eq!(meter.on_departure(&at(175, 112_500, 0), 1000).inflight, 96);
        assert_eq!(meter.on_departure(&at(200, 137_500, 500_000), 1000).inflight, 112);
        let load = meter.on_departure(&at(225, 162_500, 500_000), 1000);
        assert_eq!((load.inflight, load.delay), (255, 255), "fields stop at their largest value");
        assert_eq!(meter.on_departure(&at(1_000_000, 162_500, 0), 1000).inflight, 0, "long idle");
    }

    #[test]
    fn the_discounted_rate_of_a_busy_link_is_about_one() {
        let mut meter = meter();
        let mut load = Load::default();
        for packet in 0..1000 {
            load = meter.on_departure(&at(packet, packet * 1000, 0), 1000);
        }
        assert!((115..=135).contains(&load.rate), "{load:?}");
        assert_eq!(meter.on_departure(&at(9_000, 0, 0), 0).rate, 0);
    }
}
