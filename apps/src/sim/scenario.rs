//! Reads scenarios: a TOML file with its flows, or with a CSV file of flows.

use super::flows::{FlowText, Numbering, Traffic, draw, list, virtual_time, zero};
use crate::failure::Failure;
use crate::units;
use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, Rate};
use fabric::sim::{Conventions, Hosts, Pfc, Sampling, Setup, Topology};
use fabric::{Direct, Probability, Red, SecondClass};
use roce::qp::Congestion;
use roce::wire::Format;
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;
use verbs::congestion::CongestionChoice;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    topology: Kind,
    /// Hosts of a star, or of each switch (leaf-spine: each leaf) in other topologies.
    hosts: Option<usize>,
    /// Switches of a parking lot, or leaves of a leaf-spine.
    switches: Option<usize>,
    spines: Option<usize>,
    rate: String,
    /// The rate of links between switches; defaults to `rate`.
    fabric_rate: Option<String>,
    delay: String,
    #[serde(default)]
    compat: Compat,
    /// The kind of hosts; defaults to endpoints, and to the model with `compat = "hpcc-ns3"`.
    host: Option<Kinds>,
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
    /// The probability that a host falsifies a report on a path.
    #[serde(default)]
    lie: f64,
    /// Hosts ignore packets that only Ferroce understands, such as probes.
    #[serde(default)]
    deaf: bool,
    sample: Option<String>,
    #[serde(default = "zero")]
    jitter: String,
    #[serde(default = "limit")]
    limit: String,
    /// The number of the first host in `[[flow]]` and in flow lists.
    #[serde(default = "one")]
    first_host: u32,
    reference: Option<Reference>,
    traffic: Option<Traffic>,
    #[serde(default)]
    flow: Vec<FlowText>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Star,
    Dumbbell,
    ParkingLot,
    LeafSpine,
    FatTree,
}

#[derive(Clone, Copy, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Kinds {
    Endpoint,
    Model,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Compat {
    #[default]
    Ferroce,
    HpccNs3,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnText {
    min: u64,
    max: u64,
    #[serde(default = "certain")]
    probability: f64,
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

/// The queue length, bytes, above which subscribed senders get direct responses, and the shortest interval between two responses to a
/// sender.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectText {
    threshold: u64,
    interval: String,
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

const fn one() -> u32 {
    1
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
    /// Probable mistakes in the scenario, each with its remedy.
    pub warnings: Vec<String>,
}

/// Reads a scenario. `vary` replaces values of keys of `congestion`.
///
/// # Errors
/// Returns a failure with the key that is wrong, and why.
pub fn read(
    name: &str,
    text: &str,
    flows: Option<&Path>,
    seed: u64,
    vary: &[(String, String)],
) -> Result<Scenario, Failure> {
    let text: Text = toml::from_str(text)
        .map_err(|error| Failure::usage(format!("{name}: {}", error.message().replace('\n', "; "))))?;
    let wrong = |key: &str, error: String| Failure::usage(format!("{name}: {key}: {error}"));
    let time = |key: &str, text: &str| {
        units::duration(text).and_then(virtual_time).map_err(|error| wrong(key, error))
    };
    let rate = |key: &str, text: &str| units::rate(text).map_err(|error| wrong(key, error));
    let line = rate("rate", &text.rate)?;
    let fabric = text.fabric_rate.as_deref().map_or(Ok(line), |text| rate("fabric_rate", text))?;
    let topology = topology(&text, line, fabric, time("delay", &text.delay)?)
        .map_err(|error| wrong("topology", error))?;
    let congestion = congestion(&text.congestion, vary, text.compat)
        .map_err(|error| wrong("congestion", error))?
        .on_link(line);
    let numbering = Numbering::new(text.first_host, topology.hosts() as u32)
        .map_err(|error| wrong("first_host", error))?;
    let flows = match (flows, &text.traffic) {
        (Some(file), _) => list(file, numbering)?,
        (None, Some(traffic)) => {
            let end = time("traffic.time", &traffic.time)?;
            draw(traffic, end, topology.hosts() as u32, line, seed)
                .map_err(|error| wrong("traffic", error))?
        }
        (None, None) => {
            let of = |flow: &FlowText| {
                let start = time("start", &flow.start)?;
                numbering.spell(flow, start).map_err(|error| wrong("flow", error))
            };
            text.flow.iter().map(of).collect::<Result<Vec<_>, Failure>>()?.concat()
        }
    };
    let (conventions, hosts) = conventions(&text).map_err(|error| wrong("compat", error))?;
    let ecn = text.ecn.or_else(|| authors_marks(text.compat, &congestion.algorithm));
    let red = ecn.map(|ecn| ecn.red().map_err(|error| wrong("ecn.probability", error)));
    let is_real = hosts == Hosts::Endpoints;
    let warnings = warnings(name, &congestion, ecn.is_some(), is_real.then_some([line, fabric]));
    let first = flows.first().map_or(0, |flow| flow.destination);
    let sampling = text.sample.as_deref().map(|text| {
        let every = time("sample", text)?;
        Ok(Sampling { every, host: first, flows: flows.len().min(64) })
    });
    let direct = text
        .direct
        .as_ref()
        .map(|text| Ok::<_, Failure>(Direct::new(text.threshold, time("direct.interval", &text.interval)?)));
    let setup = Setup {
        conventions,
        hosts,
        red: red.transpose()?,
        second_class: text
            .second_class
            .as_ref()
            .map(|class| SecondClass { dscp: class.dscp, weights: class.weights }),
        tell_sojourn: text.tell_sojourn,
        direct: direct.transpose()?,
        linux_ioam: text.linux_ioam,
        lie: Probability::new(text.lie).ok_or_else(|| wrong("lie", format!("{}: 0 to 1", text.lie)))?,
        deaf: text.deaf,
        buffer: text.buffer,
        pfc: text.pfc.then(Pfc::default),
        sampling: sampling.transpose()?,
        jitter: time("jitter", &text.jitter)?,
        limit: time("limit", &text.limit)?,
        seed,
        ..Setup::new(topology, flows, congestion)
    };
    let reference = text.reference.map(|reference| varied(reference, vary));
    Ok(Scenario { setup, reference, first_host: text.first_host, warnings })
}

fn topology(text: &Text, rate: Rate, fabric: Rate, delay: Duration) -> Result<Topology, String> {
    let needs = |what: &str, value: Option<usize>, limit: usize| match value {
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(format!("{what} = {value}: out of range; use 1 to {limit}")),
        None => Err(format!("the topology needs {what}; add {what} = 8")),
    };
    let hosts = || needs("hosts", text.hosts, 4096);
    Ok(match text.topology {
        Kind::Star => Topology::star(hosts()?.max(2), rate, delay),
        Kind::Dumbbell => Topology::dumbbell(hosts()?, hosts()?, rate, fabric, delay),
        Kind::ParkingLot => {
            Topology::parking_lot(needs("switches", text.switches, 256)?, hosts()?, rate, delay)
        }
        Kind::LeafSpine => {
            let (leaves, spines) =
                (needs("switches", text.switches, 256)?, needs("spines", text.spines, 256)?);
            Topology::leaf_spine(leaves, spines, hosts()?, rate, fabric, delay)
        }
        Kind::FatTree => Topology::fat_tree(rate, fabric, delay),
    })
}

/// Returns the likely mistakes of a scenario whose links have these rates, if its packets are real.
fn warnings(name: &str, congestion: &Congestion, is_marked: bool, rates: Option<[Rate; 2]>) -> Vec<String> {
    let unmarked = (!is_marked && congestion.algorithm.wants_ecn()).then(|| unmarked(name, congestion));
    let rates = rates.filter(|_| has_speed_codes(congestion)).map(units::without_code).unwrap_or_default();
    unmarked.into_iter().chain(rates.into_iter().map(|rate| untold(name, rate))).collect()
}

fn unmarked(name: &str, congestion: &Congestion) -> String {
    format!(
        "{name}: congestion {}: no switch marks, so it never slows down; add the line ecn = {{ min = 100_000, max = 400_000, probability = 0.2 }}",
        congestion.algorithm.name()
    )
}

/// Returns whether switches write telemetry that names their links' rates by codes.
const fn has_speed_codes(congestion: &Congestion) -> bool {
    let is_used = congestion.in_band.is_some() || congestion.probe_interval.is_some();
    is_used && matches!(congestion.format, Format::Hpcc | Format::Ifa)
}

/// Returns a warning for a rate at which switches write no telemetry.
fn untold(name: &str, rate: Rate) -> String {
    format!(
        "{name}: rate {}: HPCC INT and IFA cannot express it, so switches write no telemetry there; use one of {}",
        units::rate_text(rate),
        units::codes()
    )
}

/// Returns the marking thresholds of the HPCC authors' simulator for these algorithms.
fn authors_marks(compat: Compat, algorithm: &AlgorithmConfig) -> Option<EcnText> {
    match (compat, algorithm) {
        (Compat::HpccNs3, AlgorithmConfig::Dctcp(_)) => {
            Some(EcnText { min: 300_000, max: 300_000, probability: 1.0 })
        }
        (Compat::HpccNs3, AlgorithmConfig::Dcqcn(_)) => {
            Some(EcnText { min: 400_000, max: 1_600_000, probability: 0.2 })
        }
        _ => None,
    }
}

/// Returns the reference's name of a run with the values of `vary`: `hpcc_ms0`, `dctcp`.
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
        (Compat::HpccNs3, Some(Kinds::Endpoint)) => {
            return Err("hpcc-ns3 needs model hosts; leave `host` out".into());
        }
        (Compat::HpccNs3, _) | (Compat::Ferroce, Some(Kinds::Model)) => Hosts::Model,
        (Compat::Ferroce, _) => Hosts::Endpoints,
    };
    let payload = text.mtu.unwrap_or(sizes.payload);
    if !(64..=9000).contains(&payload) {
        return Err(format!("mtu {payload}: 64 to 9000"));
    }
    Ok((Conventions { payload, ..sizes }, hosts))
}

/// The suffix that marks `dcqcn` with a window in a reference's names.
const WINDOWED: &str = "_vwin";

/// Parses congestion control in the syntax of `ferroce.toml`. With `compat = "hpcc-ns3"`, DCTCP and DCQCN have the parameters of the
/// authors' simulator.
fn congestion(text: &str, vary: &[(String, String)], compat: Compat) -> Result<Congestion, String> {
    let mut parts: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
    for (key, value) in vary {
        let named = |part: &String| part.split('=').next() == Some(key.as_str());
        parts.retain(|part| !named(part));
        if key == "cc" {
            parts[0] = value.strip_suffix(WINDOWED).unwrap_or(value).to_owned();
        } else {
            parts.push(format!("{key}={value}"));
        }
    }
    // Settings of the replaced algorithm may not exist in the new one.
    if let Some(name) = vary.iter().any(|(key, _)| key == "cc").then(|| parts[0].parse().ok()).flatten() {
        let is_used = |part: &String| {
            let setting =
                CongestionChoice::SETTINGS.iter().find(|setting| part.split('=').next() == Some(setting.key));
            setting.is_none_or(|setting| setting.algorithms.contains(&name))
        };
        parts.retain(is_used);
    }
    let line = parts.join(",");
    let congestion = verbs::congestion::parse_congestion(&line)?;
    let choice: CongestionChoice = line.parse()?;
    let algorithm = match (congestion.algorithm, compat) {
        (AlgorithmConfig::Dctcp(config), Compat::HpccNs3) => {
            let min_rate = config.min_rate;
            let usual = DctcpConfig { min_rate, ..DctcpConfig::simulator(config.base_rtt) };
            AlgorithmConfig::Dctcp(choice.over_dctcp(usual))
        }
        (AlgorithmConfig::Dcqcn(config), Compat::HpccNs3) => {
            let min_rate = config.min_rate;
            let is_open = vary.iter().any(|(key, value)| key == "cc" && value == "dcqcn");
            let window = config.base_rtt.filter(|_| !is_open);
            AlgorithmConfig::Dcqcn(
                choice.over_dcqcn(DcqcnConfig { min_rate, ..DcqcnConfig::simulator(window) }),
            )
        }
        (algorithm, _) => algorithm,
    };
    Ok(Congestion { algorithm, ..congestion })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "topology = 'star'\nhosts = 3\nrate = '100G'\ndelay = '1us'\ncompat = 'hpcc-ns3'\n\
        congestion = 'hpcc,line_rate=100G,base_rtt=4160ns,flows=100'\n\
        [[flow]]\nsource = 1\ndestination = 3\nbytes = 1000\n";

    #[test]
    fn a_scenario_says_what_runs() {
        let scenario = read("x", TEXT, None, 1, &[("max_stage".into(), "0".into())]).unwrap();
        assert_eq!((scenario.setup.topology.hosts(), scenario.setup.flows[0].destination), (3, 2));
        let AlgorithmConfig::Hpcc(config) = scenario.setup.congestion.algorithm else { panic!() };
        assert_eq!((config.max_stage, config.additive_increase), (0, Rate::from_mbps(50)));
        assert_eq!(scenario.setup.hosts, Hosts::Model);
        let product = read("x", &TEXT.replace("compat = 'hpcc-ns3'", ""), None, 1, &[]).unwrap();
        assert_eq!(product.setup.hosts, Hosts::Endpoints);
        assert!(read("x", &TEXT.replace("compat", "host = 'endpoint'\ncompat"), None, 1, &[]).is_err());
        let dctcp = read("x", TEXT, None, 1, &[("cc".into(), "dctcp".into())]).unwrap();
        assert_eq!(dctcp.setup.congestion.algorithm.name(), "dctcp");
        assert!(dctcp.setup.red.is_some() && scenario.setup.red.is_none());
        assert!(dctcp.warnings.is_empty() && scenario.warnings.is_empty());
        let reference = Reference { scenario: "b".into(), variant: "hpcc_ms5".into() };
        assert_eq!(varied(reference.clone(), &[("max_stage".into(), "0".into())]).variant, "hpcc_ms0");
        assert_eq!(varied(reference, &[("cc".into(), "dctcp".into())]).variant, "dctcp");
        assert!(read("x", &TEXT.replace("hosts = 3", ""), None, 1, &[]).is_err());
    }

    #[test]
    fn an_algorithm_of_marks_is_warned_of_if_no_switch_marks() {
        let text = TEXT.replace("compat = 'hpcc-ns3'", "").replace("hpcc,", "dcqcn,");
        let text = text.replace(",base_rtt=4160ns,flows=100", "");
        let warnings = read("x", &text, None, 1, &[]).unwrap().warnings;
        let (_, remedy) = warnings[0].split_once("add the line ").unwrap();
        let marked = format!("{remedy}\n{text}");
        assert!(read("x", &marked, None, 1, &[]).unwrap().warnings.is_empty());
    }

    #[test]
    fn a_rate_without_a_code_is_warned_of_if_telemetry_names_rates_by_codes() {
        let text = TEXT.replace("compat = 'hpcc-ns3'", "").replace("rate = '100G'", "rate = '75G'");
        assert!(text.contains("75G"), "{text}");
        let warnings = |text: &str| read("x", text, None, 1, &[]).unwrap().warnings;
        let said = warnings(&text);
        assert!(said[0].starts_with("x: rate 75G: HPCC INT and IFA cannot express it"), "{said:?}");
        assert_eq!(said.len(), 1);
        for exact in ["hpcc,format=int-md,", "dctcp,"] {
            let other = text.replace("hpcc,", exact).replace(",flows=100", "");
            assert!(warnings(&other).iter().all(|said| !said.contains("cannot express")), "{exact}");
        }
    }

    #[test]
    fn numbers_that_no_host_has_are_named() {
        let incast = |senders: u32, bytes: u32| {
            let traffic =
                "[traffic]\nsizes = 'web-search'\nload = 0.1\ntime = '1us'\n[traffic.incast]\nload = 0.1\n";
            let flows = TEXT.find("[[flow]]").unwrap();
            format!("{}{traffic}senders = {senders}\nbytes = {bytes}\n", &TEXT[..flows])
        };
        for (text, part) in [
            (
                TEXT.replace("source = 1", "senders = 4"),
                "senders = 4: more senders than hosts, or none; use 1 to 3",
            ),
            (TEXT.replace("source = 1", "senders = 4294967295"), "1 to 3"),
            (TEXT.replace("source = 1", ""), "either source or senders"),
            (TEXT.replace("source = 1", "source = 0"), "source 0: not a host of the topology; use 1 to 3"),
            (TEXT.replace("source = 1", "source = 4294967295"), "source 4294967295: not a host"),
            (TEXT.replace("destination = 3", "destination = 4"), "destination 4: not a host"),
            (TEXT.replace("source = 1", "source = 3"), "source 3, destination 3: the same host"),
            (TEXT.replace("source = 1", "senders = 3"), "source 3, destination 3: the same host"),
            (TEXT.replace("bytes = 1000", "bytes = 0"), "bytes 0: use at least 1"),
            (format!("first_host = 4294967293\n{TEXT}"), "first_host: 4294967293: 3 hosts"),
            (incast(2, 0), "incast.bytes = 0"),
            (incast(3, 1), "incast.senders = 3"),
            (
                incast(1, 1)
                    .replace("'star'", "'parking-lot'\nswitches = 1")
                    .replace("hosts = 3", "hosts = 1"),
                "one host",
            ),
        ] {
            let error = read("x", &text, None, 1, &[]).map(|_| ()).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
        assert!(read("x", &incast(2, 1), None, 1, &[]).is_ok());
    }

    #[test]
    fn a_list_of_flows_is_refused_in_its_own_numbers() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("flows.csv");
        std::fs::write(&file, "src,dst,bytes,start_ns\n1,2,1000,0\n0,1,1000,0\n").unwrap();
        let error = read("x", TEXT, Some(&file), 1, &[]).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains("line 3: source 0: not a host of the topology; use 1 to 3"), "{error}");
    }

    #[test]
    fn the_library_of_scenarios_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric/scenarios");
        for (folder, least) in [(folder.clone(), 9), (folder.join("reference"), 8)] {
            let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().path());
            let files: Vec<_> =
                files.filter(|path| path.extension().is_some_and(|end| end == "toml")).collect();
            for path in &files {
                let text = std::fs::read_to_string(path).unwrap();
                let read = read(&path.display().to_string(), &text, None, 1, &[]);
                assert!(read.is_ok_and(|scenario| !scenario.setup.flows.is_empty()), "{}", path.display());
            }
            assert!(files.len() >= least, "{files:?}");
        }
    }
}
