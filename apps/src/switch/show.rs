//! The reports of the switch: a table on standard output, and a JSON file. A separate thread writes them, so that a slow terminal does not
//! delay frames.

use super::Args;
use crate::failure::Failure;
use cc::Rate;
use fabric::{PortReport, Report, RuleReport};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};

pub enum Message {
    /// A periodic report for the table.
    Interval(Report),
    /// The report of a phase that SIGUSR1 ended.
    Phase(Report),
    /// The last report.
    End(Report),
}

pub struct Show {
    names: Vec<String>,
    json: Option<PathBuf>,
    redraw: bool,
    phase: u32,
    last: Option<Report>,
    drawn: usize,
    unprinted: Option<Failure>,
}

/// The thread that shows the reports, until all senders are dropped.
pub struct Showing {
    /// Sends reports to the thread.
    pub reports: SyncSender<Message>,
    /// Returns the error of the thread, if any.
    pub thread: JoinHandle<Result<(), Failure>>,
}

/// The content of the file. Its keys are stable.
#[derive(Serialize)]
struct File<'a> {
    phase: u32,
    r#final: bool,
    seconds: f64,
    switch_id: u16,
    stations: usize,
    stations_refused: u64,
    ports: Vec<FilePort<'a>>,
    rules: &'a [RuleReport],
}

#[derive(Serialize)]
struct FilePort<'a> {
    port: &'a str,
    #[serde(flatten)]
    report: &'a PortReport,
}

impl Show {
    /// Starts the thread. It ends when the last sender is dropped.
    ///
    /// # Errors
    /// Returns a failure if no file can be created in the folder of `json`, so that the run does not fail at its end.
    pub fn start(names: Vec<String>, json: Option<PathBuf>) -> Result<Showing, Failure> {
        if let Some(file) = &json {
            write(&partial(file), "")?;
        }
        let redraw = std::io::stdout().is_terminal();
        let show = Self { names, json, redraw, phase: 0, last: None, drawn: 0, unprinted: None };
        let (reports, receiver) = sync_channel(8);
        Ok(Showing { reports, thread: thread::spawn(move || show.run(&receiver)) })
    }

    fn run(mut self, reports: &Receiver<Message>) -> Result<(), Failure> {
        for message in reports {
            match message {
                Message::Interval(report) => {
                    let table = self.table(&report);
                    self.draw(&table);
                    self.last = Some(report);
                }
                Message::Phase(report) => {
                    self.file(&report, false)?;
                    self.phase += 1;
                    self.last = None;
                }
                Message::End(report) => {
                    self.last = None;
                    let table = self.table(&report);
                    self.draw(&format!("{table}{}", self.losses(&report)));
                    self.file(&report, true)?;
                }
            }
        }
        self.unprinted.filter(|failure| !failure.is_unread()).map_or(Ok(()), Err)
    }

    /// Returns the table with a line per port. Rates refer to the time since the last table. In the first table, they refer to the longest
    /// time in which a port was active.
    fn table(&self, report: &Report) -> String {
        let mut text = format!(
            "{:<16} {:>12} {:>12} {:>10} {:>10} {:>6} {:>9} {:>9} {:>9} {:>9} {:>9}\n",
            "port",
            "rx frames",
            "tx frames",
            "rx Mb/s",
            "tx Mb/s",
            "util",
            "dropped",
            "queue",
            "p50",
            "p99",
            "max"
        );
        let active = report.ports.iter().map(|port| port.active_seconds).fold(0.0, f64::max);
        for (index, port) in report.ports.iter().enumerate() {
            let (rx, tx, utilisation) = match &self.last {
                Some(last) => rates(report.seconds - last.seconds, port, Some(&last.ports[index])),
                None => rates(active, port, None),
            };
            let utilisation = port.rate_bps.map_or("-".into(), |_| format!("{:.1}%", utilisation * 100.0));
            let (counters, queue) = (&port.counters, &port.queue);
            let _ = writeln!(
                text,
                "{:<16} {:>12} {:>12} {rx:>10.2} {tx:>10.2} {utilisation:>6} {:>9} {:>9} {:>9} {:>9} {:>9}",
                self.names[index],
                counters.rx_frames,
                counters.tx_frames,
                counters.drops.total(),
                queue.bytes_now,
                queue.p50,
                queue.p99,
                queue.max
            );
        }
        text
    }

    /// Returns the nonzero counts of drops, faults and marks per port, and the counts of each fault rule.
    fn losses(&self, report: &Report) -> String {
        let mut text = String::new();
        for (name, port) in self.names.iter().zip(&report.ports) {
            let (counters, drops, faults) = (&port.counters, &port.counters.drops, &port.faults);
            let counts: Vec<String> = [
                ("runt", drops.runt),
                ("group source", drops.group_source),
                ("link local", drops.link_local),
                ("same port", drops.same_port),
                ("queue full", drops.queue_full),
                ("port blocked", drops.port_blocked),
                ("no buffer", drops.no_buffer),
                ("lost", faults.lost),
                ("duplicated", faults.duplicated),
                ("reordered", faults.reordered),
                ("flipped", faults.flipped),
                ("resealed", faults.resealed),
                ("delayed", faults.delayed),
                ("lied", faults.forged),
                ("unheard", faults.vendor_opcodes),
                ("stamped", counters.stamped),
                ("CE marked", counters.ce_marked),
                ("flooded", counters.flooded),
            ]
            .iter()
            .filter(|(_, count)| *count > 0)
            .map(|(what, count)| format!("{what} {count}"))
            .collect();
            if !counts.is_empty() {
                let _ = writeln!(text, "{name}: {}", counts.join(", "));
            }
        }
        for RuleReport { name, fitted, happened } in &report.rules {
            let _ = writeln!(text, "fault {name}: fitted {fitted}, hurt {happened}");
        }
        text
    }

    /// Prints a table, on a terminal over the previous one. The switch continues after an error. The thread returns it at the end, unless
    /// the reader has exited.
    fn draw(&mut self, text: &str) {
        let mut out = String::new();
        if self.redraw && self.drawn > 0 {
            let _ = write!(out, "\x1b[{}A\x1b[J", self.drawn);
        }
        out.push_str(text);
        self.drawn = text.lines().count();
        if let Err(failure) = out!("{out}") {
            self.unprinted.get_or_insert(failure);
        }
    }

    fn file(&self, report: &Report, last: bool) -> Result<(), Failure> {
        let Some(file) = &self.json else { return Ok(()) };
        let ports = self.names.iter().zip(&report.ports);
        let content = File {
            phase: self.phase,
            r#final: last,
            seconds: report.seconds,
            switch_id: report.switch_id,
            stations: report.stations,
            stations_refused: report.stations_refused,
            ports: ports.map(|(port, report)| FilePort { port, report }).collect(),
            rules: &report.rules,
        };
        let text = serde_json::to_string_pretty(&content)
            .map_err(|error| Failure::run(format!("the report has no JSON form: {error}")))?;
        let partial = partial(file);
        write(&partial, &format!("{text}\n"))?;
        std::fs::rename(&partial, file).map_err(|error| unwritten(file, &error))
    }
}

/// Returns the rates received and sent, Mb/s, and the utilisation of `port` for the `time`, s, since `last`.
fn rates(time: f64, port: &PortReport, last: Option<&PortReport>) -> (f64, f64, f64) {
    let (rx, tx) = last.map_or((0, 0), |last| (last.counters.rx_bytes, last.counters.tx_bytes));
    let mbps = |bytes: u64| if time > 0.0 { bytes as f64 * 8.0 / time / 1e6 } else { 0.0 };
    let busy = port.busy_seconds - last.map_or(0.0, |last| last.busy_seconds);
    let utilisation = match last {
        Some(_) if time > 0.0 => (busy / time).min(1.0),
        Some(_) => 0.0,
        None => port.utilisation,
    };
    (mbps(port.counters.rx_bytes - rx), mbps(port.counters.tx_bytes - tx), utilisation)
}

/// Returns the line that announces the switch with its `id`, for which scripts wait.
pub fn opening(args: &Args, id: u16) -> String {
    let ports: Vec<String> = args.ports.iter().map(ToString::to_string).collect();
    let rate = args.rate.map_or("unshaped".into(), |rate: Rate| rate.to_string());
    format!(
        "switching between {} ({rate}, {} B queues), switch id {id}, pid {}",
        ports.join(", "),
        args.queue,
        std::process::id()
    )
}

fn partial(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| unwritten(file, &error))
}

fn unwritten(file: &Path, error: &std::io::Error) -> Failure {
    Failure::run(format!("{}: the report cannot be written: {error}", file.display()))
}
