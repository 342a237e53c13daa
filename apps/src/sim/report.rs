//! The self-contained HTML report of a run.

use super::compare::Compared;
use super::congestion::algorithm_names;
use super::figures::SizeRow;
use super::plot::{Axes, Line, legend, lines, size};
use super::scenario::Scenario;
use crate::failure::Failure;
use fabric::sim::{Hosts, Outcome, PortRow, Row};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The number of samples over which the rate of a link is computed.
const STEP: usize = 10;
/// The upper bound of the last size range.
const LONGEST: u64 = 1_000_000_000;

pub const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:960px;margin:2em auto;padding:0 1em;color:#222}\
    table{border-collapse:collapse;margin:1em 0}td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}\
    td:first-child,th:first-child{text-align:left}.out{background:#fdd}h1{font-size:1.5em;margin-bottom:0}h2{font-size:1.15em;\
    margin:2em 0 0}p{margin:.4em 0}.lead{font-size:1.1em}.legend span{margin-right:1.2em;white-space:nowrap}.legend i{display:inline-block;\
    width:1.2em;height:.3em;margin-right:.4em;vertical-align:middle}.tiles{display:flex;flex-wrap:wrap;gap:.8em;margin:1.2em 0}\
    .tiles div{border:1px solid #ddd;border-radius:.5em;padding:.5em 1em}.tiles b{display:block;font-size:1.35em}svg{max-width:100%;\
    height:auto}code{background:#f3f3f3;padding:.1em .3em}";

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
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=viewport content=\"width=device-width\">\
         <title>{0}</title><style>{STYLE}</style><h1>{0}</h1>",
        escape(title)
    );
    page += &lead(title, scenario, outcome);
    page += &tiles(scenario, outcome, rows);
    if !compared.is_empty() {
        page += &comparison(compared);
    }
    page += &plots(scenario, outcome, rows)?;
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
        Hosts::Endpoints => "The hosts are Ferroce's endpoints with their real packets",
        Hosts::Model => "The hosts are a model that paces with Ferroce's congestion control",
    };
    let bytes: u64 = setup.flows.iter().map(|flow| flow.bytes).sum();
    let left = match setup.flows.len() - outcome.finished.len() {
        0 => String::new(),
        left => format!(" <b>{left} of them had not ended when it stopped.</b>"),
    };
    format!(
        "<p class=lead>{} flow{} with {} in all, between {hosts} hosts through {switches} switch{}, paced by <b>{}</b>. {kind}.{left}</p>\
         <p>Again: <code>ferroce sim {} --seed {}</code></p>",
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
        tiles.push((format!("{:.1} Gb/s", steady.utilisation_gbps), "the bottleneck, all flows running"));
        if scenario.setup.flows.len() > 1 {
            tiles.push((format!("{:.3}", steady.jain), "fairness (Jain, 1 is equal shares)"));
        }
        tiles.push((size(steady.queue[2] as u64), "queue there, 99 % of the time at most"));
    }
    if let Some(all) = rows.first() {
        tiles.push((format!("{:.2} / {:.2}", all.p50, all.p99), "slowdown, median / 99th percentile"));
    }
    tiles.push((size(outcome.queue_max), "longest queue of any port"));
    tiles.push((format!("{}", outcome.dropped), "packets dropped"));
    tiles.push((format!("{}", outcome.pauses), "pauses (PFC)"));
    let tile = |(value, what): (String, &str)| format!("<div><b>{value}</b>{what}</div>");
    let tiles: String = tiles.into_iter().map(tile).collect();
    format!("<div class=tiles>{tiles}</div>")
}

pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

fn overview(scenario: &Scenario, outcome: &Outcome) -> String {
    let setup = &scenario.setup;
    let [p50, p95, p99] = [0.5, 0.95, 0.99].map(|share| outcome.queue_quantile(share));
    let rows = [
        ("Hosts, switches", format!("{}, {}", setup.topology.hosts(), setup.topology.switches())),
        ("Flows that ended", format!("{} of {}", outcome.finished.len(), setup.flows.len())),
        ("Congestion control", algorithm_names(setup)),
        ("Virtual time", format!("{:.3} ms", outcome.time.as_nanos() as f64 / 1e6)),
        ("Longest queue of a switch port", format!("{:.1} kB", outcome.queue_max as f64 / 1e3)),
        ("Queue of all switch ports, p50 / p95 / p99", format!("{p50} / {p95} / {p99} kB")),
        (
            "Packets dropped, lost on links, sent again, marked",
            format!("{}, {}, {}, {}", outcome.dropped, outcome.lost, outcome.retransmitted, outcome.marked),
        ),
        ("Packets sent by hosts, events", format!("{}, {}", outcome.packets, outcome.events)),
        (
            "Pauses, and their time",
            format!("{}, {:.1} µs", outcome.pauses, outcome.paused.as_nanos() as f64 / 1e3),
        ),
        ("Seed, trace", format!("{}, {:016x}", setup.seed, outcome.trace)),
    ];
    let mut text = String::from("<h2>All figures</h2><table>");
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

fn section(heading: &str, says: &str, axes: &Axes<'_>, of: &[Line]) -> Result<String, Failure> {
    let picture = lines(axes, of)?;
    if picture.is_empty() {
        return Ok(picture);
    }
    Ok(format!("<h2>{heading}</h2><p>{says}</p>{picture}{}", legend(of)))
}

fn plots(scenario: &Scenario, outcome: &Outcome, rows: &[SizeRow]) -> Result<String, Failure> {
    let mut pictures = series(scenario, outcome)?;
    let percent = |step: u32| f64::from(step) / 10.0;
    let quantile = |step: u32| (percent(step), outcome.queue_quantile(percent(step) / 100.0) as f64);
    if outcome.series.is_empty() && outcome.queue_max > 0 {
        let line = Line { name: "queue".into(), points: (500..=1000).map(quantile).collect() };
        pictures += &section(
            "Queues of all switch ports",
            "For so much of the time a port held no more than that.",
            &axes("share of the time, %", "kB"),
            &[line],
        )?;
    }
    // The first row is of all sizes.
    let sizes: Vec<&SizeRow> = rows.iter().skip(1).filter(|row| !row.is_incast).collect();
    if sizes.len() > 1 {
        let middle = |row: &SizeRow| {
            let high = if row.high < LONGEST { row.high } else { row.low * 3 };
            (row.low.max(100) as f64 * high as f64).sqrt()
        };
        let line = |name: &str, of: fn(&SizeRow) -> f64| Line {
            name: name.into(),
            points: sizes.iter().map(|row| (middle(row), of(row))).collect(),
        };
        let by_size = [
            line("median", |row| row.p50),
            line("95th percentile", |row| row.p95),
            line("99th", |row| row.p99),
        ];
        let axes = Axes { is_logarithmic: true, ..axes("length of the flow", "times longer than alone") };
        let says = "How many times longer than alone on an idle network a flow took, by its length. 1 is the best there is.";
        pictures += &section("Slowdown by length", says, &axes, &by_size)?;
    }
    Ok(pictures)
}

fn series(scenario: &Scenario, outcome: &Outcome) -> Result<String, Failure> {
    if scenario.ports.is_empty() {
        return Ok(String::new());
    }
    let first = scenario.first_host;
    let micros = |time: u64| time as f64 / 1e3;
    let rows = &outcome.series;
    // The row itself has the figures of the first port.
    let at = |row: &Row, port: usize| match port.checked_sub(1) {
        Some(other) => row.others[other],
        None => PortRow { queue: row.queue, tx_bytes: row.tx_bytes },
    };
    let name = |port: usize| scenario.ports[port].replace('_', " to ");
    let ports = 0..scenario.ports.len();
    let queue = |port: usize| {
        let points = rows.iter().map(|row| (micros(row.time), at(row, port).queue as f64 / 1e3));
        Line { name: name(port), points: points.collect() }
    };
    let queues: Vec<_> = ports.clone().map(queue).collect();
    let link = |port: usize| {
        let carried = |pair: &[Row]| {
            let (first, last) = (&pair[0], &pair[STEP]);
            let gbps = (at(last, port).tx_bytes - at(first, port).tx_bytes) as f64 * 8.0;
            (micros(last.time), gbps / (last.time - first.time).max(1) as f64)
        };
        Line { name: name(port), points: rows.windows(STEP + 1).map(carried).collect() }
    };
    let links: Vec<_> = ports.map(link).collect();
    let count = rows.first().map_or(0, |row| row.rates.len());
    let rate = |flow: usize| {
        let spec = scenario.setup.flows[flow];
        let points = rows.iter().map(|row| (micros(row.time), row.rates[flow] as f64 / 1e9));
        let name = format!("{} to {}", spec.source + first, spec.destination + first);
        Line { name, points: points.collect() }
    };
    let rates: Vec<_> = (0..count).map(rate).collect();
    let port = scenario.ports[0].rsplit('_').next().unwrap_or_default();
    let (queues_of, carried_by) = match scenario.ports.len() {
        1 => (format!("Queue towards {port}"), format!("What the link to {port} carried")),
        _ => ("Queues of the sampled ports".into(), "What the sampled ports carried".into()),
    };
    let pictures = [
        section(
            &queues_of,
            "What waited at that port. Short is good: the queue delays every flow that passes.",
            &axes("time, µs", "kB"),
            &queues,
        )?,
        section(
            &carried_by,
            "On the wire, over ten samples each. A dip is unused bandwidth.",
            &axes("time, µs", "Gb/s"),
            &links,
        )?,
        section(
            "Pacing rate of each flow",
            "What each sender allows itself. Lines that lie together are fair shares; a flow that has ended is at 0.",
            &axes("time, µs", "Gb/s"),
            &rates,
        )?,
    ];
    Ok(pictures.concat())
}

const fn axes<'a>(x: &'a str, y: &'a str) -> Axes<'a> {
    Axes { x, y, is_logarithmic: false }
}

fn slowdowns(rows: &[SizeRow]) -> String {
    let mut text = String::from(
        "<h2>How many times longer than alone</h2><table><tr><th>length<th>flows<th>p50<th>p95<th>p99<th>mean",
    );
    for row in rows {
        let SizeRow { low, high, count, p50, p95, p99, mean, .. } = row;
        let _ = write!(
            text,
            "<tr><td>{}<td>{count}<td>{p50:.3}<td>{p95:.3}<td>{p99:.3}<td>{mean:.3}",
            range(*low, *high) + if row.is_incast { ", incast" } else { "" }
        );
    }
    text + "</table>"
}

fn range(low: u64, high: u64) -> String {
    match (low, high >= LONGEST) {
        (0, true) => "all".into(),
        (low, true) => format!("from {}", size(low)),
        (0, false) => format!("below {}", size(high)),
        (low, false) => format!("{} to {}", size(low), size(high)),
    }
}
