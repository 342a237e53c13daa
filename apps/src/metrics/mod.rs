//! `ferroce metrics`: the counters of running processes as OpenMetrics, printed once or served over HTTP.

mod serve;
mod text;

use crate::failure::Failure;
use std::net::SocketAddr;
use std::process::ExitCode;
use verbs::observe;

/// The command line of `ferroce metrics`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Serve http://ADDRESS/metrics until a signal arrives, for example on 127.0.0.1:9464 [default: print once]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub listen: Option<SocketAddr>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "no address with a port; write one such as 127.0.0.1:9464".to_owned())
}

/// Prints the metrics, or serves them until a signal arrives.
///
/// # Errors
/// Returns a failure if the address cannot be bound, or standard output cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match args.listen {
        None => out!("{}", collect())?,
        Some(address) => serve::run(address)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the metrics of all processes that can be observed. Prints an error for each other process.
fn collect() -> String {
    let mut processes = Vec::new();
    for read in observe::read_all() {
        match read {
            Ok(process) => processes.push(process),
            Err(error) => note!("{error}"),
        }
    }
    text::exposition(&processes)
}
