//! A recorded run: the intervals of the bottleneck, the states of the flows, and the pauses of the machine.

use crate::watch;
use serde::Deserialize;
use std::error::Error;
use std::path::Path;

/// The bottleneck in one interval.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// The end of the interval, s since the first flow began.
    pub end: f64,
    /// The time for which the link was busy, ns.
    pub busy: f64,
    /// Queue lengths, bytes, and how long each lasted, ns.
    pub queue: Vec<(u64, f64)>,
}

/// The state of a flow at one time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// The time, s since the first flow began.
    pub at: f64,
    /// The index of the flow.
    pub flow: usize,
    /// True if the flow was to send.
    pub active: bool,
    /// The pacing rate, Mb/s; `None` without pacing.
    pub rate: Option<f64>,
    /// Bytes that have completed.
    pub bytes: u64,
}

/// A time in which the machine did not run one of the processes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pause {
    /// The end, s since the first flow began.
    pub end: f64,
    /// The length, s.
    pub length: f64,
    /// The thread, the switch or the timer that was late.
    pub whose: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Run {
    /// The intervals of the bottleneck, in order.
    pub intervals: Vec<Interval>,
    /// The samples of all flows, by time.
    pub samples: Vec<Sample>,
    /// The pauses in the files of the switch and of the watch.
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
    /// Reads the files of a run.
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

/// Parses `0:9123456 4155:876544`: queue lengths, bytes, and how long each lasted, ns.
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
    fn a_queue_is_parsed_as_pairs_of_bytes_and_times() {
        assert_eq!(queue("0:9 4155:1"), Some(vec![(0, 9.0), (4155, 1.0)]));
        assert_eq!(queue(""), Some(Vec::new()));
        assert_eq!(queue("0;9"), None);
    }
}
