//! `ferroce sim`: simulates hosts, links and switches in virtual time. Implements single runs with files and report, sweeps, and the arena.

mod arena;
mod arena_page;
mod capture;
mod changes;
mod collectives;
mod compare;
mod congestion;
mod faults;
mod figures;
mod flows;
mod keys;
mod mistake;
mod output;
mod parts;
mod plot;
mod progress;
mod report;
mod scenario;
mod shape;
mod sweep;
mod topology;

use crate::failure::{self, Failure};
use crate::{input, units};
use capture::{Captures, Limits, PortCapture};
use cc::Registration;
use compare::Ours;
use congestion::algorithm_names;
use fabric::RuleReport;
use fabric::sim::{self, Hosts, Observer, Outcome, PortFrame, RunState};
pub(crate) use keys::{ScenarioKey, TABLES};
use parts::{Kind, Part, Shard};
use progress::Progress;
use scenario::{Options, Scenario};
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The command line of `ferroce sim`.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
A scenario is a TOML file that names a topology (star, dumbbell, parking-lot, leaf-spine, fat-tree, or a graph of its own), the flows, and \
their congestion control. /usr/share/ferroce/book/reference/scenarios.md lists the keys, and /usr/share/ferroce/scenarios contains \
examples (in a clone, fabric/scenarios). The same scenario and seed give the same run, to the trace's digest.

Hosts run the product's endpoints. With host = \"model\" they run a faster model: packets that only count their payload, each \
acknowledged. In both, the product's congestion control paces the flows, and switches have a shared buffer, PFC, ECN, ECMP and \
telemetry. compat = \"hpcc-ns3\" is the model with the conventions of the simulator of HPCC's authors (scenarios/reference).

A flow list is a CSV file with the columns src,dst,bytes,start_ns, or a flow.txt of the simulator of HPCC's authors; hosts are numbered \
from 1, or from the scenario's first_host. \
--out also writes report.html, a page without other files.

Examples:
  cd /usr/share/ferroce/scenarios
  ferroce sim incast-16.toml --seed 7 --out /tmp/results
  ferroce sim reference/two-to-one.toml --sweep 1..13 --vary max_stage=0,5
  ferroce sim incast-16.toml --sweep 1..1001 --shard 3/16 --out /tmp/parts    (a job of many)
  ferroce sim --merge /tmp/parts/*.json --out /tmp/results
  ferroce sim --arena --out /tmp/results")]
pub(crate) struct Args {
    /// Scenario file
    #[arg(required_unless_present_any = ["arena", "merge"])]
    scenario: Option<PathBuf>,
    /// Take the flows from this file (CSV, or flow.txt of HPCC's authors) instead of the scenario
    #[arg(long, value_name = "FILE")]
    flows: Option<PathBuf>,
    /// Read the scenario and its files, and print what would run
    #[arg(long, conflicts_with_all = ["out", "compare", "json", "sweep", "vary", "arena", "shard", "merge"])]
    check: bool,
    /// Seed of all randomness
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Run a scenario on up to N threads; the results are the same with any number. A run uses one thread if all hosts are at one switch,
    /// or if it has flows that wait for others, a script of faults, `loss`, `lie`, `--pcap`, or links without a delay
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=1024),
        conflicts_with_all = ["sweep", "vary", "arena", "shard", "merge"])]
    threads: u16,
    /// Write CSV files with the reference's columns, summary.json and report.html into this folder, which is created if needed
    #[arg(long, value_name = "FOLDER")]
    out: Option<PathBuf>,
    /// Capture the frames that a port sends and receives as pcapng, with virtual timestamps. A port is named after its node and the node at
    /// the other end of its link, as in s1_h3. Needs endpoints. May be repeated; ports with the same file become interfaces of one capture
    #[arg(long, value_name = "PORT=FILE", value_parser = capture::parse, conflicts_with_all = ["check", "sweep", "vary", "arena", "shard",
        "merge"])]
    pcap: Vec<PortCapture>,
    /// Capture at most this many bytes of each frame, 320 to 65536. All headers, with telemetry, fit in 320
    #[arg(long, value_name = "BYTES", default_value = "65536", value_parser = clap::value_parser!(u32).range(320..=65536),
        requires = "pcap")]
    snaplen: u32,
    /// Write at most this many bytes to each capture file: 100M
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = units::bytes, requires = "pcap")]
    pcap_limit: u64,
    /// Print the summary as JSON
    #[arg(long)]
    json: bool,
    /// Print the state of the run once a second: virtual time, finished flows, events per second, and the queues of the sampled ports. The
    /// state goes to standard error, on a terminal as one line; with --json, it goes to standard output, as one object per line before the
    /// summary
    #[arg(long, conflicts_with_all = ["check", "sweep", "vary", "arena", "shard", "merge"])]
    follow: bool,
    /// Compare the results with the reference in this folder: each figure, its band, and whether it lies within
    #[arg(long, value_name = "FOLDER")]
    compare: Option<PathBuf>,
    /// Run seeds A to B-1 on all cores; at most 100000 runs, including --vary
    #[arg(long, value_name = "A..B", value_parser = crate::soak::range)]
    sweep: Option<std::ops::Range<u64>>,
    /// Run once for each of these values of a key of `congestion`; may be repeated. cc=auto ignores the scenario's values of other keys.
    /// cc=dcqcn ignores its base_rtt, and so has no window; cc=dcqcn_vwin has one
    #[arg(long, value_name = "KEY=V1,V2")]
    vary: Vec<String>,
    /// Run every algorithm in every scenario of the arena, with model hosts and with endpoints; write arena.html and arena.json
    #[arg(long, requires = "out", conflicts_with_all = ["scenario", "flows", "vary", "compare", "json"])]
    arena: bool,
    /// Run part I of N of a sweep or of the arena, and write a file for --merge
    #[arg(long, value_name = "I/N", requires = "out", conflicts_with_all = ["compare", "json"])]
    shard: Option<Shard>,
    /// Merge the files of all shards into the output of a run without --shard
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with_all = ["scenario", "arena", "shard", "sweep", "vary", "flows",
        "compare", "json"])]
    merge: Vec<PathBuf>,
    /// Algorithms that the program registers
    #[arg(skip)]
    algorithms: Vec<&'static Registration>,
}

impl Args {
    fn file(&self) -> Result<&Path, Failure> {
        self.scenario.as_deref().ok_or_else(|| Failure::usage("no scenario; name its file, or give --arena"))
    }

    /// Returns a text that identifies the version of the program, the scenario with its files, and the flow list.
    fn fingerprint(&self) -> Result<String, Failure> {
        let read = |file: &Path| {
            let wrong = |error: std::io::Error| Failure::usage(format!("{}: {error}", file.display()));
            fs::read(file).map_err(wrong)
        };
        let name = self.file()?;
        let scenario = String::from_utf8_lossy(&read(name)?).into_owned();
        let others = scenario::files(&name.display().to_string(), &scenario);
        let files =
            [name].into_iter().chain(self.flows.as_deref()).chain(others.iter().map(PathBuf::as_path));
        let digest = |file: &Path| Ok(format!("{:016x}", parts::digest(&read(file)?)));
        let digests = files.map(digest).collect::<Result<Vec<_>, Failure>>()?;
        Ok(format!("{} {}", self.version(), digests.join(" ")))
    }

    /// Returns the version of the program, and the names of the registered algorithms.
    fn version(&self) -> String {
        let names = self.algorithms.iter().map(|algorithm| algorithm.name);
        [env!("CARGO_PKG_VERSION")].into_iter().chain(names).collect::<Vec<_>>().join("+")
    }
}

/// The command line of a program with registered algorithms.
#[derive(Debug, clap::Parser)]
#[command(version = env!("FERROCE_VERSION"))]
struct Standalone {
    #[command(flatten)]
    args: Args,
}

/// Runs `ferroce sim` with further algorithms, for the `main` of a program. A scenario selects one by its name, as `congestion =
/// "NAME,base_rtt=5us"`. `--arena` runs them beside those of Ferroce.
///
/// ```no_run
/// use cc::{CongestionController, Feedback, HpccConfig, Rate, Registration};
///
/// #[derive(Debug)]
/// struct Open(HpccConfig);
///
/// impl CongestionController for Open {
///     fn window(&self) -> u64 {
///         self.0.initial_window()
///     }
///     fn pacing_rate(&self) -> Option<Rate> {
///         Some(self.0.line_rate)
///     }
/// }
///
/// static OPEN: Registration = Registration {
///     name: "open",
///     feedback: Feedback::Delay,
///     flows: 1,
///     keys: &[],
///     build: |parameters| Box::new(Open(parameters.hpcc)),
/// };
///
/// fn main() -> std::process::ExitCode {
///     ferroce::sim::main(&[&OPEN])
/// }
/// ```
#[must_use]
pub fn main(algorithms: &[&'static Registration]) -> ExitCode {
    let args = match <Standalone as clap::Parser>::try_parse() {
        Ok(Standalone { args }) => Args { algorithms: algorithms.to_vec(), ..args },
        Err(refused) => return failure::usage(&refused),
    };
    let result = congestion::check_names(algorithms).map_err(Failure::usage).and_then(|()| run(&args));
    result.unwrap_or_else(|failure| failure.report())
}

/// Runs a scenario, a sweep, the arena or a shard, or merges shards.
///
/// # Errors
/// Returns a failure if a scenario cannot be read or run, or results cannot be written.
pub(crate) fn run(args: &Args) -> Result<ExitCode, Failure> {
    if !args.merge.is_empty() {
        let part = Part::merge(&args.merge)?;
        return match part.kind {
            Kind::Sweep => sweep::merged(&part, args.out.as_deref()),
            Kind::Arena => arena::merged(&part, args.out.as_deref()),
        };
    }
    if args.arena {
        return arena::run(args);
    }
    let file = args.file()?;
    let name = file.display().to_string();
    let text = input::text(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let read = |seed: u64, vary: &[(String, String)]| {
        let (flows, algorithms) = (args.flows.as_deref(), &args.algorithms[..]);
        scenario::read(&name, &text, &Options { flows, seed, vary, captured: &args.pcap, algorithms })
    };
    if args.sweep.is_some() || !args.vary.is_empty() || args.shard.is_some() {
        return sweep::run(args, &read);
    }
    let scenario = read(args.seed, &[])?;
    for warning in &scenario.warnings {
        note!("warning: {warning}");
    }
    if args.check {
        return check(&name, &scenario).map(|()| ExitCode::SUCCESS);
    }
    run_once(args, &name, &scenario).map(|()| ExitCode::SUCCESS)
}

/// Runs a scenario once, and writes and prints its results.
fn run_once(args: &Args, name: &str, scenario: &Scenario) -> Result<(), Failure> {
    scenario.setup.check().map_err(|error| Failure::usage(error.to_string()))?;
    let folder = args.out.as_deref().map(output::Folder::open).transpose()?;
    let captures = Captures::begin(&args.pcap, Limits { snaplen: args.snaplen, file: args.pcap_limit })?;
    let (begin, before) = (Instant::now(), cpu(args.threads));
    let progress = Progress::new(scenario, args.follow, args.json);
    let mut observer = RunObserver { progress, captures };
    let outcome = simulate(scenario, args.threads.into(), &mut observer);
    observer.end()?;
    let outcome = outcome?;
    let wall = begin.elapsed();
    let cost = Cost { wall, cpu: cpu(args.threads).zip(before).map_or(wall, |(now, before)| now - before) };
    let rows = figures::by_size(scenario, &outcome);
    let compared = match &args.compare {
        Some(folder) => compare::compare(folder, scenario, &Ours::of(scenario, &outcome, &rows))?,
        None => Vec::new(),
    };
    if let (Some(files), Some(folder)) = (folder, &args.out) {
        files.write(scenario, &outcome, &rows, cost)?;
        report::write(folder, name, scenario, &outcome, &rows, &compared)?;
    }
    if args.json {
        let summary = output::summary(scenario, &outcome, &rows, cost);
        // With --follow, each object is one line, and the summary is the last.
        return if args.follow { outln!("{summary}") } else { outln!("{summary:#}") };
    }
    show(scenario, &outcome, cost)?;
    out!("{}", figures::table(&rows))?;
    if !compared.is_empty() {
        out!("{}", compare::table(&compared))?;
    }
    Ok(())
}

/// Prints the contents of a scenario without a run.
fn check(name: &str, scenario: &Scenario) -> Result<(), Failure> {
    let setup = &scenario.setup;
    setup.check().map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let late = setup.flows.iter().map(|flow| flow.start).max().filter(|start| *start >= setup.limit);
    if let Some(start) = late {
        let (start, limit) = (start.as_secs_f64(), setup.limit.as_secs_f64());
        note!(
            "warning: {name}: a flow begins after {start} s, and the run ends after {limit} s; raise limit"
        );
    }
    let bytes: u64 = setup.flows.iter().map(|flow| flow.bytes).fold(0, u64::saturating_add);
    outln!(
        "{name}: {} ({}), {}, {} of {bytes} bytes in all, {}",
        units::counted(setup.topology.hosts(), "host", "hosts"),
        kind(setup.hosts),
        units::counted(setup.topology.switches(), "switch", "switches"),
        units::counted(setup.flows.len(), "flow", "flows"),
        algorithm_names(setup)
    )
}

/// Runs a scenario on up to `threads` threads.
fn simulate(scenario: &Scenario, threads: usize, observer: &mut dyn Observer) -> Result<Outcome, Failure> {
    sim::run_on(threads, &scenario.setup, observer).map_err(|error| Failure::usage(error.to_string()))
}

/// The observers of a run: the display of its progress, and its captures.
struct RunObserver<'a> {
    progress: Progress<'a>,
    captures: Captures,
}

impl RunObserver<'_> {
    fn end(self) -> Result<(), Failure> {
        let shown = self.progress.end();
        self.captures.end().and(shown)
    }
}

impl Observer for RunObserver<'_> {
    fn state(&mut self, state: &RunState<'_>) -> ControlFlow<()> {
        self.progress.state(state)
    }

    fn frame(&mut self, frame: &PortFrame<'_>) -> ControlFlow<()> {
        self.captures.frame(frame)
    }
}

fn show(scenario: &Scenario, outcome: &Outcome, cost: Cost) -> Result<(), Failure> {
    let setup = &scenario.setup;
    let (hosts, switches) = (setup.topology.hosts(), setup.topology.switches());
    outln!(
        "{} ({}), {}, {} of {} flows ended, {}",
        units::counted(hosts, "host", "hosts"),
        kind(setup.hosts),
        units::counted(switches, "switch", "switches"),
        outcome.finished.len(),
        setup.flows.len(),
        algorithm_names(setup)
    )?;
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| outcome.queue_quantile(share));
    outln!(
        "  queues of all ports  p50 {p50} kB   p95 {p95} kB   p99 {p99} kB   max {} B",
        outcome.queue_max
    )?;
    if let Some(steady) = figures::steady(scenario, outcome) {
        let [mean, _, p99, _] = steady.queue;
        outln!(
            "  steady state         {:.2} Gb/s, Jain {:.4}, queue mean {mean:.0} B, p99 {p99:.0} B",
            steady.utilisation_gbps,
            steady.jain
        )?;
    }
    outln!(
        "  dropped {}   lost {}   retransmitted {}   marked {}   direct responses {}   pauses {} ({:.1} µs)",
        outcome.dropped,
        outcome.lost,
        outcome.retransmitted,
        outcome.marked,
        outcome.direct_responses,
        outcome.pauses,
        outcome.paused.as_nanos() as f64 / 1e3
    )?;
    outln!(
        "  virtual time         {:.3} ms, trace {:016x}",
        outcome.time.as_nanos() as f64 / 1e6,
        outcome.trace
    )?;
    for RuleReport { name, fitted, happened } in &outcome.faults {
        outln!("  fault {name:<14} {fitted} frames matched, {happened} affected")?;
    }
    let rate = |time: Duration| outcome.events as f64 / time.as_secs_f64() / 1e6;
    outln!(
        "  simulated in         {:.2} s, {} events, {:.2} M events/s ({:.2} M in a second of CPU time), {} packets",
        cost.wall.as_secs_f64(),
        outcome.events,
        rate(cost.wall),
        rate(cost.cpu),
        outcome.packets
    )?;
    outln!(
        "  memory               {} B a running flow, {} B a host, {} packets on their way at most",
        outcome.memory[0],
        outcome.memory[1],
        outcome.packets_most
    )
}

const fn kind(hosts: Hosts) -> &'static str {
    match hosts {
        Hosts::Endpoints => "endpoints",
        Hosts::Model => "model",
    }
}

/// The cost of a run: elapsed time, and CPU time, which other load on the machine does not increase.
#[derive(Clone, Copy, Debug)]
struct Cost {
    wall: Duration,
    cpu: Duration,
}

/// Returns the CPU time of this thread, or with several `threads` of the process, if the kernel reports it.
fn cpu(threads: u16) -> Option<Duration> {
    if threads == 1 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
        return text.split(' ').next()?.parse().ok().map(Duration::from_nanos);
    }
    // Fields 14 and 15 of proc(5), in hundredths of a second. The second field is a name in parentheses.
    let text = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields = text.rsplit_once(')')?.1.split(' ').skip(12).take(2);
    Some(Duration::from_millis(10 * fields.map(|ticks| ticks.parse().unwrap_or(0)).sum::<u64>()))
}
