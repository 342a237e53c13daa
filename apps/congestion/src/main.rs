//! Reads the records of one run of `ci/congestion`, draws them, prints the run's line of the table, and reports whether what was promised
//! was kept.
#![forbid(unsafe_code)]

mod kept;
mod load;
mod plot;
mod run;
mod verdict;
mod watch;

use clap::{Parser, Subcommand};
use run::Run;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use verdict::{Bounds, Verdict};

/// Judges runs, and watches the machine while they last.
#[derive(Debug, Parser)]
#[command(name = "ferroce-congestion")]
struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    /// One run: three files in, a picture and a line out. Ends with 1 if a promise was broken, and with 3 if the machine paused too often
    /// to judge
    Judge(Judge),
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
    /// Hold the run to what HPCC++ promises. What earlier runs of this name came to, by FOLDER/NAME-kept.csv, counts: phases that
    /// kept them need not be judged again, and what the machine left of the others adds up
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

/// The machine paused too often.
const UNJUDGED: u8 = 3;

fn main() -> ExitCode {
    let told = match Args::parse().what {
        What::Judge(args) => judge(&args),
        What::Watch { out, processes } => watch::watch(&out, &processes).map(|()| ExitCode::SUCCESS),
    };
    told.unwrap_or_else(|error| {
        eprintln!("{error}");
        ExitCode::from(2)
    })
}

fn judge(args: &Judge) -> Result<ExitCode, Box<dyn Error>> {
    let run = Run::read(&args.out, &args.name, &args.port)?;
    let bounds = Bounds {
        packet: args.packet,
        settle: f64::from(args.settle) / 1e3,
        pause: f64::from(args.pause) / 1e6,
        round_trip: f64::from(args.base_rtt) / 1e3,
    };
    let phases = verdict::phases(&run, &bounds);
    std::fs::write(args.out.join(format!("{}.svg", args.name)), plot::svg(&run, args.rate, args.packet))?;
    if !args.check {
        println!("{}", verdict::line(&args.name, &phases, &bounds));
        return Ok(ExitCode::SUCCESS);
    }
    let file = args.out.join(format!("{}-kept.csv", args.name));
    let kept = verdict::keep(phases, &kept::read(&file)?, &bounds);
    kept::write(&file, &kept)?;
    println!("{}", verdict::line(&args.name, &kept, &bounds));
    Ok(match verdict::verdict(&run, &kept, &bounds) {
        Verdict::Kept => ExitCode::SUCCESS,
        Verdict::Broken(promises) => {
            for promise in promises {
                eprintln!("{}: {promise}", args.name);
            }
            ExitCode::FAILURE
        }
        Verdict::Unjudged(why) => {
            eprintln!("{}: {why}", args.name);
            ExitCode::from(UNJUDGED)
        }
    })
}
