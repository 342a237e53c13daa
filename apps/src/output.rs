//! Writes for the tools: standard output, notes on standard error, and files that are filled when a run ends.
//!
//! All tools write through this module. A reader that has gone away ends a tool in silence with exit code 141, as SIGPIPE would; a full
//! disk is an error. Standard error is never waited for or missed.

use crate::failure::Failure;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Prints to standard output.
macro_rules! out {
    ($($part:tt)*) => { $crate::output::print(format_args!($($part)*)) };
}

/// Prints a line to standard output.
macro_rules! outln {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error.
macro_rules! note {
    ($($part:tt)*) => { $crate::output::note(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints to standard output, without colours if that is not a terminal.
///
/// # Errors
/// Returns [`failed`]'s error if not all was written.
pub fn print(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).map_err(|error| failed(&error))
}

/// Prints to standard error. A tool does not fail because its notes can't be written.
pub fn note(text: fmt::Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}

/// The failure that an error of standard output is.
pub fn failed(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::run(format!("standard output: {error}; what was printed is incomplete")),
    }
}

/// A file that is written when a run ends. It is opened before the run, so that a place that takes no file ends the tool at once;
/// until the run ends, the file keeps what was in it.
#[derive(Debug)]
pub struct OutFile {
    path: PathBuf,
    file: File,
}

impl OutFile {
    /// Opens the file, or creates it.
    ///
    /// # Errors
    /// Returns a failure that names the file if it can't be opened for writing.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| unwritten(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// Returns a failure that names the file if it can't be written, as on a full disk.
    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|found| found.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|error| unwritten(&self.path, &error))
    }
}

/// The failure of a file that can't be written.
pub fn unwritten(path: &Path, error: &dyn fmt::Display) -> Failure {
    Failure::run(format!("{}: {error}; choose a path that can be written", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_replaced_when_the_run_ends() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, "a long text from before").unwrap();
        let file = OutFile::open(&path).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a long text from before");
        file.write("new").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn what_can_not_be_written_is_named() {
        let error = OutFile::open(Path::new("/nowhere/out")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/out"), "{error}");
        let error = OutFile::open(Path::new("/dev/full")).unwrap().write("text").unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
