//! Compares the figures of a run with those in a reference directory, each within a band.

use super::figures::{SizeRow, steady};
use super::scenario::{Reference, Scenario};
use crate::failure::Failure;
use crate::input::Table;
use csv::StringRecord;
use fabric::sim::{Outcome, Steady, window};
use std::path::Path;
use std::time::Duration;

/// The relative band of a figure of a single reference run.
const SHARE: f64 = 0.1;
/// The size of a packet, kB. A queue's percentile may differ by one packet because of sampling.
const PACKET_KB: f64 = 1.0905;

/// The limit on the rows of one run in a file of the reference.
const ROWS: usize = 10_000;

/// A figure, compared with the reference's.
#[derive(Clone, Debug)]
pub struct Compared {
    pub name: String,
    pub ours: f64,
    pub theirs: f64,
    /// The largest accepted difference.
    pub band: f64,
}

impl Compared {
    /// Returns true if the figure lies within its band.
    pub fn is_inside(&self) -> bool {
        (self.ours - self.theirs).abs() <= self.band + 1e-9
    }
}

/// The figures of one run, or the mean of several.
pub struct Ours {
    pub steady: Option<[f64; 11]>,
    pub rows: Vec<SizeRow>,
    pub queues: [f64; 5],
    /// Figures from 100 µs to the end: Gb/s, Jain's index, and the mean, 95th and 99th percentile of the queue in kB.
    pub window: Option<[f64; 5]>,
}

impl Ours {
    pub fn of(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow]) -> Self {
        let quantile = |share| outcome.queue_quantile(share) as f64;
        // The figures of the reference have four decimals.
        let values =
            steady(scenario, outcome).map(|steady| steady.values().map(|value| (value * 1e4).round() / 1e4));
        let queues = [
            quantile(0.5),
            quantile(0.95),
            quantile(0.99),
            quantile(0.999),
            (outcome.queue_max / 1000) as f64,
        ];
        let part = window(&outcome.series, Duration::from_micros(100), scenario.setup.limit);
        let part =
            part.map(|(gbps, jain, [mean, p95, p99, _])| [gbps, jain, mean / 1e3, p95 / 1e3, p99 / 1e3]);
        Self { steady: values, rows: rows.to_vec(), queues, window: part }
    }
}

/// Compares `ours` with the rows of this scenario in `folder`: with bands over seeds (mean ± 3 standard deviations) if there are several,
/// otherwise with a single run (± 10 %), and with tables by size.
///
/// # Errors
/// Returns a failure if the scenario has no `[reference]`, a file cannot be read, or `folder` contains no row of the scenario.
pub fn compare(folder: &Path, scenario: &Scenario, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let Some(reference) = &scenario.reference else {
        return Err(Failure::usage(
            "--compare: the scenario has no [reference] table, which names it in the reference; add one",
        ));
    };
    let mut compared = bands(folder, reference, ours)?;
    if compared.is_empty() {
        compared = single(folder, reference, ours)?;
    }
    compared.extend(windows(folder, reference, ours)?);
    compared.extend(sizes(folder, reference, ours)?);
    compared.extend(queues(folder, reference, ours)?);
    if compared.is_empty() {
        let Reference { scenario, variant } = reference;
        return Err(Failure::usage(format!(
            "{}: no file has rows of scenario {scenario}, variant {variant}; correct [reference] in the scenario, or give another folder",
            folder.display()
        )));
    }
    Ok(compared)
}

/// Returns the header of a file and the rows for which `is_it` returns true; both are empty if the file does not exist.
fn rows(
    file: &Path,
    is_it: impl Fn(&StringRecord) -> bool,
) -> Result<(StringRecord, Vec<StringRecord>), Failure> {
    if !file.exists() {
        return Ok((StringRecord::new(), Vec::new()));
    }
    let wrong = |error: String| Failure::usage(format!("{}: {error}", file.display()));
    let mut table = Table::open(file).map_err(|error| wrong(error.to_string()))?;
    let header = table.header().map_err(|error| wrong(error.to_string()))?.clone();
    let (mut rows, mut row) = (Vec::new(), StringRecord::new());
    while table.read(&mut row).map_err(|error| wrong(error.to_string()))? {
        if !is_it(&row) {
            continue;
        }
        if rows.len() == ROWS {
            return Err(wrong(format!("more than {ROWS} rows of this run: not a reference")));
        }
        rows.push(row.clone());
    }
    Ok((header, rows))
}

fn column(header: &StringRecord, row: &StringRecord, name: &str) -> Option<f64> {
    let place = header.iter().position(|column| column == name)?;
    row.get(place)?.parse().ok()
}

fn bands(folder: &Path, reference: &Reference, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let Some(steady) = ours.steady else { return Ok(Vec::new()) };
    let is_it = |row: &StringRecord| {
        row.get(0) == Some(&*reference.scenario) && row.get(1) == Some(&*reference.variant)
    };
    let (header, rows) = rows(&folder.join("jitter_bands.csv"), is_it)?;
    if rows.len() < 2 {
        return Ok(Vec::new());
    }
    let compared = Steady::NAMES.iter().zip(steady).filter_map(|(name, ours)| {
        let values: Vec<f64> = rows.iter().filter_map(|row| column(&header, row, name)).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance =
            values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (values.len() - 1).max(1) as f64;
        (values.len() > 1).then(|| Compared {
            name: (*name).into(),
            ours,
            theirs: mean,
            band: 3.0 * variance.sqrt(),
        })
    });
    Ok(compared.collect())
}

fn single(folder: &Path, reference: &Reference, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let Some(steady) = ours.steady else { return Ok(Vec::new()) };
    let run = format!("{}_{}", reference.scenario, reference.variant);
    let (header, rows) = rows(&folder.join("summary.csv"), |row| row.get(0) == Some(&*run))?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let names = [
        ("fct_min_us", 0),
        ("fct_mean_us", 1),
        ("fct_max_us", 2),
        ("ss_util_gbps", 3),
        ("jain_ss", 4),
        ("ss_q_mean", 5),
        ("ss_q_p95", 6),
        ("ss_q_p99", 7),
        ("ss_q_max", 8),
        ("qmax_B", 9),
    ];
    let compared = names.into_iter().filter_map(|(name, place)| {
        let theirs = column(&header, row, name)?;
        Some(Compared { name: name.into(), ours: steady[place], theirs, band: theirs * SHARE })
    });
    Ok(compared.collect())
}

/// Compares runs of 10 ms, whose name contains `W_ai` and maxStage: `hpcc_wai25_ms5`. The band of a queue is 10 %, and at least one packet.
fn windows(folder: &Path, reference: &Reference, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let name = reference.variant.strip_prefix("hpcc_wai").and_then(|name| name.split_once("_ms"));
    let (Some((additive, stage)), Some(ours)) = (name, ours.window) else { return Ok(Vec::new()) };
    let is_it = |row: &StringRecord| {
        row.get(0) == Some(&*additive) && row.get(1) == Some(&*stage) && row.get(2) == Some("100")
    };
    let (header, rows) = rows(&folder.join("f14.csv"), is_it)?;
    let Some(row) = rows.first() else { return Ok(Vec::new()) };
    let names = ["wire_util_gbps", "jain", "q_mean_KB", "q_p95", "q_p99"];
    let compared = names.into_iter().zip(ours).filter_map(|(name, ours)| {
        let theirs = column(&header, row, name)?;
        let packet = if name.starts_with('q') { PACKET_KB } else { 0.0 };
        Some(Compared { name: name.into(), ours, theirs, band: (theirs * SHARE).max(packet) })
    });
    Ok(compared.collect())
}

fn sizes(folder: &Path, reference: &Reference, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let run = format!("{}_{}", reference.scenario, reference.variant);
    let mut compared = Vec::new();
    for file in [folder.join("slowdown.csv"), folder.join("fattree/slowdown.csv")] {
        let (header, rows) = rows(&file, |row| row.get(0) == Some(&*run))?;
        for row in &rows {
            let at = |name| column(&header, row, name);
            let (Some(low), Some(high)) = (at("size_lo"), at("size_hi")) else { continue };
            // A table without this column contains only flows outside of incasts.
            let place = header.iter().position(|column| column == "type");
            let kind = place.and_then(|place| row.get(place)).unwrap_or("bg");
            let same =
                |ours: &&SizeRow| ours.kind() == kind && (ours.low, ours.high) == (low as u64, high as u64);
            let Some(ours) = ours.rows.iter().find(same) else { continue };
            for (name, ours) in [("p50", ours.p50), ("p95", ours.p95), ("p99", ours.p99)] {
                let Some(theirs) = at(name) else { continue };
                let of = if kind == "bg" { "" } else { ", incast" };
                let name = format!("slowdown {name}{of}, {low} to {high} B");
                compared.push(Compared { name, ours, theirs, band: theirs * SHARE });
            }
        }
    }
    Ok(compared)
}

fn queues(folder: &Path, reference: &Reference, ours: &Ours) -> Result<Vec<Compared>, Failure> {
    let run = format!("{}_{}", reference.scenario, reference.variant);
    let mut compared = Vec::new();
    for file in [folder.join("queues_pfc.csv"), folder.join("fattree/queues_pfc.csv")] {
        let (header, rows) = rows(&file, |row| row.get(0) == Some(&*run))?;
        let names = ["q_p50_KB", "q_p95_KB", "q_p99_KB", "q_p999_KB", "q_max_KB"];
        for (name, ours) in names.into_iter().zip(ours.queues) {
            let Some(theirs) = rows.first().and_then(|row| column(&header, row, name)) else { continue };
            compared.push(Compared { name: name.into(), ours, theirs, band: theirs * SHARE });
        }
    }
    Ok(compared)
}

/// Formats the comparison as text.
pub fn table(compared: &[Compared]) -> String {
    let width = compared.iter().map(|row| row.name.len()).max().unwrap_or(0);
    let mut text = format!("{:<width$} {:>12} {:>12}   band\n", "", "ours", "reference");
    for row in compared {
        let mark = if row.is_inside() { "in" } else { "OUT" };
        text += &format!(
            "{:<width$} {:>12.3} {:>12.3} ± {:<10.3} {mark}\n",
            row.name, row.ours, row.theirs, row.band
        );
    }
    let inside = compared.iter().filter(|row| row.is_inside()).count();
    text + &format!("{inside} of {} in their bands\n", compared.len())
}
