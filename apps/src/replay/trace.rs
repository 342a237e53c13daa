//! The format of a trace: a header row, then a row per acknowledgement that a sender received, with its raw telemetry and the sender's
//! state after it.

use crate::input::Table;
use cc::{Counter, Hop, PathTelemetry, Rate};
use csv::StringRecord;
use std::path::Path;
use std::str::FromStr;

const HOPS: usize = 5;
const HOP_COLUMNS: [[&str; 4]; HOPS] = [
    ["h0_rate_enum", "h0_time", "h0_bytes", "h0_qlen"],
    ["h1_rate_enum", "h1_time", "h1_bytes", "h1_qlen"],
    ["h2_rate_enum", "h2_time", "h2_bytes", "h2_qlen"],
    ["h3_rate_enum", "h3_time", "h3_bytes", "h3_qlen"],
    ["h4_rate_enum", "h4_time", "h4_bytes", "h4_qlen"],
];
/// The rates that `rate_enum` encodes, Gb/s.
const LINK_RATES: [u64; 5] = [25, 50, 100, 200, 400];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flow {
    pub source: u32,
    pub destination: u32,
    pub port: u16,
}

#[derive(Clone, Copy, Debug)]
pub struct State {
    pub utilisation: f64,
    pub rate: u64,
    pub reference_rate: u64,
    pub inc_stage: u32,
    pub last_update_seq: u64,
}

#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The line in the file; the header is line 1.
    pub line: u64,
    pub flow: Flow,
    /// The time of the acknowledgement, ns.
    pub time: u64,
    pub ack_seq: u64,
    pub next_seq: u64,
    pub telemetry: PathTelemetry,
    pub expected: State,
}

struct Columns {
    time: Column,
    source: Column,
    destination: Column,
    port: Column,
    ack_seq: Column,
    next_seq: Column,
    hops_present: Column,
    hops: [[Column; 4]; HOPS],
    utilisation: Column,
    rate: Column,
    reference_rate: Column,
    inc_stage: Column,
    last_update_seq: Column,
}

#[derive(Clone, Copy)]
struct Column {
    name: &'static str,
    index: usize,
}

/// A trace that is read row by row.
pub struct Trace {
    table: Table,
    columns: Columns,
    record: StringRecord,
    unit: u32,
}

impl Trace {
    /// Opens a file, possibly compressed by gzip, and reads its header. The unit of sent bytes is `unit` × 128 B, the unit of queue length
    /// is `unit` × 80 B.
    pub fn open(path: &Path, unit: u32) -> Result<Self, String> {
        let mut table = Table::open(path).map_err(|error| error.to_string())?;
        let columns = Columns::find(table.header().map_err(|error| explain(&error))?)?;
        Ok(Self { table, columns, record: StringRecord::new(), unit })
    }

    /// Returns the next row, or `None` at the end.
    pub fn next_row(&mut self) -> Result<Option<Row>, String> {
        if !self.table.read(&mut self.record).map_err(|error| explain(&error))? {
            return Ok(None);
        }
        let line = self.record.position().map_or(0, csv::Position::line);
        let row = self.columns.row(&self.record, line, self.unit);
        row.map(Some).map_err(|problem| format!("line {line}: {problem}"))
    }
}

fn explain(error: &csv::Error) -> String {
    let line = error.position().map_or(1, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            format!("line {line}: {len} columns: the header has {expected_len}")
        }
        csv::ErrorKind::Utf8 { err, .. } => format!("line {line}: column {}: not UTF-8", err.field() + 1),
        csv::ErrorKind::Io(error) => format!("can't be read: {error}"),
        _ => format!("line {line}: {error}"),
    }
}

impl Columns {
    fn find(header: &StringRecord) -> Result<Self, String> {
        let column = |name: &'static str| {
            let index = header.iter().position(|given| given == name);
            let index =
                index.ok_or_else(|| format!("line 1: no column {name}, so this is no trace of acknowledgements; give a trace of the HPCC reference runs"))?;
            Ok::<_, String>(Column { name, index })
        };
        let mut hops = [[Column { name: "", index: 0 }; 4]; HOPS];
        for (columns, names) in hops.iter_mut().flatten().zip(HOP_COLUMNS.iter().flatten()) {
            *columns = column(names)?;
        }
        Ok(Self {
            time: column("t_ns")?,
            source: column("src")?,
            destination: column("dst")?,
            port: column("sport")?,
            ack_seq: column("ack_seq")?,
            next_seq: column("snd_nxt")?,
            hops_present: column("nhop")?,
            hops,
            utilisation: column("u_ewma")?,
            rate: column("rate_bps")?,
            reference_rate: column("ref_rate_bps")?,
            inc_stage: column("inc_stage")?,
            last_update_seq: column("last_update_seq_after")?,
        })
    }

    fn row(&self, record: &StringRecord, line: u64, unit: u32) -> Result<Row, String> {
        Ok(Row {
            line,
            flow: Flow {
                source: self.source.read(record)?,
                destination: self.destination.read(record)?,
                port: self.port.read(record)?,
            },
            time: self.time.read(record)?,
            ack_seq: self.ack_seq.read(record)?,
            next_seq: self.next_seq.read(record)?,
            telemetry: self.telemetry(record, unit)?,
            expected: State {
                utilisation: self.utilisation.read(record)?,
                rate: self.rate.read(record)?,
                reference_rate: self.reference_rate.read(record)?,
                inc_stage: self.inc_stage.read(record)?,
                last_update_seq: self.last_update_seq.read(record)?,
            },
        })
    }

    fn telemetry(&self, record: &StringRecord, unit: u32) -> Result<PathTelemetry, String> {
        let present = self.hops_present.below(record, HOPS as u64 + 1)? as usize;
        let mut path = PathTelemetry::new(0);
        for (index, [rate, time, bytes, queue]) in (0u8..).zip(&self.hops[..present]) {
            let tx_bytes = Counter::new(bytes.below(record, 1 << 20)?, 20, 128 * unit);
            let rate = rate.below(record, LINK_RATES.len() as u64)? as usize;
            let kept = path.set(
                index,
                Hop {
                    bandwidth: Rate::from_gbps(LINK_RATES[rate]),
                    time: Counter::of::<24, 1>(time.below(record, 1 << 24)?),
                    tx_bytes: tx_bytes.ok_or("unit 0: a count is worth nothing; it is at least 1")?,
                    queue: queue.below(record, 1 << 17)? * 80 * u64::from(unit),
                },
            );
            debug_assert!(kept);
        }
        Ok(path)
    }
}

impl Column {
    fn read<T: FromStr>(self, record: &StringRecord) -> Result<T, String> {
        let text = record.get(self.index).unwrap_or_default();
        text.parse().map_err(|_| {
            let kind = std::any::type_name::<T>();
            format!("column {}: {text:?} is not a number of type {kind}", self.name)
        })
    }

    fn below(self, record: &StringRecord, limit: u64) -> Result<u64, String> {
        let value = self.read(record)?;
        if value < limit {
            return Ok(value);
        }
        Err(format!("column {}: {value} is above the field's limit of {}", self.name, limit - 1))
    }
}
