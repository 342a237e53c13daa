//! The flows of a scenario: listed in it or in a CSV file, or drawn from a distribution of sizes.

use crate::failure::Failure;
use crate::input::Table;
use cc::Rate;
use csv::StringRecord;
use fabric::sim::{Flow, Incast, SizeDistribution, poisson};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

/// The destination port of an incast's flows in the HPCC authors' flow lists. Other flows have 100.
const INCAST_PORT: u32 = 200;

/// The limit on times in a scenario: virtual time counts ps in 64 bits.
const LONGEST: Duration = Duration::from_secs(100_000);

/// The limit on the flows of a run.
const FLOWS: usize = 10_000_000;

/// Random traffic: a distribution of sizes, the load of each host's link (0 to 1), and an incast in addition.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Traffic {
    sizes: String,
    load: f64,
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
    /// Instead of `source`: one flow from each of the first `senders` hosts.
    senders: Option<u32>,
    destination: u32,
    bytes: u64,
    #[serde(default = "zero")]
    pub(super) start: String,
    #[serde(default)]
    dscp: u8,
}

/// A row of a flow list in the format of the reference: size in bytes and start in ns. The port marks flows of an incast.
#[derive(Deserialize)]
struct Row {
    #[serde(default)]
    dport: u32,
    src: u32,
    dst: u32,
    bytes: u64,
    start_ns: u64,
}

pub(super) fn zero() -> String {
    "0ns".into()
}

/// Returns `time`, or an error if it is longer than virtual time allows.
pub(super) fn virtual_time(time: Duration) -> Result<Duration, String> {
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

    /// Returns the flow between two hosts of the file, or what is wrong with it.
    fn flow(self, source: u32, destination: u32, bytes: u64, start: Duration) -> Result<Flow, String> {
        let [from, to] = [("source", source), ("destination", destination)].map(|(what, number)| {
            let host = number.checked_sub(self.first).filter(|host| *host < self.hosts);
            let Self { first, hosts } = self;
            let last = first + hosts - 1;
            host.ok_or_else(|| format!("{what} {number}: not a host of the topology; use {first} to {last}"))
        });
        let (source, destination) = (from?, to?);
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

/// Draws the flows of `hosts` hosts that start before `time`.
pub(super) fn draw(
    traffic: &Traffic,
    time: Duration,
    hosts: u32,
    line: Rate,
    seed: u64,
) -> Result<Vec<Flow>, String> {
    let sizes = match traffic.sizes.as_str() {
        "web-search" => SizeDistribution::web_search(),
        "fb-hadoop" => SizeDistribution::fb_hadoop(),
        other => match other.strip_prefix("uniform:").and_then(|most| most.parse().ok()) {
            Some(most) => SizeDistribution::uniform(most),
            None => {
                return Err(format!(
                    "sizes '{other}': no such distribution; use web-search, fb-hadoop, or uniform:BYTES"
                ));
            }
        },
    };
    for load in [Some(traffic.load), traffic.incast.as_ref().map(|incast| incast.load)].into_iter().flatten()
    {
        if !(0.0..=1.0).contains(&load) {
            return Err(format!("load {load}: not a share of the link; use 0 to 1"));
        }
    }
    if hosts < 2 {
        return Err("the topology has only one host; add a second".into());
    }
    let incast = traffic.incast.as_ref();
    if let Some(IncastText { senders, bytes, .. }) = incast
        && (*bytes == 0 || !(1..hosts).contains(senders))
    {
        let most = hosts - 1;
        return Err(format!(
            "incast.senders = {senders}, incast.bytes = {bytes}: out of range; use 1 to {most} senders and at least 1 byte"
        ));
    }
    check_count(traffic, sizes.mean(), time, hosts, line)?;
    let incast =
        incast.map(|incast| Incast { senders: incast.senders, bytes: incast.bytes, load: incast.load });
    Ok(poisson(hosts, line, &sizes, traffic.load, time, incast, seed))
}

fn check_count(traffic: &Traffic, mean: f64, time: Duration, hosts: u32, line: Rate) -> Result<(), String> {
    let bytes = line.as_bps() as f64 / 8.0 * time.as_secs_f64() * f64::from(hosts);
    let incast = traffic.incast.as_ref().map_or(0.0, |incast| incast.load * bytes / incast.bytes as f64);
    let count = traffic.load * bytes / mean.max(1.0) + incast;
    if count > FLOWS as f64 {
        return Err(format!("{count:.0} flows: at most {FLOWS}; choose a shorter time or a lower load"));
    }
    Ok(())
}

/// Reads the flow list `file`.
pub(super) fn list(file: &Path, numbering: Numbering) -> Result<Vec<Flow>, Failure> {
    let failed = |why: String| Failure::usage(format!("{}: {why}", file.display()));
    let wrong = |error: csv::Error| failed(error.to_string());
    let mut table = Table::open(file).map_err(|error| failed(error.to_string()))?;
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
