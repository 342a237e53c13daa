//! The program `ferroce` as a library: parses the command line, starts the log and runs the subcommand.
//!
//! [`sim::main`] is for programs that add congestion control of their own to the simulator.
#![forbid(unsafe_code)]

#[macro_use]
mod output;

mod capture;
mod cdi;
mod cli;
mod clients;
mod completion;
mod config;
mod counters;
mod doctor;
mod failure;
mod fault;
mod info;
mod input;
mod installed;
mod manual;
mod metrics;
mod pcap;
mod perf;
mod port;
mod replay;
mod run;
mod signals;
pub mod sim;
mod soak;
mod switch;
mod tcp;
mod top;
mod units;
mod why;

use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Command};
use failure::Failure;
use perf::{Kind, Tool, Verb};
use std::process::ExitCode;

/// Runs the program `ferroce`.
#[must_use]
pub fn main() -> ExitCode {
    // This also applies to a program with file capabilities. Its caller can select by flags everything that the variables select, and
    // `ferroce run` passes the capabilities to any program (docs/guide/ports.md).
    datapath::environment::obey_caller();
    completion::answer(Cli::command);
    let mut command = installed::help_with_paths(Cli::command());
    let parsed = command.try_get_matches_from_mut(std::env::args_os());
    let cli = match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => cli,
        Err(refused) => return failure::usage(&refused.format(&mut command)),
    };
    verbs::start_log("warn");
    match dispatch(cli.command) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn dispatch(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Capture(args) => capture::run(&args),
        Command::Pcap(args) => pcap::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Sim(args) => sim::run(&args),
        Command::Soak(args) => soak::run(&args),
        Command::Switch(args) => switch::run(&args),
        Command::Tcp(args) => tcp::run(&args),
        Command::Completions { shell } => completion::script(shell).map(|()| ExitCode::SUCCESS),
        Command::Guard => run::guard::run(),
        Command::Manual(args) => manual::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Env(args) => run::environment::run(&args),
        Command::Cdi(args) => cdi::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Info(args) => info::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Metrics(args) => metrics::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Why(args) => why::run(&args),
        Command::Fault(args) => fault::run(&args),
        Command::WriteBw(args) => perf::run(tool(Verb::Write, Kind::Bandwidth), &args),
        Command::WriteLat(args) => perf::run(tool(Verb::Write, Kind::Latency), &args),
        Command::SendBw(args) => perf::run(tool(Verb::Send, Kind::Bandwidth), &args),
        Command::SendLat(args) => perf::run(tool(Verb::Send, Kind::Latency), &args),
        Command::ReadBw(args) => perf::run(tool(Verb::Read, Kind::Bandwidth), &args),
        Command::ReadLat(args) => perf::run(tool(Verb::Read, Kind::Latency), &args),
        Command::AtomicBw(args) => perf::run(tool(Verb::Atomic, Kind::Bandwidth), &args),
        Command::AtomicLat(args) => perf::run(tool(Verb::Atomic, Kind::Latency), &args),
    }
}

fn tool(verb: Verb, kind: Kind) -> Tool {
    Tool { verb, kind }
}
