//! The result of a replay: the values that differ, and the largest differences.

use super::assume::Assumed;
use super::trace::Row;
use crate::failure::Failure;
use cc::Hpcc;
use serde::Serialize;

/// The limit on mismatches that are reported individually; others are only counted.
const TOLD: usize = 10;
/// The relative tolerance of U.
const UTILISATION_TOLERANCE: f64 = 1e-9;
/// The tolerance of a rate, bit/s.
const RATE_TOLERANCE: u64 = 1;

#[derive(Debug, Serialize)]
struct Mismatch {
    line: u64,
    source: u32,
    destination: u32,
    port: u16,
    column: &'static str,
    expected: String,
    got: String,
}

/// The largest differences, including those within the tolerance.
#[derive(Debug, Default, Serialize)]
struct Largest {
    u_relative: f64,
    rate_bps: u64,
    ref_rate_bps: u64,
}

#[derive(Debug, Serialize)]
pub struct Report {
    file: String,
    assumed: Assumed,
    rows: u64,
    flows: usize,
    /// Number of values that differ, up to 5 per row.
    mismatches: u64,
    first_mismatches: Vec<Mismatch>,
    largest_error: Largest,
}

impl Report {
    pub fn new(file: String, assumed: &Assumed) -> Self {
        Self {
            file,
            assumed: *assumed,
            rows: 0,
            flows: 0,
            mismatches: 0,
            first_mismatches: Vec::new(),
            largest_error: Largest::default(),
        }
    }

    pub fn rows(&self) -> u64 {
        self.rows
    }

    pub fn equal(&self) -> bool {
        self.mismatches == 0
    }

    pub fn finish(&mut self, flows: usize) {
        self.flows = flows;
    }

    /// Compares every state column of one row.
    pub fn compare(&mut self, row: &Row, hpcc: &Hpcc) {
        self.rows += 1;
        let expected = &row.expected;

        let (wanted, got) = (expected.utilisation, hpcc.utilisation());
        let scale = if wanted == 0.0 { 1.0 } else { wanted.abs() };
        let error = (got - wanted).abs() / scale;
        self.largest_error.u_relative = self.largest_error.u_relative.max(error);
        // False for NaN.
        let equal = error <= UTILISATION_TOLERANCE;
        self.check(row, "u_ewma", equal, wanted, got);

        let (wanted, got) = (expected.rate, hpcc.rate().as_bps());
        let error = wanted.abs_diff(got);
        self.largest_error.rate_bps = self.largest_error.rate_bps.max(error);
        self.check(row, "rate_bps", error <= RATE_TOLERANCE, wanted, got);

        let (wanted, got) = (expected.reference_rate, hpcc.reference_rate().as_bps());
        let error = wanted.abs_diff(got);
        self.largest_error.ref_rate_bps = self.largest_error.ref_rate_bps.max(error);
        self.check(row, "ref_rate_bps", error <= RATE_TOLERANCE, wanted, got);

        let (wanted, got) = (expected.inc_stage, hpcc.inc_stage());
        self.check(row, "inc_stage", wanted == got, wanted, got);

        let (wanted, got) = (expected.last_update_seq, hpcc.last_update_seq());
        self.check(row, "last_update_seq_after", wanted == got, wanted, got);
    }

    fn check<T: ToString>(&mut self, row: &Row, column: &'static str, equal: bool, expected: T, got: T) {
        if equal {
            return;
        }
        self.mismatches += 1;
        if self.first_mismatches.len() < TOLD {
            self.first_mismatches.push(Mismatch {
                line: row.line,
                source: row.flow.source,
                destination: row.flow.destination,
                port: row.flow.port,
                column,
                expected: expected.to_string(),
                got: got.to_string(),
            });
        }
    }

    pub fn print(&self) -> Result<(), Failure> {
        outln!("{}", self.file)?;
        out!("{}", self.assumed)?;
        for Mismatch { line, source, destination, port, column, expected, got } in &self.first_mismatches {
            outln!(
                "line {line}: flow {source} to {destination} port {port}: {column}: expected {expected}, got {got}"
            )?;
        }
        let Largest { u_relative, rate_bps, ref_rate_bps } = self.largest_error;
        outln!("rows {}, flows {}, mismatches {}", self.rows, self.flows, self.mismatches)?;
        outln!(
            "largest error: u {u_relative:.1e} relative, rate {rate_bps} b/s, reference rate {ref_rate_bps} b/s"
        )
    }

    pub fn print_json(&self) -> Result<(), Failure> {
        outln!("{}", serde_json::json!(self))
    }
}
