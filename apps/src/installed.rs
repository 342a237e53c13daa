//! Replaces the folder that help texts name with the one that contains the files of this installation: the book, scenarios, scripts.

use clap::Command;

/// The folder of the Debian package's files, which help texts and man pages name.
const PACKAGED: &str = "/usr/share/ferroce";

/// Returns `text` with the folder of this installation instead of the Debian package's.
pub fn with_paths(text: &str) -> String {
    beside_the_program().map_or_else(|| text.to_owned(), |folder| text.replace(PACKAGED, &folder))
}

/// Returns `command` with the folder of this installation in its help texts, and in those of its subcommands.
pub fn help_with_paths(command: Command) -> Command {
    match beside_the_program() {
        Some(folder) => help_in(command, &folder),
        None => command,
    }
}

fn help_in(command: Command, folder: &str) -> Command {
    let help = command.get_after_help().map(|help| help.to_string().replace(PACKAGED, folder));
    let command = command.mut_subcommands(|command| help_in(command, folder));
    if let Some(help) = help { command.after_help(help) } else { command }
}

/// Returns `share/ferroce` beside the program's `bin`, as in the tarball, if it exists.
fn beside_the_program() -> Option<String> {
    let program = std::env::current_exe().ok()?;
    let folder = program.parent()?.parent()?.join("share/ferroce");
    folder.is_dir().then(|| folder.to_string_lossy().into_owned())
}
