//! `ferroce-bench`: measures Ferroce and compares it with the capabilities of the machine. `scripts/bench` runs it.
//!
//! Every figure is the ratio of two runs that alternate on one machine, with one core per side. Absolute figures of a shared machine vary
//! too much.
#![forbid(unsafe_code)]

mod cpu;
mod document;
mod dropin;
mod echo;
mod figure;
mod figures;
mod handover;
mod host;
mod instructions;
mod interface;
mod memory;
mod one_core;
mod ring;
mod scale;
mod show;
mod steps;
mod testpmd;
mod tool;
mod two_cores;

use clap::{Parser, Subcommand, ValueEnum};
use datapath::port_spec::PortSpec;
use figure::Outcome;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(name = "ferroce-bench", about = "What Ferroce reaches beside what the machine can do")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Measures figures and prints one table
    Run(RunArgs),
    /// Lists the figures
    List,
    /// Measures what each step of a packet costs: ns, and instructions beside their limit
    Steps(StepsArgs),
    /// The named steps once, for callgrind
    #[command(hide = true)]
    Count {
        #[arg(long)]
        only: Vec<String>,
    },
    /// Resident bytes of an idle queue pair
    #[command(hide = true)]
    Idle { count: u32 },
    /// Resident bytes of a queue pair that works
    #[command(hide = true)]
    Active { count: u32 },
    /// One run over a ring: messages or frames a second, or µs of half a round trip
    #[command(hide = true)]
    Ring {
        what: ring::Run,
        #[arg(long)]
        size: u32,
        #[arg(long, default_value_t = 4096)]
        mtu: u32,
    },
    /// Both ends on one core: ns of the processor a message
    #[command(hide = true)]
    OneCore { what: one_core::Traffic },
    /// One or two threads, each on a CPU of its own: messages in a second of each thread's time, summed
    #[command(hide = true)]
    TwoCores {
        what: two_cores::Work,
        #[arg(value_parser = clap::value_parser!(u8).range(1..=2))]
        threads: u8,
    },
    /// One side of a raw echo, the yardstick of latency
    #[command(hide = true)]
    Echo {
        #[arg(long)]
        port: PortSpec,
        #[arg(long)]
        length: usize,
        #[arg(long)]
        side: EchoSide,
    },
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum EchoSide {
    Server,
    Client,
}

#[derive(clap::Args)]
struct RunArgs {
    /// Only figures whose name contains this; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Pairs of runs for each figure, after one to warm up
    #[arg(long, value_name = "COUNT", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    repetitions: u32,
    /// Also write the figures here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the figures into the tables of this Markdown file
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
    /// The `ferroce` to measure
    #[arg(long, value_name = "FILE", default_value = "target/release/ferroce")]
    ferroce: PathBuf,
    /// The program that measures between two Soft-RoCE guests: scripts/lib/guests-measure, in the environment of scripts/bench
    #[arg(long, value_name = "PROGRAM")]
    guests: Option<PathBuf>,
    /// Network namespaces of the server and the client, joined by three veth pairs: `eth0` and `eth2` with an MTU of 4500, `eth1` of 1500
    #[arg(long, value_name = "SERVER,CLIENT", value_delimiter = ',')]
    namespaces: Vec<String>,
}

#[derive(clap::Args)]
struct StepsArgs {
    /// Only steps whose name contains this; may be given several times
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Only instructions; fails if a step takes more than it may
    #[arg(long)]
    check: bool,
    /// Also write the costs here
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Also write the costs into the table of this Markdown file
    #[arg(long, value_name = "FILE")]
    document: Option<PathBuf>,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::List => {
            show::list();
            Ok(ExitCode::SUCCESS)
        }
        Command::Steps(args) => steps(&args),
        Command::Count { only } => {
            instructions::count(&only);
            Ok(ExitCode::SUCCESS)
        }
        Command::Idle { count } => scale::idle_bytes(count).map(print_bytes),
        Command::Active { count } => scale::active_bytes(count).map(print_bytes),
        Command::OneCore { what } => one_core::run(what).map(|value| {
            println!("{value}");
            ExitCode::SUCCESS
        }),
        Command::TwoCores { what, threads } => two_cores::run(what, threads).map(|value| {
            println!("{value}");
            ExitCode::SUCCESS
        }),
        Command::Ring { what, size, mtu } => ring::run(what, size, mtu).map(|value| {
            println!("{value}");
            ExitCode::SUCCESS
        }),
        Command::Echo { port, length, side } => {
            echo::run(&port, length, side == EchoSide::Client).map(|()| ExitCode::SUCCESS)
        }
    };
    result.unwrap_or_else(|error| {
        eprintln!("ferroce-bench: {error}");
        ExitCode::FAILURE
    })
}

fn print_bytes(bytes: f64) -> ExitCode {
    println!("{bytes:.0}");
    ExitCode::SUCCESS
}

fn steps(args: &StepsArgs) -> Result<ExitCode, String> {
    show::steps_head(!args.check);
    let costs = instructions::measure(&args.only, !args.check, |cost| show::step(cost, !args.check))?;
    write_json(args.json.as_ref(), &costs)?;
    if let Some(file) = &args.document {
        document::update(file, "steps", &costs.iter().map(show::step_cells).collect::<Vec<_>>())?;
    }
    let over = costs.iter().filter(|cost| !cost.is_within()).count();
    if args.check && over > 0 {
        return Err(format!("{over} of {} steps take more instructions than they may", costs.len()));
    }
    Ok(ExitCode::SUCCESS)
}

fn write_json(file: Option<&PathBuf>, what: &impl serde::Serialize) -> Result<(), String> {
    let Some(file) = file else { return Ok(()) };
    let text = serde_json::to_string_pretty(what).map_err(|error| error.to_string())?;
    std::fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
}

/// Measures the figures. The exit code is 1 if one could not be measured; the table reports missed goals.
fn run(args: &RunArgs) -> Result<ExitCode, String> {
    let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
    let place = figures::Place {
        ferroce: std::path::absolute(&args.ferroce).map_err(|error| error.to_string())?,
        memif: host::Link::Memif(folder.path().into()),
        virtio: host::Link::Virtio(folder.path().into()),
        af_packet: match args.namespaces.as_slice() {
            [server, client] => Some(host::Veth::af_packet(server, client)),
            _ => None,
        },
        guests: args.guests.clone(),
    };
    let chosen =
        |name: &str| args.only.is_empty() || args.only.iter().any(|part| name.contains(part.as_str()));
    let figures: Vec<_> = figures::all(&place).into_iter().filter(|figure| chosen(&figure.name)).collect();
    if figures.is_empty() {
        return Err(format!(
            "no figure is called {}: `ferroce-bench list` has their names",
            args.only.join(" or ")
        ));
    }
    let (mut outcomes, mut failed): (Vec<Outcome>, bool) = (Vec::new(), false);
    show::head();
    for figure in figures {
        let name = figure.name.clone();
        match figure.measure(args.repetitions, || show::tick(&name)) {
            Ok(outcome) => {
                show::row(&outcome);
                outcomes.push(outcome);
            }
            Err(error) => {
                show::failure(&name, &error);
                failed = true;
            }
        }
    }
    show::foot(&outcomes);
    write_json(args.json.as_ref(), &outcomes)?;
    if let Some(file) = &args.document {
        document::update(file, "figures", &outcomes.iter().map(show::row_cells).collect::<Vec<_>>())?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}
