//! `ferroce manual`: writes the man pages and the reference pages from the code. Packages call it; `--help` does not show it.

mod commands;
mod counters;
mod files;
mod scenarios;

use crate::cli::Cli;
use crate::failure::Failure;
use clap::CommandFactory;
use clap_mangen::roff::{Roff, roman};
use std::path::PathBuf;
use std::process::ExitCode;

/// The command line of `ferroce manual`.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The folder that the pages are written to; it must exist
    folder: PathBuf,
}

/// Writes every page.
///
/// # Errors
/// Returns a failure if a page cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let command = Cli::command();
    let mut pages = commands::pages(&command);
    pages.push(("ferroce.toml.5".into(), files::toml()));
    pages.push(("ferroce.h.3".into(), files::header()));
    pages.push(("ferroce-toml.md".into(), files::reference()));
    pages.push(("commands.md".into(), commands::reference(&command)));
    pages.push(("counters.md".into(), counters::reference()));
    pages.push(("scenarios.md".into(), scenarios::reference()));
    for (name, text) in pages {
        let path = args.folder.join(name);
        std::fs::write(&path, text).map_err(|error| {
            Failure::run(format!("{}: {error}; name a folder that exists", path.display()))
        })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Appends `lines` unchanged, without filling.
fn as_is(roff: &mut Roff, lines: &str) {
    roff.control("sp", []);
    roff.control("RS", ["4"]);
    roff.control("nf", []);
    roff.text(vec![roman(lines.trim_end())]);
    roff.control("fi", []);
    roff.control("RE", []);
}
