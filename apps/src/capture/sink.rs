//! Where a capture goes: a file, or standard output. A file ends with a whole block whatever happens.

use crate::failure::Failure;
use crate::output;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

const REMEDY: &str = "use -w FILE, or pipe it: `ferroce capture PID | tshark -r -` or `| wireshark -k -i -`";

/// An open output.
#[derive(Debug)]
pub struct Sink {
    file: File,
    path: Option<PathBuf>,
    is_regular: bool,
    /// Bytes of whole blocks that were written.
    written: u64,
}

impl Sink {
    /// Opens the file, or standard output if there is none, or if it is `-`. A file keeps what was in it until [`begin`](Self::begin).
    ///
    /// # Errors
    /// Returns a failure if the file cannot be written, or if standard output is a terminal.
    pub fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let path = path.filter(|path| path.as_os_str() != "-");
        let file = match path {
            Some(path) => {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(path);
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
        // Standard output may be a file that has other content before.
        let is_regular = path.is_some() && file.metadata().is_ok_and(|found| found.is_file());
        Ok(Self { file, path: path.map(Path::to_owned), is_regular, written: 0 })
    }

    /// Empties a file.
    ///
    /// # Errors
    /// Returns a failure if the system refuses it.
    pub fn begin(&mut self) -> Result<(), Failure> {
        let emptied = if self.is_regular { self.file.set_len(0) } else { Ok(()) };
        emptied.map_err(|error| self.failed(&error))
    }

    /// Writes whole blocks, and empties `blocks`. If that fails, a file is cut behind the last whole write.
    ///
    /// # Errors
    /// Returns a failure on a full disk, or after the reader of a pipe has gone.
    pub fn write(&mut self, blocks: &mut Vec<u8>) -> Result<(), Failure> {
        if let Err(error) = self.file.write_all(blocks) {
            if self.is_regular {
                let _ = self.file.set_len(self.written);
            }
            return Err(self.failed(&error));
        }
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

    /// Returns the descriptor, to learn when its reader goes.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
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
    fn what_can_not_be_written_is_named() {
        let error = Sink::open(Some(Path::new("/nowhere/out"))).unwrap_err().to_string();
        assert!(error.contains("/nowhere/out"), "{error}");
        let mut full = Sink::open(Some(Path::new("/dev/full"))).unwrap();
        full.begin().unwrap();
        let error = full.write(&mut b"x".to_vec()).unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
