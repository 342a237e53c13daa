//! A recorded run: the bottleneck's intervals and the flows' states.

use crate::watch;
use serde::Deserialize;
use std::error::Error;
use std::path::Path;

/// The bottleneck in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// When it ended; 0 is when the first flow began.
    pub end: f64,
    /// Nanoseconds in which the link was busy.
    pub busy: f64,
    /// Bytes in the queue, and nanoseconds.
    pub queue: Vec<(u64, f64)>,
}

/// A flow at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When.
    pub at: f64,
    /// Which.
    pub flow: usize,
    /// True if it had to send.
    pub active: bool,
    /// Pacing rate in Mb/s; none if nothing paces.
    pub rate: Option<f64>,
    /// Bytes that have completed.
    pub bytes: u64,
}

/// A moment in which the machine did not let the run's processes go on.
#[derive(Clone, Debug, PartialEq)]
pub struct Pause {
    /// When it had ended.
    pub end: f64,
    /// The length, in seconds.
    pub length: f64,
    /// Whose, or that of all.
    pub whose: String,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// Of the bottleneck, in order.
    pub intervals: Vec<Interval>,
    /// Of the flows, in order of time.
    pub samples: Vec<Sample>,
    /// Of the machine, the longest of each 10 ms.
    pub pauses: Vec<Pause>,
}

#[derive(Deserialize)]
struct SwitchRow {
    seconds: f64,
    port: String,
    busy_ns: f64,
    queue: String,
    pause_ns: f64,
}

#[derive(Deserialize)]
struct FlowRow {
    seconds: f64,
    qp: usize,
    active: u8,
    rate_bps: Option<f64>,
    bytes: u64,
}

impl Run {
    /// Reads its files.
    ///
    /// # Errors
    /// Returns an error if a file is missing, malformed or empty.
    pub fn read(folder: &Path, name: &str, port: &str) -> Result<Self, Box<dyn Error>> {
        let open = |kind: &str| {
            let file = folder.join(format!("{name}-{kind}.csv"));
            csv::Reader::from_path(&file).map_err(|error| format!("{}: {error}", file.display()))
        };
        let mut flows = open("flows")?;
        let flows = flows.deserialize().collect::<Result<Vec<FlowRow>, _>>()?;
        let start = flows.first().ok_or("the flows' file is empty")?.seconds;
        let samples = flows.iter().map(|row| Sample {
            at: row.seconds - start,
            flow: row.qp,
            active: row.active != 0,
            rate: row.rate_bps.map(|bps| bps / 1e6),
            bytes: row.bytes,
        });
        let (mut intervals, mut pauses) = (Vec::new(), Vec::new());
        for row in open("switch")?.deserialize() {
            let row: SwitchRow = row?;
            if row.port == port {
                let queue = queue(&row.queue).ok_or_else(|| format!("no queue: `{}`", row.queue))?;
                let end = row.seconds - start;
                intervals.push(Interval { end, busy: row.busy_ns, queue });
                pauses.push(Pause { end, length: row.pause_ns / 1e9, whose: "the switch".into() });
            }
        }
        if intervals.is_empty() {
            return Err(format!("the switch's file knows no port {port}").into());
        }
        for row in open("watch")?.deserialize() {
            let watch::Row { seconds, late_ns, waited_ns, thread } = row?;
            let end = seconds - start;
            pauses.push(Pause { end, length: late_ns as f64 / 1e9, whose: "a processor's timer".into() });
            pauses.push(Pause { end, length: waited_ns as f64 / 1e9, whose: format!("thread {thread}") });
        }
        Ok(Self { intervals, samples: samples.collect(), pauses })
    }
}

/// `0:9123456 4155:876544`: bytes in the queue and nanoseconds; none if it is anything else.
pub fn queue(text: &str) -> Option<Vec<(u64, f64)>> {
    let pair = |text: &str| {
        let (bytes, nanos) = text.split_once(':')?;
        Some((bytes.parse().ok()?, nanos.parse().ok()?))
    };
    text.split_whitespace().map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_bytes_and_times() {
        assert_eq!(queue("0:9 4155:1"), Some(vec![(0, 9.0), (4155, 1.0)]));
        assert_eq!(queue(""), Some(Vec::new()));
        assert_eq!(queue("0;9"), None);
    }
}
