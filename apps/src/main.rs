//! `ferroce`: the tools.
#![forbid(unsafe_code)]

mod cli;
mod failure;
mod pcap;
mod replay;
mod switch;
mod units;

use clap::Parser;
use cli::{Cli, Command};
use failure::Failure;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(refused) => return failure::usage(&refused),
    };
    cli::start_log();
    match run(cli.command) {
        Ok(code) => code,
        Err(failure) => failure.report(),
    }
}

fn run(command: Command) -> Result<ExitCode, Failure> {
    match command {
        Command::Pcap(args) => pcap::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Switch(args) => switch::run(&args),
        Command::Completions { shell } => {
            cli::completions(shell);
            Ok(ExitCode::SUCCESS)
        }
        Command::WriteBw
        | Command::WriteLat
        | Command::SendBw
        | Command::SendLat
        | Command::ReadBw
        | Command::ReadLat
        | Command::AtomicBw
        | Command::AtomicLat
        | Command::Info
        | Command::Doctor => Err(Failure::run("this tool is not built yet")),
    }
}
