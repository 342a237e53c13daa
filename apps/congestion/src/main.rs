//! Judges the runs of `ci/congestion`: plots them, prints the rows of the table, and counts the phases in which HPCC++ kept its promises.
#![forbid(unsafe_code)]

mod load;
mod plot;
mod run;
mod tally;
mod verdict;
mod watch;

use clap::{Parser, Subcommand};
use run::Run;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tally::Tally;
use verdict::{Bounds, Verdict};

const TALLY: &str = "tally.csv";

/// Judges runs, and watches the machine while they last.
#[derive(Debug, Parser)]
#[command(name = "ferroce-congestion")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One run: three files in, a picture and a line out
    Judge(Judge),
    /// Counts the phases of all runs that were judged. Ends with 1 if fewer than nine in ten kept what was promised, or the machine left
    /// fewer than three in four to judge
    Tally {
        /// The folder of the runs
        #[arg(long, value_name = "FOLDER")]
        out: PathBuf,
    },
    /// Writes how long the threads of processes wait for a processor, and how late timers are, until the first one ends
    Watch {
        /// The file to write
        #[arg(long, value_name = "FILE")]
        out: PathBuf,
        /// Their numbers
        #[arg(required = true, value_name = "PID")]
        processes: Vec<u32>,
    },
}

#[derive(Debug, clap::Args)]
struct Judge {
    /// The run's name; its files are FOLDER/NAME-{switch,flows,watch}.csv, the picture FOLDER/NAME.svg
    name: String,
    /// The folder of the files
    #[arg(long, value_name = "FOLDER")]
    out: PathBuf,
    /// The switch's bottleneck
    #[arg(long, value_name = "PORT")]
    port: String,
    /// Its rate in Mb/s
    #[arg(long, value_name = "MBPS")]
    rate: f64,
    /// Bytes of a full frame
    #[arg(long, value_name = "BYTES")]
    packet: u64,
    /// Hold each phase to what HPCC++ promises, and add it to FOLDER/tally.csv
    #[arg(long)]
    check: bool,
    /// Within what time a join or a leave must have settled, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250)]
    settle: u32,
    /// A longer pause of the machine is left out, with what it did, in microseconds
    #[arg(long, value_name = "US", default_value_t = 500)]
    pause: u32,
    /// T of the flows, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 8)]
    base_rtt: u32,
}

fn main() -> ExitCode {
    let told = match Args::parse().what {
        What::Judge(args) => judge(&args).map(|()| ExitCode::SUCCESS),
        What::Tally { out } => tally(&out),
        What::Watch { out, processes } => watch::watch(&out, &processes).map(|()| ExitCode::SUCCESS),
    };
    told.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

fn judge(args: &Judge) -> Result<(), Box<dyn Error>> {
    let run = Run::read(&args.out, &args.name, &args.port)?;
    let bounds = Bounds {
        packet: args.packet,
        settle: f64::from(args.settle) / 1e3,
        pause: f64::from(args.pause) / 1e6,
        round_trip: f64::from(args.base_rtt) / 1e3,
    };
    let phases = verdict::phases(&run, &bounds);
    std::fs::write(args.out.join(format!("{}.svg", args.name)), plot::svg(&run, args.rate, args.packet))?;
    println!("{}", verdict::line(&args.name, &phases, &bounds));
    if args.check {
        let verdicts = verdict::verdicts(&run, &phases, &bounds);
        for verdict in &verdicts {
            match verdict {
                Verdict::Kept => {}
                Verdict::Broken(promises) => eprintln!("{}: {}", args.name, promises.join("; ")),
                Verdict::Unjudged(reason) => eprintln!("{}: {reason}", args.name),
            }
        }
        Tally::of(&verdicts).add_to(&args.out.join(TALLY))?;
    }
    Ok(())
}

fn tally(folder: &Path) -> Result<ExitCode, Box<dyn Error>> {
    let tally = Tally::read(&folder.join(TALLY))?;
    println!("{tally}");
    Ok(if tally.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
