//! Scenarios of the fabric at scale, as TOML.

use crate::failure::Failure;
use crate::units;
use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, Rate};
use fabric::scale::{
    Conventions, Flow, Incast, Pfc, Red, Sampling, Setup, SizeDistribution, Topology, poisson,
};
use serde::Deserialize;
use std::path::Path;
use std::time::Duration;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    topology: Kind,
    /// Of a star; of each switch where there are several.
    hosts: Option<usize>,
    /// Of a parking lot; leaves of a leaf-spine.
    switches: Option<usize>,
    spines: Option<usize>,
    rate: String,
    /// Between switches; as `rate` where it is not given.
    fabric_rate: Option<String>,
    delay: String,
    #[serde(default)]
    compat: Compat,
    congestion: String,
    /// The variant hpcc-fair.
    fair_floor: Option<f64>,
    #[serde(default = "buffer")]
    buffer: u64,
    #[serde(default)]
    pfc: bool,
    ecn: Option<EcnText>,
    sample: Option<String>,
    #[serde(default = "zero")]
    jitter: String,
    #[serde(default = "limit")]
    limit: String,
    /// The number of the first host in flow lists.
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

#[derive(Clone, Copy, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Compat {
    #[default]
    Ferroce,
    HpccNs3,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EcnText {
    min: u64,
    max: u64,
    #[serde(default = "certain")]
    probability: f64,
}

/// What a run is called in a reference directory.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reference {
    pub scenario: String,
    pub variant: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Traffic {
    sizes: String,
    load: f64,
    time: String,
    incast: Option<IncastText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct IncastText {
    senders: u32,
    bytes: u64,
    load: f64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FlowText {
    source: u32,
    destination: u32,
    bytes: u64,
    #[serde(default = "zero")]
    start: String,
}

/// A row of a flow list, as in the reference: bytes, and the start in ns.
#[derive(Deserialize)]
struct Row {
    src: u32,
    dst: u32,
    bytes: u64,
    start_ns: u64,
}

const fn buffer() -> u64 {
    32_000_000
}

const fn one() -> u32 {
    1
}

const fn certain() -> f64 {
    1.0
}

fn zero() -> String {
    "0ns".into()
}

fn limit() -> String {
    "1s".into()
}

/// A scenario ready to run.
#[derive(Clone, Debug)]
pub struct Scenario {
    pub setup: Setup,
    pub reference: Option<Reference>,
    pub first_host: u32,
}

/// Whether a file is of this kind: it says a topology.
pub fn is_one(text: &str) -> bool {
    text.parse::<toml::Table>().is_ok_and(|table| table.contains_key("topology"))
}

/// Reads a scenario; `vary` are keys of `congestion` with other values.
///
/// # Errors
/// What can't be understood, by key.
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
    let time = |key: &str, text: &str| units::duration(text).map_err(|error| wrong(key, error));
    let rate = |key: &str, text: &str| units::rate(text).map_err(|error| wrong(key, error));
    let line = rate("rate", &text.rate)?;
    let fabric = text.fabric_rate.as_deref().map_or(Ok(line), |text| rate("fabric_rate", text))?;
    let topology = topology(&text, line, fabric, time("delay", &text.delay)?)
        .map_err(|error| wrong("topology", error))?;
    let algorithm =
        algorithm(&text.congestion, vary, text.compat).map_err(|error| wrong("congestion", error))?;
    let flows = match (flows, &text.traffic) {
        (Some(file), _) => list(file, text.first_host)?,
        (None, Some(traffic)) => {
            let end = time("traffic.time", &traffic.time)?;
            draw(traffic, end, topology.hosts() as u32, line, seed)
                .map_err(|error| wrong("traffic", error))?
        }
        (None, None) => text
            .flow
            .iter()
            .map(|flow| {
                Ok(spec(
                    flow.source,
                    flow.destination,
                    flow.bytes,
                    time("start", &flow.start)?,
                    text.first_host,
                ))
            })
            .collect::<Result<_, Failure>>()?,
    };
    let first = flows.first().map_or(0, |flow| flow.destination);
    let sampling = text.sample.as_deref().map(|text| {
        let every = time("sample", text)?;
        Ok(Sampling { every, host: first, flows: flows.len().min(64) })
    });
    let setup = Setup {
        conventions: if text.compat == Compat::HpccNs3 {
            Conventions::HPCC_NS3
        } else {
            Conventions::FERROCE
        },
        algorithm,
        fair_floor: text.fair_floor,
        red: text.ecn.map(|ecn| Red { min: ecn.min, max: ecn.max, probability: ecn.probability }),
        buffer: text.buffer,
        pfc: text.pfc.then(Pfc::default),
        sampling: sampling.transpose()?,
        jitter: time("jitter", &text.jitter)?,
        limit: time("limit", &text.limit)?,
        topology,
        flows,
        seed,
    };
    Ok(Scenario { setup, reference: text.reference, first_host: text.first_host })
}

fn topology(text: &Text, rate: Rate, fabric: Rate, delay: Duration) -> Result<Topology, String> {
    let needs = |what: &str, value: Option<usize>, limit: usize| match value {
        Some(value) if (1..=limit).contains(&value) => Ok(value),
        Some(value) => Err(format!("{what} = {value}: 1 to {limit}")),
        None => Err(format!("say {what}")),
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

/// The algorithm of a line as in `ferroce.toml`; with the authors' conventions, DCTCP and DCQCN have their parameters.
fn algorithm(text: &str, vary: &[(String, String)], compat: Compat) -> Result<AlgorithmConfig, String> {
    let mut parts: Vec<String> = text.split(',').map(|part| part.trim().to_owned()).collect();
    for (key, value) in vary {
        let named = |part: &String| part.split('=').next() == Some(key.as_str());
        parts.retain(|part| !named(part));
        if key == "cc" {
            parts[0].clone_from(value);
        } else {
            parts.push(format!("{key}={value}"));
        }
    }
    let algorithm = verbs::parse_congestion(&parts.join(","))?.algorithm;
    Ok(match (algorithm, compat) {
        (AlgorithmConfig::HpccReceiver(_), _) => {
            return Err("hpcc-rx runs on one switch only (a scenario without `topology`)".into());
        }
        (AlgorithmConfig::Dctcp(config), Compat::HpccNs3) => {
            AlgorithmConfig::Dctcp(DctcpConfig::simulator(config.base_rtt))
        }
        (AlgorithmConfig::Dcqcn(config), Compat::HpccNs3) => {
            AlgorithmConfig::Dcqcn(DcqcnConfig::simulator(config.base_rtt))
        }
        (algorithm, _) => algorithm,
    })
}

fn draw(traffic: &Traffic, time: Duration, hosts: u32, line: Rate, seed: u64) -> Result<Vec<Flow>, String> {
    let sizes = match traffic.sizes.as_str() {
        "web-search" => SizeDistribution::web_search(),
        "fb-hadoop" => SizeDistribution::fb_hadoop(),
        other => match other.strip_prefix("uniform:").and_then(|most| most.parse().ok()) {
            Some(most) => SizeDistribution::uniform(most),
            None => return Err(format!("sizes '{other}': web-search, fb-hadoop, or uniform:BYTES")),
        },
    };
    for load in [Some(traffic.load), traffic.incast.as_ref().map(|incast| incast.load)].into_iter().flatten()
    {
        if !(0.0..=1.0).contains(&load) {
            return Err(format!("load {load}: 0 to 1"));
        }
    }
    let incast = traffic.incast.as_ref();
    let incast =
        incast.map(|incast| Incast { senders: incast.senders, bytes: incast.bytes, load: incast.load });
    Ok(poisson(hosts, line, &sizes, traffic.load, time, incast, seed))
}

fn spec(source: u32, destination: u32, bytes: u64, start: Duration, first: u32) -> Flow {
    // A number below the first wraps, and is refused as no host.
    let [source, destination] = [source, destination].map(|host| host.wrapping_sub(first));
    Flow { source, destination, bytes, start, is_incast: false }
}

fn list(file: &Path, first: u32) -> Result<Vec<Flow>, Failure> {
    let wrong = |error: csv::Error| Failure::usage(format!("{}: {error}", file.display()));
    let open = |error| Failure::usage(format!("{}: {error}", file.display()));
    let input = std::fs::File::open(file).map_err(open)?;
    let input: Box<dyn std::io::Read> = match file.extension().is_some_and(|end| end == "gz") {
        true => Box::new(flate2::read::MultiGzDecoder::new(input)),
        false => Box::new(input),
    };
    let mut reader = csv::Reader::from_reader(input);
    let flow = |row: Result<Row, csv::Error>| {
        let Row { src, dst, bytes, start_ns } = row.map_err(wrong)?;
        Ok(spec(src, dst, bytes, Duration::from_nanos(start_ns), first))
    };
    reader.deserialize().map(flow).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "topology = 'star'\nhosts = 3\nrate = '100G'\ndelay = '1us'\ncompat = 'hpcc-ns3'\n\
        congestion = 'hpcc,line_rate=100G,base_rtt=4160ns,flows=100'\n\
        [[flow]]\nsource = 1\ndestination = 3\nbytes = 1000\n";

    #[test]
    fn a_scenario_says_what_runs() {
        assert!(is_one(TEXT) && !is_one("hosts = 3"));
        let scenario = read("x", TEXT, None, 1, &[("max_stage".into(), "0".into())]).unwrap();
        assert_eq!((scenario.setup.topology.hosts(), scenario.setup.flows[0].destination), (3, 2));
        let AlgorithmConfig::Hpcc(config) = scenario.setup.algorithm else { panic!() };
        assert_eq!((config.max_stage, config.additive_increase), (0, Rate::from_mbps(50)));
        let other = read("x", TEXT, None, 1, &[("cc".into(), "hpcc-rx".into())]);
        assert!(other.is_err());
        assert!(read("x", &TEXT.replace("hosts = 3", ""), None, 1, &[]).is_err());
    }

    #[test]
    fn the_library_of_scenarios_can_be_read() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fabric/scenarios/scale");
        let mut count = 0;
        for file in std::fs::read_dir(folder).unwrap() {
            let path = file.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            let read = read(&path.display().to_string(), &text, None, 1, &[]);
            assert!(read.is_ok_and(|scenario| !scenario.setup.flows.is_empty()), "{}", path.display());
            count += 1;
        }
        assert!(count >= 8, "{count}");
    }
}
