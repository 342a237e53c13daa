//! Statistics of a run's time stamps.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Bandwidth of one run, in bytes and messages a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Bytes of one message.
    pub size: u64,
    /// Messages, over all queue pairs.
    pub messages: u64,
    /// The highest rate from a post to a later completion, bytes a second; 0 if it was not looked for.
    pub peak: f64,
    /// From the first post to the last completion, bytes a second.
    pub average: f64,
    /// Messages a second over the same time.
    pub rate: f64,
}

impl Bandwidth {
    /// `messages` of `size` bytes in `nanos` ns. A time of zero counts as 1 ns.
    pub fn over(size: u64, messages: u64, nanos: u64) -> Self {
        let seconds = nanos.max(1) as f64 / 1e9;
        let rate = messages as f64 / seconds;
        Self { size, messages, peak: 0.0, average: rate * size as f64, rate }
    }

    /// Both directions together.
    pub fn plus(self, other: Self) -> Self {
        Self {
            size: self.size,
            messages: self.messages,
            peak: self.peak + other.peak,
            average: self.average + other.average,
            rate: self.rate + other.rate,
        }
    }
}

/// When messages were posted and completed, for the peak. In order of posting.
#[derive(Debug, Default)]
pub struct Stamps {
    posted: Vec<u64>,
    /// (messages completed so far, when).
    completed: Vec<(u64, u64)>,
}

impl Stamps {
    /// Beyond this many messages the peak is not searched, as in perftest.
    pub const LIMIT: u64 = 20_000;

    /// Room for `messages`, taken at once so that a run allocates nothing.
    pub fn with_capacity(messages: u64) -> Self {
        let room = usize::try_from(messages.min(Self::LIMIT)).unwrap_or(0);
        Self { posted: Vec::with_capacity(room), completed: Vec::with_capacity(room) }
    }

    /// One more message was posted at `now` ns.
    pub fn post(&mut self, now: u64) {
        if self.posted.len() < self.posted.capacity() {
            self.posted.push(now);
        }
    }

    /// `total` messages are complete at `now` ns.
    pub fn complete(&mut self, total: u64, now: u64) {
        if self.completed.len() < self.completed.capacity() {
            self.completed.push((total, now));
        }
    }

    /// Bytes a second over the best stretch from a post to a completion; `step` posts share one time stamp.
    pub fn peak(&self, size: u64, step: usize) -> f64 {
        let mut best = f64::INFINITY;
        for (first, posted) in self.posted.iter().enumerate().step_by(step.max(1)) {
            let after = self.completed.partition_point(|&(total, _)| total <= first as u64);
            for &(total, when) in &self.completed[after..] {
                let each = when.saturating_sub(*posted).max(1) as f64 / (total - first as u64) as f64;
                best = best.min(each);
            }
        }
        if best.is_finite() { size as f64 * 1e9 / best } else { 0.0 }
    }
}

/// Latency of one run, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    /// Bytes of one message.
    pub size: u64,
    /// Exchanges.
    pub exchanges: u64,
    pub min: f64,
    pub max: f64,
    /// Arithmetic mean.
    pub average: f64,
    /// Standard deviation.
    pub deviation: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    /// Exchanges a second.
    pub rate: f64,
}

/// Collects latencies without allocating: 1 ns to 60 s at three significant digits.
#[derive(Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// A round trip counts as two for ping-pong tests.
    divisor: f64,
}

impl Latencies {
    const LONGEST_NS: u64 = 60_000_000_000;

    /// One sample is `ways` times the latency: 2 for ping-pong, 1 for READ and atomics.
    pub fn new(ways: u8) -> Self {
        let histogram = Histogram::new_with_bounds(1, Self::LONGEST_NS, 3);
        Self {
            histogram: histogram.expect("bounds are constant and legal"),
            divisor: f64::from(ways) * 1000.0,
        }
    }

    /// One exchange took `nanos` ns; more than 60 s counts as 60 s.
    pub fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.clamp(1, Self::LONGEST_NS));
    }

    /// Discards the recorded data.
    pub fn clear(&mut self) {
        self.histogram.reset();
    }

    /// Samples so far.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// The figures; `nanos` ns is what the whole took. All zero if nothing was recorded.
    pub fn figures(&self, size: u64, nanos: u64) -> Latency {
        let at = |quantile: f64| self.histogram.value_at_quantile(quantile) as f64 / self.divisor;
        let whole = nanos.max(1) as f64 / 1e9;
        Latency {
            size,
            exchanges: self.histogram.len(),
            min: if self.histogram.is_empty() { 0.0 } else { self.histogram.min() as f64 / self.divisor },
            max: self.histogram.max() as f64 / self.divisor,
            average: self.histogram.mean() / self.divisor,
            deviation: self.histogram.stdev() / self.divisor,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            p999: at(0.999),
            p9999: at(0.9999),
            rate: self.histogram.len() as f64 / whole,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn average_is_bytes_over_time() {
        let run = Bandwidth::over(1000, 500, 1_000_000);
        assert_eq!((run.average, run.rate), (5e8, 5e5));
        assert_eq!(run.plus(run).average, 1e9);
        assert!(Bandwidth::over(1, 1, 0).average.is_finite());
    }

    #[test]
    fn peak_is_the_best_stretch_of_posts_and_completions() {
        // Four messages: the second pair takes 100 ns, the first pair 1000 ns.
        let mut stamps = Stamps::with_capacity(4);
        for now in [0, 0, 1000, 1000] {
            stamps.post(now);
        }
        stamps.complete(2, 1000);
        stamps.complete(4, 1100);
        assert_eq!(stamps.peak(100, 1), 100.0 * 2.0 * 1e9 / 100.0);
        assert_eq!(Stamps::default().peak(100, 1), 0.0);
    }

    #[test]
    fn no_more_stamps_than_room() {
        let mut stamps = Stamps::with_capacity(u64::MAX);
        for now in 0..Stamps::LIMIT + 10 {
            stamps.post(now);
        }
        assert!(stamps.posted.len() as u64 >= Stamps::LIMIT);
        assert_eq!(stamps.posted.len(), stamps.posted.capacity());
    }

    #[test]
    fn a_ping_pong_sample_is_two_latencies() {
        let mut latencies = Latencies::new(2);
        for micros in 1..=1000 {
            latencies.record(micros * 2000);
        }
        let figures = latencies.figures(8, 1_001_000_000);
        assert_eq!(figures.exchanges, 1000);
        assert!((figures.p50 - 500.0).abs() < 1.0, "{figures:?}");
        assert!((figures.p99 - 990.0).abs() < 1.0, "{figures:?}");
        assert!((figures.max - 1000.0).abs() < 1.0, "{figures:?}");
        assert!((figures.average - 500.5).abs() < 1.0, "{figures:?}");
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let figures = Latencies::new(1).figures(8, 0);
        assert_eq!((figures.min, figures.max, figures.p999), (0.0, 0.0, 0.0));
    }
}
