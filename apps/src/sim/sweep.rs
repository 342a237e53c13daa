//! Many runs on all cores: seeds, and other values of the congestion control's keys.

use super::Args;
use super::compare::{self, Ours};
use super::figures::{self, SizeRow};
use super::scenario::Scenario;
use super::simulate;
use crate::failure::Failure;
use anstream::{print, println};
use fabric::sim::Steady;
use std::fmt::Write;
use std::fs;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// Keys of `congestion` with their values.
type Vary = Vec<(String, String)>;

/// Reads the scenario with a seed and other values.
pub type Read<'a> = dyn Fn(u64, &[(String, String)]) -> Result<Scenario, Failure> + Sync + 'a;

/// One run of a sweep.
struct Run {
    name: String,
    seed: u64,
    ours: Ours,
    scenario: Scenario,
}

/// Runs every combination of values with every seed.
pub fn run(args: &Args, read: &Read<'_>) -> Result<ExitCode, Failure> {
    let seeds = args.sweep.clone().unwrap_or(args.seed..args.seed + 1);
    let mut jobs: Vec<(Vary, u64)> = Vec::new();
    for vary in combinations(&args.vary)? {
        jobs.extend(seeds.clone().map(|seed| (vary.clone(), seed)));
    }
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let threads = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((vary, seed)) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let run = one(vary, *seed, read);
                    done.lock().unwrap_or_else(std::sync::PoisonError::into_inner).push(run);
                }
            });
        }
    });
    let runs = done.into_inner().unwrap_or_default().into_iter().collect::<Result<Vec<_>, _>>()?;
    show(args, runs)
}

fn one(vary: &Vary, seed: u64, read: &Read<'_>) -> Result<Run, Failure> {
    let scenario = read(seed, vary)?;
    let outcome = simulate(&scenario, false)?;
    let rows = figures::by_size(&scenario, &outcome);
    let name = vary.iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(",");
    Ok(Run { name, seed, ours: Ours::of(&scenario, &outcome, &rows), scenario })
}

/// `max_stage=0,5` and `eta=0.95,0.99` are four.
fn combinations(vary: &[String]) -> Result<Vec<Vary>, Failure> {
    let mut all: Vec<Vary> = vec![Vec::new()];
    for text in vary {
        let wrong = || Failure::usage(format!("--vary '{text}': write a key and values, as max_stage=0,5"));
        let (key, values) = text.split_once('=').ok_or_else(wrong)?;
        let add = |vary: &Vary| {
            let with = |value: &str| {
                let mut vary = vary.clone();
                vary.push((key.trim().to_owned(), value.trim().to_owned()));
                vary
            };
            values.split(',').map(with).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(add).collect();
    }
    Ok(all)
}

fn show(args: &Args, mut runs: Vec<Run>) -> Result<ExitCode, Failure> {
    runs.sort_by(|a, b| (&a.name, a.seed).cmp(&(&b.name, b.seed)));
    let mut text = format!("parameters,seed,slowdown_p50,slowdown_p99,{}\n", Steady::NAMES.join(","));
    for run in &runs {
        let all = run.ours.rows.first();
        let [p50, p99] = [all.map(|row| row.p50), all.map(|row| row.p99)].map(Option::unwrap_or_default);
        let _ = write!(text, "\"{}\",{},{p50:.4},{p99:.4}", run.name, run.seed);
        let steady = run.ours.steady.unwrap_or([f64::NAN; 11]);
        steady.iter().for_each(|value| {
            let _ = write!(text, ",{value:.4}");
        });
        text.push('\n');
    }
    match &args.out {
        Some(folder) => {
            let wrong = |error: std::io::Error| Failure::run(format!("{}: {error}", folder.display()));
            fs::create_dir_all(folder)
                .and_then(|()| fs::write(folder.join("sweep.csv"), text))
                .map_err(wrong)?;
        }
        None => print!("{text}"),
    }
    let Some(folder) = &args.compare else { return Ok(ExitCode::SUCCESS) };
    for runs in runs.chunk_by(|a, b| a.name == b.name) {
        println!("{} seeds' mean {}", runs.len(), runs[0].name);
        let compared = compare::compare(folder, &runs[0].scenario, &mean(runs))?;
        print!("{}", compare::table(&compared));
    }
    Ok(ExitCode::SUCCESS)
}

/// The mean of each figure.
fn mean(runs: &[Run]) -> Ours {
    let count = runs.len() as f64;
    let steady = runs.iter().filter_map(|run| run.ours.steady);
    let sum = steady.fold([0.0; 11], |sum, values| std::array::from_fn(|at| sum[at] + values[at]));
    let has_all = runs.iter().all(|run| run.ours.steady.is_some());
    let row = |row: &SizeRow| {
        let of = |figure: fn(&SizeRow) -> f64| {
            let same = |run: &Run| {
                run.ours.rows.iter().find(|other| other.low == row.low && other.high == row.high).map(figure)
            };
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
    fn every_value_meets_every_other() {
        let all = combinations(&["max_stage=0,5".into(), "eta=0.9,0.95,0.99".into()]).unwrap();
        assert_eq!(all.len(), 6);
        assert_eq!(all[5], [("max_stage".into(), "5".into()), ("eta".into(), "0.99".into())]);
        assert_eq!(combinations(&[]).unwrap(), [Vec::new()]);
        assert!(combinations(&["max_stage".into()]).is_err());
    }
}
