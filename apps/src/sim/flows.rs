//! The flows of a scenario: listed in it or in a CSV file, or drawn from a distribution of sizes.

use super::mistake::Mistake;
use super::shape::Shape;
use crate::failure::Failure;
use crate::input::{self, Table};
use crate::units;
use cc::Rate;
use csv::StringRecord;
use fabric::sim::{Arrivals, Flow, Incast, Link, SizeDistribution, random_flows};
use serde::Deserialize;
use std::io::{BufRead, BufReader, Cursor, Read};
use std::path::Path;
use std::time::Duration;

/// The destination port of an incast's flows in the HPCC authors' flow lists. Other flows have port 100.
const INCAST_PORT: u32 = 200;

/// The limit on times in a scenario: virtual time counts ps in 64 bits.
const LONGEST: Duration = Duration::from_secs(100_000);

/// The limit on the flows of a burst.
const LARGEST_BURST: u32 = 100_000;

/// The limit on the flows of a run.
pub(super) const FLOWS: usize = 10_000_000;

/// Random traffic: a distribution of sizes, the load of each host's link (0 to 1), and an optional incast.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Traffic {
    sizes: String,
    load: f64,
    /// The link to which `load` refers, from the first node to the second. By default it refers to each host's link.
    load_link: Option<[String; 2]>,
    /// Flows that a host begins at once.
    #[serde(default = "one")]
    burst: u32,
    pub(super) time: String,
    incast: Option<IncastText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IncastText {
    senders: u32,
    bytes: u64,
    load: f64,
}

/// An entry of `[[flow]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FlowText {
    source: Option<u32>,
    /// Number of senders, in place of `source`: one flow from each of the first `senders` hosts.
    senders: Option<u32>,
    destination: u32,
    bytes: u64,
    #[serde(default = "zero")]
    pub(super) start: String,
    #[serde(default)]
    dscp: u8,
    /// The number, from 1, of the entry whose flows must end first.
    pub(super) after: Option<usize>,
    /// Congestion control of its flows, in place of the scenario's.
    pub(super) congestion: Option<String>,
}

/// A row of a flow list in the format of the reference: size in bytes and start in ns. The port identifies flows of an incast.
#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    dport: u32,
    src: u32,
    dst: u32,
    bytes: u64,
    start_ns: u64,
}

const fn one() -> u32 {
    1
}

pub(super) fn zero() -> String {
    "0ns".into()
}

/// Returns the file in `sizes` of a scenario, if it has one.
pub(super) fn sizes_file(traffic: &Traffic) -> Option<&str> {
    traffic.sizes.strip_prefix("cdf:")
}

/// Parses a time within the limit of virtual time.
pub(super) fn parse_time(text: &str) -> Result<Duration, String> {
    units::duration(text).and_then(virtual_time)
}

/// Returns `time`, or an error if it exceeds the limit of virtual time.
fn virtual_time(time: Duration) -> Result<Duration, String> {
    match time <= LONGEST {
        true => Ok(time),
        false => Err(format!("{} s: at most {} s of virtual time", time.as_secs_f64(), LONGEST.as_secs())),
    }
}

/// The numbers of the hosts in a file: consecutive from `first`.
#[derive(Clone, Copy)]
pub(super) struct Numbering {
    first: u32,
    hosts: u32,
}

impl Numbering {
    /// Numbers `hosts` hosts from `first` on. Returns an error if the numbers exceed 32 bits.
    pub(super) fn new(first: u32, hosts: u32) -> Result<Self, String> {
        let most = u32::MAX - hosts;
        if first > most {
            return Err(format!("{first}: {hosts} hosts from there on have no numbers; use at most {most}"));
        }
        Ok(Self { first, hosts })
    }

    /// Returns the host with this number, or an error text. `what` is the key of the number.
    pub(super) fn host(self, what: &str, number: u32) -> Result<u32, String> {
        let Self { first, hosts } = self;
        let host = number.checked_sub(first).filter(|host| *host < hosts);
        let last = first + hosts - 1;
        host.ok_or_else(|| format!("{what} {number}: not a host of the topology; use {first} to {last}"))
    }

    /// Returns the flow between two hosts of the file, or an error text.
    fn flow(self, source: u32, destination: u32, bytes: u64, start: Duration) -> Result<Flow, String> {
        let (source, destination) = (self.host("source", source)?, self.host("destination", destination)?);
        if source == destination {
            return Err(format!("source {0}, destination {0}: the same host; use two", source + self.first));
        }
        if bytes == 0 {
            return Err("bytes 0: use at least 1".into());
        }
        Ok(Flow { source, destination, bytes, start, is_incast: false, dscp: 0 })
    }

    /// Returns the flows of an entry.
    pub(super) fn spell(self, text: &FlowText, start: Duration) -> Result<Vec<Flow>, String> {
        let flow = |source| {
            let flow = self.flow(source, text.destination, text.bytes, start)?;
            Ok(Flow { dscp: text.dscp, ..flow })
        };
        let hosts = self.hosts;
        match (text.source, text.senders) {
            (Some(source), None) => Ok(vec![flow(source)?]),
            (None, Some(senders)) if (1..=hosts).contains(&senders) => {
                (0..senders).map(|sender| flow(self.first + sender)).collect()
            }
            (None, Some(senders)) => {
                Err(format!("senders = {senders}: more senders than hosts, or none; use 1 to {hosts}"))
            }
            (Some(_), Some(_)) | (None, None) => {
                Err("a flow needs either source or senders; give one of them".into())
            }
        }
    }
}

/// Draws the flows that start before `time`. Paths of size files are relative to `folder`.
pub(super) fn draw(
    traffic: &Traffic,
    time: Duration,
    shape: &Shape,
    seed: u64,
    folder: &Path,
) -> Result<Vec<Flow>, Mistake> {
    let (hosts, line) = (shape.topology.hosts() as u32, shape.line);
    let sizes = sizes(traffic, folder).map_err(|why| Mistake::new("traffic.sizes", why))?;
    let incast = traffic.incast.as_ref();
    for (key, load) in
        [("traffic.load", Some(traffic.load)), ("traffic.incast", incast.map(|incast| incast.load))]
    {
        // The load offered to a link between switches may exceed its rate. `host_load` checks what the hosts can send.
        let most = if key == "traffic.load" && traffic.load_link.is_some() { f64::MAX } else { 1.0 };
        if let Some(load) = load.filter(|load| !(0.0..=most).contains(load)) {
            return Err(Mistake::new(key, format!("load {load}: not a share of the link; use 0 to 1")));
        }
    }
    if hosts < 2 {
        return Err(Mistake::new("topology", "only one host; add a second"));
    }
    if let Some(IncastText { senders, bytes, .. }) = incast
        && (*bytes == 0 || !(1..hosts).contains(senders))
    {
        let most = hosts - 1;
        return Err(Mistake::new(
            "traffic.incast",
            format!(
                "incast.senders = {senders}, incast.bytes = {bytes}: out of range; use 1 to {most} senders and at least 1 byte"
            ),
        ));
    }
    if !(1..=LARGEST_BURST).contains(&traffic.burst) {
        let why = format!("{}: out of range; use 1 to {LARGEST_BURST}", traffic.burst);
        return Err(Mistake::new("traffic.burst", why));
    }
    let load = host_load(traffic, shape).map_err(|why| Mistake::new("traffic.load_link", why))?;
    check_count(traffic, load, sizes.mean(), time, hosts, line)
        .map_err(|why| Mistake::new("traffic", why))?;
    let incast =
        incast.map(|incast| Incast { senders: incast.senders, bytes: incast.bytes, load: incast.load });
    let arrivals = Arrivals { load, burst: traffic.burst, time, incast };
    Ok(random_flows(hosts, line, &sizes, &arrivals, seed))
}

fn host_load(traffic: &Traffic, shape: &Shape) -> Result<f64, String> {
    let Some(ends) = &traffic.load_link else { return Ok(traffic.load) };
    let Shape { topology, line, .. } = shape;
    let [a, b] = shape.names().pair(ends)?;
    let is_link = |link: &&Link| link.ends == [a, b] || link.ends == [b, a];
    // Flows divide equally among several links between the same nodes.
    let links: Vec<Rate> = topology.links().iter().filter(is_link).map(|link| link.rate).collect();
    let rate = links.iter().map(|rate| rate.as_bps()).sum::<u64>() as f64;
    let [from, to] = ends;
    if links.is_empty() {
        return Err(format!("{from} to {to}: no such link; use two nodes that a link connects"));
    }
    let flows = topology.share_of_flows([a, b]);
    if flows == 0.0 {
        return Err(format!("{from} to {to}: no shortest path leads over it; use a link that flows pass"));
    }
    let of_all_hosts = line.as_bps() as f64 * topology.hosts() as f64;
    // The load of this link if the load of each host's link is 1.
    let most = flows * of_all_hosts / rate;
    match traffic.load <= most {
        true => Ok(traffic.load / most),
        false => Err(format!(
            "load {}: the hosts load {from} to {to} to {most:.3} at most; use a lower load",
            traffic.load
        )),
    }
}

fn sizes(traffic: &Traffic, folder: &Path) -> Result<SizeDistribution, String> {
    if let Some(file) = sizes_file(traffic) {
        let path = folder.join(file);
        let text = input::text(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        return distribution(&text).map_err(|(line, why)| format!("{}: line {line}: {why}", path.display()));
    }
    match traffic.sizes.as_str() {
        "web-search" => Ok(SizeDistribution::web_search()),
        "fb-hadoop" => Ok(SizeDistribution::fb_hadoop()),
        other => match other.strip_prefix("uniform:").and_then(|most| most.parse().ok()) {
            Some(most) => Ok(SizeDistribution::uniform(most)),
            None => Err(format!(
                "'{other}': no such distribution; use web-search, fb-hadoop, uniform:BYTES, or cdf:FILE"
            )),
        },
    }
}

/// Reads a distribution in the format of HPCC's authors: per line a size in bytes, and the share of flows of at most that size, from 0 to 1
/// or in percent. Lines that begin with # are comments. On an error, returns the number of the line and the reason.
fn distribution(text: &str) -> Result<SizeDistribution, (usize, String)> {
    let mut points: Vec<(u64, f64)> = Vec::new();
    let mut last = 0;
    for (number, line) in (1..).zip(text.lines().map(str::trim)) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        last = number;
        let words: Vec<&str> = line.split_whitespace().collect();
        let point = match words[..] {
            [bytes, share] => bytes.parse::<f64>().ok().zip(share.parse::<f64>().ok()),
            _ => None,
        };
        let is_point =
            |point: &(f64, f64)| (0.0..=1e15).contains(&point.0) && (0.0..=100.0).contains(&point.1);
        let (bytes, share) = point.filter(is_point).ok_or_else(|| {
            (number, format!("'{line}': not a size in bytes (at most 10^15) and a share of flows: 1000 0.5"))
        })?;
        let bytes = (bytes as u64).max(1);
        if let Some(&before) = points.last().filter(|before| before.0 > bytes || before.1 > share) {
            return Err((
                number,
                format!(
                    "{bytes} {share}: below {} {} on the line before; sort the lines",
                    before.0, before.1
                ),
            ));
        }
        points.push((bytes, share));
    }
    let end = points.last().map_or(0.0, |point| point.1);
    if (end - 100.0).abs() < 1e-6 {
        points.iter_mut().for_each(|point| point.1 /= 100.0);
    }
    SizeDistribution::new(&points)
        .ok_or_else(|| (last.max(1), format!("the last share is {end}; end at 1, or at 100 for percent")))
}

fn check_count(
    traffic: &Traffic,
    load: f64,
    mean: f64,
    time: Duration,
    hosts: u32,
    line: Rate,
) -> Result<(), String> {
    let bytes = line.as_bps() as f64 / 8.0 * time.as_secs_f64() * f64::from(hosts);
    let incast = traffic.incast.as_ref().map_or(0.0, |incast| incast.load * bytes / incast.bytes as f64);
    let count = load * bytes / mean.max(1.0) + incast;
    if count > FLOWS as f64 {
        return Err(format!("{count:.0} flows: at most {FLOWS}; choose a shorter time or a lower load"));
    }
    Ok(())
}

/// Reads the flow list `file`: CSV, or the format of the simulator of HPCC's authors.
pub(super) fn list(file: &Path, numbering: Numbering) -> Result<Vec<Flow>, Failure> {
    let failed = |why: String| Failure::usage(format!("{}: {why}", file.display()));
    let unreadable = |error: std::io::Error| failed(error.to_string());
    let mut lines = BufReader::new(input::open(file).map_err(unreadable)?);
    let mut first = Vec::new();
    input::line(&mut lines, &mut first).map_err(unreadable)?;
    if let Some(count) = std::str::from_utf8(&first).ok().and_then(|first| first.trim().parse().ok()) {
        return authors_list(lines, count, numbering).map_err(failed);
    }
    first.push(b'\n');
    let mut table = Table::of(Box::new(Cursor::new(first).chain(lines)));
    let wrong = |error: csv::Error| failed(error.to_string());
    let header = table.header().map_err(wrong)?.clone();
    let (mut flows, mut record) = (Vec::new(), StringRecord::new());
    while table.read(&mut record).map_err(wrong)? {
        let refused = |why: String| failed(format!("line {}: {why}", flows.len() + 2));
        let Row { dport, src, dst, bytes, start_ns } = record.deserialize(Some(&header)).map_err(wrong)?;
        let start = virtual_time(Duration::from_nanos(start_ns))
            .map_err(|why| refused(format!("start_ns {start_ns}: {why}")))?;
        if flows.len() == FLOWS {
            return Err(refused(format!("more than {FLOWS} flows, the limit of a run")));
        }
        let flow = numbering.flow(src, dst, bytes, start).map_err(refused)?;
        flows.push(Flow { is_incast: dport == INCAST_PORT, ..flow });
    }
    Ok(flows)
}

/// Reads the lines of the authors' format after the first, which contains `count`, the number of flows: source, destination, priority,
/// port, bytes, start in seconds. The rest of the file is a comment. The authors' flows begin after 2 s; here the first begins at time 0.
fn authors_list(mut lines: impl BufRead, count: usize, numbering: Numbering) -> Result<Vec<Flow>, String> {
    if count > FLOWS {
        return Err(format!("line 1: {count} flows: more than {FLOWS}, the limit of a run; remove some"));
    }
    let (mut flows, mut number, mut line) = (Vec::new(), 1, Vec::new());
    while flows.len() < count && input::line(&mut lines, &mut line).map_err(|error| error.to_string())? {
        number += 1;
        let text = String::from_utf8_lossy(&line);
        if !text.trim().is_empty() {
            flows.push(authors_flow(&text, numbering).map_err(|why| format!("line {number}: {why}"))?);
        }
    }
    if flows.len() < count {
        return Err(format!("line 1: {count} flows promised, {} found; correct the number", flows.len()));
    }
    let first = flows.iter().map(|flow| flow.start).min().unwrap_or_default();
    flows.iter_mut().for_each(|flow| flow.start -= first);
    Ok(flows)
}

fn authors_flow(line: &str, numbering: Numbering) -> Result<Flow, String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let values = match words[..] {
        [source, destination, _priority, port, bytes, start] => (|| {
            let start = Duration::try_from_secs_f64(start.parse().ok()?).ok()?;
            Some((
                source.parse().ok()?,
                destination.parse().ok()?,
                port.parse().ok()?,
                bytes.parse().ok()?,
                start,
            ))
        })(),
        _ => None,
    };
    let (source, destination, port, bytes, start): (u32, u32, u32, u64, Duration) = values.ok_or_else(|| {
        format!("'{}': not source, destination, priority, port, bytes and start in seconds: 0 1 3 100 1000000 2.0", line.trim())
    })?;
    let flow = numbering.flow(source, destination, bytes, virtual_time(start)?)?;
    Ok(Flow { is_incast: port == INCAST_PORT, ..flow })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_of_a_distribution_are_parts_or_percent() {
        let percent = distribution("# bytes, percent\n0 0\n10000 15\n\n 30000000 100\n").unwrap();
        assert_eq!(distribution("0 0\n1e4 .15\n30000000 1\n"), Ok(percent.clone()));
        assert_eq!(percent.quantile(0.15), 10_000);
        assert!(distribution("0 0\n0 0.99999999\n1 1\n").unwrap().mean() >= 1.0, "no flow is empty");
        for (text, part) in [
            ("", "1: the last share is 0"),
            ("0 0\n100 0.5\n", "2: the last share is 0.5; end at 1"),
            ("0 0\n100 0.5\n50 1\n", "3: 50 1: below 100 0.5"),
            ("0 0\n100 0.5\n200 0.4\n", "3: 200 0.4: below 100 0.5"),
            ("0 0 0\n", "1: '0 0 0': not a size"),
            ("nan 1\n", "1: 'nan 1'"),
            ("1e300 1\n", "1: '1e300 1'"),
            ("5 101\n", "1: '5 101'"),
        ] {
            let (line, why) = distribution(text).unwrap_err();
            assert!(format!("{line}: {why}").starts_with(part), "{text}: {line}: {why}");
        }
    }

    #[test]
    fn a_flow_list_of_the_authors_is_read() {
        let numbering = Numbering::new(0, 3).unwrap();
        let read = |text: &str, count| authors_list(text.as_bytes(), count, numbering);
        let flows =
            read("0 1 3 100 5000 2.000001\n\n2 1 3 200 1 2\nFirst line: number of flows\n", 2).unwrap();
        let start = Duration::from_nanos(1000);
        let flow = Flow { source: 0, destination: 1, bytes: 5000, start, is_incast: false, dscp: 0 };
        assert_eq!((flows[0], flows[1].is_incast), (flow, true));
        for (text, count, part) in [
            ("0 1 3 100 5000 2.0\n", 2, "line 1: 2 flows promised, 1 found"),
            ("0 1 3 100 5000\n", 1, "line 2: '0 1 3 100 5000': not source"),
            ("0 1 3 100 5000 -1\n", 1, "line 2: "),
            ("0 3 3 100 5000 2.0\n", 1, "line 2: destination 3: not a host of the topology; use 0 to 2"),
            ("", 100_000_000, "line 1: 100000000 flows: more than"),
        ] {
            let why = read(text, count).unwrap_err();
            assert!(why.starts_with(part), "{text}: {why}");
        }
    }
}
