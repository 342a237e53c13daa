//! Sweeps: runs on all cores over seeds and over values of the congestion control's keys.

use super::Args;
use super::compare::{self, Ours};
use super::figures::{self, SizeRow};
use super::parts::{self, Kind, Part};
use super::scenario::Scenario;
use super::simulate;
use crate::failure::Failure;
use crate::output::{OutFile, unwritten};
use fabric::sim::Steady;
use serde_json::Value;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use verbs::congestion::CongestionChoice;

type Vary = Vec<(String, String)>;

/// A function that reads the scenario with a seed and other values.
pub type Read<'a> = dyn Fn(u64, &[(String, String)]) -> Result<Scenario, Failure> + Sync + 'a;

struct Run {
    name: String,
    seed: u64,
    ours: Ours,
    scenario: Scenario,
}

/// The limit on the runs of a sweep, whose figures remain in memory until the end.
const MOST: u64 = 100_000;

/// Runs every combination of values with every seed.
pub fn run(args: &Args, read: &Read<'_>) -> Result<ExitCode, Failure> {
    let seeds = args.sweep.clone().unwrap_or(args.seed..args.seed.saturating_add(1));
    if seeds.is_empty() {
        return Err(Failure::usage(format!(
            "--seed {}: too large for a sweep; choose a smaller one",
            args.seed
        )));
    }
    let values = combinations(&args.vary, seeds.end - seeds.start)?;
    let count = (seeds.end - seeds.start) as usize;
    let (jobs, of) = (values.len() * count, format!("{} {seeds:?} {:?}", args.fingerprint()?, args.vary));
    let work = |job: usize| one(&values[job / count], seeds.start + (job % count) as u64, read);
    if let (Some(shard), Some(folder)) = (args.shard, &args.out) {
        let done = parts::run(jobs, Some(shard), |job| work(job).map(|run| Value::from(row(&run))))?;
        let part = Part { kind: Kind::Sweep, of, jobs, done: done.into_iter().collect() };
        return part.written(folder, shard);
    }
    let table = args.out.as_deref().map(table_in).transpose()?;
    let runs = parts::run(jobs, None, work)?.into_iter().map(|(_, run)| run).collect();
    show(args, table, runs)
}

/// Writes the table of a sweep from its merged parts.
pub fn merged(part: &Part, folder: Option<&Path>) -> Result<ExitCode, Failure> {
    let rows = part.done.values().map(Value::as_str).collect::<Option<Vec<_>>>();
    let rows = rows.ok_or_else(|| {
        Failure::usage("--merge: a part contains rows that are not text; give the files that --shard wrote")
    })?;
    let text = header() + &rows.concat();
    match folder {
        Some(folder) => table_in(folder)?.write(&text)?,
        None => out!("{text}")?,
    }
    Ok(ExitCode::SUCCESS)
}

fn table_in(folder: &Path) -> Result<OutFile, Failure> {
    fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    OutFile::open(&folder.join("sweep.csv"))
}

fn one(vary: &Vary, seed: u64, read: &Read<'_>) -> Result<Run, Failure> {
    let scenario = read(seed, vary)?;
    let outcome = simulate(&scenario, 1, &mut ())?;
    let rows = figures::by_size(&scenario, &outcome);
    let name = vary.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    Ok(Run { name, seed, ours: Ours::of(&scenario, &outcome, &rows), scenario })
}

/// Returns all combinations of values: `max_stage=0,5` and `eta=0.95,0.99` have four. Returns a failure if they amount to more than
/// [`MOST`] runs with `seeds` seeds each.
fn combinations(vary: &[String], seeds: u64) -> Result<Vec<Vary>, Failure> {
    let mut all: Vec<Vary> = vec![Vec::new()];
    let mut runs = seeds;
    for text in vary {
        let wrong = || {
            Failure::usage(format!(
                "--vary '{text}': no values; write a key and values, such as max_stage=0,5"
            ))
        };
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let key = key.trim().replace('-', "_");
        let known: Vec<_> = CongestionChoice::SETTINGS.iter().map(|setting| setting.key).collect();
        if !known.contains(&key.as_str()) {
            let keys = known.join(", ");
            return Err(Failure::usage(format!("--vary {text}: no such key; use one of {keys}")));
        }
        runs = runs.saturating_mul(values.split(',').count() as u64);
        if runs > MOST {
            break;
        }
        let add = |vary: &Vary| {
            let with = |value: &str| {
                let mut vary = vary.clone();
                vary.push((key.clone(), value.trim().to_owned()));
                vary
            };
            values.split(',').map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(add).collect();
    }
    if runs > MOST {
        return Err(Failure::usage(format!(
            "--sweep and --vary: {runs} runs or more, but at most {MOST} are allowed; choose fewer seeds or values"
        )));
    }
    Ok(all)
}

fn header() -> String {
    format!("parameters,seed,slowdown_p50,slowdown_p99,{}\n", Steady::NAMES.join(","))
}

fn row(run: &Run) -> String {
    let all = run.ours.rows.first();
    let [p50, p99] = [all.map(|row| row.p50), all.map(|row| row.p99)].map(Option::unwrap_or_default);
    let mut text = format!("\"{}\",{},{p50:.4},{p99:.4}", run.name, run.seed);
    run.ours.steady.unwrap_or([f64::NAN; 11]).iter().for_each(|value| {
        let _ = write!(text, ",{value:.4}");
    });
    text + "\n"
}

/// Prints or writes the table, and compares the mean over the seeds with a reference. `runs` are in the order of values and seeds.
fn show(args: &Args, table: Option<OutFile>, runs: Vec<Run>) -> Result<ExitCode, Failure> {
    let text = header() + &runs.iter().map(row).collect::<String>();
    match table {
        Some(file) => file.write(&text)?,
        None => out!("{text}")?,
    }
    let Some(folder) = &args.compare else { return Ok(ExitCode::SUCCESS) };
    for runs in runs.chunk_by(|a, b| a.name == b.name) {
        outln!("{} seeds' mean {}", runs.len(), runs[0].name)?;
        let compared = compare::compare(folder, &runs[0].scenario, &mean(runs))?;
        out!("{}", compare::table(&compared))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn same_row(one: &SizeRow, other: &SizeRow) -> bool {
    (one.is_incast, one.low, one.high) == (other.is_incast, other.low, other.high)
}

fn mean(runs: &[Run]) -> Ours {
    let count = runs.len() as f64;
    let steady = runs.iter().filter_map(|run| run.ours.steady);
    let sum = steady.fold([0.0; 11], |sum, values| std::array::from_fn(|at| sum[at] + values[at]));
    let has_all = runs.iter().all(|run| run.ours.steady.is_some());
    let row = |row: &SizeRow| {
        let of = |figure: fn(&SizeRow) -> f64| {
            let same = |run: &Run| run.ours.rows.iter().find(|other| same_row(other, row)).map(figure);
            let values: Vec<f64> = runs.iter().filter_map(same).collect();
            values.iter().sum::<f64>() / values.len() as f64
        };
        SizeRow { p50: of(|row| row.p50), p95: of(|row| row.p95), p99: of(|row| row.p99), ..*row }
    };
    let windows: Option<Vec<[f64; 5]>> = runs.iter().map(|run| run.ours.window).collect();
    let part = |windows: Vec<[f64; 5]>| {
        std::array::from_fn(|at| windows.iter().map(|of| of[at]).sum::<f64>() / count)
    };
    let queue = |at: usize| runs.iter().map(|run| run.ours.queues[at]).sum::<f64>() / count;
    Ours {
        steady: has_all.then(|| sum.map(|value| value / count)),
        rows: runs[0].ours.rows.iter().map(row).collect(),
        queues: std::array::from_fn(queue),
        window: windows.map(part),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sweep_combines_every_value_with_every_other() {
        let all = combinations(&["max_stage=0,5".into(), "eta=0.9,0.95,0.99".into()], 1).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!(all[5], [("max_stage".into(), "5".into()), ("eta".into(), "0.99".into())]);
        assert_eq!(combinations(&[], 1).unwrap(), [Vec::new()]);
        assert!(combinations(&["max_stage".into()], 1).is_err());
        assert!(combinations(&["eta=0.9,0.95".into()], MOST / 2).is_ok());
        for (vary, seeds) in
            [(vec![], MOST + 1), (vec![], u64::MAX), (vec!["eta=0.9,0.95".to_owned(); 64], 1)]
        {
            let error = combinations(&vary, seeds).unwrap_err().to_string();
            assert!(error.contains("at most 100000"), "{error}");
        }
    }
}
