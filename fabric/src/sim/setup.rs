//! The setup of a simulation: topology, hosts, flows, switches.

use super::Topology;
use crate::{Direct, Probability, Red, SecondClass};
use cc::{AlgorithmConfig, Rate};
use roce::qp::Congestion;
use roce::wire::{Format, Mtu};
use std::time::Duration;
use thiserror::Error;

/// Bytes from a host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// From, a host's number from 0.
    pub source: u32,
    /// To, a host's number from 0.
    pub destination: u32,
    /// Payload bytes, at least 1.
    pub bytes: u64,
    /// When it begins.
    pub start: Duration,
    /// Part of an incast on top of other traffic.
    pub is_incast: bool,
    /// The DSCP of its packets, 0 to 63.
    pub dscp: u8,
}

/// The operation of a flow's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The source writes into the destination's memory.
    Write,
    /// The source reads from the destination's memory: data goes from the flow's destination to its source.
    Read,
    /// The source sends; the destination always has a receive posted for each request that is outstanding.
    Send,
}

/// The rule by which endpoints cut a flow into requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Requests {
    /// Their operation.
    pub verb: Verb,
    /// Bytes of each, 1 to 2^30; the last may be shorter.
    pub bytes: u32,
    /// Requests that are outstanding at once, at least 1.
    pub depth: u32,
    /// Both ends agreed on selective repeat.
    pub selective_repeat: bool,
}

/// The hosts at the ends of the links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hosts {
    /// The product: a [`roce::Endpoint`] each, behind a card that sends one frame at a time. Frames are real, to the ICRC; their payload
    /// only counts. Every flow has a separate connection.
    Endpoints,
    /// A model of them, for speed: packets are descriptors, each is acknowledged and brings telemetry, and a flow that misses one goes back
    /// to it.
    Model,
}

/// Sizes on the wire, and how time is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conventions {
    /// Payload bytes of a full packet.
    pub payload: u32,
    /// Bytes of headers of a data packet without telemetry.
    pub header: u32,
    /// Bytes that telemetry adds to data and to acknowledgements.
    pub telemetry: u32,
    /// Bytes of an acknowledgement without telemetry.
    pub acknowledgement: u32,
    /// Serialisation and pacing gaps are cut to whole ns.
    pub whole_nanos: bool,
}

impl Conventions {
    /// The product's packets: 1024 bytes behind 58 of headers and checksum, telemetry of five hops in 44 bytes.
    pub const FERROCE: Self =
        Self { payload: 1024, header: 58, telemetry: 44, acknowledgement: 62, whole_nanos: false };
    /// The simulator of HPCC's authors.
    pub const HPCC_NS3: Self =
        Self { payload: 1000, header: 48, telemetry: 42, acknowledgement: 60, whole_nanos: true };
}

/// Priority flow control: a switch short of buffer pauses the senders that fill it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pfc {
    /// A port may take this share of what is free before its peer is paused: a port as fast as the hosts' links. One of twice the
    /// rate may take twice as much, and so on up to all of it, as the authors of HPCC have it.
    pub share: f64,
    /// It goes on once it is so many bytes below.
    pub resume: u64,
    /// Room for what is on its way when the pause is sent, as round trips of the link.
    pub headroom: f64,
}

impl Pfc {
    const DEFAULT: Self = Self { share: 0.125, resume: 3000, headroom: 1.5 };

    /// The share of a port of `rate` in a network whose hosts have links of `host`.
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

/// A time series of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sampling {
    /// A row this often.
    pub every: Duration,
    /// The link towards this host.
    pub host: u32,
    /// Flows that get columns, from the first.
    pub flows: usize,
}

/// A run.
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// Hosts, switches and links.
    pub topology: Topology,
    /// Sizes and time.
    pub conventions: Conventions,
    /// The hosts at the ends of the links.
    pub hosts: Hosts,
    /// The congestion control of every flow. The model uses only its algorithm.
    pub congestion: Congestion,
    /// Flows of this DSCP, 0 to 63, are paced by this instead: it decides which flows meet on a link. Endpoints only.
    pub rival: Option<(u8, Congestion)>,
    /// Marking, if any: bytes for a link of 100 Gb/s, others in proportion.
    pub red: Option<Red>,
    /// A separate class for packets of some DSCP, at every switch port.
    pub second_class: Option<SecondClass>,
    /// Telemetry of real packets reports as queue what the link carries in the time that the packet waited (rtgwg-00 9.3).
    pub tell_sojourn: bool,
    /// Packets that subscribe are answered at once if a switch port has more than a threshold waiting (pan-01 6.3).
    pub direct: Option<Direct>,
    /// Switches write IOAM as stock Linux does: as a packet comes in, the queue and the time in µs, and no `txBytes`.
    pub linux_ioam: bool,
    /// The requests of all flows. Endpoints only.
    pub requests: Requests,
    /// The probability that a frame is lost on the link that its host sends it to, whatever it carries. Endpoints only.
    pub loss: Probability,
    /// Each frame takes one of four paths by chance; the last is longer by this than the first, the others lie between. Endpoints only.
    pub spread: Duration,
    /// The probability that a host's report to a sender about its path is false.
    pub lie: Probability,
    /// Hosts ignore all that only Ferroce knows, especially probes, as if no peer were a Ferroce.
    pub deaf: bool,
    /// A switch's buffer, in bytes, shared by all its ports.
    pub buffer: u64,
    /// Without it, a port may take as much as is free, and what does not fit is dropped.
    pub pfc: Option<Pfc>,
    /// All flows.
    pub flows: Vec<Flow>,
    /// Each start is put off by up to so much, by the seed.
    pub jitter: Duration,
    /// The seed of everything.
    pub seed: u64,
    /// Virtual time after which it ends, whatever is unfinished.
    pub limit: Duration,
    /// A series of one link, if any.
    pub sampling: Option<Sampling>,
}

/// The reason for which a setup cannot run.
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
    #[error("link of {bps} bit/s: telemetry cannot express it; use whole Gb/s from 1 to 1000")]
    Rate { bps: u64 },
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
    #[error("Linux writes telemetry only as IOAM; choose format=ioam")]
    LinuxIoam,
    #[error("flow {flow} is stuck: no event is left ({state})")]
    Silence { flow: usize, state: String },
    #[error("flow {flow}: {why}")]
    Failed { flow: usize, why: String },
}

/// Bytes of one request of an endpoint: longer flows post several.
pub(super) const LONGEST: u64 = 1 << 30;
/// Requests of one flow.
const PIECES: u64 = 64;

impl Requests {
    /// WRITEs as long as they may be, go-back-N.
    pub const WRITES: Self =
        Self { verb: Verb::Write, bytes: LONGEST as u32, depth: PIECES as u32, selective_repeat: false };
}

impl Setup {
    /// The product as it ships: endpoints, switches with 32 MiB of buffer and PFC, no marks, one class, seed 1, at most a second.
    #[must_use]
    pub const fn new(topology: Topology, flows: Vec<Flow>, congestion: Congestion) -> Self {
        Self {
            topology,
            conventions: Conventions::FERROCE,
            hosts: Hosts::Endpoints,
            congestion,
            rival: None,
            red: None,
            second_class: None,
            tell_sojourn: false,
            direct: None,
            linux_ioam: false,
            requests: Requests::WRITES,
            loss: Probability::NEVER,
            spread: Duration::ZERO,
            lie: Probability::NEVER,
            deaf: false,
            buffer: 32 << 20,
            pfc: Some(Pfc::DEFAULT),
            flows,
            jitter: Duration::ZERO,
            seed: 1,
            limit: Duration::from_secs(1),
            sampling: None,
        }
    }

    pub(super) fn check(&self) -> Result<(), SetupError> {
        if self.flows.is_empty() {
            return Err(SetupError::NoFlow);
        }
        self.flows.iter().enumerate().try_for_each(|(number, flow)| self.check_flow(number, flow))?;
        for rate in self.topology.rates() {
            let bps = rate.as_bps();
            if bps % 1_000_000_000 != 0 || !(1..=1000).contains(&(bps / 1_000_000_000)) {
                return Err(SetupError::Rate { bps });
            }
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
        let algorithms = [Some(self.congestion), self.rival.map(|(_, congestion)| congestion)];
        for congestion in algorithms.into_iter().flatten() {
            let fits = congestion.algorithm.build().map(drop);
            fits.map_err(|error| SetupError::Algorithm(error.to_string()))?;
        }
        if self.linux_ioam && self.congestion.format != Format::Ioam {
            return Err(SetupError::LinuxIoam);
        }
        match self.hosts {
            Hosts::Endpoints => self.mtu().map(drop),
            Hosts::Model if matches!(self.algorithm(), AlgorithmConfig::HpccReceiver(_)) => {
                Err(SetupError::Model { what: "HPCC++ at the receiver (hpcc-rx)" })
            }
            Hosts::Model if self.rival.is_some() => Err(SetupError::Model { what: "second algorithm" }),
            Hosts::Model if self.direct.is_some() => Err(SetupError::Model { what: "direct responses" }),
            Hosts::Model if self.loss != Probability::NEVER || self.spread > Duration::ZERO => {
                Err(SetupError::Model { what: "loss or spread" })
            }
            Hosts::Model if self.deaf || self.lie != Probability::NEVER => {
                Err(SetupError::Model { what: "hosts that lie or are deaf" })
            }
            Hosts::Model if self.congestion.format != Format::Hpcc => {
                Err(SetupError::Model { what: "telemetry in other formats" })
            }
            Hosts::Model => Ok(()),
        }
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
    pub(super) fn congestion_of(&self, flow: &Flow) -> Congestion {
        self.rival
            .filter(|(dscp, _)| *dscp == flow.dscp)
            .map_or(self.congestion, |(_, congestion)| congestion)
    }

    /// Returns the algorithm of every sender that is no rival.
    pub(super) const fn algorithm(&self) -> &AlgorithmConfig {
        &self.congestion.algorithm
    }

    /// An endpoint's MTU.
    pub(super) fn mtu(&self) -> Result<Mtu, SetupError> {
        let payload = self.conventions.payload;
        Mtu::ALL.into_iter().find(|mtu| mtu.bytes() == payload).ok_or(SetupError::Mtu { payload })
    }

    /// `T` as the flows have it, for switches that compute with it themselves.
    pub(super) fn base_rtt(&self) -> Duration {
        self.algorithm().as_hpcc().map_or(Duration::from_millis(1), |config| config.base_rtt)
    }

    /// Returns whether packets ask for the load of links.
    pub(super) fn asks_for_load(&self) -> bool {
        let asks = self.congestion.format.tells_load() || self.direct.is_some();
        self.hosts == Hosts::Endpoints && asks
    }

    /// Returns whether the model's data carries telemetry.
    pub(super) const fn stamps(&self) -> bool {
        self.congestion.algorithm.as_hpcc().is_some()
    }

    /// Bytes of headers of a data packet.
    pub(super) const fn header(&self) -> u32 {
        self.conventions.header + if self.stamps() { self.conventions.telemetry } else { 0 }
    }

    /// Bytes of an acknowledgement. The authors' carries 14 bytes less than in data: it has no BTH.
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

    /// Returns the time of a flow alone on an idle network, by the reference's rule: all its bytes at the slower end's rate, without
    /// telemetry, and the round trip of the path.
    pub(super) fn alone(&self, flow: &Flow, base_rtt: u64, slowest: Rate) -> u64 {
        let packets = flow.bytes.div_ceil(u64::from(self.conventions.payload));
        let bytes = flow.bytes + packets * u64::from(self.conventions.header);
        base_rtt + (bytes as f64 * 8e12 / slowest.as_bps() as f64) as u64
    }
}
