//! One self-contained HTML page that says what happened.

use super::compare::Compared;
use super::figures::SizeRow;
use super::plot::{Axes, Line, lines};
use super::scenario::Scenario;
use crate::failure::Failure;
use fabric::sim::Outcome;
use std::fmt::Write;
use std::fs;
use std::path::Path;

const STYLE: &str = "body{font:15px/1.5 sans-serif;max-width:960px;margin:2em auto;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}.out{background:#fdd}h1{font-size:1.5em}h2{font-size:1.15em}\
    svg{max-width:100%;height:auto}";

/// Writes `report.html` into `folder`.
pub fn write(
    folder: &Path,
    title: &str,
    scenario: &Scenario,
    outcome: &Outcome,
    rows: &[SizeRow],
    compared: &[Compared],
) -> Result<(), Failure> {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{0}</title><style>{STYLE}</style><h1>{0}</h1>",
        escape(title)
    );
    page += &overview(scenario, outcome);
    if !compared.is_empty() {
        page += &comparison(compared);
    }
    page += &plots(scenario, outcome, rows)?;
    page += &slowdowns(rows);
    page += "</html>\n";
    let file = folder.join("report.html");
    fs::write(&file, page).map_err(|error| Failure::run(format!("{}: {error}", file.display())))
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn overview(scenario: &Scenario, outcome: &Outcome) -> String {
    let setup = &scenario.setup;
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| outcome.queue_quantile(share));
    let rows = [
        ("Hosts, switches", format!("{}, {}", setup.topology.hosts(), setup.topology.switches())),
        ("Flows that ended", format!("{} of {}", outcome.finished.len(), setup.flows.len())),
        ("Congestion control", setup.congestion.algorithm.name().into()),
        ("Virtual time", format!("{:.3} ms", outcome.time.as_nanos() as f64 / 1e6)),
        ("Longest queue of a switch port", format!("{:.1} kB", outcome.queue_max as f64 / 1e3)),
        ("Queue of all switch ports, p50 / p95 / p99", format!("{p50} / {p95} / {p99} kB")),
        ("Packets dropped, marked", format!("{}, {}", outcome.dropped, outcome.marked)),
        (
            "Pauses, and their time",
            format!("{}, {:.1} µs", outcome.pauses, outcome.paused.as_nanos() as f64 / 1e3),
        ),
        ("Seed, trace", format!("{}, {:016x}", setup.seed, outcome.trace)),
    ];
    let mut text = String::from("<table>");
    for (name, value) in rows {
        let _ = write!(text, "<tr><td>{name}<td>{value}");
    }
    text + "</table>"
}

fn comparison(compared: &[Compared]) -> String {
    let inside = compared.iter().filter(|row| row.is_inside()).count();
    let mut text = format!(
        "<h2>Beside the reference: {inside} of {} in their bands</h2><table><tr><th>figure<th>here<th>reference<th>band",
        compared.len()
    );
    for row in compared {
        let class = if row.is_inside() { "" } else { " class=out" };
        let Compared { name, ours, theirs, band } = row;
        let _ = write!(text, "<tr{class}><td>{}<td>{ours:.3}<td>{theirs:.3}<td>± {band:.3}", escape(name));
    }
    text + "</table>"
}

fn plots(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow]) -> Result<String, Failure> {
    let micros = |time: u64| time as f64 / 1e3;
    let queue = Line {
        name: "queue".into(),
        points: outcome.series.iter().map(|row| (micros(row.time), row.queue as f64 / 1e3)).collect(),
    };
    let count = outcome.series.first().map_or(0, |row| row.rates.len());
    let rate = |flow: usize| {
        let spec = scenario.setup.flows[flow];
        let first = scenario.first_host;
        let points = outcome.series.iter().map(|row| (micros(row.time), row.rates[flow] as f64 / 1e9));
        Line {
            name: format!("{} to {}", spec.source + first, spec.destination + first),
            points: points.collect(),
        }
    };
    let rates: Vec<_> = (0..count).map(rate).collect();
    let mut pictures = lines(&axes("Queue at the bottleneck", "time, µs", "kB"), &[queue])?;
    pictures += &lines(&axes("Pacing rate of each flow", "time, µs", "Gb/s"), &rates)?;
    // The first row is of all lengths.
    let sizes = rows.get(1..).unwrap_or_default();
    if sizes.len() > 1 {
        let line = |name: &str, of: fn(&SizeRow) -> f64| Line {
            name: name.into(),
            points: sizes.iter().map(|row| ((row.low.max(1) as f64), of(row))).collect(),
        };
        let by_size = [line("p50", |row| row.p50), line("p95", |row| row.p95), line("p99", |row| row.p99)];
        let axes =
            Axes { is_logarithmic: true, ..axes("Slowdown by length of the flow", "bytes, from", "times") };
        pictures += &lines(&axes, &by_size)?;
    }
    Ok(pictures)
}

const fn axes<'a>(title: &'a str, x: &'a str, y: &'a str) -> Axes<'a> {
    Axes { title, x, y, is_logarithmic: false }
}

fn slowdowns(rows: &[SizeRow]) -> String {
    let mut text = String::from(
        "<h2>How many times longer than alone</h2><table><tr><th>bytes<th>flows<th>p50<th>p95<th>p99<th>mean",
    );
    for SizeRow { low, high, count, p50, p95, p99, mean, .. } in rows {
        let _ = write!(
            text,
            "<tr><td>{low} to {high}<td>{count}<td>{p50:.3}<td>{p95:.3}<td>{p99:.3}<td>{mean:.3}"
        );
    }
    text + "</table>"
}
