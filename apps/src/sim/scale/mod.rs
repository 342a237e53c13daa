//! The fabric at scale: a run, its files and its report; sweeps over seeds and parameters.

mod compare;
mod figures;
mod output;
mod plot;
mod report;
mod scenario;
mod sweep;

pub use scenario::is_one;

use super::Args;
use crate::failure::Failure;
use anstream::{print, println};
use compare::Ours;
use fabric::scale::{self, Outcome};
use indicatif::{ProgressBar, ProgressStyle};
use scenario::Scenario;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs what `args` asks for; `text` is the scenario's.
pub fn run(args: &Args, text: &str) -> Result<ExitCode, Failure> {
    let name = args.scenario.display().to_string();
    let read =
        |seed: u64, vary: &[(String, String)]| scenario::read(&name, text, args.flows.as_deref(), seed, vary);
    if args.sweep.is_some() || !args.vary.is_empty() {
        return sweep::run(args, &read);
    }
    let scenario = read(args.seed, &[])?;
    let begin = Instant::now();
    let outcome = simulate(&scenario, true)?;
    let wall = begin.elapsed();
    let rows = figures::by_size(&scenario, &outcome);
    let compared = match &args.compare {
        Some(folder) => compare::compare(folder, &scenario, &Ours::of(&scenario, &outcome, &rows))?,
        None => Vec::new(),
    };
    if let Some(folder) = &args.out {
        output::write(folder, &scenario, &outcome, &rows, wall)?;
        report::write(folder, &name, &scenario, &outcome, &rows, &compared)?;
    }
    if args.json {
        println!("{:#}", output::summary(&scenario, &outcome, &rows, wall));
        return Ok(ExitCode::SUCCESS);
    }
    show(&scenario, &outcome, wall);
    print!("{}", figures::table(&rows));
    if !compared.is_empty() {
        print!("{}", compare::table(&compared));
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a scenario, with a bar on standard error where that is a terminal.
fn simulate(scenario: &Scenario, shows: bool) -> Result<Outcome, Failure> {
    let bar = if shows { ProgressBar::new(scenario.setup.flows.len() as u64) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} flows  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let begin = Instant::now();
    let mut watch = |done: usize, events: u64, nanos: u64| {
        let rate = events as f64 / begin.elapsed().as_secs_f64() / 1e6;
        bar.set_position(done as u64);
        bar.set_message(format!("{:.3} ms, {rate:.1} M events/s", nanos as f64 / 1e6));
    };
    let outcome = scale::run(&scenario.setup, &mut watch).map_err(|error| Failure::usage(error.to_string()));
    bar.finish_and_clear();
    outcome
}

fn show(scenario: &Scenario, outcome: &Outcome, wall: Duration) {
    let setup = &scenario.setup;
    let (hosts, switches) = (setup.topology.hosts(), setup.topology.switches());
    println!(
        "{hosts} hosts, {switches} switches, {} of {} flows ended, {}",
        outcome.finished.len(),
        setup.flows.len(),
        setup.algorithm.name()
    );
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| outcome.queue_quantile(share));
    println!(
        "  queues of all ports  p50 {p50} kB   p95 {p95} kB   p99 {p99} kB   max {} B",
        outcome.queue_max
    );
    if let Some(steady) = figures::steady(scenario, outcome) {
        let [mean, _, p99, _] = steady.queue;
        println!(
            "  steady state         {:.2} Gb/s, Jain {:.4}, queue mean {mean:.0} B, p99 {p99:.0} B",
            steady.utilisation_gbps, steady.jain
        );
    }
    println!(
        "  dropped {}   marked {}   pauses {} ({:.1} µs)",
        outcome.dropped,
        outcome.marked,
        outcome.pauses,
        outcome.paused.as_nanos() as f64 / 1e3
    );
    println!(
        "  virtual time         {:.3} ms, trace {:016x}",
        outcome.time.as_nanos() as f64 / 1e6,
        outcome.trace
    );
    let rate = outcome.events as f64 / wall.as_secs_f64() / 1e6;
    println!(
        "  simulated in         {:.2} s, {} events, {rate:.2} M events/s",
        wall.as_secs_f64(),
        outcome.events
    );
    println!(
        "  memory               {} B a running flow, {} B a host, {} packets on their way at most",
        outcome.memory[0], outcome.memory[1], outcome.packets_most
    );
}
