//! Reads scenarios: a TOML file with its flows, or with a CSV file of flows.

use super::capture::PortCapture;
use super::changes::{ChangeText, changes};
use super::collectives::{CollectiveText, FlowPlan};
use super::congestion::{RivalText, algorithm_name, authors_marks, congestion, rivals};
use super::faults::faults;
use super::flows::{FlowText, Numbering, Traffic, draw, list, parse_time, sizes_file, zero};
use super::mistake::Mistake;
use super::shape::{NodeNames, Shape};
use super::topology::{LinkText, TopologyKind, shape};
use crate::failure::Failure;
use crate::units;
use cc::{Rate, Registration};
use fabric::sim::{Application, Change, Conventions, Hosts, Pfc, Requests, Sampling, Setup, Topology, Verb};
use fabric::{Direct, Probability, Red, SecondClass};
use roce::qp::Congestion;
use roce::wire::Format;
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;
use verbs::errors::{line_of, with_remedy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Text {
    pub(super) topology: TopologyKind,
    pub(super) hosts: Option<usize>,
    pub(super) switches: Option<usize>,
    pub(super) spines: Option<usize>,
    pub(super) rate: Option<String>,
    pub(super) fabric_rate: Option<String>,
    pub(super) delay: Option<String>,
    #[serde(default)]
    pub(super) link: Vec<LinkText>,
    pub(super) links: Option<PathBuf>,
    #[serde(default)]
    compat: Compat,
    /// The kind of hosts. The default is endpoints, or with `compat = "hpcc-ns3"` the model.
    host: Option<HostKind>,
    /// Payload of a full packet, bytes.
    mtu: Option<u32>,
    congestion: String,
    #[serde(default = "buffer")]
    buffer: u64,
    #[serde(default = "yes")]
    pfc: bool,
    ecn: Option<EcnText>,
    second_class: Option<ClassText>,
    #[serde(default)]
    tell_sojourn: bool,
    direct: Option<DirectText>,
    /// Switches stamp like a Linux IOAM node.
    #[serde(default)]
    linux_ioam: bool,
    /// The probability that a host forges a path report.
    #[serde(default, rename = "lie")]
    forgery: f64,
    /// Hosts do not support Ferroce's own opcodes, such as those of probes.
    #[serde(default, rename = "deaf")]
    drop_vendor_opcodes: bool,
    sample: Option<String>,
    /// The ports of the series, each as two nodes.
    #[serde(default)]
    sample_ports: Vec<[String; 2]>,
    #[serde(default = "zero")]
    jitter: String,
    #[serde(default = "limit")]
    limit: String,
    pub(super) first_host: Option<u32>,
    #[serde(default)]
    loss: f64,
    /// File with a script of faults.
    faults: Option<PathBuf>,
    requests: Option<RequestsText>,
    #[serde(default)]
    rival: Vec<RivalText>,
    reference: Option<Reference>,
    traffic: Option<Traffic>,
    #[serde(default)]
    flow: Vec<FlowText>,
    #[serde(default)]
    change: Vec<ChangeText>,
    #[serde(default)]
    application: Vec<ApplicationText>,
    #[serde(default)]
    collective: Vec<CollectiveText>,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum HostKind {
    Endpoint,
    Model,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Compat {
    #[default]
    Ferroce,
    HpccNs3,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EcnText {
    pub(super) min: u64,
    pub(super) max: u64,
    #[serde(default = "certain")]
    pub(super) probability: f64,
}

impl EcnText {
    fn red(self) -> Result<Red, String> {
        let most =
            Probability::new(self.probability).ok_or_else(|| format!("{}: 0 to 1", self.probability))?;
        Ok(Red { from: self.min, to: self.max, most })
    }
}

/// A second class for a DSCP, and the weights of the ordinary and the second class on each link.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ClassText {
    dscp: u8,
    weights: [std::num::NonZeroU8; 2],
}

/// The queue length, bytes, above which a switch sends direct responses to subscribed senders, and the shortest interval between two
/// responses to a sender.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectText {
    threshold: u64,
    interval: String,
}

/// How endpoints split a flow into requests.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsText {
    #[serde(default)]
    verb: VerbText,
    bytes: Option<u32>,
    depth: Option<u32>,
    #[serde(default)]
    selective_repeat: bool,
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum VerbText {
    #[default]
    Write,
    Read,
    Send,
}

impl RequestsText {
    fn requests(&self) -> Requests {
        Requests {
            verb: match self.verb {
                VerbText::Write => Verb::Write,
                VerbText::Read => Verb::Read,
                VerbText::Send => Verb::Send,
            },
            bytes: self.bytes.unwrap_or(Requests::WRITES.bytes),
            depth: self.depth.unwrap_or(Requests::WRITES.depth),
            selective_repeat: self.selective_repeat,
        }
    }
}

/// An entry of `[[application]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApplicationText {
    host: u32,
    rate: String,
}

/// The name of a run in a reference directory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    pub scenario: String,
    pub variant: String,
}

const fn buffer() -> u64 {
    32 << 20
}

const fn yes() -> bool {
    true
}

const fn certain() -> f64 {
    1.0
}

fn limit() -> String {
    "1s".into()
}

/// A scenario that is ready to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub setup: Setup,
    pub reference: Option<Reference>,
    pub first_host: u32,
    /// Names of the ports of the series: `s1_h3`, or `host 3` for the port towards the first flow's destination.
    pub ports: Vec<String>,
    /// Probable mistakes in the scenario, each with its remedy.
    pub warnings: Vec<String>,
}

/// What the command line adds to a scenario.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options<'a> {
    /// File with the flows, in place of those in the scenario.
    pub flows: Option<&'a Path>,
    pub seed: u64,
    /// Values of keys of `congestion`, in place of those in the scenario.
    pub vary: &'a [(String, String)],
    /// Ports whose frames are captured.
    pub captured: &'a [PortCapture],
    /// Registered algorithms.
    pub algorithms: &'a [&'static Registration],
}

/// Reads the scenario `name`, a path, with the content `text`.
///
/// # Errors
/// Returns a failure with the line, the wrong key and the reason.
pub fn read(name: &str, text: &str, options: &Options<'_>) -> Result<Scenario, Failure> {
    let &Options { flows, seed, vary, captured, algorithms } = options;
    let keys: Text = toml::from_str(text).map_err(|error| {
        let line = line_of(text, error.span().map_or(0, |span| span.start));
        Failure::usage(format!("{name}: line {line}: {}", with_remedy(error.message())))
    })?;
    let folder = folder_of(name);
    let refuse = |mistake: Mistake| mistake.refuse(name, text);
    let shape = shape(&keys, folder).map_err(refuse)?;
    let numbering = Numbering::new(shape.first_host, shape.topology.hosts() as u32)
        .map_err(|why| refuse(Mistake::new("first_host", why)))?;
    let flows = match flows {
        Some(file) => FlowPlan { flows: list(file, numbering)?, ..FlowPlan::default() },
        None => own_flows(&keys, numbering, &shape, seed, folder).map_err(refuse)?,
    };
    let parse = |text: &str, vary: &[(String, String)]| {
        congestion(text, vary, keys.compat, algorithms).map(|congestion| congestion.on_link(shape.line))
    };
    let congestion = parse(&keys.congestion, vary).map_err(|why| refuse(Mistake::new("congestion", why)))?;
    let ecn = keys.ecn.or_else(|| authors_marks(keys.compat, &congestion.algorithm));
    let first_host = shape.first_host;
    let names = shape.names();
    let changes = changes(&keys.change, &shape.topology, names).map_err(refuse)?;
    let rates: Vec<Rate> =
        [shape.line, shape.fabric].into_iter().chain(changes.iter().filter_map(Change::rate)).collect();
    let rivals = rivals((&keys.flow, &flows.entries), &keys.rival, numbering, |text| parse(text, &[]))
        .map_err(refuse)?;
    let applications = applications(&keys, numbering).map_err(refuse)?;
    let sampled = sampled(&keys, &shape.topology, names).map_err(refuse)?;
    let captured = captured_ports(captured, &shape)?;
    let script = keys.faults.as_ref().map(|file| faults(&folder.join(file), &shape));
    let faults = script.transpose().map_err(refuse)?.unwrap_or_default();
    let FlowPlan { flows, dependencies, .. } = flows;
    let setup = Setup {
        seed,
        rivals,
        faults,
        changes,
        applications,
        dependencies,
        sampled,
        captured,
        ..Setup::new(shape.topology, flows, congestion)
    };
    let setup = settings(&keys, ecn, setup).map_err(refuse)?;
    let is_real = setup.hosts == Hosts::Endpoints;
    if !is_real && !setup.captured.is_empty() {
        return Err(Failure::usage(format!(
            "--pcap: {name} has model hosts, which exchange no frames; choose endpoints: remove host = \"model\" or compat = \"hpcc-ns3\""
        )));
    }
    let warnings = warnings(name, &setup.congestion, ecn.is_some(), is_real.then_some(rates));
    let reference = keys.reference.map(|reference| varied(reference, vary));
    let ports = match setup.sampling {
        Some(sampling) if keys.sample_ports.is_empty() => {
            vec![format!("host {}", sampling.host + first_host)]
        }
        _ => keys.sample_ports.iter().map(|[from, to]| format!("{from}_{to}")).collect(),
    };
    Ok(Scenario { setup, reference, first_host, ports, warnings })
}

/// Returns the two ends of each port that `--pcap` selects.
fn captured_ports(captured: &[PortCapture], shape: &Shape) -> Result<Vec<[usize; 2]>, Failure> {
    let mut ports = Vec::new();
    for PortCapture { port, .. } in captured {
        let wrong = |why: String| Failure::usage(format!("--pcap {port}: {why}"));
        let nodes = shape.port(port).map_err(wrong)?;
        if ports.contains(&nodes) {
            return Err(wrong("the port has a capture already; remove one of the two".into()));
        }
        ports.push(nodes);
    }
    Ok(ports)
}

fn time(key: &'static str, text: &str) -> Result<Duration, Mistake> {
    parse_time(text).map_err(|why| Mistake::new(key, why))
}

/// Returns the folder to which files in the scenario `name` are relative.
fn folder_of(name: &str) -> &Path {
    Path::new(name).parent().unwrap_or(Path::new(""))
}

/// Returns the files to which the scenario `name` with this content refers.
pub fn files(name: &str, text: &str) -> Vec<PathBuf> {
    let Ok(keys) = toml::from_str::<Text>(text) else { return Vec::new() };
    let folder = folder_of(name);
    let sizes = keys.traffic.as_ref().and_then(sizes_file).map(PathBuf::from);
    keys.links.into_iter().chain(keys.faults).chain(sizes).map(|file| folder.join(file)).collect()
}

/// Returns the flows in the scenario itself.
fn own_flows(
    keys: &Text,
    numbering: Numbering,
    shape: &Shape,
    seed: u64,
    folder: &Path,
) -> Result<FlowPlan, Mistake> {
    let mut flows = FlowPlan::default();
    if let Some(traffic) = &keys.traffic {
        if !keys.flow.is_empty() {
            return Err(Mistake::new("flow", "the scenario has [traffic], too; use one of them"));
        }
        let end = time("traffic.time", &traffic.time)?;
        flows.flows = draw(traffic, end, shape, seed, folder)?;
    }
    flows.list(&keys.flow, numbering)?;
    flows.collectives(&keys.collective, shape.topology.hosts() as u32)?;
    Ok(flows)
}

fn applications(keys: &Text, numbering: Numbering) -> Result<Vec<Application>, Mistake> {
    let application = |(place, text): (usize, &ApplicationText)| {
        let (host, rate) = (numbering.host("host", text.host), units::rate(&text.rate));
        let parts = host.and_then(|host| Ok(Application { host, rate: rate? }));
        parts.map_err(|why| Mistake::in_entry("application", place, why))
    };
    let is_send = keys.requests.as_ref().is_some_and(|requests| matches!(requests.verb, VerbText::Send));
    if !keys.application.is_empty() && !is_send {
        let why = "an application sees only what is sent; add the line requests = { verb = \"send\" }";
        return Err(Mistake::new("application", why));
    }
    let twice = |(place, text): (usize, &ApplicationText)| {
        let before = keys.application[..place].iter().any(|other| other.host == text.host);
        before.then(|| format!("host = {}: it has an application already; remove one of the two", text.host))
    };
    if let Some((place, why)) = (0..).zip(&keys.application).find_map(|entry| Some((entry.0, twice(entry)?)))
    {
        return Err(Mistake::in_entry("application", place, why));
    }
    keys.application.iter().enumerate().map(application).collect()
}

/// The limit on the ports of the series.
const PORTS: usize = 64;

fn sampled(keys: &Text, topology: &Topology, names: NodeNames) -> Result<Vec<[usize; 2]>, Mistake> {
    let wrong = |why: String| Mistake::new("sample_ports", why);
    let count = keys.sample_ports.len();
    if count > PORTS {
        return Err(wrong(format!("{count} ports: at most {PORTS}; remove some")));
    }
    if count > 0 && keys.sample.is_none() {
        return Err(wrong("there is no series; add the line sample = \"10us\"".into()));
    }
    let port = |ends: &[String; 2]| {
        let [from, to] = names.pair(ends).map_err(wrong)?;
        let [a, b] = ends;
        let link = topology.link_between(from, to);
        link.ok_or_else(|| wrong(format!("{a} to {b}: no such link; use two nodes that a link connects")))?;
        Ok([from, to])
    };
    keys.sample_ports.iter().map(port).collect()
}

/// Returns `setup` with the scenario's settings of packets, hosts, switches and the run.
fn settings(keys: &Text, ecn: Option<EcnText>, setup: Setup) -> Result<Setup, Mistake> {
    let (conventions, hosts) = conventions(keys).map_err(|why| Mistake::new("compat", why))?;
    let red = ecn.map(|ecn| ecn.red().map_err(|why| Mistake::new("ecn.probability", why))).transpose()?;
    let second_class =
        keys.second_class.as_ref().map(|class| SecondClass { dscp: class.dscp, weights: class.weights });
    let direct = match &keys.direct {
        Some(direct) => Some(Direct::new(direct.threshold, time("direct.interval", &direct.interval)?)),
        None => None,
    };
    let sampling = match &keys.sample {
        Some(every) => Some(Sampling {
            every: time("sample", every)?,
            host: setup.flows.first().map_or(0, |flow| flow.destination),
            flows: setup.flows.len().min(64),
        }),
        None => None,
    };
    let share = |key, value| {
        Probability::new(value).ok_or_else(|| Mistake::new(key, format!("{value}: out of range; use 0 to 1")))
    };
    Ok(Setup {
        conventions,
        hosts,
        red,
        second_class,
        tell_sojourn: keys.tell_sojourn,
        direct,
        linux_ioam: keys.linux_ioam,
        requests: keys.requests.as_ref().map_or(Requests::WRITES, RequestsText::requests),
        loss: share("loss", keys.loss)?,
        forgery: share("lie", keys.forgery)?,
        drop_vendor_opcodes: keys.drop_vendor_opcodes,
        buffer: keys.buffer,
        pfc: keys.pfc.then(Pfc::default),
        sampling,
        jitter: time("jitter", &keys.jitter)?,
        limit: time("limit", &keys.limit)?,
        ..setup
    })
}

/// Returns the likely mistakes of a scenario whose links have these rates. `rates` is `None` for model hosts.
fn warnings(name: &str, congestion: &Congestion, is_marked: bool, rates: Option<Vec<Rate>>) -> Vec<String> {
    let unmarked = (!is_marked && congestion.algorithm.wants_ecn()).then(|| unmarked(name, congestion));
    let rates = rates.filter(|_| has_speed_codes(congestion)).map(units::without_code).unwrap_or_default();
    unmarked.into_iter().chain(rates.into_iter().map(|rate| without_telemetry(name, rate))).collect()
}

fn unmarked(name: &str, congestion: &Congestion) -> String {
    format!(
        "{name}: congestion {}: no switch marks, so it never slows down; add the line ecn = {{ min = 100_000, max = 400_000, probability = 0.2 }}",
        algorithm_name(congestion)
    )
}

/// Returns whether switches write telemetry in which codes represent the rates of links.
const fn has_speed_codes(congestion: &Congestion) -> bool {
    let is_used = congestion.in_band.is_some() || congestion.probe_interval.is_some();
    is_used && matches!(congestion.format, Format::Hpcc | Format::Ifa)
}

/// Returns a warning for a rate at which switches write no telemetry.
fn without_telemetry(name: &str, rate: Rate) -> String {
    format!(
        "{name}: rate {}: HPCC INT and IFA cannot express it, so switches write no telemetry there; use one of {}",
        units::rate_text(rate),
        units::codes()
    )
}

/// Returns the name of a run with the values of `vary` in the reference: `hpcc_ms0`, `dctcp`.
fn varied(reference: Reference, vary: &[(String, String)]) -> Reference {
    let other =
        |variant: String, (key, value): &(String, String)| match (key.as_str(), variant.split_once("_ms")) {
            ("max_stage", Some((before, _))) => format!("{before}_ms{value}"),
            ("cc", _) => value.clone(),
            _ => variant,
        };
    Reference { variant: vary.iter().fold(reference.variant, other), ..reference }
}

/// Returns the packet sizes and timing conventions, and the kind of hosts.
fn conventions(text: &Text) -> Result<(Conventions, Hosts), String> {
    let sizes = match text.compat {
        Compat::HpccNs3 => Conventions::HPCC_NS3,
        Compat::Ferroce => Conventions::FERROCE,
    };
    let hosts = match (text.compat, text.host) {
        (Compat::HpccNs3, Some(HostKind::Endpoint)) => {
            return Err("hpcc-ns3 needs model hosts; leave `host` out".into());
        }
        (Compat::HpccNs3, _) | (Compat::Ferroce, Some(HostKind::Model)) => Hosts::Model,
        (Compat::Ferroce, _) => Hosts::Endpoints,
    };
    let payload = text.mtu.unwrap_or(sizes.payload);
    if !(64..=9000).contains(&payload) {
        return Err(format!("mtu {payload}: 64 to 9000"));
    }
    Ok((Conventions { payload, ..sizes }, hosts))
}

#[cfg(test)]
mod tests;
