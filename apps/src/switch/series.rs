//! Writes the state of every port per interval as CSV, on a separate thread.

use crate::failure::Failure;
use cc::Instant;
use datapath::io::PacketBuf;
use fabric::{Interval, Series, Switch};
use serde::Serialize;
use std::fs::File;
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Collects intervals and passes them to the thread that writes them.
pub struct Recorder {
    every: Duration,
    next: Instant,
    /// The time of the last turn, and the longest time between two turns in this interval.
    turn: Instant,
    pause: Duration,
    /// The time of day at the switch's time 0, since the Unix epoch.
    origin: Duration,
    series: Series,
    rows: Sender<(f64, Duration, Vec<Interval>)>,
}

/// A row of the file. Its columns are stable.
#[derive(Serialize)]
struct Row<'a> {
    seconds: f64,
    port: &'a str,
    rx_bytes: u64,
    tx_bytes: u64,
    busy_ns: u64,
    ce_marked: u64,
    dropped: u64,
    /// Queue lengths in bytes with their durations in ns: `0:9123456 4155:876544`.
    queue: String,
    /// The longest time between two turns of the switch, ns.
    pause_ns: u64,
}

impl Recorder {
    /// Creates the file and starts the thread, which ends when the recorder is dropped.
    ///
    /// # Errors
    /// Returns a failure if the file cannot be created.
    pub fn start<B: PacketBuf>(
        file: &Path,
        every: Duration,
        names: Vec<String>,
        (switch, now): (&mut Switch<B>, Instant),
    ) -> Result<(Self, JoinHandle<Result<(), Failure>>), Failure> {
        let failed = |error: csv::Error, file: &Path| Failure::run(format!("{}: {error}", file.display()));
        let writer = csv::Writer::from_path(file).map_err(|error| failed(error, file))?;
        let (rows, receiver) = channel();
        let path = file.to_owned();
        let thread =
            thread::spawn(move || write(writer, &names, &receiver).map_err(|error| failed(error, &path)));
        let today = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let origin = today.saturating_sub(now.saturating_since(Instant::ZERO));
        let series = Series::start(switch, now);
        let (next, pause) = (now + every, Duration::ZERO);
        Ok((Self { every, next, turn: now, pause, origin, series, rows }, thread))
    }

    /// Records the interval if it has ended. Must be called after each turn of the switch.
    pub fn after<B: PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) {
        self.pause = self.pause.max(now.saturating_since(self.turn));
        self.turn = now;
        if now < self.next {
            return;
        }
        // A late turn lengthens its interval. The later intervals end at multiples of `every` as before.
        while self.next <= now {
            self.next = self.next + self.every;
        }
        self.note(switch, now);
    }

    /// Ends the interval now and records it.
    pub fn note<B: PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) {
        let seconds = (self.origin + now.saturating_since(Instant::ZERO)).as_secs_f64();
        // On a full disk the thread has ended; joining it returns the error.
        let _ = self.rows.send((seconds, std::mem::take(&mut self.pause), self.series.take(switch, now)));
    }
}

fn write(
    mut to: csv::Writer<File>,
    names: &[String],
    rows: &Receiver<(f64, Duration, Vec<Interval>)>,
) -> csv::Result<()> {
    for (seconds, pause, intervals) in rows {
        for interval in intervals {
            let queue: Vec<String> =
                interval.queue.iter().map(|(bytes, nanos)| format!("{bytes}:{nanos}")).collect();
            to.serialize(Row {
                seconds,
                port: &names[usize::from(interval.port.0)],
                rx_bytes: interval.rx_bytes,
                tx_bytes: interval.tx_bytes,
                busy_ns: interval.busy,
                ce_marked: interval.ce_marked,
                dropped: interval.dropped,
                queue: queue.join(" "),
                pause_ns: u64::try_from(pause.as_nanos()).unwrap_or(u64::MAX),
            })?;
        }
    }
    to.flush()?;
    Ok(())
}
