//! The rows of `ferroce top`, one per queue pair, and the payload rate of all queue pairs.

use crate::failure::Failure;
use crate::units::counted;
use crate::why;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use verbs::Qpn;
use verbs::observe::{CoreStatus, HopStatus, ProcessStatus, QueuePairStatus};

/// The limit on the updates in the sparkline.
const HISTORY: usize = 120;

/// The period of PSNs, which have 24 bits.
const CIRCLE: u32 = 1 << 24;

/// A column. Rows can be sorted by each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Column {
    Pid,
    Port,
    QueuePair,
    Peer,
    Algorithm,
    Waiting,
    Rate,
    Packets,
    Window,
    InFlight,
    RoundTrip,
}

impl Column {
    pub const ALL: [Self; 11] = [
        Self::Pid,
        Self::Port,
        Self::QueuePair,
        Self::Peer,
        Self::Algorithm,
        Self::Waiting,
        Self::Rate,
        Self::Packets,
        Self::Window,
        Self::InFlight,
        Self::RoundTrip,
    ];

    /// Returns the heading of the column.
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Pid => "PID",
            Self::Port => "PORT",
            Self::QueuePair => "QP",
            Self::Peer => "PEER",
            Self::Algorithm => "CC",
            Self::Waiting => "WAITS FOR",
            Self::Rate => "Mb/s",
            Self::Packets => "PKT/s",
            Self::Window => "WINDOW pkt",
            Self::InFlight => "FLIGHT pkt",
            Self::RoundTrip => "RTT us",
        }
    }

    /// Returns the column `by` places to the right, wrapping to the first.
    fn moved(self, by: usize) -> Self {
        Self::ALL[(self as usize + by) % Self::ALL.len()]
    }

    pub fn next(self) -> Self {
        self.moved(1)
    }

    pub fn previous(self) -> Self {
        self.moved(Self::ALL.len() - 1)
    }
}

/// The values of a queue pair's row.
#[derive(Clone, Debug, Default)]
pub struct Row {
    pid: u32,
    port: String,
    qpn: u32,
    peer: String,
    algorithm: String,
    waiting: String,
    /// The share of `waiting` in the time since the last update, %.
    share: u64,
    /// Payload that the peer acknowledged since the last update, bit/s; `None` for READs and datagrams, whose payload is not acknowledged.
    rate: Option<f64>,
    packets: u64,
    /// The window and the bytes in flight, in packets of the path MTU; 0 without a connection.
    window: f64,
    in_flight: f64,
    round_trip: u64,
    /// Queue and utilisation of each hop of the path; marks the busiest hop.
    path: String,
}

impl Row {
    /// Returns the text of the row in `column`.
    pub fn cell(&self, column: Column) -> String {
        match column {
            Column::Pid => self.pid.to_string(),
            Column::Port => self.port.clone(),
            Column::QueuePair => Qpn::new(self.qpn).to_string(),
            Column::Peer => self.peer.clone(),
            Column::Algorithm => self.algorithm.clone(),
            Column::Waiting => format!("{} {} %", self.waiting, self.share),
            Column::Rate => self.rate.map_or("-".into(), |bps| format!("{:.1}", bps / 1e6)),
            Column::Packets => self.packets.to_string(),
            Column::Window => packets(self.window),
            Column::InFlight => packets(self.in_flight),
            Column::RoundTrip => format!("{:.1}", self.round_trip as f64 / 1e3),
        }
    }

    /// Returns the name of the state in which the queue pair spent most of the time since the last update.
    pub fn waiting(&self) -> &str {
        &self.waiting
    }

    /// Returns the queue and the utilisation of each hop of the path as text.
    pub fn path(&self) -> &str {
        &self.path
    }

    fn compare(&self, other: &Self, column: Column) -> Ordering {
        match column {
            Column::Pid => self.pid.cmp(&other.pid),
            Column::Port => self.port.cmp(&other.port),
            Column::QueuePair => self.qpn.cmp(&other.qpn),
            Column::Peer => self.peer.cmp(&other.peer),
            Column::Algorithm => self.algorithm.cmp(&other.algorithm),
            Column::Waiting => (&self.waiting, self.share).cmp(&(&other.waiting, other.share)),
            Column::Rate => self.rate.unwrap_or(0.0).total_cmp(&other.rate.unwrap_or(0.0)),
            Column::Packets => self.packets.cmp(&other.packets),
            Column::Window => self.window.total_cmp(&other.window),
            Column::InFlight => self.in_flight.total_cmp(&other.in_flight),
            Column::RoundTrip => self.round_trip.cmp(&other.round_trip),
        }
    }
}

/// All rows, with their order and the first visible one.
pub struct Rows {
    pid: Option<u32>,
    pub column: Column,
    is_descending: bool,
    pub all: Vec<Row>,
    pub first: usize,
    pub cores: Vec<String>,
    /// Payload rates between updates, kb/s; the newest is last.
    pub rates: VecDeque<u64>,
    pub processes: usize,
    pub silent: usize,
    before: BTreeMap<u32, ProcessStatus>,
}

impl Rows {
    pub fn new(pid: Option<u32>) -> Self {
        let (all, rates, before) = (Vec::new(), VecDeque::new(), BTreeMap::new());
        Self {
            pid,
            column: Column::Packets,
            is_descending: true,
            all,
            first: 0,
            cores: Vec::new(),
            rates,
            processes: 0,
            silent: 0,
            before,
        }
    }

    /// Reads the status of the processes and replaces the rows.
    ///
    /// # Errors
    /// Returns a failure if no process can be observed. The rows are then empty.
    pub fn update(&mut self) -> Result<(), Failure> {
        let (processes, silent) = why::processes(self.pid).inspect_err(|_| self.take(&[]))?;
        self.take(&processes);
        self.silent = silent.len();
        Ok(())
    }

    fn take(&mut self, processes: &[ProcessStatus]) {
        let (mut all, mut cores, mut kilobits) = (Vec::new(), Vec::new(), 0);
        for process in processes {
            let before = self.before.get(&process.pid);
            for device in &process.devices {
                let earlier = before.and_then(|before| before.device(&device.port));
                let nanos = earlier.map_or(0, |earlier| device.now.saturating_sub(earlier.now)).max(1);
                let sent =
                    |counters: &BTreeMap<String, u64>| counters.get("tx_payload_bytes").copied().unwrap_or(0);
                if let Some(earlier) = earlier {
                    let bytes = sent(&device.counters).saturating_sub(sent(&earlier.counters));
                    kilobits += (bytes as f64 * 8e6 / nanos as f64) as u64;
                }
                cores.extend(device.cores.iter().enumerate().map(|(place, core)| {
                    let before = earlier.and_then(|earlier| earlier.cores.get(place));
                    let pairs = device.queue_pairs.iter().filter(|pair| pair.core == place).count();
                    self::core(process.pid, &device.port, place, pairs, before, core)
                }));
                all.extend(device.queue_pairs.iter().map(|pair| {
                    let earlier = earlier.and_then(|earlier| earlier.queue_pair(pair.qpn));
                    row(process.pid, &device.port, earlier, pair, nanos)
                }));
            }
        }
        (self.all, self.cores) = (all, cores);
        self.rates.push_back(kilobits);
        self.rates.drain(..self.rates.len().saturating_sub(HISTORY));
        self.processes = processes.len();
        self.before = processes.iter().map(|process| (process.pid, process.clone())).collect();
        self.sort();
    }

    fn sort(&mut self) {
        let (column, is_descending) = (self.column, self.is_descending);
        self.all.sort_by(|one, other| {
            let order = one.compare(other, column);
            if is_descending { order.reverse() } else { order }
        });
        self.first = self.first.min(self.all.len().saturating_sub(1));
    }

    pub fn sort_by(&mut self, column: Column) {
        self.column = column;
        self.sort();
    }

    pub fn invert(&mut self) {
        self.is_descending = !self.is_descending;
        self.sort();
    }

    pub fn scroll(&mut self, by: isize) {
        self.first = self.first.saturating_add_signed(by).min(self.all.len().saturating_sub(1));
    }
}

/// Returns the line of a core: the share of busy turns since the last update, frames per busy turn, and its queue pairs.
fn core(
    pid: u32,
    port: &str,
    place: usize,
    pairs: usize,
    before: Option<&CoreStatus>,
    core: &CoreStatus,
) -> String {
    let count = |core: &CoreStatus, name| core.counters.get(name).copied().unwrap_or(0);
    let since = |name| count(core, name).saturating_sub(before.map_or(0, |before| count(before, name)));
    let (busy, idle) = (since("busy_turns"), since("idle_turns"));
    let frames = since("rx_frames") + since("tx_frames");
    let (part, fill) = (busy * 100 / (busy + idle).max(1), frames as f64 / busy.max(1) as f64);
    let pairs = counted(pairs, "queue pair", "queue pairs");
    format!(
        "{pid} {port} core {place}: {part} % of {} turns busy, {fill:.1} frames each, {pairs}",
        busy + idle
    )
}

fn row(pid: u32, port: &str, before: Option<&QueuePairStatus>, pair: &QueuePairStatus, nanos: u64) -> Row {
    let since = |state: &String| before.and_then(|before| before.waited.get(state)).copied().unwrap_or(0);
    let waited = pair.waited.iter().map(|(state, time)| (state, time.saturating_sub(since(state))));
    let total: u64 = waited.clone().map(|(_, time)| time).sum();
    let (waiting, longest) = waited.max_by_key(|(_, time)| *time).unwrap_or((&pair.waiting, 0));
    let acknowledged = |pair: &QueuePairStatus| pair.acknowledged_bytes;
    let bytes = acknowledged(pair).saturating_sub(before.map_or(acknowledged(pair), acknowledged));
    let in_packets = |bytes: u64| if pair.mtu == 0 { 0.0 } else { bytes as f64 / f64::from(pair.mtu) };
    let psns = before.map_or(0, |before| pair.send_psn.wrapping_sub(before.send_psn) % CIRCLE);
    Row {
        pid,
        port: port.into(),
        qpn: pair.qpn,
        peer: pair.peer.as_ref().map_or("-".into(), |peer| peer.address.clone()),
        algorithm: pair.algorithm.clone(),
        waiting: waiting.clone(),
        share: longest * 100 / total.max(1),
        rate: (bytes > 0 || psns == 0).then(|| bytes as f64 * 8e9 / nanos as f64),
        packets: (f64::from(psns) * 1e9 / nanos as f64) as u64,
        window: in_packets(pair.window),
        in_flight: in_packets(pair.in_flight),
        round_trip: pair.round_trip.unwrap_or(0),
        path: path(pair),
    }
}

/// Formats a number of packets, with one decimal below 10.
fn packets(number: f64) -> String {
    if number < 10.0 { format!("{number:.1}") } else { format!("{number:.0}") }
}

fn path(pair: &QueuePairStatus) -> String {
    if pair.hops.is_empty() {
        return format!("QP {}: no telemetry of its path", Qpn::new(pair.qpn));
    }
    let hop = |(place, hop): (usize, &HopStatus)| {
        let part = hop.utilisation.map_or("?".into(), |part| format!("{:.0}", part * 100.0));
        let mark = if pair.busiest == Some(place) { " busiest" } else { "" };
        format!("hop {} {part} % {} B{mark}", hop.index, hop.queue)
    };
    let hops: Vec<String> = pair.hops.iter().enumerate().map(hop).collect();
    format!("QP {}: {}", Qpn::new(pair.qpn), hops.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn process(now: u64, psn: u32, window: u64) -> ProcessStatus {
        let pair = |qpn: u32, psn: u32| {
            json!({
                "qpn": qpn, "core": 0, "service": "RC", "state": "ReadyToSend", "peer": null, "algorithm": "fixed", "window": 4096,
                "in_flight": 1536, "rate_bps": null, "mtu": 1024, "acknowledged_bytes": u64::from(psn) * 1250, "utilisation": null, "round_trip": 2000, "shortest_round_trip": 1000,
                "send_psn": psn, "acknowledged_psn": 0, "outstanding": 0, "receives": 0, "unpolled": 0,
                "waiting": "idle", "waited": {"window": window, "idle": now - window},
                "hops": [], "busiest": null, "suspected": null,
            })
        };
        serde_json::from_value(json!({
            "format": 4, "version": "0", "pid": 7, "command": "x",
            "devices": [{
                "port": "p", "driver": "d", "addresses": [], "speed_mbps": null, "stopped": null, "now": now,
                "counters": {"tx_payload_bytes": now}, "discards": {}, "core": {}, "waited": {}, "cores": [],
                "queue_pairs": [pair(5, 3), pair(6, psn)],
            }],
        }))
        .unwrap()
    }

    #[test]
    fn a_row_has_its_path() {
        let mut status = process(1, 0, 0);
        assert_eq!(path(&status.devices[0].queue_pairs[0]), "QP 0x000005: no telemetry of its path");
        let pair = &mut status.devices[0].queue_pairs[0];
        let hop = |index, queue, utilisation| HopStatus { index, queue, utilisation, age: 0 };
        (pair.hops, pair.busiest) = (vec![hop(0, 0, None), hop(2, 9000, Some(1.25))], Some(1));
        assert_eq!(path(pair), "QP 0x000005: hop 0 ? % 0 B | hop 2 125 % 9000 B busiest");
    }

    #[test]
    fn a_core_has_its_own_turns_and_frames() {
        let status = |counters: serde_json::Value| -> CoreStatus {
            serde_json::from_value(json!({"counters": counters, "waited": {}})).unwrap()
        };
        let before = status(json!({"busy_turns": 10, "idle_turns": 10, "rx_frames": 5, "tx_frames": 5}));
        let after = status(json!({"busy_turns": 110, "idle_turns": 310, "rx_frames": 205, "tx_frames": 105}));
        let line = core(7, "eth0", 1, 2, Some(&before), &after);
        assert_eq!(line, "7 eth0 core 1: 25 % of 400 turns busy, 3.0 frames each, 2 queue pairs");
    }

    #[test]
    fn a_rate_counts_acknowledged_bytes() {
        let mut rows = Rows::new(None);
        let rates = |rows: &Rows| rows.all.iter().map(|row| row.cell(Column::Rate)).collect::<Vec<_>>();
        rows.take(&[process(1_000_000_000, 0, 0)]);
        rows.take(&[process(2_000_000_000, 2000, 0)]);
        // 2000 packets of 1250 B in one second are 20 Mb/s.
        assert_eq!(rates(&rows), ["20.0", "0.0"]);
        let mut read = process(3_000_000_000, 3000, 0);
        read.devices[0].queue_pairs[1].acknowledged_bytes = 2_500_000;
        rows.take(&[read]);
        assert_eq!(rates(&rows), ["-", "0.0"], "packets without acknowledged payload are READs");
    }

    #[test]
    fn rows_show_differences_and_are_sorted() {
        let mut rows = Rows::new(None);
        rows.take(&[process(1_000_000_000, CIRCLE - 10, 0)]);
        rows.take(&[process(2_000_000_000, 90, 750_000_000)]);
        let cells =
            |row: &Row| [Column::QueuePair, Column::Packets, Column::Waiting].map(|column| row.cell(column));
        assert_eq!(cells(&rows.all[0]), ["0x000006", "100", "window 75 %"]);
        let cells =
            |row: &Row| [Column::Algorithm, Column::Window, Column::InFlight].map(|column| row.cell(column));
        assert_eq!(cells(&rows.all[0]), ["fixed", "4.0", "1.5"], "packets of the path MTU, 1024 B");
        assert_eq!(rows.rates, [0, 8_000_000]);
        rows.invert();
        assert_eq!(rows.all[0].cell(Column::QueuePair), "0x000005");
        rows.scroll(9);
        assert_eq!(rows.first, 1);
        rows.take(&[]);
        assert_eq!((rows.first, rows.all.len()), (0, 0));
        assert_eq!(Column::Pid.previous(), Column::RoundTrip);
    }
}
