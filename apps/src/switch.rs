//! `ferroce switch`.

use crate::failure::Failure;
use std::process::ExitCode;

/// The command line of `ferroce switch`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the tool.
///
/// # Errors
/// None yet.
pub fn run(_args: &Args) -> Result<ExitCode, Failure> {
    Err(Failure::run("`ferroce switch` is not built yet"))
}
