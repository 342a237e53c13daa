//! Writes the state of every port, interval by interval, as CSV. A separate thread writes it.

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

/// Takes intervals and hands them to the thread that writes them.
pub struct Recorder {
    every: Duration,
    next: Instant,
    /// The turn before, and the longest time between two turns of this interval.
    turn: Instant,
    pause: Duration,
    /// The switch's time 0, by the clock of the day.
    origin: Duration,
    series: Series,
    rows: Sender<(f64, Duration, Vec<Interval>)>,
}

/// A line of the file. Its columns stay as they are.
#[derive(Serialize)]
struct Row<'a> {
    seconds: f64,
    port: &'a str,
    rx_bytes: u64,
    tx_bytes: u64,
    busy_ns: u64,
    ce_marked: u64,
    dropped: u64,
    /// Bytes and nanoseconds: `0:9123456 4155:876544`.
    queue: String,
    /// The longest time in which the switch didn't look.
    pause_ns: u64,
}

impl Recorder {
    /// Makes the file and starts the thread, which ends when the recorder is gone.
    ///
    /// # Errors
    /// Returns an error if the file cannot be created.
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

    /// After a turn of the switch: notes the interval if one has ended.
    pub fn after<B: PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) {
        self.pause = self.pause.max(now.saturating_since(self.turn));
        self.turn = now;
        if now < self.next {
            return;
        }
        // Late turns lengthen intervals: the grid stays.
        while self.next <= now {
            self.next = self.next + self.every;
        }
        self.note(switch, now);
    }

    /// Ends the interval here.
    pub fn note<B: PacketBuf>(&mut self, switch: &mut Switch<B>, now: Instant) {
        let seconds = (self.origin + now.saturating_since(Instant::ZERO)).as_secs_f64();
        // If the disk is full, the thread has ended; it reports that at the end.
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
