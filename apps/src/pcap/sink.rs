//! The output of a capture: a file, or standard output. A file always ends after a complete block.

use crate::failure::Failure;
use crate::output;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

const REMEDY: &str = "use -w FILE, or pipe it: `ferroce capture PID | tshark -r -` or `| wireshark -k -i -`";

#[derive(Debug)]
pub struct Sink {
    file: File,
    path: Option<PathBuf>,
    is_regular: bool,
    /// True if this sink created the file and has written nothing yet.
    is_new: bool,
    /// Bytes of complete blocks written.
    written: u64,
}

impl Sink {
    /// Opens the file, or standard output for `None` and `-`. A file keeps its content until [`begin`](Self::begin).
    ///
    /// # Errors
    /// Returns a failure if the file cannot be written, or if standard output is a terminal.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let path = path.filter(|path| path.as_os_str() != "-");
        let mut is_new = false;
        let file = match path {
            Some(path) => {
                let mut options = OpenOptions::new();
                let file = match options.write(true).create_new(true).open(path) {
                    Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                        options.create_new(false).open(path)
                    }
                    file => file.inspect(|_| is_new = true),
                };
                file.map_err(|error| output::unwritten(path, &error))?
            }
            None if io::stdout().is_terminal() => {
                return Err(Failure::usage(format!("standard output is a terminal: {REMEDY}")));
            }
            None => {
                let copy = io::stdout().as_fd().try_clone_to_owned();
                File::from(copy.map_err(|error| output::failed(&error))?)
            }
        };
        // If standard output is a file, it may already contain other output.
        let is_regular = path.is_some() && file.metadata().is_ok_and(|found| found.is_file());
        Ok(Self { file, path: path.map(Path::to_owned), is_regular, is_new, written: 0 })
    }

    /// Truncates the file.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be truncated.
    pub fn begin(&mut self) -> Result<(), Failure> {
        let emptied = if self.is_regular { self.file.set_len(0) } else { Ok(()) };
        emptied.map_err(|error| self.failed(&error))
    }

    /// Writes complete blocks, and empties `blocks`. On an error, truncates the file after the last complete write.
    ///
    /// # Errors
    /// Returns a failure if the disk is full, or the reader of a pipe has exited.
    pub fn write(&mut self, blocks: &mut Vec<u8>) -> Result<(), Failure> {
        if let Err(error) = self.file.write_all(blocks) {
            if self.is_regular {
                let _ = self.file.set_len(self.written);
            }
            return Err(self.failed(&error));
        }
        self.is_new = false;
        self.written += blocks.len() as u64;
        blocks.clear();
        Ok(())
    }

    fn failed(&self, error: &io::Error) -> Failure {
        match &self.path {
            Some(path) if error.kind() != ErrorKind::BrokenPipe => output::unwritten(path, error),
            _ => output::failed(error),
        }
    }

    /// Returns the descriptor of the output, whose state shows that the reader has exited.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for Sink {
    /// Removes a file that was created for a capture that did not begin.
    fn drop(&mut self) {
        if let Some(path) = self.path.as_ref().filter(|_| self.is_new && self.is_regular) {
            let _ = fs::remove_file(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_emptied_when_the_capture_begins() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        std::fs::write(&path, "from before").unwrap();
        let mut sink = Sink::open(Some(&path)).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "from before");
        sink.begin().unwrap();
        sink.write(&mut b"new".to_vec()).unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "new");
    }

    #[test]
    fn a_capture_that_does_not_begin_leaves_no_file() {
        let folder = tempfile::tempdir().unwrap();
        let [new, old] = ["new", "old"].map(|name| folder.path().join(name));
        std::fs::write(&old, "from before").unwrap();
        for path in [&new, &old] {
            drop(Sink::open(Some(path)).unwrap());
        }
        assert!(!new.exists());
        assert_eq!(std::fs::read_to_string(&old).unwrap(), "from before");
        let mut sink = Sink::open(Some(&new)).unwrap();
        sink.begin().unwrap();
        sink.write(&mut b"x".to_vec()).unwrap();
        drop(sink);
        assert!(new.exists());
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named() {
        let error = Sink::open(Some(Path::new("/nowhere/out"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/out"), "{error}");
        let mut full = Sink::open(Some(Path::new("/dev/full"))).unwrap();
        full.begin().unwrap();
        let error = full.write(&mut b"x".to_vec()).unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
