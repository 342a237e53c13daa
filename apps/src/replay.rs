//! `ferroce replay`.

use crate::failure::Failure;
use std::process::ExitCode;

/// The command line of `ferroce replay`.
#[derive(Debug, clap::Args)]
pub struct Args {}

/// Runs the tool.
///
/// # Errors
/// None yet.
pub fn run(_args: &Args) -> Result<ExitCode, Failure> {
    Err(Failure::run("`ferroce replay` is not built yet"))
}
