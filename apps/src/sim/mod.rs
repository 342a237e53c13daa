//! `ferroce sim`: the product's endpoints and switch in virtual time.

mod scale;
mod scenario;

use crate::failure::Failure;
use anstream::{eprint, println};
use fabric::sim::{self, Outcome, Scenario};
use serde_json::json;
use std::fs;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The command line of `ferroce sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A scenario is a TOML file: hosts around a switch, how flows are paced, and the flows. The project has some in \
fabric/scenarios. The same scenario and seed give the same run, to the trace's digest.

A flow list is a CSV file with the columns src,dst,bytes,start_ns; hosts are numbered from 1.

With the key `topology` (star, dumbbell, parking-lot, leaf-spine, fat-tree) it is the fabric at scale: the senders run the \
product's congestion control over packets that only count their payload, through switches with a shared buffer, PFC \
and ECN (fabric/scenarios/scale). --out then has CSV files with the reference's columns and report.html.

Examples:
  ferroce sim fabric/scenarios/incast-16.toml --seed 7 --out results
  ferroce sim fabric/scenarios/scale/two-to-one.toml --sweep 1..13 --vary max_stage=0,5 --compare reference")]
pub struct Args {
    /// The scenario
    scenario: PathBuf,
    /// Flows from this CSV file instead of the scenario's
    #[arg(long, value_name = "FILE")]
    flows: Option<PathBuf>,
    /// The seed of everything
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Write fct.csv and summary.json into this folder, made where it is not there
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Lay a reference's folder beside the results: each figure, its band, in or out (scenarios with a topology)
    #[arg(long, value_name = "FOLDER")]
    compare: Option<PathBuf>,
    /// Run these seeds, A to before B, on all cores (scenarios with a topology)
    #[arg(long, value_name = "A..B", value_parser = crate::soak::range)]
    sweep: Option<std::ops::Range<u64>>,
    /// Run with each of these values of a key of `congestion` (scenarios with a topology); may be given again
    #[arg(long, value_name = "KEY=V1,V2")]
    vary: Vec<String>,
}

/// Runs the tool.
///
/// # Errors
/// A scenario that can't be read or run, or results that can't be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let text = fs::read_to_string(&args.scenario)
        .map_err(|error| Failure::usage(format!("{}: {error}", args.scenario.display())))?;
    if scale::is_one(&text) {
        return scale::run(args, &text);
    }
    if args.compare.is_some() || args.sweep.is_some() || !args.vary.is_empty() {
        return Err(Failure::usage("--compare, --sweep and --vary are for scenarios with a topology"));
    }
    let scenario = scenario::read(&args.scenario, args.flows.as_deref(), args.seed)?;
    let begin = Instant::now();
    let shows = std::io::stderr().is_terminal();
    let mut watch = |done: usize, events: u64, nanos: u64| {
        if shows {
            let rate = events as f64 / begin.elapsed().as_secs_f64() / 1e6;
            let flows = scenario.flows.len();
            eprint!("\r{done} of {flows} flows, {:.3} ms, {rate:.1} M events/s\x1b[K", nanos as f64 / 1e6);
        }
    };
    let outcome = sim::run(&scenario, &mut watch).map_err(|error| Failure::run(error.to_string()))?;
    if shows {
        eprint!("\r\x1b[K");
    }
    let summary = summary(&scenario, &outcome, begin.elapsed());
    if let Some(folder) = &args.out {
        write(folder, &scenario, &outcome, &summary)?;
    }
    match args.json {
        true => println!("{summary:#}"),
        false => show(&scenario, &outcome, begin.elapsed()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The value below which `share` of `sorted` lie.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() as f64 * share).ceil() as usize;
    sorted[place.clamp(1, sorted.len()) - 1]
}

fn micros(time: Duration) -> f64 {
    time.as_nanos() as f64 / 1e3
}

fn drops(outcome: &Outcome) -> u64 {
    outcome.report.ports.iter().map(|port| port.counters.drops.total()).sum()
}

/// The port whose queue was the longest.
fn bottleneck(outcome: &Outcome) -> Option<(usize, &fabric::PortReport)> {
    outcome.report.ports.iter().enumerate().max_by_key(|(_, port)| port.queue.max)
}

fn summary(scenario: &Scenario, outcome: &Outcome, wall: Duration) -> serde_json::Value {
    let slowdowns = outcome.slowdowns();
    let queue = bottleneck(outcome).map(|(port, report)| {
        json!({
            "port": port + 1,
            "p50_bytes": report.queue.p50, "p99_bytes": report.queue.p99, "max_bytes": report.queue.max,
            "utilisation": report.utilisation, "marked": report.counters.ce_marked,
        })
    });
    json!({
        "hosts": scenario.hosts,
        "flows": outcome.completed.len(),
        "algorithm": scenario.congestion.algorithm.name(),
        "seed": scenario.seed,
        "trace": format!("{:016x}", outcome.trace),
        "virtual_us": micros(outcome.time),
        "slowdown": {
            "p50": quantile(&slowdowns, 0.5), "p95": quantile(&slowdowns, 0.95), "p99": quantile(&slowdowns, 0.99),
        },
        "bottleneck": queue,
        "dropped": drops(outcome),
        "retransmitted": outcome.retransmitted,
        "events": outcome.events,
        "events_per_second": outcome.events as f64 / wall.as_secs_f64(),
    })
}

fn show(scenario: &Scenario, outcome: &Outcome, wall: Duration) {
    let slowdowns = outcome.slowdowns();
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| quantile(&slowdowns, share));
    println!("{} hosts, {} flows, {}", scenario.hosts, slowdowns.len(), scenario.congestion.algorithm.name());
    println!("  slowdown            p50 {p50:.2}   p95 {p95:.2}   p99 {p99:.2}");
    if let Some((port, report)) = bottleneck(outcome) {
        let queue = &report.queue;
        println!(
            "  queue to host {:<4}  p50 {} B   p99 {} B   max {} B",
            port + 1,
            queue.p50,
            queue.p99,
            queue.max
        );
        println!(
            "  its link            {:.1} % busy, {} frames marked",
            report.utilisation * 100.0,
            report.counters.ce_marked
        );
    }
    println!("  dropped             {} frames, {} packets sent again", drops(outcome), outcome.retransmitted);
    println!("  virtual time        {:.3} ms, trace {:016x}", micros(outcome.time) / 1e3, outcome.trace);
    let rate = outcome.events as f64 / wall.as_secs_f64() / 1e6;
    println!(
        "  simulated in        {:.2} s, {} events, {rate:.2} M events/s",
        wall.as_secs_f64(),
        outcome.events
    );
}

fn write(
    folder: &Path,
    scenario: &Scenario,
    outcome: &Outcome,
    summary: &serde_json::Value,
) -> Result<(), Failure> {
    let wrong = |error: std::io::Error| Failure::run(format!("{}: {error}", folder.display()));
    fs::create_dir_all(folder).map_err(wrong)?;
    // The columns of the reference's completion times.
    let mut text = String::from("src,dst,size_bytes,start_ns,fct_ns,standalone_fct_ns\n");
    for done in &outcome.completed {
        let flow = scenario.flows[done.flow];
        let times = [done.start, done.time, done.alone].map(|time| time.as_nanos());
        let [start, time, alone] = times;
        text += &format!("{},{},{},{start},{time},{alone}\n", flow.source, flow.destination, flow.bytes);
    }
    fs::write(folder.join("fct.csv"), text).map_err(wrong)?;
    fs::write(folder.join("summary.json"), format!("{summary:#}\n")).map_err(wrong)
}
