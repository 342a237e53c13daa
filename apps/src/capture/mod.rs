//! `ferroce capture`: the frames of a running process as pcapng.

mod filter;

use crate::failure::Failure;
use crate::pcap::sink::Sink;
use crate::pcap::writer::{self, Statistics};
use crate::{signals, units};
use filter::Filter;
use std::net::IpAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use verbs::Qpn;
use verbs::observe::{self, AttachError, Capture, Waited};

/// The interval between reads of the process's rings, short enough that they do not fill up.
const LOOK: Duration = Duration::from_millis(1);

/// The size at which collected blocks are written to the output, bytes.
const CHUNK: usize = 256 << 10;

/// The limit on packets between checks of the process, the output and the time.
const TURN: usize = 4096;

/// More packets than the rings of 64 cores can contain.
const RINGS: usize = 64 << 18;

/// The command line of `ferroce capture`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Process to capture
    pub pid: u32,
    /// Capture only this queue pair: 0x000012 or 18
    #[arg(long, value_name = "NUMBER")]
    pub qp: Option<Qpn>,
    /// Capture only packets to and from this address
    #[arg(long, value_name = "IP")]
    pub peer: Option<IpAddr>,
    /// Write to this file; `-` is standard output [default: standard output, if it is not a terminal]
    #[arg(short, long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// Capture this many bytes of each packet, 320 to 65536: the longest headers, with telemetry, take 320
    #[arg(short, long, value_name = "BYTES", default_value = "65536", value_parser = clap::value_parser!(u32).range(320..=65536))]
    pub snaplen: u32,
    /// Time to capture, in seconds or with a unit: 500ms [default: until a signal or the end of the process]
    #[arg(long = "for", value_name = "TIME", value_parser = units::seconds)]
    pub time: Option<Duration>,
}

/// Captures a process until a signal arrives, the time is over, or the process ends.
///
/// # Errors
/// Returns a failure if the output cannot be written, or the process cannot be captured or lacks the queue pair.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    // The output is opened first, so that a path that cannot be written is reported before the capture starts.
    let sink = Sink::open(args.write.as_deref())?;
    let stop = signals::listen()?;
    let filter = filter(args)?;
    let capture = Capture::begin(args.pid, args.snaplen).map_err(refused)?;
    let mut session = Session::begin(capture, filter, sink, args.snaplen)?;
    let ended = session.run(&stop, args.time)?;
    session.end()?;
    if ended {
        note!("process {} has ended, or has closed its devices", args.pid);
    }
    note!("{}", session.summary());
    Ok(ExitCode::SUCCESS)
}

fn refused(error: AttachError) -> Failure {
    Failure::run(error.to_string())
}

fn filter(args: &Args) -> Result<Filter, Failure> {
    let pid = args.pid;
    let mut filter = Filter::new(pid, args.qp.map(Qpn::get), args.peer);
    if let Some(qp) = args.qp {
        let status = observe::read(pid).map_err(refused)?;
        if !status.devices.iter().any(|device| device.queue_pair(qp.get()).is_some()) {
            return Err(Failure::run(format!(
                "queue pair {qp}: process {pid} has none of this number; `ferroce why {pid}` shows those it has"
            )));
        }
        filter.learn(&status);
    }
    Ok(filter)
}

struct Session {
    capture: Capture,
    filter: Filter,
    sink: Sink,
    blocks: Vec<u8>,
    ports: Vec<Port>,
    written: u64,
}

struct Port {
    name: String,
    statistics: Statistics,
}

impl Session {
    fn begin(capture: Capture, filter: Filter, mut sink: Sink, snaplen: u32) -> Result<Self, Failure> {
        sink.begin()?;
        let mut blocks = Vec::with_capacity(2 * CHUNK);
        writer::section(&mut blocks, concat!("ferroce ", env!("FERROCE_VERSION")));
        capture.ports().iter().for_each(|port| writer::interface(&mut blocks, port, snaplen));
        let port = |name: &String| Port { name: name.clone(), statistics: Statistics::default() };
        let ports = capture.ports().iter().map(port).collect();
        sink.write(&mut blocks)?;
        Ok(Self { capture, filter, sink, blocks, ports, written: 0 })
    }

    /// Writes packets until a signal arrives, the time is over, or the process ends. Returns true if the process has ended.
    fn run(&mut self, stop: &AtomicBool, time: Option<Duration>) -> Result<bool, Failure> {
        let end = time.map(|time| Instant::now() + time);
        let is_over = || stop.load(Ordering::Relaxed) || end.is_some_and(|end| Instant::now() >= end);
        let mut more = false;
        loop {
            // Waits before it reads the packets, so that it also reads the last packets of a process that has ended.
            let pause = if more { Duration::ZERO } else { LOOK };
            let waited = self.capture.wait(pause, self.sink.descriptor());
            if waited == Waited::Unread {
                return Err(Failure::unread());
            }
            let over = is_over();
            if over {
                self.capture.end();
            }
            let is_last = over || waited == Waited::Ended;
            more = self.write(if is_last { RINGS } else { TURN })?;
            if is_last {
                return Ok(!over);
            }
        }
    }

    /// Writes up to `most` waiting packets. Returns true if more may be waiting.
    fn write(&mut self, most: usize) -> Result<bool, Failure> {
        let mut frame = Vec::new();
        for _ in 0..most {
            let Some((number, record)) = self.capture.take(&mut frame).map_err(refused)? else {
                self.sink.write(&mut self.blocks)?;
                return Ok(false);
            };
            let Some(port) = self.ports.get_mut(number) else { continue };
            let statistics = &mut port.statistics;
            statistics.received += 1;
            statistics.end = record.time;
            if statistics.start == 0 {
                statistics.start = record.time;
            }
            if self.filter.takes(&port.name, &record, &frame) {
                writer::packet(&mut self.blocks, number as u32, &record, &frame);
                self.written += 1;
            }
            if self.blocks.len() >= CHUNK {
                self.sink.write(&mut self.blocks)?;
            }
        }
        self.sink.write(&mut self.blocks)?;
        Ok(true)
    }

    fn end(&mut self) -> Result<(), Failure> {
        for (number, port) in self.ports.iter_mut().enumerate() {
            let statistics = &mut port.statistics;
            statistics.dropped = self.capture.dropped(number);
            statistics.received = statistics.received.saturating_add(statistics.dropped);
            writer::statistics(&mut self.blocks, number as u32, statistics);
        }
        self.sink.write(&mut self.blocks)
    }

    fn summary(&self) -> String {
        let sum = |count: fn(&Statistics) -> u64| {
            self.ports.iter().map(|port| count(&port.statistics)).fold(0, u64::saturating_add)
        };
        let (received, dropped) = (sum(|port| port.received), sum(|port| port.dropped));
        let filtered = received.saturating_sub(dropped).saturating_sub(self.written);
        let mut text = format!("{} packets written, {dropped} dropped", self.written);
        if filtered > 0 {
            text += &format!(", {filtered} filtered out");
        }
        if dropped > 0 {
            text += "; a smaller --snaplen (at least 320) drops fewer";
        }
        text
    }
}
