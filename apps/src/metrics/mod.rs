//! `ferroce metrics`: the counters of running processes as OpenMetrics, printed once or served over HTTP, and as files of sysfs.

mod serve;
mod sysfs;
mod text;

use crate::failure::Failure;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use verbs::observe::{self, ProcessStatus};

/// The command line of `ferroce metrics`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Serve http://ADDRESS/metrics until a signal arrives, for example on 127.0.0.1:9464 [default: print once]
    #[arg(long, value_name = "ADDRESS", value_parser = address)]
    pub listen: Option<SocketAddr>,
    /// Write the counters as files of sysfs below FOLDER every second, until a signal arrives, for `node_exporter --path.sysfs FOLDER`
    #[arg(long, value_name = "FOLDER", conflicts_with = "listen")]
    pub sysfs: Option<PathBuf>,
}

fn address(text: &str) -> Result<SocketAddr, String> {
    text.parse().map_err(|_| "no address with a port; write one such as 127.0.0.1:9464".to_owned())
}

/// Prints the metrics, or serves or writes them until a signal arrives.
///
/// # Errors
/// Returns a failure if the address cannot be bound, or the folder or standard output cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match (args.listen, &args.sysfs) {
        (None, None) => out!("{}", collect())?,
        (Some(address), _) => serve::run(address)?,
        (None, Some(folder)) => sysfs::run(folder)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the metrics of all processes that can be observed. Prints an error for each other process.
fn collect() -> String {
    let (processes, errors) = read_all();
    errors.iter().for_each(|error| note!("{error}"));
    text::exposition(&processes)
}

/// Returns the reports of all processes that can be observed, and the errors of the others.
fn read_all() -> (Vec<ProcessStatus>, Vec<String>) {
    let (mut processes, mut errors) = (Vec::new(), Vec::new());
    for read in observe::read_all() {
        match read {
            Ok(process) => processes.push(process),
            Err(error) => errors.push(error.to_string()),
        }
    }
    (processes, errors)
}
