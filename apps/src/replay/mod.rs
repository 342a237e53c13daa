//! `ferroce replay`: runs HPCC++ on recorded traces and compares its state after each acknowledgement.

mod assume;
mod report;
mod trace;

use crate::failure::Failure;
use crate::units;
use assume::Assumed;
use cc::{Ack, CongestionController, Hpcc, Instant};
use report::Report;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use trace::{Flow, Row, Trace};

const MAX_FLOWS: usize = 1 << 16;

/// The command line of `ferroce replay`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "A parameter that is not given is taken from the file's name if that contains it (..._ms0..., \
    p_parkinglot...), else from the settings of the reference runs. The report lists each assumption with its reason. \
    Exit code: 0 all states of all files equal, 1 a mismatch, 2 a file or parameter that can't be used."
)]
pub struct Args {
    /// Traces: CSV or gzip-compressed CSV, one row per acknowledgement
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Additive increases before a multiplicative one (maxStage)
    #[arg(long, value_name = "N")]
    max_stage: Option<u32>,
    /// Round trip of the idle path, such as 4160ns or 5us (T)
    #[arg(long, value_name = "TIME", value_parser = units::duration)]
    base_rtt: Option<Duration>,
    /// Rate of the senders' links, such as 100G
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    line_rate: Option<cc::Rate>,
    /// Additive increase, such as 50M (W_ai / T)
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    ai: Option<cc::Rate>,
    /// Lowest rate, such as 100M
    #[arg(long, value_name = "RATE", value_parser = units::rate)]
    min_rate: Option<cc::Rate>,
    /// Target utilisation, above 0 and at most 1
    #[arg(long, value_name = "SHARE")]
    eta: Option<f64>,
    /// Multiple of 128 B for one count of sent bytes, and of 80 B for one count of queue length
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    unit: Option<u32>,
    /// Print each file's report as JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// Replays the files. The exit code is 0 if every state is equal, and otherwise 1.
///
/// # Errors
/// Returns a failure if HPCC++ rejects the parameters, or if a file cannot be read or parsed.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut equal = true;
    for file in &args.files {
        let report = replay(args, file)?;
        if args.json {
            report.print_json()?;
        } else {
            report.print()?;
        }
        equal &= report.equal();
    }
    Ok(if equal { ExitCode::SUCCESS } else { ExitCode::from(1) })
}

fn replay(args: &Args, file: &Path) -> Result<Report, Failure> {
    let assumed = Assumed::new(args, file);
    let refused = |problem: String| Failure::usage(format!("{}: {problem}", file.display()));
    let fresh = Hpcc::new(assumed.config()).map_err(|error| Failure::usage(error.to_string()))?;
    let mut trace = Trace::open(file, assumed.unit()).map_err(refused)?;

    let mut flows: HashMap<Flow, Hpcc> = HashMap::new();
    let mut report = Report::new(file.display().to_string(), &assumed);
    while let Some(row) = trace.next_row().map_err(refused)? {
        if flows.len() == MAX_FLOWS && !flows.contains_key(&row.flow) {
            return Err(refused(format!("line {}: more than {MAX_FLOWS} flows", row.line)));
        }
        let hpcc = flows.entry(row.flow).or_insert(fresh);
        react(hpcc, &row);
        report.compare(&row, hpcc);
    }
    if report.rows() == 0 {
        return Err(refused("no rows follow the header; record a trace with acknowledgements".into()));
    }
    report.finish(flows.len());
    Ok(report)
}

fn react(hpcc: &mut Hpcc, row: &Row) {
    let ack = Ack {
        now: Instant::from_nanos(row.time),
        seq: row.ack_seq,
        next: row.next_seq,
        acked_bytes: 0,
        ce_bytes: 0,
        rtt: None,
    };
    hpcc.on_telemetry(&ack, &row.telemetry);
}
