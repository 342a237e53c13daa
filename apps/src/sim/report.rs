//! The self-contained HTML report of a run.

use super::compare::Compared;
use super::congestion::{algorithm_name, algorithm_names};
use super::figures::SizeRow;
use super::plot::{HUES, Line, Plot, size, styles};
use super::scenario::Scenario;
use crate::failure::Failure;
use crate::units;
use cc::Rate;
use fabric::sim::{Hosts, Outcome, PortRow, Row, Setup};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::Path;
use verbs::congestion::CcName;

/// The number of samples over which the rate of a link is computed.
const STEP: usize = 10;
/// The upper bound of the last size range.
const LONGEST: u64 = 1_000_000_000;

/// Begins a page.
pub fn begin(title: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=viewport content=\"width=device-width\">\
         <meta name=color-scheme content=\"light dark\"><title>{0}</title><style>{STYLE}{1}</style><h1>{0}</h1>",
        escape(title),
        styles()
    )
}

/// On a telephone, each row of a table is a block of names and values.
const STYLE: &str = ":root{--text:#222;--faint:#666;--back:#fff;--line:#ddd;--mark:#0072b222;--out:#fdd;--code:#f3f3f3}\
    @media(prefers-color-scheme:dark){:root{--text:#e4e4e4;--faint:#a5a5a5;--back:#16181c;--line:#3a3d44;--mark:#4da6e030;--out:#5c2424;\
    --code:#262930}}body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:var(--text);\
    background:var(--back)}.wide{max-width:1500px}table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .6em;text-align:right;\
    border-bottom:1px solid var(--line);vertical-align:bottom}th{font-weight:600;font-size:.9em}th small,.ideal-row td{color:var(--faint);\
    font-weight:400}td:first-child,th:first-child{text-align:left}td:first-child{white-space:nowrap}.words td,.words th,.rest{text-align:left;vertical-align:top;white-space:normal}\
    .out{background:var(--out)}h1{font-size:1.5em;margin-bottom:0;overflow-wrap:anywhere}h2{font-size:1.15em;margin:2em 0 0}figure h2{\
    margin-top:0}p{margin:.4em 0}.lead{font-size:1.1em}.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(11em,1fr));\
    gap:.8em;margin:1.2em 0}.tiles div{border:1px solid var(--line);border-radius:.5em;padding:.5em 1em}.tiles b{display:block;\
    font-size:1.35em}.tiles small{color:var(--faint);display:block}code{background:var(--code);padding:.1em .3em;overflow-wrap:anywhere}\
    @media(max-width:700px){table.cards,.cards tbody{display:block}.cards tr{display:grid;grid-template-columns:1fr 1fr;column-gap:1em;\
    padding:.5em 0;border-bottom:1px solid var(--line)}.cards tr:first-child{display:none}.cards td{display:flex;\
    justify-content:space-between;border:0;padding:.05em 0;gap:.5em}.cards td:empty{display:none}.cards td[data-n]::before{content:attr(data-n);color:var(--faint);\
    text-align:left}.cards td:first-child{grid-column:1/3;font-weight:600;justify-content:flex-start}}\
    @media(max-width:420px){.cards tr{grid-template-columns:1fr}.cards td:first-child{grid-column:1}}";

/// Returns a table whose first column names the row; on a telephone it consists of blocks. A column has a name and a unit.
pub fn table(columns: &[(&str, &str)], rows: impl Iterator<Item = (&'static str, Vec<String>)>) -> String {
    let mut text = String::from("<table class=cards><tr>");
    for (name, unit) in columns {
        let _ = write!(text, "<th>{name}<br><small>{unit}</small>");
    }
    for (class, cells) in rows {
        let _ = write!(text, "<tr class=\"{class}\">");
        for (place, (cell, (name, unit))) in cells.iter().zip(columns).enumerate() {
            let comma = if unit.is_empty() { "" } else { ", " };
            let _ = match place {
                0 => write!(text, "<td>{cell}"),
                // The last cell of a short row is about the rest.
                _ if place + 1 == cells.len() && cells.len() < columns.len() => {
                    write!(text, "<td class=rest colspan={}>{cell}", columns.len() - place)
                }
                _ => write!(text, "<td data-n=\"{name}{comma}{unit}\">{cell}"),
            };
        }
    }
    text + "</table>"
}

/// Writes `report.html` into `folder`.
pub fn write(
    folder: &Path,
    title: &str,
    scenario: &Scenario,
    outcome: &Outcome,
    rows: &[SizeRow],
    compared: &[Compared],
) -> Result<(), Failure> {
    let mut page = begin(title);
    page += &lead(title, scenario, outcome);
    page += &tiles(scenario, outcome, rows);
    if !compared.is_empty() {
        page += &comparison(compared);
    }
    page += &plots(scenario, outcome, rows);
    page += &slowdowns(rows);
    page += &overview(scenario, outcome);
    page += "</html>\n";
    let file = folder.join("report.html");
    fs::write(&file, page)
        .map_err(|error| Failure::run(format!("{}: the page cannot be written: {error}", file.display())))
}

fn lead(title: &str, scenario: &Scenario, outcome: &Outcome) -> String {
    let setup = &scenario.setup;
    let (hosts, switches) = (setup.topology.hosts(), setup.topology.switches());
    let kind = match setup.hosts {
        Hosts::Endpoints => "The hosts run Ferroce's endpoints and exchange complete packets",
        Hosts::Model => "The hosts are a model that uses Ferroce's congestion control",
    };
    let bytes: u64 = setup.flows.iter().map(|flow| flow.bytes).sum();
    let left = match setup.flows.len() - outcome.finished.len() {
        0 => String::new(),
        left => format!(" <b>{left} of them were not complete at the end of the run.</b>"),
    };
    format!(
        "<p class=lead>{} flow{} with {} in total between {hosts} hosts, over {switches} switch{}, with the congestion control <b>{}</b>. {kind}.{left}</p>\
         <p>Command: <code>ferroce sim {} --seed {}</code></p>",
        setup.flows.len(),
        if setup.flows.len() == 1 { "" } else { "s" },
        size(bytes),
        if switches == 1 { "" } else { "es" },
        algorithm_names(setup),
        escape(title),
        setup.seed
    )
}

fn tiles(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow]) -> String {
    let mut tiles = Vec::new();
    if let Some(steady) = super::figures::steady(scenario, outcome) {
        let link = link(scenario, 0).map_or_else(String::new, |rate| format!("link rate: {rate}"));
        tiles.push((
            format!("{:.1} Gb/s", steady.utilisation_gbps),
            "throughput of the bottleneck in the steady state",
            link,
        ));
        if scenario.setup.flows.len() > 1 {
            tiles.push((format!("{:.3}", steady.jain), "fairness (Jain's index)", "ideal: 1".into()));
        }
        let queue = size(steady.queue[2] as u64);
        tiles.push((queue, "99th percentile of its queue", "ideal: 0 B".into()));
    }
    if let Some(all) = rows.first() {
        let slowdown = format!("{:.2} / {:.2} times", all.p50, all.p99);
        tiles.push((slowdown, "slowdown, median / 99th percentile", "ideal: 1".into()));
    }
    tiles.push((size(outcome.queue_max), "longest queue of any port", "ideal: 0 B".into()));
    tiles.push((counted(outcome.dropped, "packet"), "dropped by switches", "ideal: 0".into()));
    tiles.push((counted(outcome.pauses, "pause"), "sent by PFC", "ideal: 0".into()));
    let tile = |(value, what, ideal): (String, &str, String)| {
        format!("<div><b>{value}</b>{what}<small>{ideal}</small></div>")
    };
    let tiles: String = tiles.into_iter().map(tile).collect();
    format!("<div class=tiles>{tiles}</div>")
}

fn counted(count: u64, name: &str) -> String {
    format!("{count} {name}{}", if count == 1 { "" } else { "s" })
}

/// Returns the rate of the link at a sampled port.
pub fn link(scenario: &Scenario, port: usize) -> Option<Rate> {
    let Setup { topology, sampled, sampling, .. } = &scenario.setup;
    let host = sampling.map(|sampling| sampling.host as usize);
    let link = match sampled.get(port) {
        Some(&[from, to]) => topology.link_between(from, to),
        None => topology.links().iter().position(|link| link.ends.iter().any(|end| Some(*end) == host)),
    };
    link.map(|link| topology.links()[link].rate)
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn overview(scenario: &Scenario, outcome: &Outcome) -> String {
    let setup = &scenario.setup;
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| outcome.queue_quantile(share));
    let rows = [
        (
            "Topology",
            format!(
                "{}, {}",
                units::counted(setup.topology.hosts(), "host", "hosts"),
                units::counted(setup.topology.switches(), "switch", "switches")
            ),
        ),
        ("Completed flows", format!("{} of {} flows", outcome.finished.len(), setup.flows.len())),
        ("Congestion control", algorithm_names(setup)),
        ("Virtual time", format!("{:.3} ms", outcome.time.as_nanos() as f64 / 1e6)),
        ("Longest queue of a switch port", format!("{:.1} kB", outcome.queue_max as f64 / 1e3)),
        ("Queue of all switch ports, p50 / p95 / p99", format!("{p50} / {p95} / {p99} kB")),
        (
            "Packets",
            format!(
                "{} sent by hosts; {} dropped, {} lost on links, {} retransmitted, {} marked",
                outcome.packets, outcome.dropped, outcome.lost, outcome.retransmitted, outcome.marked
            ),
        ),
        ("Simulated", counted(outcome.events, "event")),
        (
            "Pauses (PFC)",
            format!("{}, {:.1} µs", counted(outcome.pauses, "pause"), outcome.paused.as_nanos() as f64 / 1e3),
        ),
        ("Seed and trace", format!("{} and {:016x}", setup.seed, outcome.trace)),
    ];
    let mut text = String::from("<h2>All figures</h2><table class=words>");
    for (name, value) in rows {
        let _ = write!(text, "<tr><td>{name}<td>{value}");
    }
    text + "</table>"
}

fn comparison(compared: &[Compared]) -> String {
    let inside = compared.iter().filter(|row| row.is_inside()).count();
    let row = |row: &Compared| {
        let Compared { name, ours, theirs, band } = row;
        let class = if row.is_inside() { "" } else { "out" };
        let figures = [format!("{ours:.3}"), format!("{theirs:.3}"), format!("± {band:.3}")];
        (class, [escape(name)].into_iter().chain(figures).collect())
    };
    let columns = [("figure", "with its unit"), ("this run", ""), ("reference", ""), ("band", "")];
    let heading = format!(
        "<h2>Comparison with the reference: {inside} of {} figures within their bands</h2>",
        compared.len()
    );
    heading + &table(&columns, compared.iter().map(row))
}

fn plots(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow]) -> String {
    let mut pictures = series(scenario, outcome);
    let percent = |step: u32| f64::from(step) / 10.0;
    let quantile = |step: u32| (percent(step), outcome.queue_quantile(percent(step) / 100.0) as f64);
    if outcome.series.is_empty() && outcome.queue_max > 0 {
        let line = Line { name: "queue".into(), style: 0, points: (0..=1000).map(quantile).collect() };
        let plot = Plot {
            heading: "Queues of all switch ports",
            says: "Quantiles of the queue length over time and all ports.",
            axes: ["share of the time, %", "kB"],
            ..Plot::default()
        };
        pictures += &plot.of(&[line]);
    }
    // The first row is of all sizes.
    let sizes: Vec<&SizeRow> = rows.iter().skip(1).filter(|row| !row.is_incast).collect();
    if sizes.len() > 1 {
        let middle = |row: &SizeRow| {
            let high = if row.high < LONGEST { row.high } else { row.low * 3 };
            (row.low.max(100) as f64 * high as f64).sqrt()
        };
        let line = |style: usize, name: &str, of: fn(&SizeRow) -> f64| Line {
            name: name.into(),
            style,
            points: sizes.iter().map(|row| (middle(row), of(row))).collect(),
        };
        let by_size = [
            line(0, "median", |row| row.p50),
            line(1, "95th percentile", |row| row.p95),
            line(2, "99th percentile", |row| row.p99),
        ];
        let plot = Plot {
            heading: "Slowdown by flow size",
            says: "Completion time of a flow, divided by that on an idle network.",
            axes: ["flow size", "slowdown"],
            is_logarithmic: true,
            ideal: Some(("idle network: 1".into(), 1.0)),
            ..Plot::default()
        };
        pictures += &plot.of(&by_size);
    }
    pictures
}

fn micros(time: u64) -> f64 {
    time as f64 / 1e3
}

/// Returns the plots over time, all from 0 to the end of the run.
fn series(scenario: &Scenario, outcome: &Outcome) -> String {
    if scenario.ports.is_empty() {
        return String::new();
    }
    let steady = super::figures::steady(scenario, outcome);
    let plot = Plot {
        axes: ["time, µs", "Gb/s"],
        end: outcome.series.last().map_or(0.0, |row| micros(row.time)),
        steady: steady.map(|steady| steady.window.map(|time| time.as_nanos() as f64 / 1e3)),
        ..Plot::default()
    };
    let port = scenario.ports[0].rsplit('_').next().unwrap_or_default();
    let (queues_of, carried_by) = match scenario.ports.len() {
        1 => (format!("Queue of the port to {port}"), format!("Throughput of the link to {port}")),
        _ => ("Queues of the sampled ports".into(), "Throughput of the sampled ports".into()),
    };
    let [queues, carried] = port_lines(scenario, outcome);
    let links: Vec<Rate> = (0..scenario.ports.len()).filter_map(|port| link(scenario, port)).collect();
    let fastest = links.iter().max().map(|rate| (format!("link: {rate}"), rate.as_bps() as f64 / 1e9));
    let queue = Plot {
        heading: &queues_of,
        says: "Bytes in the egress queue. They delay every flow that uses the port.",
        axes: ["time, µs", "kB"],
        ..plot.clone()
    };
    let carried_plot = Plot {
        heading: &carried_by,
        says: "Bytes on the wire, averaged over ten samples.",
        ideal: fastest,
        ..plot.clone()
    };
    let rates = Plot {
        heading: "Pacing rate of each flow",
        says: "Pacing rates that the congestion control sets; 0 after the end of a flow.",
        ideal: fair_share(scenario),
        ..plot
    };
    queue.of(&queues) + &carried_plot.of(&carried) + &rates.of(&flow_lines(scenario, outcome))
}

/// Returns the fair share of each flow, if all have one destination and thus one last link.
fn fair_share(scenario: &Scenario) -> Option<(String, f64)> {
    let flows = &scenario.setup.flows;
    let to = flows.first()?.destination;
    let is_shared = flows.len() > 1 && scenario.setup.sampled.is_empty();
    let gbps = link(scenario, 0)?.as_bps() as f64 / 1e9 / flows.len() as f64;
    let name = format!("fair share of {} flows: {gbps:.2} Gb/s", flows.len());
    flows.iter().all(|flow| is_shared && flow.destination == to).then_some((name, gbps))
}

/// Returns the lines of the queues, kB, and of the throughputs, Gb/s, of the sampled ports.
fn port_lines(scenario: &Scenario, outcome: &Outcome) -> [Vec<Line>; 2] {
    let rows = &outcome.series;
    // The row itself has the figures of the first port.
    let at = |row: &Row, port: usize| match port.checked_sub(1) {
        Some(other) => row.others[other],
        None => PortRow { queue: row.queue, tx_bytes: row.tx_bytes },
    };
    let queue = |port: usize| {
        rows.iter().map(|row| (micros(row.time), at(row, port).queue as f64 / 1e3)).collect::<Vec<_>>()
    };
    let carried = |port: usize| {
        let carried = |pair: &[Row]| {
            let (first, last) = (&pair[0], &pair[STEP]);
            let gbps = (at(last, port).tx_bytes - at(first, port).tx_bytes) as f64 * 8.0;
            (micros(last.time), gbps / (last.time - first.time).max(1) as f64)
        };
        rows.windows(STEP + 1).map(carried).collect::<Vec<_>>()
    };
    let line =
        |port: usize, points| Line { name: scenario.ports[port].replace('_', " to "), style: port, points };
    let ports = 0..scenario.ports.len();
    [
        ports.clone().map(|port| line(port, queue(port))).collect(),
        ports.map(|port| line(port, carried(port))).collect(),
    ]
}

/// Returns the lines of the flows' rates, Gb/s. If the flows have several algorithms, each has the colour of its algorithm.
fn flow_lines(scenario: &Scenario, outcome: &Outcome) -> Vec<Line> {
    let setup = &scenario.setup;
    let count = outcome.series.first().map_or(0, |row| row.rates.len());
    let algorithm = |flow: usize| algorithm_name(setup.congestion_of(flow as u32));
    let is_mixed = (1..count).any(|flow| algorithm(flow) != algorithm(0));
    let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
    let mut colours = Colours::default();
    let line = |flow: usize| {
        let spec = setup.flows[flow];
        let mut name =
            format!("{} to {}", spec.source + scenario.first_host, spec.destination + scenario.first_host);
        let mut style = flow;
        if is_mixed {
            let before = seen.entry(algorithm(flow)).or_default();
            style = colours.of(algorithm(flow)) % HUES + *before * HUES;
            *before += 1;
            name = format!("{name}, {}", algorithm(flow));
        }
        let rows = outcome.series.iter();
        Line {
            name,
            style,
            points: rows.map(|row| (micros(row.time), row.rates[flow] as f64 / 1e9)).collect(),
        }
    };
    (0..count).map(line).collect()
}

/// The colours of algorithms, the same on every page: those of Ferroce's first, then others in the order of their appearance.
#[derive(Default)]
pub struct Colours(Vec<String>);

impl Colours {
    /// Returns the style of an algorithm's lines.
    pub fn of(&mut self, algorithm: &str) -> usize {
        if let Some(place) = CcName::all().position(|name| name.as_str() == algorithm) {
            return place;
        }
        let known = self.0.iter().position(|name| name == algorithm).unwrap_or(self.0.len());
        if known == self.0.len() {
            self.0.push(algorithm.to_owned());
        }
        CcName::all().count() + known
    }
}

fn slowdowns(rows: &[SizeRow]) -> String {
    let columns = [
        ("flow size", ""),
        ("flows", "number"),
        ("p50", "times"),
        ("p95", "times"),
        ("p99", "times"),
        ("mean", "times"),
    ];
    let row = |row: &SizeRow| {
        let SizeRow { low, high, count, p50, p95, p99, mean, .. } = row;
        let length = range(*low, *high) + if row.is_incast { ", incast" } else { "" };
        let figures = [*p50, *p95, *p99, *mean].map(|figure| format!("{figure:.3}"));
        ("", [length, count.to_string()].into_iter().chain(figures).collect())
    };
    let ideal = ["on an idle network", "", "1", "1", "1", "1"].map(str::to_owned).to_vec();
    let all = [("ideal-row", ideal)].into_iter().chain(rows.iter().map(row));
    String::from("<h2>Slowdown</h2>") + &table(&columns, all)
}

fn range(low: u64, high: u64) -> String {
    match (low, high >= LONGEST) {
        (0, true) => "all".into(),
        (low, true) => format!("from {}", size(low)),
        (0, false) => format!("below {}", size(high)),
        (low, false) => format!("{} to {}", size(low), size(high)),
    }
}
