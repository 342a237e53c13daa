//! Writes the state of each queue pair's congestion control over time as CSV.

use super::link::Link;
use crate::failure::Failure;
use serde::Serialize;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// The interval between two rows of a queue pair.
const EVERY: Duration = Duration::from_millis(10);

/// A CSV file with a row per queue pair every 10 ms.
#[derive(Debug)]
pub struct Series {
    file: PathBuf,
    writer: csv::Writer<File>,
    next: Instant,
}

/// A row of the file. Its columns are stable.
#[derive(Serialize)]
struct Row {
    /// The time since 1970, s.
    seconds: f64,
    qp: usize,
    /// 1 if the queue pair is sending; with 0, it may still have packets in flight.
    active: u8,
    /// The pacing rate; empty for an algorithm that does not pace.
    rate_bps: Option<u64>,
    window: u64,
    in_flight: u64,
    /// Bytes of the messages that have completed.
    bytes: u64,
}

impl Series {
    /// Creates the file.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be created.
    pub fn create(file: &Path) -> Result<Self, Failure> {
        let writer = csv::Writer::from_path(file).map_err(|error| failed(file, error))?;
        Ok(Self { file: file.to_owned(), writer, next: Instant::now() })
    }

    /// Writes the rows that are due. `each` returns for a queue pair whether it is sending, and the bytes that have completed.
    ///
    /// # Errors
    /// Returns a failure if the core has stopped, or the file cannot be written.
    pub fn note(&mut self, link: &Link, each: impl Fn(usize) -> (bool, u64)) -> Result<(), Failure> {
        let now = Instant::now();
        if now < self.next {
            return Ok(());
        }
        // After a delay, rows are missing. Later rows are at multiples of the interval as before.
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

    /// Flushes the file.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be written.
    pub fn end(mut self) -> Result<(), Failure> {
        self.writer.flush().map_err(|error| failed(&self.file, error))
    }
}

fn failed(file: &Path, error: impl std::fmt::Display) -> Failure {
    Failure::run(format!("{}: the series cannot be written: {error}", file.display()))
}
