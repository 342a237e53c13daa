//! Output of all tools: standard output, notes on standard error, and files that are written at the end of a run.
//!
//! If the reader of standard output has exited, the tool ends silently with exit code 141, as after SIGPIPE. A full disk is an error.
//! Errors of standard error are ignored.

use crate::failure::Failure;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

/// Prints to standard output. Returns a failure if that is not possible.
macro_rules! out {
    ($($part:tt)*) => { $crate::output::print(format_args!($($part)*)) };
}

/// Prints a line to standard output. Returns a failure if that is not possible.
macro_rules! outln {
    ($($part:tt)*) => { $crate::output::print(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints a line to standard error, and ignores errors.
macro_rules! note {
    ($($part:tt)*) => { $crate::output::note(format_args!("{}\n", format_args!($($part)*))) };
}

/// Prints to standard output, without colours unless it is a terminal.
///
/// # Errors
/// Returns the failure of [`failed`] if the text cannot be written.
pub fn print(text: fmt::Arguments<'_>) -> Result<(), Failure> {
    let mut out = anstream::stdout().lock();
    out.write_fmt(text).and_then(|()| out.flush()).map_err(|error| failed(&error))
}

/// Prints to standard error, and ignores errors.
pub fn note(text: fmt::Arguments<'_>) {
    let _ = anstream::stderr().lock().write_fmt(text);
}

/// Converts an error of standard output to a failure: [`Failure::unread`] for a broken pipe.
pub fn failed(error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::BrokenPipe => Failure::unread(),
        _ => Failure::run(format!("standard output cannot be written: {error}; the output is incomplete")),
    }
}

/// A file that is written at the end of a run. It is opened before the run, so that a path that cannot be written ends the tool at once.
/// Its old content remains until [`write`](Self::write).
#[derive(Debug)]
pub struct OutFile {
    path: PathBuf,
    file: File,
}

impl OutFile {
    /// Opens or creates the file.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be opened for writing.
    pub fn open(path: &Path) -> Result<Self, Failure> {
        let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| unwritten(path, &error))?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// Replaces the content.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be written, for example on a full disk.
    pub fn write(mut self, text: &str) -> Result<(), Failure> {
        let is_file = self.file.metadata().is_ok_and(|found| found.is_file());
        let emptied = if is_file { self.file.set_len(0) } else { Ok(()) };
        emptied
            .and_then(|()| self.file.write_all(text.as_bytes()))
            .map_err(|error| unwritten(&self.path, &error))
    }
}

/// Creates the failure of a file that cannot be written.
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
    fn a_file_that_cannot_be_written_is_named() {
        let error = OutFile::open(Path::new("/nowhere/out")).unwrap_err().to_string();
        assert!(error.contains("/nowhere/out"), "{error}");
        let error = OutFile::open(Path::new("/dev/full")).unwrap().write("text").unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
