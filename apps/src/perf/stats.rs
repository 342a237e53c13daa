//! Statistics over the timestamps of a run.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// The bandwidth of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Bandwidth {
    /// Message size, bytes.
    pub size: u64,
    /// Messages of all queue pairs.
    pub messages: u64,
    /// The highest rate between a post and a later completion, bytes per second; 0 if not measured.
    pub peak: f64,
    /// The average rate, bytes per second.
    pub average: f64,
    /// The average rate, messages per second.
    pub rate: f64,
}

impl Bandwidth {
    /// Creates the bandwidth of `messages` of `size` bytes in `nanos` ns. 0 ns count as 1 ns.
    pub fn over(size: u64, messages: u64, nanos: u64) -> Self {
        let seconds = nanos.max(1) as f64 / 1e9;
        let rate = messages as f64 / seconds;
        Self { size, messages, peak: 0.0, average: rate * size as f64, rate }
    }

    /// Returns the sum of both directions, with the messages of `self`.
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

/// The times at which messages were posted and completed, from which the peak is computed.
#[derive(Debug, Default)]
pub struct Stamps {
    posted: Vec<u64>,
    /// Total of completed messages, and the time in ns.
    completed: Vec<(u64, u64)>,
}

impl Stamps {
    /// The limit on messages. Above it no peak is computed, as in perftest.
    pub const LIMIT: u64 = 20_000;

    /// Allocates memory for `messages`, so that the run itself does not allocate.
    pub fn with_capacity(messages: u64) -> Self {
        let room = usize::try_from(messages.min(Self::LIMIT)).unwrap_or(0);
        Self { posted: Vec::with_capacity(room), completed: Vec::with_capacity(room) }
    }

    /// Records that a message was posted at `now` ns.
    pub fn post(&mut self, now: u64) {
        if self.posted.len() < self.posted.capacity() {
            self.posted.push(now);
        }
    }

    /// Records that `total` messages have completed at `now` ns.
    pub fn complete(&mut self, total: u64, now: u64) {
        if self.completed.len() < self.completed.capacity() {
            self.completed.push((total, now));
        }
    }

    /// Returns the highest rate between a post and a later completion, bytes per second. `step` posts share one timestamp.
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

/// The latency of a run. Times are in µs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub struct Latency {
    /// Message size, bytes.
    pub size: u64,
    /// The number of exchanges.
    pub exchanges: u64,
    pub min: f64,
    pub max: f64,
    /// The arithmetic mean.
    pub average: f64,
    /// The standard deviation.
    pub deviation: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
    pub p999: f64,
    pub p9999: f64,
    /// Exchanges per second.
    pub rate: f64,
}

/// A histogram of latencies from 1 ns to 60 s with three significant digits. Recording does not allocate.
#[derive(Debug)]
pub struct Latencies {
    histogram: Histogram<u64>,
    /// The number of latencies in a sample, times 1000 for µs.
    divisor: f64,
    /// All samples in the order of recording, ns, if they are kept.
    samples: Option<Vec<u64>>,
}

impl Latencies {
    const LONGEST_NS: u64 = 60_000_000_000;

    /// Creates an empty histogram. A sample is `ways` times the latency: 2 for ping-pong, 1 for READ and atomics.
    pub fn new(ways: u8) -> Self {
        let histogram = Histogram::new_with_bounds(1, Self::LONGEST_NS, 3);
        Self {
            histogram: histogram.expect("bounds are constant and legal"),
            divisor: f64::from(ways) * 1000.0,
            samples: None,
        }
    }

    /// Keeps every sample, with room for `count` of them.
    pub fn keeping_samples(self, count: usize) -> Self {
        Self { samples: Some(Vec::with_capacity(count)), ..self }
    }

    /// Returns the latencies in the order in which they were recorded, µs; empty unless samples are kept.
    pub fn samples(&self) -> Vec<f64> {
        self.samples.iter().flatten().map(|&nanos| nanos as f64 / self.divisor).collect()
    }

    /// Records an exchange of `nanos` ns. Longer exchanges than 60 s are recorded as 60 s.
    pub fn record(&mut self, nanos: u64) {
        self.histogram.saturating_record(nanos.clamp(1, Self::LONGEST_NS));
        if let Some(samples) = &mut self.samples {
            samples.push(nanos);
        }
    }

    /// Discards the recorded samples.
    pub fn clear(&mut self) {
        self.histogram.reset();
        self.samples.iter_mut().for_each(Vec::clear);
    }

    /// Returns the number of recorded samples.
    pub fn len(&self) -> u64 {
        self.histogram.len()
    }

    /// Returns the statistics. `nanos` is the duration of the run, ns. All times are 0 if nothing was recorded.
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
        // The first two messages take 1000 ns, the last two 100 ns.
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
    fn timestamps_beyond_the_capacity_are_dropped() {
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
    fn samples_are_kept_in_their_order_if_asked() {
        let mut latencies = Latencies::new(2).keeping_samples(3);
        [6000, 2000, 4000].into_iter().for_each(|nanos| latencies.record(nanos));
        assert_eq!(latencies.samples(), [3.0, 1.0, 2.0]);
        let mut without = Latencies::new(2);
        without.record(6000);
        assert!(without.samples().is_empty());
    }

    #[test]
    fn nothing_recorded_is_zero() {
        let figures = Latencies::new(1).figures(8, 0);
        assert_eq!((figures.min, figures.max, figures.p999), (0.0, 0.0, 0.0));
    }
}
