//! Failures of a tool: one line that names the thing and the remedy, and an exit code.

use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use std::fmt;
use std::process::ExitCode;

/// Why a tool stopped.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// The input was good, the run was not. Exit code 1.
    pub fn run(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }

    /// The command line or a file given on it was not understood. Exit code 2.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { code: 2, text: text.into() }
    }

    /// The reader of standard output is gone. Exits with 141, as SIGPIPE would leave, and prints nothing.
    pub fn unread() -> Self {
        Self { code: 141, text: String::new() }
    }

    /// Returns true if this is [`unread`](Self::unread).
    pub fn is_unread(&self) -> bool {
        self.code == 141
    }

    /// A signal ended the run. Exit code 128 and its number, as a shell has it: 130, 143 or 129.
    pub fn interrupted(signal: usize) -> Self {
        let text = match signal as i32 {
            signal_hook::consts::SIGTERM => "ended by SIGTERM",
            signal_hook::consts::SIGHUP => "ended by SIGHUP",
            _ => "interrupted",
        };
        let number = if signal == 0 { signal_hook::consts::SIGINT as usize } else { signal };
        Self { code: 128 + number as u8, text: text.into() }
    }

    /// A program that was to be run is not there, or is no program. Exit code 127 or 126, as a shell has it.
    pub fn program(program: &str, error: &std::io::Error) -> Self {
        let (code, remedy) = match error.kind() {
            std::io::ErrorKind::NotFound => (127, "install it, or give its full path"),
            _ => (126, "name an executable program"),
        };
        Self { code, text: format!("{program}: {error}; {remedy}") }
    }

    /// Prints the one line and returns the exit code.
    pub fn report(&self) -> ExitCode {
        if self.text.is_empty() {
            return ExitCode::from(self.code);
        }
        let red = Style::new().bold().fg_color(Some(AnsiColor::Red.into()));
        let line = self.text.lines().map(str::trim).collect::<Vec<_>>().join("; ");
        note!("{red}error:{red:#} {line}");
        ExitCode::from(self.code)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Prints what clap has to say: help and version as they are, an error as one line.
pub fn usage(refused: &clap::Error) -> ExitCode {
    match refused.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => {
            let printed = out!("{}", refused.render().ansi());
            printed.map_or_else(|failure| failure.report(), |()| ExitCode::SUCCESS)
        }
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            crate::output::note(format_args!("{}", refused.render().ansi()));
            ExitCode::from(2)
        }
        _ => Failure::usage(one_line(&refused.to_string())).report(),
    }
}

/// clap's paragraphs joined: the error, its tips, and the pointer to `--help`; the usage is left to `--help`.
fn one_line(text: &str) -> String {
    let parts = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("Usage:"));
    let mut joined = String::new();
    for part in parts {
        let part = part.strip_prefix("error: ").unwrap_or(part);
        // Three dots mean that an argument may be repeated.
        let part = if part.ends_with("...") { part } else { part.strip_suffix('.').unwrap_or(part) };
        joined += match joined.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) => "; ",
        };
        joined += part;
    }
    joined
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_clap_becomes_one_line() {
        let text = "error: unexpected argument '--frob' found\n\n  tip: did you mean '--from'?\n\nUsage: ferroce x\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(text),
            "unexpected argument '--frob' found; tip: did you mean '--from'?; For more information, try '--help'"
        );
        let text = "error: the following required arguments were not provided:\n  <PROGRAM>...\n\nUsage: ferroce run\n";
        assert_eq!(one_line(text), "the following required arguments were not provided: <PROGRAM>...");
    }
}
