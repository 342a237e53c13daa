//! The setup of a simulation: topology, hosts, flows and switches.

use super::{Change, ScriptedFault, Topology};
use crate::{Direct, Probability, Red, SecondClass};
use cc::{AlgorithmConfig, Rate};
use roce::CoreIndex;
use roce::qp::Congestion;
use roce::wire::{Format, Mtu};
use std::ops::Range;
use std::time::Duration;
use thiserror::Error;

/// A transfer from one host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// Number of the sending host, from 0.
    pub source: u32,
    /// Number of the receiving host, from 0.
    pub destination: u32,
    /// Payload bytes, at least 1.
    pub bytes: u64,
    /// Start.
    pub start: Duration,
    /// Whether the flow is part of an incast that was added to other traffic.
    pub is_incast: bool,
    /// DSCP of the packets, 0 to 63.
    pub dscp: u8,
}

/// A flow that begins after another flow has ended. A flow with several dependencies begins after the last of these. Its `start` is then
/// the delay from that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dependency {
    /// Index of the dependent flow.
    pub flow: u32,
    /// Index of the flow that must end first, by the arrival of its last acknowledgement.
    pub after: u32,
}

/// The operation of the requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// RDMA WRITE.
    Write,
    /// RDMA READ: data moves from the flow's destination to its source.
    Read,
    /// SEND; the destination keeps a receive posted for each outstanding request.
    Send,
}

/// How endpoints split a flow into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Operation.
    pub verb: Verb,
    /// Bytes per request, 1 to 2^30. The last request may be shorter.
    pub bytes: u32,
    /// Outstanding requests, 1 to 4096.
    pub depth: u32,
    /// Whether both ends use selective repeat.
    pub selective_repeat: bool,
}

/// A slow application. It needs time for each message, and posts another receive only afterwards. The responder answers requests without a
/// receive by RNR NAKs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Application {
    /// Host of the application.
    pub host: u32,
    /// Rate at which the application consumes the payload of all messages together; above 0.
    pub rate: Rate,
}

/// The flows that have another congestion control than the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of a class, by DSCP, 0 to 63.
    Class(u8),
    /// Those that these hosts send.
    Hosts(Vec<u32>),
    /// Those with an index in this range.
    Flows(Range<u32>),
}

/// Another congestion control for some flows.
#[derive(Clone, Debug, PartialEq)]
pub struct Rival {
    /// The flows.
    pub which: Which,
    /// Their congestion control.
    pub congestion: Congestion,
}

/// The kind of hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// Endpoints ([`roce::Endpoint`]) behind a NIC that sends one frame at a time, with a connection per flow. Frames have the wire format,
    /// except their payload, which is only counted.
    Endpoints,
    /// A faster model: packets are descriptors, each is acknowledged, telemetry returns with every acknowledgement, and losses are
    /// recovered by go-back-N.
    Model,
}

/// Sizes on the wire, and the resolution of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conventions {
    /// Payload bytes of a full packet.
    pub payload: u32,
    /// Header bytes of a data packet without telemetry.
    pub header: u32,
    /// Bytes that telemetry adds to data and acknowledgements.
    pub telemetry: u32,
    /// Bytes of an acknowledgement without telemetry.
    pub acknowledgement: u32,
    /// Whether serialisation and pacing intervals are rounded down to whole ns.
    pub whole_nanos: bool,
}

impl Conventions {
    /// Ferroce's packets: 1024 bytes, 58 bytes of headers and checksum, 44 bytes of telemetry for five hops.
    pub const FERROCE: Self =
        Self { payload: 1024, header: 58, telemetry: 44, acknowledgement: 62, whole_nanos: false };
    /// Packets of the simulator of HPCC's authors.
    pub const HPCC_NS3: Self =
        Self { payload: 1000, header: 48, telemetry: 42, acknowledgement: 60, whole_nanos: true };
}

/// Priority flow control: a switch that is short of buffer pauses the senders whose packets fill it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pfc {
    /// Share of the free buffer that a port with the rate of the hosts' links may use before its peer is paused. It doubles with each
    /// doubling of the port's rate, up to 1, as in the simulator of HPCC's authors.
    pub share: f64,
    /// Number of bytes that a port must be below its limit for the pause to end.
    pub resume: u64,
    /// Buffer for data in flight after the pause is sent, in round trips of the link.
    pub headroom: f64,
}

impl Pfc {
    const DEFAULT: Self = Self { share: 0.125, resume: 3000, headroom: 1.5 };

    /// Returns the share of a port of rate `rate` if the hosts' links have the rate `host`.
    pub(super) fn share_of(&self, rate: Rate, host: Rate) -> f64 {
        let doublings = rate.as_bps().checked_div(host.as_bps()).unwrap_or(1).max(1).ilog2();
        (0..doublings).fold(self.share, |share, _| if share < 1.0 { (2.0 * share).min(1.0) } else { share })
    }
}

impl Default for Pfc {
    fn default() -> Self {
        Self::DEFAULT
    }
}

/// The time series of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// Interval between rows.
    pub every: Duration,
    /// The first sampled port sends to this host, unless the setup has a list of ports.
    pub host: u32,
    /// Number of flows with columns, from the first flow on.
    pub flows: usize,
}

/// The setup of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Hosts, switches and links.
    pub topology: Topology,
    /// Sizes and resolution of time.
    pub conventions: Conventions,
    /// Kind of hosts.
    pub hosts: Hosts,
    /// Cores of each host, 1 to [`CoreIndex::MAX`]: endpoints that share its NIC, and take turns with new queue pairs. Endpoints only.
    pub cores: u8,
    /// Congestion control of the flows. The model uses only its algorithm and `reported_flows`.
    pub congestion: Congestion,
    /// Other congestion control for some flows; of several that match a flow, the first. Between model hosts, either all algorithms compute
    /// with telemetry or none.
    pub rivals: Vec<Rival>,
    /// RED marks, if any. The limits are for a link of 100 Gb/s and scale with the rate of other links.
    pub red: Option<Red>,
    /// Second class of service at every switch port.
    pub second_class: Option<SecondClass>,
    /// Telemetry reports the bytes that the link carries in the packet's sojourn time as the queue length (rtgwg-00 9.3).
    pub tell_sojourn: bool,
    /// Direct responses of congested switches to packets that subscribe (pan-01 6.3). Endpoints only.
    pub direct: Option<Direct>,
    /// Switches write IOAM as Linux does: at enqueue, with queue and time in µs, and without `txBytes`.
    pub linux_ioam: bool,
    /// Requests of all flows. Endpoints only.
    pub requests: Requests,
    /// Slow applications. Applications of the other hosts need no time. Only for SENDs between endpoints.
    pub applications: Vec<Application>,
    /// Probability that a frame is lost on the link from its host, in addition to the loss of that link. Endpoints only.
    pub loss: Probability,
    /// Script of faults. With model hosts, their rules have no conditions on headers, and corrupt nothing.
    pub faults: Vec<ScriptedFault>,
    /// Largest additional delay of four paths, from which each frame takes one at random. The delays are 0, 1/3, 2/3 and all of it.
    /// Endpoints only.
    pub spread: Duration,
    /// Probability that a frame with a report of a path to its sender is forged. Endpoints only.
    pub forgery: Probability,
    /// Hosts do not support Ferroce's own opcodes, such as those of probes. Endpoints only.
    pub drop_vendor_opcodes: bool,
    /// Buffer of a switch in bytes, shared by all its ports.
    pub buffer: u64,
    /// PFC. Without it, a port may use all of the free buffer, and switches drop packets that exceed it.
    pub pfc: Option<Pfc>,
    /// Flows.
    pub flows: Vec<Flow>,
    /// Dependencies between flows.
    pub dependencies: Vec<Dependency>,
    /// Changes of links during the run.
    pub changes: Vec<Change>,
    /// Largest random delay of each start.
    pub jitter: Duration,
    /// Seed of all random numbers.
    pub seed: u64,
    /// Virtual time after which the run ends, even with unfinished flows.
    pub limit: Duration,
    /// Time series, if any.
    pub sampling: Option<Sampling>,
    /// Ports of the time series, each as its node and the node at the other end of its link. If several links connect two nodes, the first
    /// is sampled.
    pub sampled: Vec<[usize; 2]>,
    /// Ports whose frames the run reports to its observer, each as in `sampled`. At most 65536, without duplicates. Endpoints only.
    pub captured: Vec<[usize; 2]>,
}

/// The reason why a setup cannot run, or why a run failed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SetupError {
    #[error("there are no flows; add one")]
    NoFlow,
    #[error(
        "flow {flow} goes from host {from} to host {to}: not two hosts of the topology; use two different ones from 0 to {last}"
    )]
    Hosts { flow: usize, from: u32, to: u32, last: u32 },
    #[error("flow {flow} has no bytes; use at least 1")]
    Empty { flow: usize },
    #[error("flow {flow} has {bytes} bytes: out of range; use at most 2^36 between endpoints")]
    Long { flow: usize, bytes: u64 },
    #[error("flow {flow} has DSCP {dscp}: out of range; use 0 to 63")]
    Dscp { flow: usize, dscp: u8 },
    #[error("flow {flow} begins after flow {after}: use two flows from 0 to {last}")]
    Dependency { flow: u32, after: u32, last: u32 },
    #[error("flow {flow} begins after flows that begin after it; remove one of the dependencies")]
    Circle { flow: usize },
    #[error("link of {bps} bit/s: telemetry cannot express it; use whole Gb/s from 1 to 1000")]
    Rate { bps: u64 },
    #[error(
        "{what} port {port} is at node {from} towards node {to}: no link connects them; use the ends of a link"
    )]
    Port { what: &'static str, port: usize, from: usize, to: usize },
    #[error(
        "fault {fault} is at node {from} towards node {to}: no link connects them; use the ends of a link"
    )]
    Fault { fault: usize, from: usize, to: usize },
    #[error(
        "fault {name}: {key} is about bytes of a packet, and packets of model hosts have none; leave it out, or choose endpoints"
    )]
    ModelFault { name: String, key: &'static str },
    #[error("change {change} is of link {link}: no such link; use 0 to {last}")]
    Change { change: usize, link: usize, last: usize },
    #[error("no path leads from switch {switch} to host {host}; connect them")]
    Unreachable { switch: usize, host: usize },
    #[error("congestion control: {0}")]
    Algorithm(String),
    #[error("{what} {value}: out of range; use 0 to 1")]
    Share { what: &'static str, value: String },
    #[error("RED marks from {from} to {to} waiting bytes: the first is above the second; swap them")]
    Red { from: u64, to: u64 },
    #[error("packets of {payload} bytes: not the MTU of an endpoint; use 256, 512, 1024, 2048 or 4096")]
    Mtu { payload: u32 },
    #[error("model hosts do not support {what}; use endpoints")]
    Model { what: &'static str },
    #[error(
        "requests of {bytes} bytes, {depth} at once: out of range; use 1 to 2^30 bytes and 1 to 4096 requests"
    )]
    Requests { bytes: u32, depth: u32 },
    #[error("hosts with {cores} cores: out of range; use 1 to {limit}")]
    Cores { cores: u8, limit: u8 },
    #[error("application {application} is on host {host}: not a host of the topology; use 0 to {last}")]
    Application { application: usize, host: u32, last: u32 },
    #[error("an application does not see the data of {verb:?}; use SEND")]
    Unseen { verb: Verb },
    #[error("Linux writes telemetry only as IOAM; choose format=ioam")]
    LinuxIoam,
    #[error("flow {flow} is stuck: no event is left ({state})")]
    Silence { flow: usize, state: String },
    #[error("flow {flow}: {why}")]
    Failed { flow: usize, why: String },
    #[error("the observer has ended the run")]
    Observer,
}

/// Longest request in bytes. Endpoints split a longer flow into several.
pub(super) const LONGEST: u64 = 1 << 30;
/// Limit on the bytes of one flow, in longest requests; also the default depth.
const PIECES: u64 = 64;

/// Checks that telemetry can express the rate of a link.
///
/// # Errors
/// Returns [`SetupError::Rate`] unless the rate is a whole number of Gb/s from 1 to 1000.
pub const fn check_rate(rate: Rate) -> Result<(), SetupError> {
    let bps = rate.as_bps();
    match bps / 1_000_000_000 {
        1..=1000 if bps.is_multiple_of(1_000_000_000) => Ok(()),
        _ => Err(SetupError::Rate { bps }),
    }
}

/// Returns the first of `flows` flows that depends on itself, directly or through others. Every dependency is of two of these flows.
#[must_use]
pub fn circle(flows: usize, dependencies: &[Dependency]) -> Option<usize> {
    let mut waits = vec![0_u32; flows];
    let mut followers = vec![Vec::new(); if dependencies.is_empty() { 0 } else { flows }];
    for &Dependency { flow, after } in dependencies {
        waits[flow as usize] += 1;
        followers[after as usize].push(flow as usize);
    }
    let mut ended: Vec<usize> = (0..followers.len()).filter(|&flow| waits[flow] == 0).collect();
    while let Some(flow) = ended.pop() {
        for &follower in &followers[flow] {
            waits[follower] -= 1;
            if waits[follower] == 0 {
                ended.push(follower);
            }
        }
    }
    waits.iter().position(|&waits| waits > 0)
}

const fn is_at_receiver(algorithm: &AlgorithmConfig) -> bool {
    matches!(algorithm, AlgorithmConfig::HpccReceiver(_))
}

impl Requests {
    /// WRITEs of maximum length, with go-back-N.
    pub const WRITES: Self =
        Self { verb: Verb::Write, bytes: LONGEST as u32, depth: PIECES as u32, selective_repeat: false };
}

impl Setup {
    /// Returns the defaults: endpoints, switches with 32 MiB of buffer and PFC, no marks, one class, seed 1, a limit of 1 s.
    #[must_use]
    pub const fn new(topology: Topology, flows: Vec<Flow>, congestion: Congestion) -> Self {
        Self {
            topology,
            conventions: Conventions::FERROCE,
            hosts: Hosts::Endpoints,
            cores: 1,
            congestion,
            rivals: Vec::new(),
            red: None,
            second_class: None,
            tell_sojourn: false,
            direct: None,
            linux_ioam: false,
            requests: Requests::WRITES,
            applications: Vec::new(),
            loss: Probability::NEVER,
            faults: Vec::new(),
            spread: Duration::ZERO,
            forgery: Probability::NEVER,
            drop_vendor_opcodes: false,
            buffer: 32 << 20,
            pfc: Some(Pfc::DEFAULT),
            flows,
            dependencies: Vec::new(),
            changes: Vec::new(),
            jitter: Duration::ZERO,
            seed: 1,
            limit: Duration::from_secs(1),
            sampling: None,
            sampled: Vec::new(),
            captured: Vec::new(),
        }
    }

    /// Checks the values that can be checked without a run.
    ///
    /// # Errors
    /// Returns a [`SetupError`] if the setup cannot run.
    pub fn check(&self) -> Result<(), SetupError> {
        if self.flows.is_empty() {
            return Err(SetupError::NoFlow);
        }
        self.flows.iter().enumerate().try_for_each(|(number, flow)| self.check_flow(number, flow))?;
        for (what, ports) in [("sampled", &self.sampled), ("captured", &self.captured)] {
            let is_unlinked = |[from, to]: [usize; 2]| self.topology.link_between(from, to).is_none();
            if let Some(port) = ports.iter().position(|ends| is_unlinked(*ends)) {
                let [from, to] = ports[port];
                return Err(SetupError::Port { what, port, from, to });
            }
        }
        self.check_faults()?;
        self.check_dependencies()?;
        let last = self.topology.links().len().saturating_sub(1);
        for (change, Change { links, .. }) in self.changes.iter().enumerate() {
            if let Some(&link) = links.iter().find(|link| **link > last) {
                return Err(SetupError::Change { change, link, last });
            }
        }
        for rate in self.topology.rates().chain(self.changes.iter().filter_map(Change::rate)) {
            check_rate(rate)?;
        }
        if let Some(share) = self.pfc.map(|pfc| pfc.share).filter(|share| !(0.0..=1.0).contains(share)) {
            return Err(SetupError::Share { what: "pfc", value: share.to_string() });
        }
        if let Some(Red { from, to, .. }) = self.red.filter(|red| red.from > red.to) {
            return Err(SetupError::Red { from, to });
        }
        let Requests { bytes, depth, .. } = self.requests;
        if bytes == 0 || u64::from(bytes) > LONGEST || !(1..=4096).contains(&depth) {
            return Err(SetupError::Requests { bytes, depth });
        }
        self.check_applications()?;
        for congestion in self.congestions() {
            let fits = congestion.algorithm.build().map(drop);
            fits.map_err(|error| SetupError::Algorithm(error.to_string()))?;
        }
        if self.linux_ioam && self.congestion.format != Format::Ioam {
            return Err(SetupError::LinuxIoam);
        }
        match self.hosts {
            Hosts::Endpoints if !(1..=CoreIndex::MAX).contains(&self.cores) => {
                Err(SetupError::Cores { cores: self.cores, limit: CoreIndex::MAX })
            }
            Hosts::Endpoints => self.mtu().map(drop),
            Hosts::Model => match self.unsupported_by_model() {
                Some(what) => Err(SetupError::Model { what }),
                None => Ok(()),
            },
        }
    }

    /// Returns the first part of the setup that model hosts do not support.
    fn unsupported_by_model(&self) -> Option<&'static str> {
        let any = |is: &dyn Fn(&Congestion) -> bool| self.congestions().any(is);
        let mixes = any(&|one| one.algorithm.as_hpcc().is_some() != self.stamps());
        let parts = [
            (self.cores != 1, "several cores"),
            (any(&|one| one.upgrade.is_some()), "`auto` and `max_rtt`, which measure before they choose"),
            (any(&|one| is_at_receiver(&one.algorithm)), "HPCC++ at the receiver (hpcc-rx)"),
            (mixes, "algorithms with telemetry together with others"),
            (!self.captured.is_empty(), "captures"),
            (!self.applications.is_empty(), "slow applications"),
            (self.direct.is_some(), "direct responses"),
            (self.loses() || self.spread > Duration::ZERO, "loss or spread"),
            (self.drop_vendor_opcodes || self.forgery != Probability::NEVER, "forged reports or deaf hosts"),
            (self.congestion.format != Format::Hpcc, "telemetry in other formats"),
        ];
        parts.into_iter().find_map(|(is_used, what)| is_used.then_some(what))
    }

    /// Checks that faults are at links, and that packets have what their rules are about.
    fn check_faults(&self) -> Result<(), SetupError> {
        for (fault, ScriptedFault { port, rule }) in self.faults.iter().enumerate() {
            if let Some([from, to]) =
                port.filter(|[from, to]| self.topology.link_between(*from, *to).is_none())
            {
                return Err(SetupError::Fault { fault, from, to });
            }
            let key = rule.key_of_headers().filter(|_| self.hosts == Hosts::Model);
            if let Some(key) = key {
                return Err(SetupError::ModelFault { name: rule.name.clone(), key });
            }
        }
        Ok(())
    }

    /// Checks that no flow depends on itself, directly or through others.
    fn check_dependencies(&self) -> Result<(), SetupError> {
        let last = self.flows.len() as u32 - 1;
        let wrong = |pair: &&Dependency| pair.flow == pair.after || pair.flow.max(pair.after) > last;
        if let Some(&Dependency { flow, after }) = self.dependencies.iter().find(wrong) {
            return Err(SetupError::Dependency { flow, after, last });
        }
        circle(self.flows.len(), &self.dependencies).map_or(Ok(()), |flow| Err(SetupError::Circle { flow }))
    }

    fn check_applications(&self) -> Result<(), SetupError> {
        let last = (self.topology.hosts() as u32).saturating_sub(1);
        for (application, &Application { host, rate }) in self.applications.iter().enumerate() {
            if host > last {
                return Err(SetupError::Application { application, host, last });
            }
            if rate == Rate::default() {
                return Err(SetupError::Rate { bps: 0 });
            }
        }
        match (self.applications.is_empty(), self.requests.verb) {
            (true, _) | (false, Verb::Send) => Ok(()),
            (false, verb) => Err(SetupError::Unseen { verb }),
        }
    }

    pub(super) fn loses(&self) -> bool {
        self.loss != Probability::NEVER
            || self.topology.links().iter().any(|link| link.loss != Probability::NEVER)
    }

    fn check_flow(&self, number: usize, flow: &Flow) -> Result<(), SetupError> {
        let hosts = self.topology.hosts() as u32;
        let Flow { source: from, destination: to, bytes, dscp, .. } = *flow;
        if from >= hosts || to >= hosts || from == to {
            return Err(SetupError::Hosts { flow: number, from, to, last: hosts.saturating_sub(1) });
        }
        if bytes == 0 {
            return Err(SetupError::Empty { flow: number });
        }
        if bytes > PIECES * LONGEST && self.hosts == Hosts::Endpoints {
            return Err(SetupError::Long { flow: number, bytes });
        }
        if dscp > 63 {
            return Err(SetupError::Dscp { flow: number, dscp });
        }
        Ok(())
    }

    /// Returns the congestion control of a flow.
    ///
    /// # Panics
    /// Panics if there is no flow of this number.
    #[must_use]
    pub fn congestion_of(&self, number: u32) -> &Congestion {
        let flow = &self.flows[number as usize];
        let matches = |rival: &&Rival| match &rival.which {
            Which::Class(dscp) => *dscp == flow.dscp,
            Which::Hosts(hosts) => hosts.contains(&flow.source),
            Which::Flows(flows) => flows.contains(&number),
        };
        self.rivals.iter().find(matches).map_or(&self.congestion, |rival| &rival.congestion)
    }

    /// Returns the congestion control of all flows, first that of most of them.
    pub(super) fn congestions(&self) -> impl Iterator<Item = &Congestion> {
        [&self.congestion].into_iter().chain(self.rivals.iter().map(|rival| &rival.congestion))
    }

    /// Returns the algorithm of all flows except the rivals'.
    pub(super) const fn algorithm(&self) -> &AlgorithmConfig {
        &self.congestion.algorithm
    }

    pub(super) fn mtu(&self) -> Result<Mtu, SetupError> {
        let payload = self.conventions.payload;
        Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == payload).ok_or(SetupError::Mtu { payload })
    }

    /// Returns `T` of the flows, for meters in switches; 1 ms if the algorithm has none.
    pub(super) fn base_rtt(&self) -> Duration {
        self.algorithm().as_hpcc().map_or(Duration::from_millis(1), |config| config.base_rtt)
    }

    pub(super) fn needs_load(&self) -> bool {
        self.hosts == Hosts::Endpoints && (self.congestion.format.reports_load() || self.direct.is_some())
    }

    /// Returns whether the model's data packets carry telemetry.
    pub(super) const fn stamps(&self) -> bool {
        self.congestion.algorithm.as_hpcc().is_some()
    }

    pub(super) const fn header(&self) -> u32 {
        self.conventions.header + if self.stamps() { self.conventions.telemetry } else { 0 }
    }

    /// Returns the bytes of an acknowledgement. In the authors' simulator, its telemetry is 14 bytes shorter than in data.
    pub(super) const fn acknowledgement(&self) -> u32 {
        let more = if !self.stamps() {
            0
        } else if self.conventions.whole_nanos {
            28
        } else {
            self.conventions.telemetry
        };
        self.conventions.acknowledgement + more
    }

    /// Returns the time in ps that a flow takes alone on an idle network, as the reference computes it: `base_rtt`, and all bytes without
    /// telemetry at the rate of the slowest link.
    pub(super) fn alone(&self, flow: &Flow, base_rtt: u64, slowest: Rate) -> u64 {
        let packets = flow.bytes.div_ceil(u64::from(self.conventions.payload));
        let bytes = flow.bytes + packets * u64::from(self.conventions.header);
        base_rtt + (bytes as f64 * 8e12 / slowest.as_bps() as f64) as u64
    }
}
