//! `ferroce guard`: the process that informs the peers of a program under `ferroce run` when the program has ended in any way. The library
//! starts it with the program's first connection (`datapath/src/siblings/guard.rs`).

use crate::failure::Failure;
use datapath::engine;
use datapath::siblings::guard;
use std::ffi::OsString;
use std::process::ExitCode;

/// Waits for the end of the program, and informs its peers.
///
/// # Errors
/// Returns a failure if no program has started this process, or the peers cannot be reached.
pub fn run() -> Result<ExitCode, Failure> {
    let failed = |error| Failure::run(format!("guard: {error}; use `ferroce run`, whose programs start it"));
    engine::guard().map(|()| ExitCode::SUCCESS).map_err(failed)
}

/// The environment variable from which the library reads the path of this executable.
pub const VARIABLE: &str = guard::PROGRAM;

/// Returns the variable in which the library finds this executable.
pub fn setting() -> Option<(&'static str, OsString)> {
    Some((VARIABLE, std::env::current_exe().ok()?.into()))
}
