//! `ferroce pcap`: decodes RoCEv2 and telemetry in captures.

mod describe;
mod reader;
pub mod sink;
mod totals;
pub mod writer;

use crate::failure::Failure;
use crate::{input, output};
use anstyle::{AnsiColor, Style};
use cc::Rate;
use reader::{Packet, Reader};
use roce::Discard;
use roce::wire::format::{HopReading, Reading, Signal};
use roce::wire::telemetry::HopRecord;
use roce::wire::{self, Frame, Header};
use serde_json::{Map, Value, json};
use std::io::{self, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use totals::Totals;

/// Decode RoCEv2 and telemetry in captures, and verify each ICRC.
///
/// Prints a line a packet and a summary. Exits 1 if an ICRC is wrong, 2 if a file can't be read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Captures, pcap or pcapng, compressed by gzip or not; `-` is standard input
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Print JSON, one object per line: the packets, then the summary
    #[arg(long)]
    json: bool,
    /// Print only the summary
    #[arg(long)]
    summary: bool,
}

/// Decodes the files.
///
/// # Errors
/// Returns a failure if a file cannot be read to its end, after printing what precedes the error, or if standard output cannot be written.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    let mut totals = Totals::default();
    let mut out = io::BufWriter::new(anstream::stdout().lock());
    let mut unreadable = None;
    for file in &args.files {
        match decode(args, file, &mut totals, &mut out) {
            Ok(()) => {}
            Err(Stop::Output(error)) => return Err(output::failed(&error)),
            Err(Stop::Unreadable(text)) => {
                unreadable = Some(Failure::usage(format!("{}: {text}", file.display())));
                break;
            }
        }
    }
    if let Some(failure) = unreadable.take_if(|_| totals.is_empty()) {
        return Err(failure);
    }
    let printed = if args.json { totals.write_json(&mut out) } else { totals.write(&mut out) };
    printed.and_then(|()| out.flush()).map_err(|error| output::failed(&error))?;
    match unreadable {
        Some(failure) => Err(failure),
        None if totals.bad_icrc() > 0 => Ok(ExitCode::from(1)),
        None => Ok(ExitCode::SUCCESS),
    }
}

enum Stop {
    Output(io::Error),
    Unreadable(String),
}

impl From<reader::ReadError> for Stop {
    fn from(error: reader::ReadError) -> Self {
        Self::Unreadable(error.to_string())
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}

fn decode(args: &Args, file: &Path, totals: &mut Totals, out: &mut impl Write) -> Result<(), Stop> {
    let input = input::open(file).map_err(|error| Stop::Unreadable(error.to_string()))?;
    let mut reader = Reader::new(BufReader::new(input))?;
    if args.files.len() > 1 && !args.json && !args.summary {
        writeln!(out, "{}:", file.display())?;
    }
    let mut first = None;
    let mut number = 0u64;
    while let Some(packet) = reader.next()? {
        number += 1;
        let start = *first.get_or_insert(packet.time_ns);
        let verdict = Verdict::of(packet.bytes, packet.is_cut);
        totals.add(&verdict);
        if args.summary || matches!(verdict, Verdict::Other) {
            continue;
        }
        if args.json {
            writeln!(out, "{}", json_line(file, number, &packet, &verdict))?;
        } else {
            write_line(out, packet.time_ns.saturating_sub(start), &verdict)?;
        }
    }
    Ok(())
}

enum Verdict<'a> {
    Good(Frame<'a>),
    /// The ICRC is wrong. Contains the packet's content, which may be corrupt, if it can be parsed.
    BadIcrc(Option<Frame<'a>>),
    /// The packet is invalid for another reason. `intact` is true if its checksums are correct.
    Refused {
        reason: Discard,
        intact: bool,
        frame: Option<Frame<'a>>,
    },
    /// The end of the packet, with its ICRC, was not captured.
    Cut(Frame<'a>),
    /// The frame is not RoCEv2.
    Other,
}

impl<'a> Verdict<'a> {
    fn of(bytes: &'a [u8], is_cut: bool) -> Self {
        if bytes.is_empty() {
            return Self::Other;
        }
        if is_cut {
            return wire::parse_unverified(bytes).map_or(Self::Other, Self::Cut);
        }
        match wire::parse(bytes) {
            Ok(frame) => Self::Good(frame),
            Err(Discard::EtherType | Discard::NotRoce) => Self::Other,
            Err(Discard::Icrc) => Self::BadIcrc(wire::parse_unverified(bytes).ok()),
            Err(reason) => {
                let intact = wire::verify(bytes).is_ok();
                Self::Refused { reason, intact, frame: wire::parse_unverified(bytes).ok() }
            }
        }
    }

    const fn frame(&self) -> Option<&Frame<'a>> {
        match self {
            Self::Good(frame)
            | Self::Cut(frame)
            | Self::BadIcrc(Some(frame))
            | Self::Refused { frame: Some(frame), .. } => Some(frame),
            Self::BadIcrc(None) | Self::Refused { frame: None, .. } | Self::Other => None,
        }
    }
}

fn record(record: HopRecord) -> Value {
    json!({
        "rate_bps": record.speed().rate().as_bps(),
        "time_ns": record.timestamp(),
        "tx_bytes": u64::from(record.tx_units()) * 128,
        "queue_bytes": record.queue_bytes(),
    })
}

/// Converts a hop of a format other than HPCC INT. Values that the switch omitted are null.
fn hop(hop: &HopReading) -> Value {
    json!({
        "rate_bps": hop.bandwidth.map(Rate::as_bps),
        "time_ns": hop.time.raw().wrapping_mul(hop.time.unit().into()),
        "tx_bytes": hop.tx_bytes.map(|bytes| bytes.raw().wrapping_mul(bytes.unit().into())),
        "queue_bytes": hop.queue,
    })
}

fn carried(reading: &Reading) -> Vec<Value> {
    match reading {
        Reading::Hops(hops) => hops.iter().map(hop).collect(),
        Reading::Inflight(share) => vec![json!({ "utilisation": f64::from(*share) / f64::from(1 << 20) })],
        Reading::Signal(Signal::Available(share)) => {
            vec![json!({ "available": f64::from(*share) / f64::from(1 << 20) })]
        }
        Reading::Signal(Signal::Delay(nanos)) => vec![json!({ "delay_ns": nanos })],
    }
}

/// Returns the format of the packet's telemetry, unless it is HPCC INT.
fn format(frame: &Frame<'_>) -> Option<String> {
    frame.network.telemetry().map(|carried| carried.format().to_string())
}

fn records(frame: &Frame<'_>) -> Vec<Value> {
    if let Some(telemetry) = &frame.network.telemetry() {
        return telemetry.read().as_ref().map(carried).unwrap_or_default();
    }
    match (frame.header, &frame.in_band) {
        (_, Some(in_band)) => in_band.records().map(record).collect(),
        (Header::TelemetryRequest { int, .. }, None) => int.records(frame.payload).map(record).collect(),
        _ => Vec::new(),
    }
}

fn json_line(file: &Path, number: u64, packet: &Packet<'_>, verdict: &Verdict<'_>) -> Value {
    let mut line = Map::new();
    line.insert("file".into(), json!(file.display().to_string()));
    line.insert("frame".into(), json!(number));
    line.insert("time_ns".into(), json!(packet.time_ns));
    if let Some(frame) = verdict.frame() {
        line.insert("source".into(), json!(frame.network.source()));
        line.insert("destination".into(), json!(frame.network.destination()));
        line.insert("udp_source".into(), json!(frame.network.udp_source()));
        line.insert("ecn".into(), json!(frame.network.traffic_class() & 3));
        line.insert("opcode".into(), json!(frame.header.opcode().0));
        line.insert("name".into(), json!(describe::name(&frame.header)));
        line.extend(describe::fields(&frame.header).into_iter().map(|(name, value)| (name.into(), value)));
        line.extend(format(frame).map(|format| ("format".into(), json!(format))));
        let is_carried = frame.in_band.is_some() || frame.network.telemetry().is_some();
        if is_carried || matches!(frame.header, Header::TelemetryRequest { .. }) {
            line.insert("records".into(), Value::Array(records(frame)));
        }
        line.insert("payload".into(), json!(frame.payload.len()));
    }
    match verdict {
        Verdict::Good(_) => line.insert("icrc".into(), json!("ok")),
        Verdict::BadIcrc(_) => line.insert("icrc".into(), json!("bad")),
        Verdict::Cut(_) => line.insert("icrc".into(), json!("cut off")),
        Verdict::Refused { reason, intact, .. } => {
            if *intact {
                line.insert("icrc".into(), json!("ok"));
            }
            line.insert("discard".into(), json!(reason.to_string()))
        }
        Verdict::Other => None,
    };
    Value::Object(line)
}

fn write_line(out: &mut impl Write, ns: u64, verdict: &Verdict<'_>) -> io::Result<()> {
    let dim = Style::new().dimmed();
    let bold = Style::new().bold();
    write!(out, "{dim}{:>5}.{:09}{dim:#} ", ns / 1_000_000_000, ns % 1_000_000_000)?;
    if let Some(frame) = verdict.frame() {
        let path = &frame.network.path();
        write!(
            out,
            "{} → {} {bold}{}{bold:#}",
            path.source,
            path.destination,
            describe::name(&frame.header)
        )?;
        for (name, value) in describe::words(&frame.header) {
            write_field(out, name, &value)?;
        }
        if let Some(format) = format(frame) {
            write_field(out, "format", &json!(format))?;
        }
        for value in records(frame) {
            write_field(out, "record", &value)?;
        }
        write!(out, " {} B", frame.payload.len())?;
    } else {
        write!(out, "RoCEv2")?;
    }
    let colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
    let (green, red) = (colour(AnsiColor::Green), colour(AnsiColor::Red).bold());
    match verdict {
        Verdict::Good(_) => writeln!(out, " {green}ICRC ok{green:#}"),
        Verdict::BadIcrc(_) => writeln!(out, " {red}ICRC BAD{red:#}"),
        Verdict::Refused { reason, .. } => writeln!(out, " {red}{reason}{red:#}"),
        Verdict::Cut(_) => writeln!(out, " ICRC not captured"),
        Verdict::Other => writeln!(out),
    }
}

fn write_field(out: &mut impl Write, name: &str, value: &Value) -> io::Result<()> {
    match value {
        Value::Bool(true) => write!(out, " {name}"),
        Value::String(text) => write!(out, " {name} {text}"),
        other => write!(out, " {name} {other}"),
    }
}
