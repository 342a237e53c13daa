//! Scenarios as people write them: a TOML file, and flows in it or in a CSV file.

use crate::failure::Failure;
use crate::units;
use fabric::sim::{Flow, Scenario};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;
use verbs::Mtu;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    hosts: u32,
    rate: String,
    delay: String,
    #[serde(default = "queue")]
    queue: String,
    ecn_threshold: Option<String>,
    #[serde(default = "mtu")]
    mtu: u32,
    congestion: String,
    #[serde(default = "jitter")]
    jitter: String,
    #[serde(default = "limit")]
    limit: String,
    #[serde(default)]
    flow: Vec<FlowText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowText {
    source: u32,
    destination: u32,
    bytes: u32,
    #[serde(default = "jitter")]
    start: String,
}

/// A row of a flow list, as in the reference: bytes, and the start in ns.
#[derive(Deserialize)]
struct Row {
    src: u32,
    dst: u32,
    bytes: u32,
    start_ns: u64,
}

fn queue() -> String {
    "32M".into()
}

const fn mtu() -> u32 {
    1024
}

fn jitter() -> String {
    "0ns".into()
}

fn limit() -> String {
    "10s".into()
}

/// Reads a scenario, and its flows from `flows` where that is given.
///
/// # Errors
/// What can't be read or understood, by key.
pub fn read(file: &Path, flows: Option<&Path>, seed: u64) -> Result<Scenario, Failure> {
    let name = file.display();
    let text = std::fs::read_to_string(file).map_err(|error| Failure::usage(format!("{name}: {error}")))?;
    let text: Text = toml::from_str(&text)
        .map_err(|error| Failure::usage(format!("{name}: {}", error.message().replace('\n', "; "))))?;
    let wrong = |key: &str, error: String| Failure::usage(format!("{name}: {key}: {error}"));
    let duration = |key: &str, text: &str| units::duration(text).map_err(|error| wrong(key, error));
    let bytes = |key: &str, text: &str| units::bytes(text).map_err(|error| wrong(key, error));
    let mtu = Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == text.mtu);
    let flows = match flows {
        Some(file) => list(file)?,
        None => text
            .flow
            .iter()
            .map(|flow| {
                let FlowText { source, destination, bytes, ref start } = *flow;
                Ok(Flow { source, destination, bytes, start: duration("start", start)? })
            })
            .collect::<Result<_, Failure>>()?,
    };
    Ok(Scenario {
        hosts: text.hosts,
        rate: units::rate(&text.rate).map_err(|error| wrong("rate", error))?,
        delay: duration("delay", &text.delay)?,
        queue: bytes("queue", &text.queue)?,
        ecn_threshold: text.ecn_threshold.map(|text| bytes("ecn_threshold", &text)).transpose()?,
        mtu: mtu
            .ok_or_else(|| wrong("mtu", format!("{} is none of 256, 512, 1024, 2048, 4096", text.mtu)))?,
        congestion: verbs::parse_congestion(&text.congestion).map_err(|error| wrong("congestion", error))?,
        flows,
        jitter: duration("jitter", &text.jitter)?,
        seed,
        limit: duration("limit", &text.limit)?,
    })
}

fn list(file: &Path) -> Result<Vec<Flow>, Failure> {
    let wrong = |error: csv::Error| Failure::usage(format!("{}: {error}", file.display()));
    let mut reader = csv::Reader::from_path(file).map_err(wrong)?;
    let flow = |row: Result<Row, csv::Error>| {
        let Row { src, dst, bytes, start_ns } = row.map_err(wrong)?;
        Ok(Flow { source: src, destination: dst, bytes, start: Duration::from_nanos(start_ns) })
    };
    reader.deserialize().map(flow).collect()
}
