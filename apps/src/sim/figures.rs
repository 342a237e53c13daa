//! The figures of a run: slowdowns by flow size, quantiles, and the steady state.

use super::scenario::Scenario;
use fabric::sim::{Outcome, Steady};
use std::fmt::Write;

/// The bounds of the flow sizes in the tables of the reference, bytes.
const EDGES: [u64; 17] = [
    0,
    324,
    400,
    500,
    600,
    700,
    1000,
    2000,
    7000,
    30_000,
    50_000,
    80_000,
    120_000,
    300_000,
    1_000_000,
    2_000_000,
    1_000_000_000,
];

/// Slowdowns of the flows with at least `low` and fewer than `high` bytes.
#[derive(Clone, Copy, Debug)]
pub struct SizeRow {
    /// True for flows of incasts that were added to other traffic.
    pub is_incast: bool,
    pub low: u64,
    pub high: u64,
    pub count: usize,
    pub p50: f64,
    pub p95: f64,
    pub p99: f64,
    pub mean: f64,
    pub mean_fct_us: f64,
}

/// Returns the quantile `share` of `sorted` with linear interpolation; NaN without values.
pub fn quantile(sorted: &[f64], share: f64) -> f64 {
    let Some(last) = sorted.len().checked_sub(1) else { return f64::NAN };
    let place = last as f64 * share;
    let (low, part) = (place as usize, place.fract());
    let high = (low + 1).min(last);
    sorted[low] + (sorted[high] - sorted[low]) * part
}

impl SizeRow {
    /// Returns the name of this kind of flows in the reference.
    pub const fn kind(&self) -> &'static str {
        if self.is_incast { "incast" } else { "bg" }
    }
}

/// Returns the slowdowns by flow size. The first row is of all sizes. Sizes without flows are omitted. The rows of incasts follow those of
/// other flows.
pub fn by_size(scenario: &Scenario, outcome: &Outcome) -> Vec<SizeRow> {
    let whole = [(EDGES[0], EDGES[16])];
    let parts = EDGES.windows(2).map(|edges| (edges[0], edges[1]));
    let row = |(is_incast, (low, high)): (bool, (u64, u64))| {
        let bytes = |flow: usize| scenario.setup.flows[flow].bytes;
        let kind = |flow: usize| scenario.setup.flows[flow].is_incast == is_incast;
        let of = outcome.finished.iter();
        let of = of.filter(|flow| kind(flow.flow) && (low..high).contains(&bytes(flow.flow)));
        let (mut slowdowns, mut micros) = (Vec::new(), 0.0);
        for flow in of {
            slowdowns.push(flow.slowdown());
            micros += flow.time.as_nanos() as f64 / 1e3;
        }
        slowdowns.sort_by(f64::total_cmp);
        let count = slowdowns.len();
        let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| quantile(&slowdowns, share));
        let mean = slowdowns.iter().sum::<f64>() / count as f64;
        SizeRow { is_incast, low, high, count, p50, p95, p99, mean, mean_fct_us: micros / count as f64 }
    };
    let ranges: Vec<_> = whole.into_iter().chain(parts).collect();
    let kinds = [false, true].into_iter().flat_map(|kind| ranges.iter().map(move |&range| (kind, range)));
    kinds.map(row).filter(|row| row.count > 0).collect()
}

/// Formats the slowdowns as text.
pub fn table(rows: &[SizeRow]) -> String {
    let mut text = format!("{:>28} {:>7} {:>8} {:>8} {:>8}\n", "bytes", "flows", "p50", "p95", "p99");
    for row in rows {
        let SizeRow { low, high, count, p50, p95, p99, .. } = row;
        let _ = writeln!(
            text,
            "{:<6} {low:>10} {high:>10} {count:>7} {p50:>8.3} {p95:>8.3} {p99:>8.3}",
            row.kind()
        );
    }
    text
}

/// Returns the figures of the steady state, if a series was recorded.
pub fn steady(scenario: &Scenario, outcome: &Outcome) -> Option<Steady> {
    let conventions = scenario.setup.conventions;
    Steady::of(outcome, u64::from(conventions.payload + conventions.header + conventions.telemetry))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_interpolated() {
        let sorted = [1.0, 2.0, 4.0];
        assert_eq!([0.0, 0.5, 0.75, 1.0].map(|share| quantile(&sorted, share)), [1.0, 2.0, 3.0, 4.0]);
        assert!(quantile(&[], 0.5).is_nan());
    }
}
