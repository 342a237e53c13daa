use crate::egress::Snapshot;
use cc::{Instant, Rate};
use roce::wire::format::aecn::Load;
use std::time::Duration;

/// CONGA's alpha: how much of the discounted rate goes each [`DRE_STEPS`]-th of the period.
const DRE_GAIN: f64 = 1.0 / DRE_STEPS as f64;
const DRE_STEPS: u32 = 8;

/// How loaded a link is, as AECN tells it (draft-shi-ippm-advanced-ecn-00, Table 1 and section 4).
#[derive(Clone, Copy, Debug)]
pub(crate) struct LoadMeter {
    /// `T`: what in-flight bytes are counted over.
    period: Duration,
    bytes_per_nano: f64,
    queue_limit: u64,
    /// More waiting bytes than so many are congestion.
    threshold: u64,
    /// When the period began that is measured, and `txBytes` then.
    since: Instant,
    tx_bytes: u64,
    /// `txRate / B` of the period before.
    busy: f64,
    /// The discounting rate estimator: bytes, and when they were last discounted.
    discounted: f64,
    discounted_at: Instant,
}

impl LoadMeter {
    /// Of a link of this rate. Without a threshold, an eighth of what link and period hold is congestion.
    pub(crate) fn new(rate: Rate, period: Duration, queue_limit: u64, threshold: Option<u64>) -> Self {
        let period = period.max(Duration::from_nanos(1));
        Self {
            period,
            bytes_per_nano: rate.as_bps() as f64 / 8e9,
            queue_limit: queue_limit.max(1),
            threshold: threshold.unwrap_or_else(|| rate.bytes_in(period) / 8),
            since: Instant::ZERO,
            tx_bytes: 0,
            busy: 0.0,
            discounted: 0.0,
            discounted_at: Instant::ZERO,
        }
    }

    /// The load as a frame of `bytes` begins to leave.
    pub(crate) fn on_departure(&mut self, at: &Snapshot, bytes: u64) -> Load {
        let elapsed = at.time.saturating_since(self.since);
        if elapsed >= self.period {
            let sent = at.tx_bytes.saturating_sub(self.tx_bytes) as f64;
            self.busy = sent / (self.bytes_per_nano * elapsed.as_nanos() as f64);
            (self.since, self.tx_bytes) = (at.time, at.tx_bytes);
        }
        self.discount(at.time);
        self.discounted += bytes as f64;
        let held = self.bytes_per_nano * self.period.as_nanos() as f64;
        Load {
            inflight: Load::share(at.queue as f64 / held + self.busy),
            rate: Load::share(self.discounted / held),
            queue: Load::share(at.queue as f64 / self.queue_limit as f64),
            delay: u8::try_from(at.sojourn.as_micros()).unwrap_or(u8::MAX),
            congested: u8::from(at.queue > self.threshold),
        }
    }

    /// The in-flight share with so many bytes waiting, by the rate of the last whole period.
    pub(crate) fn inflight(&self, waiting: u64) -> f64 {
        waiting as f64 / (self.bytes_per_nano * self.period.as_nanos() as f64) + self.busy
    }

    /// What it is counted over.
    pub(crate) const fn period(&self) -> Duration {
        self.period
    }

    fn discount(&mut self, now: Instant) {
        let step = (self.period / DRE_STEPS).max(Duration::from_nanos(1));
        let steps = now.saturating_since(self.discounted_at).as_nanos() / step.as_nanos();
        if steps == 0 {
            return;
        }
        // After so many, nothing is left of it.
        for _ in 0..steps.min(128) {
            self.discounted *= 1.0 - DRE_GAIN;
        }
        self.discounted_at = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link of 1 byte/ns over 100 µs, 100 kB at a time, the queue at most 1 MB.
    fn meter() -> LoadMeter {
        LoadMeter::new(Rate::from_gbps(8), Duration::from_micros(100), 1_000_000, None)
    }

    fn at(micros: u64, tx_bytes: u64, queue: u64) -> Snapshot {
        let time = Instant::from_nanos(micros * 1000);
        Snapshot { time, tx_bytes, queue, sojourn: Duration::from_nanos(queue) }
    }

    #[test]
    fn a_load_is_the_drafts_formula() {
        let mut meter = meter();
        assert_eq!(meter.on_departure(&at(0, 0, 0), 1000).inflight, 0);
        // Half of the period's bytes left, and a quarter of them waits: 0.5 + 0.25.
        let load = meter.on_departure(&at(100, 50_000, 25_000), 1000);
        assert_eq!((load.inflight, load.queue, load.delay, load.congested), (96, 3, 25, 1));
        // Until the period ends, its rate stands.
        assert_eq!(meter.on_departure(&at(150, 99_000, 0), 1000).inflight, 64);
        let load = meter.on_departure(&at(200, 150_000, 500_000), 1000);
        assert_eq!((load.inflight, load.delay), (255, 255), "fields stop at their largest value");
        assert_eq!(meter.on_departure(&at(1_000_000, 150_000, 0), 1000).inflight, 0, "long idle");
    }

    #[test]
    fn the_discounted_rate_of_a_busy_link_comes_to_one() {
        let mut meter = meter();
        let mut load = Load::default();
        for packet in 0..1000 {
            load = meter.on_departure(&at(packet, packet * 1000, 0), 1000);
        }
        assert!((115..=135).contains(&load.rate), "{load:?}");
        assert_eq!(meter.on_departure(&at(9_000, 0, 0), 0).rate, 0);
    }
}
