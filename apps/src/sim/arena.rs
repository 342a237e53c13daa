//! `ferroce sim --arena`: runs every algorithm in every scenario, on model hosts and on endpoints, and reports the same figures for each
//! run.

use super::Args;
use super::congestion::WINDOWED_DCQCN;
use super::figures::{self, quantile};
use super::parts::{self, Kind, Part};
use super::scenario::{self, Options, Scenario};
use super::{arena_page, report, simulate};
use crate::failure::Failure;
use crate::output::{OutFile, unwritten};
use cc::{AlgorithmConfig, Registration};
use fabric::sim::{ARENA, Conventions, Hosts, Outcome, Row, SetupError};
use fabric::{Probability, Red};
use serde::{Deserialize, Serialize};
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use verbs::congestion::CcName;

const HOSTS: [(&str, Hosts); 2] = [("model", Hosts::Model), ("endpoints", Hosts::Endpoints)];

const POINTS: usize = 250;
/// The duration over which the least throughput of the bottleneck is computed, ns.
const DIP: u64 = 10_000;

/// A column of the tables.
pub struct Column {
    pub name: &'static str,
    pub unit: &'static str,
    pub what: &'static str,
    /// The ideal value, or [`RATE`].
    pub ideal: &'static str,
    pub better: Better,
}

/// Whether a larger or a smaller figure is better.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Better {
    More,
    Less,
}

/// The ideal value that is the rate of the bottleneck.
pub const RATE: &str = "rate";

const fn column(
    name: &'static str,
    unit: &'static str,
    what: &'static str,
    ideal: &'static str,
    better: Better,
) -> Column {
    Column { name, unit, what, ideal, better }
}

pub const COLUMNS: [Column; 14] = [
    column("carried", "Gb/s", "rate of the bottleneck in the steady state", RATE, Better::More),
    column("least", "Gb/s", "lowest rate in any 10 µs before the first flow ends", RATE, Better::More),
    column("Jain", "of 1", "Jain's index of acknowledged bytes in the steady state", "1", Better::More),
    column("queue p50", "B", "at the bottleneck in the steady state, median", "0", Better::Less),
    column("queue p99", "B", "the same, 99th percentile", "0", Better::Less),
    column("peak", "B", "longest queue of any port", "0", Better::Less),
    column("mean", "µs", "mean completion time", "", Better::Less),
    column("all", "µs", "time until the last flow ends", "", Better::Less),
    column("slowdown p50", "times", "time relative to that of the flow alone, median", "1", Better::Less),
    column("slowdown p99", "times", "the same, 99th percentile", "1", Better::Less),
    column("short p99", "times", "slowdown of flows below 30 kB", "1", Better::Less),
    column("middle p99", "times", "slowdown of 300 kB to 1 MB", "1", Better::Less),
    column("long p99", "times", "slowdown from 1 MB", "1", Better::Less),
    column("lost", "packets", "packets dropped", "0", Better::Less),
];

/// The result of one run. The figures are text, so that they survive JSON unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cell {
    pub scenario: String,
    pub hosts: String,
    pub algorithm: String,
    pub seed: u64,
    /// The reason why this combination cannot run, if it cannot.
    pub refused: Option<String>,
    /// The figures in the order of [`COLUMNS`], each empty if the scenario has none.
    pub figures: Vec<String>,
    /// Rate of the bottleneck, Gb/s, if the scenario has one.
    pub link: Option<f64>,
    /// Begin and end of the steady state, ns, if there was one.
    pub steady: Option<[u64; 2]>,
    /// Time in ns, queue in bytes, and throughput of the bottleneck in Mb/s since the previous point.
    pub line: Vec<[u64; 3]>,
}

struct Job {
    scenario: usize,
    hosts: usize,
    algorithm: usize,
    seed: u64,
}

/// Returns the values of `cc` that the arena compares: Ferroce's algorithms except the fixed window, DCQCN with a window, and the
/// registered algorithms.
fn names(registered: &[&'static Registration]) -> Vec<&'static str> {
    let own = CcName::all().filter(|name| !matches!(name, CcName::Fixed)).map(CcName::as_str);
    own.chain([WINDOWED_DCQCN]).chain(registered.iter().map(|algorithm| algorithm.name)).collect()
}

/// Returns the jobs of an arena of this many algorithms.
fn jobs(seeds: std::ops::Range<u64>, algorithms: usize) -> Vec<Job> {
    let mut jobs = Vec::new();
    for scenario in 0..ARENA.len() {
        for hosts in 0..HOSTS.len() {
            for algorithm in 0..algorithms {
                jobs.extend(seeds.clone().map(|seed| Job { scenario, hosts, algorithm, seed }));
            }
        }
    }
    jobs
}

const SEEDS: u64 = 1000;

/// Runs the arena or a shard of it.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let Some(folder) = args.out.as_deref() else {
        return Err(Failure::usage("--arena: no output folder; add --out FOLDER"));
    };
    let seeds = args.sweep.clone().unwrap_or(args.seed..args.seed.saturating_add(1));
    let count = seeds.end.saturating_sub(seeds.start);
    if !(1..=SEEDS).contains(&count) {
        return Err(Failure::usage(format!("--sweep: {count} seeds; give the arena 1 to {SEEDS}")));
    }
    fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let names = names(&args.algorithms);
    let of = identity(&seeds, &names);
    let jobs = jobs(seeds, names.len());
    let done = parts::run(jobs.len(), args.shard, |job| {
        serde_json::to_value(cell(&jobs[job], &args.algorithms)?)
            .map_err(|error| Failure::run(error.to_string()))
    })?;
    let part = Part { kind: Kind::Arena, of, jobs: jobs.len(), done: done.into_iter().collect() };
    match args.shard {
        Some(shard) => part.written(folder, shard),
        None => merged(&part, Some(folder)),
    }
}

/// Returns a text that identifies the version of the program, the scenarios, the seeds, and the algorithms in their order, because a job's
/// number contains the place of its algorithm.
fn identity(seeds: &std::ops::Range<u64>, names: &[&str]) -> String {
    let texts = ARENA.map(|(_, text)| text).concat();
    let digest = parts::digest(texts.as_bytes());
    format!("{} {digest:016x} {seeds:?} {}", env!("CARGO_PKG_VERSION"), names.join(","))
}

/// Writes the page and the table of all runs.
pub fn merged(part: &Part, folder: Option<&Path>) -> Result<ExitCode, Failure> {
    let folder = folder.ok_or_else(|| Failure::usage("--merge: no output folder; add --out FOLDER"))?;
    let cells = part.done.values().map(|cell| serde_json::from_value(cell.clone()));
    let cells: Vec<Cell> = cells.collect::<Result<_, _>>().map_err(|error| {
        Failure::usage(format!("--merge: a part contains jobs that are not runs of the arena: {error}; give the files that --arena --shard wrote"))
    })?;
    fs::create_dir_all(folder).map_err(|error| unwritten(folder, &error))?;
    let page = OutFile::open(&folder.join("arena.html"))?;
    let table = OutFile::open(&folder.join("arena.json"))?;
    page.write(&arena_page::page(&cells))?;
    let text = serde_json::to_string_pretty(&cells).map_err(|error| Failure::run(error.to_string()))?;
    table.write(&(text + "\n"))?;
    outln!("{} runs in {}", cells.len(), folder.join("arena.html").display())?;
    Ok(ExitCode::SUCCESS)
}

fn read(job: &Job, algorithms: &[&'static Registration]) -> Result<Scenario, Failure> {
    let (name, text) = ARENA[job.scenario];
    let vary = [("cc".to_owned(), names(algorithms)[job.algorithm].to_owned())];
    let options = Options { seed: job.seed, vary: &vary, algorithms, ..Options::default() };
    let mut scenario = scenario::read(name, text, &options)?;
    let setup = &mut scenario.setup;
    (setup.hosts, setup.conventions) = (HOSTS[job.hosts].1, Conventions::FERROCE);
    let marks = |from, to, most| Probability::new(most).map(|most| Red { from, to, most });
    setup.red = match setup.congestion.algorithm {
        // The marking thresholds of the HPCC authors' simulator.
        AlgorithmConfig::Dctcp(_) => marks(300_000, 300_000, 1.0),
        AlgorithmConfig::Registered(..) if setup.congestion.algorithm.wants_ecn() => {
            marks(300_000, 300_000, 1.0)
        }
        AlgorithmConfig::Dcqcn(_) => marks(400_000, 1_600_000, 0.2),
        _ => None,
    };
    Ok(scenario)
}

fn cell(job: &Job, algorithms: &[&'static Registration]) -> Result<Cell, Failure> {
    let scenario = read(job, algorithms)?;
    let mut cell = Cell {
        scenario: ARENA[job.scenario].0.into(),
        hosts: HOSTS[job.hosts].0.into(),
        algorithm: names(algorithms)[job.algorithm].into(),
        seed: job.seed,
        refused: None,
        figures: Vec::new(),
        link: report::link(&scenario, 0).map(|rate| rate.as_bps() as f64 / 1e9),
        steady: None,
        line: Vec::new(),
    };
    if let Err(why @ SetupError::Model { .. }) = scenario.setup.check() {
        cell.refused = Some(why.to_string());
        return Ok(cell);
    }
    let outcome = simulate(&scenario, 1, &mut ())?;
    cell.figures = figures(&scenario, &outcome);
    let steady = figures::steady(&scenario, &outcome);
    cell.steady = steady.map(|steady| steady.window.map(|time| time.as_nanos() as u64));
    cell.line = line(&outcome.series);
    Ok(cell)
}

/// Returns the figures of a run, in the order of [`COLUMNS`].
fn figures(scenario: &Scenario, outcome: &Outcome) -> Vec<String> {
    let number = |value: f64, places: usize| {
        if value.is_finite() { format!("{value:.places$}") } else { String::new() }
    };
    let steady = figures::steady(scenario, outcome);
    let of_steady = |of: fn(&fabric::sim::Steady) -> f64| steady.as_ref().map_or(f64::NAN, of);
    let times: Vec<f64> = outcome.finished.iter().map(|flow| flow.time.as_nanos() as f64 / 1e3).collect();
    // If some flows starve until the end of the run, figures of the other flows alone would flatter the algorithm.
    let of_flows = |value: f64| if times.len() == scenario.setup.flows.len() { value } else { f64::NAN };
    let slowdown = |low: u64, high: u64, share: f64| {
        let bytes = |flow: usize| scenario.setup.flows[flow].bytes;
        let mut of: Vec<f64> = outcome
            .finished
            .iter()
            .filter(|flow| (low..high).contains(&bytes(flow.flow)))
            .map(fabric::sim::Finished::slowdown)
            .collect();
        of.sort_by(f64::total_cmp);
        of_flows(quantile(&of, share))
    };
    vec![
        number(of_steady(|steady| steady.utilisation_gbps), 2),
        number(least(outcome), 1),
        number(of_steady(|steady| steady.jain), 4),
        number(median(outcome), 0),
        number(of_steady(|steady| steady.queue[2]), 0),
        outcome.queue_max.to_string(),
        number(of_flows(times.iter().sum::<f64>() / times.len() as f64), 1),
        number(of_flows(outcome.time.as_nanos() as f64 / 1e3), 1),
        number(slowdown(0, u64::MAX, 0.5), 3),
        number(slowdown(0, u64::MAX, 0.99), 3),
        number(slowdown(0, 30_000, 0.99), 3),
        number(slowdown(300_000, 1_000_000, 0.99), 3),
        number(slowdown(1_000_000, u64::MAX, 0.99), 3),
        outcome.dropped.to_string(),
    ]
}

/// Returns the rows from `begin`, ns, until 5 µs before the first flow ends.
fn until_first_end(outcome: &Outcome, begin: u64) -> Vec<&Row> {
    let end = outcome.finished.iter().map(|flow| (flow.start + flow.time).as_nanos() as u64).min();
    let end = end.unwrap_or_default().saturating_sub(5_000);
    outcome.series.iter().filter(|row| (begin..end).contains(&row.time)).collect()
}

/// Returns the least throughput of the bottleneck over any [`DIP`] after the first, Gb/s.
fn least(outcome: &Outcome) -> f64 {
    let rows = until_first_end(outcome, DIP);
    let step = match rows[..] {
        [first, second, ..] => (DIP / (second.time - first.time).max(1)) as usize,
        _ => return f64::NAN,
    };
    let carried = |pair: &[&Row]| {
        let (first, last) = (pair[0], pair[step]);
        (last.tx_bytes - first.tx_bytes) as f64 * 8.0 / (last.time - first.time) as f64
    };
    rows.windows(step + 1).map(carried).fold(f64::NAN, f64::min)
}

/// Returns the median queue of the bottleneck, bytes, from 100 µs after the last start until the first flow ends.
fn median(outcome: &Outcome) -> f64 {
    let begin = outcome.finished.iter().map(|flow| flow.start.as_nanos() as u64).max().unwrap_or_default();
    let mut queues: Vec<f64> =
        until_first_end(outcome, begin + 100_000).iter().map(|row| row.queue as f64).collect();
    queues.sort_by(f64::total_cmp);
    quantile(&queues, 0.5)
}

/// Reduces the series to at most [`POINTS`] points, each with the longest queue and the throughput of a part of the series.
fn line(series: &[Row]) -> Vec<[u64; 3]> {
    let spans = series.len().saturating_sub(1);
    let step = spans.div_ceil(POINTS).max(1);
    let point = |first: usize| {
        let rows = &series[first..=spans.min(first + step)];
        let (first, last) = (&rows[0], &rows[rows.len() - 1]);
        let queue = rows[1..].iter().map(|row| row.queue).max().unwrap_or_default();
        let mbps = (last.tx_bytes - first.tx_bytes) * 8000 / (last.time - first.time).max(1);
        [last.time, queue, mbps]
    };
    (0..spans).step_by(step).map(point).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sim::congestion::algorithm_name;

    #[test]
    fn every_scenario_can_be_read_for_every_algorithm() {
        let names = names(&[]);
        for job in jobs(1..2, names.len()) {
            let scenario = read(&job, &[]).unwrap();
            let name = names[job.algorithm];
            let congestion = &scenario.setup.congestion;
            match &congestion.algorithm {
                AlgorithmConfig::Dcqcn(config) => {
                    assert_eq!(
                        (name == WINDOWED_DCQCN, name == "dcqcn"),
                        (config.base_rtt.is_some(), config.base_rtt.is_none())
                    );
                }
                _ => assert_eq!(algorithm_name(congestion), name),
            }
            assert_eq!(scenario.setup.red.is_some(), scenario.setup.congestion.algorithm.wants_ecn());
        }
    }

    #[test]
    fn parts_with_other_algorithms_or_another_order_belong_to_another_run() {
        let own = names(&[]);
        assert!(own.len() > 5 && own.contains(&"hpcc") && own.contains(&"swift"), "{own:?}");
        let mut reversed = own.clone();
        reversed.reverse();
        let [of, other, fewer] = [&own[..], &reversed, &own[1..]].map(|names| identity(&(1..2), names));
        assert_eq!(of, identity(&(1..2), &own));
        assert!(of != other && of != fewer && of != identity(&(1..3), &own), "{of}");
    }

    #[test]
    fn a_run_has_all_figures_of_its_columns() {
        let cell = cell(&Job { scenario: 2, hosts: 0, algorithm: 0, seed: 1 }, &[]).unwrap();
        assert_eq!((cell.figures.len(), cell.scenario.as_str()), (COLUMNS.len(), "long-short"));
        let empty = |at: usize| cell.figures[at].is_empty();
        assert!(empty(10) && empty(11), "no flow is so short");
        assert!((0..10).all(|at| !empty(at)), "{:?}", cell.figures);
        assert!((100..=POINTS).contains(&cell.line.len()));
        let text = serde_json::to_string(&cell).unwrap();
        assert_eq!(serde_json::from_str::<Cell>(&text).unwrap(), cell);
    }

    #[test]
    fn merged_shards_are_the_unsplit_page_to_the_byte() {
        let folder = tempfile::tempdir().unwrap();
        let done: Vec<_> = (0..3)
            .map(|job| cell(&Job { scenario: 2, hosts: 0, algorithm: job, seed: 1 }, &[]).unwrap())
            .map(|cell| serde_json::to_value(cell).unwrap())
            .collect();
        let part = |jobs: &[usize]| Part {
            kind: Kind::Arena,
            of: "x".into(),
            jobs: 3,
            done: jobs.iter().map(|&job| (job, done[job].clone())).collect(),
        };
        let read = |name: &str| {
            ["arena.html", "arena.json"].map(|file| fs::read(folder.path().join(name).join(file)).unwrap())
        };
        merged(&part(&[0, 1, 2]), Some(&folder.path().join("whole"))).unwrap();
        let shard = |jobs, shard: &str| part(jobs).write(folder.path(), shard.parse().unwrap()).unwrap();
        let files = [shard(&[1], "2/2"), shard(&[0, 2], "1/2")];
        merged(&Part::merge(&files).unwrap(), Some(&folder.path().join("parts"))).unwrap();
        assert_eq!(read("whole"), read("parts"));
        assert!(read("whole")[0].len() > 10_000);
    }
}
