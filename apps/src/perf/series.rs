//! Writes the state of each queue pair's congestion control over time, as CSV.

use super::link::Link;
use crate::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Between two lines of a queue pair.
const EVERY: Duration = Duration::from_millis(10);

/// Writes a line for each queue pair, a hundred times a second.
#[derive(Debug)]
pub struct Series {
    file: PathBuf,
    writer: csv::Writer<File>,
    next: Instant,
}

/// A line of the file. Its columns stay as they are.
#[derive(Serialize)]
struct Row {
    /// Since 1970.
    seconds: f64,
    /// From 0.
    qp: usize,
    /// 1 if it has to send; it may still have packets in flight if not.
    active: u8,
    /// Empty for an algorithm that doesn't pace.
    rate_bps: Option<u64>,
    window: u64,
    in_flight: u64,
    /// Bytes of messages that have completed.
    bytes: u64,
}

impl Series {
    /// Makes the file.
    ///
    /// # Errors
    /// Returns a failure if it cannot be created.
    pub fn create(file: &Path) -> Result<Self, Failure> {
        let writer = csv::Writer::from_path(file).map_err(|error| failed(file, error))?;
        Ok(Self { file: file.to_owned(), writer, next: Instant::now() })
    }

    /// Writes the lines that are due. `each` returns of a queue pair whether it has to send, and how many bytes have completed.
    ///
    /// # Errors
    /// Returns a failure if the core has stopped, or the disk is full.
    pub fn note(&mut self, link: &Link, each: impl Fn(usize) -> (bool, u64)) -> Result<(), Failure> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        // Late lines leave a gap: the grid stays.
        while self.next <= now {
            self.next += EVERY;
        }
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        for (qp, queue_pair) in link.qps.iter().enumerate() {
            let report = queue_pair.query().map_err(|error| Failure::run(error.to_string()))?;
            let (active, bytes) = each(qp);
            let (window, in_flight) = (report.window, report.in_flight);
            let rate_bps = report.rate.map(cc::Rate::as_bps);
            let row = Row { seconds, qp, active: active.into(), rate_bps, window, in_flight, bytes };
            self.writer.serialize(row).map_err(|error| failed(&self.file, error))?;
        }
        Ok(())
    }

    /// Writes what is still to be written.
    ///
    /// # Errors
    /// Returns a failure if the disk is full.
    pub fn end(mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| failed(&self.file, error))
    }
}

fn failed(file: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::run(format!("{}: {error}", file.display()))
}
