//! `--pcap`: the frames at ports of the simulated network, as pcapng.

use crate::failure::Failure;
use crate::pcap::sink::Sink;
use crate::pcap::writer::{self, Statistics};
use fabric::sim::PortFrame;
use std::ops::ControlFlow;
use std::path::PathBuf;
use verbs::observe::{Direction, Record};

/// The size at which collected blocks are written to a file, bytes.
const CHUNK: usize = 256 << 10;

/// Size of the statistics block of a port, the last one of its capture, bytes.
const STATISTICS: u64 = 76;

/// The largest overhead of a packet's block, bytes.
const BLOCK: u64 = 64;

/// A port and the file for its frames: `s1_h3=FILE`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortCapture {
    pub(super) port: String,
    file: PathBuf,
}

/// Parses the value of `--pcap`.
pub(super) fn parse(text: &str) -> Result<PortCapture, String> {
    let parts = text.split_once('=').filter(|(port, file)| !port.is_empty() && !file.is_empty());
    let (port, file) = parts.ok_or_else(|| {
        format!("`{text}`: not PORT=FILE; name the ends of a link and a file, such as s1_h3=frames.pcapng")
    })?;
    if file == "-" {
        return Err(format!("`{text}`: standard output is for the results; name a file"));
    }
    Ok(PortCapture { port: port.into(), file: file.into() })
}

/// Limits on what captures write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Bytes captured of each frame.
    pub(super) snaplen: u32,
    /// Bytes of each file.
    pub(super) file: u64,
}

struct CaptureFile {
    path: PathBuf,
    /// The canonical form of `path`.
    canonical: Option<PathBuf>,
    sink: Sink,
    /// Blocks that are not in the file yet.
    blocks: Vec<u8>,
    /// Bytes of all blocks.
    size: u64,
    /// Number of frames written, and of frames that the limit on the file excluded. No frame is written after the first excluded one.
    written: u64,
    excluded: u64,
}

struct CapturedPort {
    /// Index of the file, and number of the interface in the file.
    file: usize,
    interface: u32,
    statistics: Statistics,
}

/// The captures of a run. Ports with the same file are interfaces of one capture.
pub(super) struct Captures {
    files: Vec<CaptureFile>,
    ports: Vec<CapturedPort>,
    limits: Limits,
    failure: Option<Failure>,
}

impl Captures {
    /// Opens the files and begins the captures.
    ///
    /// # Errors
    /// Returns a failure if a file cannot be written.
    pub(super) fn begin(captured: &[PortCapture], limits: Limits) -> Result<Self, Failure> {
        let mut captures = Self { files: Vec::new(), ports: Vec::new(), limits, failure: None };
        for PortCapture { port, file } in captured {
            let canonical = file.canonicalize().ok();
            let is_same = |other: &CaptureFile| canonical.is_some() && other.canonical == canonical;
            let place = match captures.files.iter().position(is_same) {
                Some(place) => place,
                None => captures.add_file(file.clone())?,
            };
            let interface = captures.ports.iter().filter(|other| other.file == place).count() as u32;
            writer::interface(&mut captures.files[place].blocks, port, limits.snaplen);
            captures.files[place].size += STATISTICS;
            captures.ports.push(CapturedPort { file: place, interface, statistics: Statistics::default() });
        }
        for file in &mut captures.files {
            file.sink.begin()?;
            file.size += file.blocks.len() as u64;
            file.sink.write(&mut file.blocks)?;
        }
        Ok(captures)
    }

    fn add_file(&mut self, path: PathBuf) -> Result<usize, Failure> {
        let sink = Sink::open(Some(&path))?;
        let mut blocks = Vec::new();
        writer::section(&mut blocks, concat!("ferroce ", env!("FERROCE_VERSION")));
        let canonical = path.canonicalize().ok();
        self.files.push(CaptureFile { path, canonical, sink, blocks, size: 0, written: 0, excluded: 0 });
        Ok(self.files.len() - 1)
    }

    /// Writes a frame. Returns `Break` if its file cannot be written; [`end`](Self::end) then returns the failure.
    pub(super) fn frame(&mut self, frame: &PortFrame<'_>) -> ControlFlow<()> {
        let Limits { snaplen, file: most } = self.limits;
        let CapturedPort { file, interface, statistics } = &mut self.ports[frame.port];
        let file = &mut self.files[*file];
        let time = frame.time.as_nanos() as u64;
        if statistics.received == 0 {
            statistics.start = time;
        }
        (statistics.end, statistics.received) = (time, statistics.received + 1);
        let bytes = &frame.bytes[..frame.bytes.len().min(snaplen as usize)];
        if file.excluded > 0 || file.size + bytes.len() as u64 + BLOCK > most {
            statistics.dropped += 1;
            file.excluded += 1;
            return ControlFlow::Continue(());
        }
        let direction = if frame.is_sent { Direction::Out } else { Direction::In };
        let (length, captured) = (frame.bytes.len() as u32, bytes.len() as u32);
        let before = file.blocks.len();
        writer::packet(
            &mut file.blocks,
            *interface,
            &Record { time, direction, length, captured, dropped: 0 },
            bytes,
        );
        file.size += (file.blocks.len() - before) as u64;
        file.written += 1;
        if file.blocks.len() < CHUNK {
            return ControlFlow::Continue(());
        }
        self.failure = file.sink.write(&mut file.blocks).err();
        if self.failure.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// Ends the captures, and prints a note for each that the limit has cut short.
    ///
    /// # Errors
    /// Returns a failure if a file cannot be written.
    pub(super) fn end(mut self) -> Result<(), Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        for CapturedPort { file, interface, statistics } in &self.ports {
            writer::statistics(&mut self.files[*file].blocks, *interface, statistics);
        }
        for CaptureFile { path, sink, blocks, written, excluded, .. } in &mut self.files {
            sink.write(blocks)?;
            if *excluded > 0 {
                note!(
                    "{}: --pcap-limit: only the first {written} of {} frames were written; raise it, or lower --snaplen",
                    path.display(),
                    *written + *excluded
                );
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_and_a_file_are_parsed() {
        let port = PortCapture { port: "s1_h3".into(), file: "a=b.pcapng".into() };
        assert_eq!(parse("s1_h3=a=b.pcapng"), Ok(port));
        for wrong in ["s1_h3", "s1_h3=", "=a.pcapng", "s1_h3=-", ""] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
