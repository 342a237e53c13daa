//! The files of a run: CSV with the columns of the reference, and a summary.

use super::Cost;
use super::congestion::algorithm_names;
use super::figures::{SizeRow, steady};
use super::scenario::Scenario;
use crate::failure::Failure;
use crate::output::{OutFile, unwritten};
use fabric::sim::{Outcome, PortRow, Steady};
use serde_json::json;
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The limit on flows with columns in the series.
const COLUMNS: usize = 64;

/// The folder of a run's files, opened before the run.
pub struct Folder<'a> {
    path: &'a Path,
    summary: OutFile,
}

impl<'a> Folder<'a> {
    /// Creates the folder and opens `summary.json` in it.
    ///
    /// # Errors
    /// Returns a failure if the folder or the file cannot be created.
    pub fn open(path: &'a Path) -> Result<Self, Failure> {
        fs::create_dir_all(path).map_err(|error| unwritten(path, &error))?;
        Ok(Self { path, summary: OutFile::open(&path.join("summary.json"))? })
    }

    /// Writes `fct.csv`, `series.csv` (if there is a series), `slowdown.csv`, `queues_pfc.csv` and `summary.json`.
    ///
    /// # Errors
    /// Returns a failure if a file cannot be written.
    pub fn write(
        self,
        scenario: &Scenario,
        outcome: &Outcome,
        rows: &[SizeRow],
        cost: Cost,
    ) -> Result<(), Failure> {
        let save = |name: &str, text: String| OutFile::open(&self.path.join(name))?.write(&text);
        save("fct.csv", fct(scenario, outcome))?;
        save("slowdown.csv", slowdown(rows))?;
        save("queues_pfc.csv", queues(outcome))?;
        if !outcome.series.is_empty() {
            save("series.csv", series(scenario, outcome))?;
        }
        self.summary.write(&format!("{:#}\n", summary(scenario, outcome, rows, cost)))
    }
}

fn fct(scenario: &Scenario, outcome: &Outcome) -> String {
    let mut text = String::from("src,dst,size_bytes,start_ns,fct_ns,standalone_fct_ns\n");
    for done in &outcome.finished {
        let flow = scenario.setup.flows[done.flow];
        let [start, time, alone] = [done.start, done.time, done.alone].map(|time| time.as_nanos());
        let [from, to] = [flow.source, flow.destination].map(|host| host + scenario.first_host);
        let _ = writeln!(text, "{from},{to},{},{start},{time},{alone}", flow.bytes);
    }
    text
}

fn slowdown(rows: &[SizeRow]) -> String {
    let mut text = String::from("type,size_lo,size_hi,n,p50,p95,p99,mean,mean_fct_us\n");
    for row in rows {
        let SizeRow { low, high, count, p50, p95, p99, mean, mean_fct_us, .. } = row;
        let _ = writeln!(
            text,
            "{},{low},{high},{count},{p50:.4},{p95:.4},{p99:.4},{mean:.4},{mean_fct_us:.3}",
            row.kind()
        );
    }
    text
}

fn queues(outcome: &Outcome) -> String {
    let [p50, p95, p99, p999] = [0.5, 0.95, 0.99, 0.999].map(|share| outcome.queue_quantile(share));
    format!(
        "q_p50_KB,q_p95_KB,q_p99_KB,q_p999_KB,q_max_KB,frac_nonzero_KB_bin,pfc_events,pfc_pause_us_sum_over_ports,\
         dropped,marked\n{p50},{p95},{p99},{p999},{},{:.4},{},{:.1},{},{}\n",
        outcome.queue_max / 1000,
        outcome.queue_busy(),
        outcome.pauses,
        outcome.paused.as_nanos() as f64 / 1e3,
        outcome.dropped,
        outcome.marked
    )
}

fn series(scenario: &Scenario, outcome: &Outcome) -> String {
    let flows = &scenario.setup.flows[..scenario.setup.flows.len().min(COLUMNS)];
    let mut text = String::from("t_us,bottleneck_q_bytes,bottleneck_tx_bytes");
    for (number, flow) in flows.iter().enumerate() {
        let source = flow.source + scenario.first_host;
        // A source with several flows has columns for each.
        let again = flows[..number].iter().filter(|other| other.source == flow.source).count();
        let name = if again == 0 { format!("src{source}") } else { format!("src{source}_{}", again + 1) };
        let _ = write!(text, ",rate_mbps_{name},acked_bytes_{name}");
    }
    for port in scenario.ports.iter().skip(1) {
        let _ = write!(text, ",q_bytes_{port},tx_bytes_{port}");
    }
    text.push('\n');
    for row in &outcome.series {
        let _ = write!(text, "{:.3},{},{}", row.time as f64 / 1e3, row.queue, row.tx_bytes);
        for (rate, acked) in row.rates.iter().zip(&row.acked) {
            let _ = write!(text, ",{:.1},{acked}", *rate as f64 / 1e6);
        }
        for PortRow { queue, tx_bytes } in &row.others {
            let _ = write!(text, ",{queue},{tx_bytes}");
        }
        text.push('\n');
    }
    text
}

/// Returns the summary of a run as JSON.
pub fn summary(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow], cost: Cost) -> serde_json::Value {
    let steady = steady(scenario, outcome).map(|steady| {
        let values = steady.values();
        Steady::NAMES
            .iter()
            .zip(values)
            .map(|(name, value)| (*name, value))
            .collect::<std::collections::BTreeMap<_, _>>()
    });
    let all = rows.first();
    json!({
        "hosts": scenario.setup.topology.hosts(),
        "switches": scenario.setup.topology.switches(),
        "flows": scenario.setup.flows.len(),
        "finished": outcome.finished.len(),
        "algorithm": algorithm_names(&scenario.setup),
        "seed": scenario.setup.seed,
        "trace": format!("{:016x}", outcome.trace),
        "virtual_us": outcome.time.as_nanos() as f64 / 1e3,
        "slowdown": all.map(|row| json!({ "p50": row.p50, "p95": row.p95, "p99": row.p99 })),
        "steady": steady,
        "queue_max_bytes": outcome.queue_max,
        "dropped": outcome.dropped,
        "lost": outcome.lost,
        "faults": outcome.faults,
        "marked": outcome.marked,
        "direct_responses": outcome.direct_responses,
        "pauses": outcome.pauses,
        "packets": outcome.packets,
        "events": outcome.events,
        "events_per_second": outcome.events as f64 / cost.wall.as_secs_f64(),
        "events_per_cpu_second": (outcome.events as f64 / cost.cpu.as_secs_f64()).round(),
        "retransmitted": outcome.retransmitted,
        "bytes_per_running_flow": outcome.memory[0],
        "bytes_per_host": outcome.memory[1],
    })
}
