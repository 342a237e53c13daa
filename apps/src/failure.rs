//! Failures of a tool: one line with the problem and its remedy, and an exit code.

use anstyle::{AnsiColor, Style};
use clap::error::ErrorKind;
use std::fmt;
use std::process::ExitCode;

/// The reason why a tool ended, with its exit code.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    text: String,
}

impl Failure {
    /// Creates a failure of the run itself, with exit code 1.
    pub fn run(text: impl Into<String>) -> Self {
        Self { code: 1, text: text.into() }
    }

    /// Creates a failure of the command line or of a file in its arguments, with exit code 2.
    pub fn usage(text: impl Into<String>) -> Self {
        Self { code: 2, text: text.into() }
    }

    /// Creates the failure of a closed standard output. It prints nothing; its exit code is 141, as after SIGPIPE.
    pub fn unread() -> Self {
        Self { code: 141, text: String::new() }
    }

    /// Returns true if the failure is [`unread`](Self::unread).
    pub fn is_unread(&self) -> bool {
        self.code == 141
    }

    /// Creates the failure of a tool that a signal ended, with exit code 128 + `signal`, as shells report it. 0 counts as SIGINT.
    pub fn interrupted(signal: usize) -> Self {
        let text = match signal as i32 {
            signal_hook::consts::SIGTERM => "ended by SIGTERM",
            signal_hook::consts::SIGHUP => "ended by SIGHUP",
            _ => "interrupted",
        };
        let number = if signal == 0 { signal_hook::consts::SIGINT as usize } else { signal };
        Self { code: 128 + number as u8, text: text.into() }
    }

    /// Creates the failure to execute `program`, with the exit code of a shell: 127 if it does not exist, and otherwise 126.
    pub fn program(program: &str, error: &std::io::Error) -> Self {
        let (code, remedy) = match error.kind() {
            std::io::ErrorKind::NotFound => (127, "install it, or give its full path"),
            _ => (126, "name an executable program"),
        };
        Self { code, text: format!("{program}: {error}; {remedy}") }
    }

    /// Prints the failure as one line on standard error, and returns its exit code.
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

/// Prints clap's help or version unchanged, and an error as one line. Returns the exit code.
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

/// Joins clap's error, its tips and its pointer to `--help` into one line. Omits the usage, and tips to pass a flag as a value.
fn one_line(text: &str) -> String {
    // The usage ends with an empty line.
    let mut is_usage = false;
    let mut joined = String::new();
    for part in text.lines().map(str::trim) {
        is_usage = !part.is_empty() && (is_usage || part.starts_with("Usage:"));
        if is_usage || part.is_empty() || part.starts_with("tip: to pass ") {
            continue;
        }
        let part = part.strip_prefix("error: ").unwrap_or(part);
        // Three dots mark an argument that can be repeated.
        let part = if part.ends_with("...") { part } else { part.strip_suffix('.').unwrap_or(part) };
        joined += match joined.chars().last() {
            None => "",
            Some(':') => " ",
            Some(_) => "; ",
        };
        joined += &number(part);
    }
    joined
}

/// Replaces clap's message about a number by one with the limits and the remedy.
fn number(part: &str) -> String {
    if let Some(before) = part.strip_suffix("invalid digit found in string") {
        return format!("{before}not a whole number; write one such as 1");
    }
    if let Some(before) = part.strip_suffix("number too large to fit in target type") {
        return format!("{before}out of range; write a smaller number");
    }
    match part.split_once(" is not in ").and_then(|(before, range)| Some((before, range.split_once("..=")?)))
    {
        Some((before, (least, most))) => format!("{before}: out of range; use {least} to {most}"),
        None => part.to_owned(),
    }
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
        for (clap, ours) in [
            (
                "error: unexpected argument '-1' found\n\nUsage: ferroce switch --port <PORT>\n       ferroce switch <COMMAND>\n\nFor more information, try '--help'.\n",
                "unexpected argument '-1' found; For more information, try '--help'",
            ),
            (
                "error: invalid value 'x' for '--n <N>': invalid digit found in string\n",
                "invalid value 'x' for '--n <N>': not a whole number; write one such as 1",
            ),
            (
                "error: invalid value '0' for '--n <N>': 0 is not in 1..=16\n",
                "invalid value '0' for '--n <N>': 0: out of range; use 1 to 16",
            ),
            (
                "error: unexpected argument '-5' found\n\n  tip: to pass '-5' as a value, use '-- -5'\n",
                "unexpected argument '-5' found",
            ),
        ] {
            assert_eq!(one_line(clap), ours);
        }
        let text = "error: the following required arguments were not provided:\n  <PROGRAM>...\n\nUsage: ferroce run\n";
        assert_eq!(one_line(text), "the following required arguments were not provided: <PROGRAM>...");
    }
}
