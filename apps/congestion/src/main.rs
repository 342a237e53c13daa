//! Reads what one run of `ci/congestion` has recorded, draws it, prints its line of the table, and says whether what was
//! promised was kept.
#![forbid(unsafe_code)]

mod plot;
mod run;
mod verdict;

use clap::Parser;
use run::Run;
use std::error::Error;
use std::path::PathBuf;
use std::process::ExitCode;
use verdict::Bounds;

/// One run: two files in, a picture and a line out. Ends with 1 where a promise was broken.
#[derive(Debug, Parser)]
#[command(name = "ferroce-congestion")]
struct Args {
    /// What to call the run; its files are FOLDER/NAME-switch.csv and FOLDER/NAME-flows.csv, the picture FOLDER/NAME.svg
    name: String,
    /// Where they lie
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
    /// Hold the run to what HPCC++ promises
    #[arg(long)]
    check: bool,
    /// Within what time a join or a leave must have settled, in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 250)]
    settle: u32,
}

fn main() -> ExitCode {
    let args = Args::parse();
    match judge(&args) {
        Ok(broken) if broken.is_empty() => ExitCode::SUCCESS,
        Ok(broken) => {
            for promise in broken {
                eprintln!("{}: {promise}", args.name);
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("{}: {error}", args.name);
            ExitCode::from(2)
        }
    }
}

fn judge(args: &Args) -> Result<Vec<String>, Box<dyn Error>> {
    let run = Run::read(&args.out, &args.name, &args.port)?;
    let bounds = Bounds { packet: args.packet, settle: f64::from(args.settle) / 1000.0 };
    let phases = verdict::phases(&run, &bounds);
    println!("{}", verdict::line(&args.name, &phases, &bounds));
    std::fs::write(args.out.join(format!("{}.svg", args.name)), plot::svg(&run, args.rate, args.packet))?;
    Ok(if args.check { verdict::broken(&phases, &bounds) } else { Vec::new() })
}
