//! Replaces the folder that help texts name with the one that contains the files of this installation: the book, scenarios, scripts.

use clap::Command;
use std::path::PathBuf;

/// The folder of the Debian package's files, which help texts and man pages name.
const PACKAGED: &str = "/usr/share/ferroce";

/// Returns `text` with the folder of this installation instead of the Debian package's.
pub fn with_paths(text: &str) -> String {
    match beside_the_program() {
        Some(folder) => text.replace(PACKAGED, &folder.to_string_lossy()),
        None => text.to_owned(),
    }
}

/// Returns `command` with the folder of this installation in its help texts, and in those of its subcommands.
pub fn help_with_paths(command: Command) -> Command {
    let Some(help) = command.get_after_help().map(|help| with_paths(&help.to_string())) else {
        return command.mut_subcommands(help_with_paths);
    };
    command.after_help(help).mut_subcommands(help_with_paths)
}

/// Returns `share/ferroce` beside the program's `bin`, as in the tarball, if it exists.
fn beside_the_program() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?.join("share/ferroce");
    folder.is_dir().then_some(folder)
}
