//! The figures of a run, defined as in the reference.

use super::{Outcome, Row};
use std::time::Duration;

/// Time after the last start and before the first end that does not belong to the steady state, ns.
const BEGIN: u64 = 100_000;
const END: u64 = 5_000;

/// The figures of a run with one bottleneck. The steady state lasts from 100 µs after the last start to 5 µs before the first end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Begin and end of the steady state.
    pub window: [Duration; 2],
    /// Shortest, mean and longest completion time, µs.
    pub fct_us: [f64; 3],
    /// Rate of the bottleneck in the steady state, Gb/s on the wire.
    pub utilisation_gbps: f64,
    /// Jain's index of the flows' bytes acknowledged in the steady state.
    pub jain: f64,
    /// Queue in the steady state: mean, 95th and 99th percentile, maximum, in bytes.
    pub queue: [f64; 4],
    /// Longest queue of the run, bytes.
    pub peak: f64,
    /// Time from the queue's peak until it was at most two packets long, µs; NaN if it never was.
    pub drained_us: f64,
}

/// Returns the bottleneck's rate, fairness and queue in a part of a run: Gb/s on the wire, Jain's index, and the queue's mean, 95th and
/// 99th percentile and maximum in bytes. Returns `None` if the part has fewer than two rows.
#[must_use]
pub fn window(series: &[Row], begin: Duration, end: Duration) -> Option<(f64, f64, [f64; 4])> {
    let rows = between(series, begin.as_nanos() as u64, end.as_nanos() as u64);
    let (first, last) = (rows.first()?, rows.last().filter(|_| rows.len() > 1)?);
    Some((rate(first, last), jain(first, last), queue(rows)))
}

impl Steady {
    /// Names of the figures in the reference, in the order of [`values`](Self::values).
    pub const NAMES: [&'static str; 11] = [
        "fct_min_us",
        "fct_mean_us",
        "fct_max_us",
        "wire_util_gbps",
        "jain",
        "ss_q_mean_B",
        "ss_q_p95_B",
        "ss_q_p99_B",
        "ss_q_max_B",
        "q_peak_B",
        "drain_to_2pkt_us",
    ];

    /// Returns the figures of a run with a time series. `packet` is the size of a full packet on the wire, in bytes. Returns `None` if no
    /// flow ended or there was no steady state.
    #[must_use]
    pub fn of(outcome: &Outcome, packet: u64) -> Option<Self> {
        let micros = |time: Duration| time.as_nanos() as f64 / 1e3;
        let times: Vec<f64> = outcome.finished.iter().map(|flow| micros(flow.time)).collect();
        let nanos = |time: Duration| time.as_nanos() as u64;
        let begin = outcome.finished.iter().map(|flow| nanos(flow.start)).max()? + BEGIN;
        let end = outcome.finished.iter().map(|flow| nanos(flow.start + flow.time)).min()?;
        let window = between(&outcome.series, begin, end.saturating_sub(END));
        let (first, last) = (window.first()?, window.last()?);
        let peak = outcome.series.iter().map(|row| row.queue).max()?;
        let at_peak = outcome.series.iter().position(|row| row.queue == peak)?;
        let drained = outcome.series[at_peak..].iter().find(|row| row.queue <= 2 * packet);
        Some(Self {
            window: [begin, end.saturating_sub(END)].map(Duration::from_nanos),
            fct_us: [
                times.iter().copied().fold(f64::INFINITY, f64::min),
                times.iter().sum::<f64>() / times.len() as f64,
                times.iter().copied().fold(0.0, f64::max),
            ],
            utilisation_gbps: rate(first, last),
            jain: jain(first, last),
            queue: queue(window),
            peak: outcome.queue_max as f64,
            drained_us: drained
                .map_or(f64::NAN, |row| (row.time - outcome.series[at_peak].time) as f64 / 1e3),
        })
    }

    /// Returns all figures, in the order of [`NAMES`](Self::NAMES).
    #[must_use]
    pub fn values(&self) -> [f64; 11] {
        let [min, mean, max] = self.fct_us;
        let [q_mean, q95, q99, q_max] = self.queue;
        let Self { utilisation_gbps, jain, peak, drained_us, .. } = *self;
        [min, mean, max, utilisation_gbps, jain, q_mean, q95, q99, q_max, peak, drained_us]
    }
}

/// Returns the rows from `begin` to `end`, in ns.
fn between(series: &[Row], begin: u64, end: u64) -> &[Row] {
    let from = series.partition_point(|row| row.time < begin);
    let to = series.partition_point(|row| row.time <= end);
    &series[from..to.max(from)]
}

fn rate(first: &Row, last: &Row) -> f64 {
    (last.tx_bytes - first.tx_bytes) as f64 * 8.0 / (last.time - first.time).max(1) as f64
}

fn jain(first: &Row, last: &Row) -> f64 {
    let shares: Vec<f64> = first.acked.iter().zip(&last.acked).map(|(a, b)| (b - a) as f64).collect();
    let (sum, squares) = shares.iter().fold((0.0, 0.0), |(sum, squares), x| (sum + x, squares + x * x));
    if squares == 0.0 { f64::NAN } else { sum * sum / (squares * shares.len() as f64) }
}

fn queue(rows: &[Row]) -> [f64; 4] {
    let mut lengths: Vec<u64> = rows.iter().map(|row| row.queue).collect();
    lengths.sort_unstable();
    if lengths.is_empty() {
        return [f64::NAN; 4];
    }
    let quantile = |share: f64| lengths[((lengths.len() - 1) as f64 * share).round() as usize] as f64;
    let mean = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
    [mean, quantile(0.95), quantile(0.99), quantile(1.0)]
}
