use super::Topology;
use cc::{AlgorithmConfig, Rate};
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

/// Random early detection, marking instead of dropping; at 100 Gb/s, other links in proportion.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Red {
    /// Nothing is marked below so many bytes.
    pub min: u64,
    /// Everything is marked above.
    pub max: u64,
    /// The share marked just below `max`.
    pub probability: f64,
}

/// Priority flow control: a switch that is short of buffer pauses who fills it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pfc {
    /// A port may take this share of what is free before its peer is paused.
    pub share: f64,
    /// It goes on once it is so many bytes below.
    pub resume: u64,
    /// Room for what is on its way when the pause is sent, as round trips of the link.
    pub headroom: f64,
}

impl Default for Pfc {
    fn default() -> Self {
        Self { share: 0.125, resume: 3000, headroom: 1.5 }
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
    /// What every sender runs.
    pub algorithm: AlgorithmConfig,
    /// The variant `hpcc-fair` of HPCC++: while the receiver's link is the busiest hop, a flow does not go below this part of
    /// its share of it. `None`: the draft.
    pub fair_floor: Option<f64>,
    /// Marking, if any.
    pub red: Option<Red>,
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

/// Why a setup can't run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum SetupError {
    #[error("no flow: there is nothing to run")]
    NoFlow,
    #[error("flow {flow} goes from host {from} to host {to}: hosts are 0 to {last}, and not the same")]
    Hosts { flow: usize, from: u32, to: u32, last: u32 },
    #[error("flow {flow} has no bytes")]
    Empty { flow: usize },
    #[error("a link of {bps} bit/s: telemetry tells whole Gb/s, from 1 to 1000")]
    Rate { bps: u64 },
    #[error("there is no way from switch {switch} to host {host}")]
    Unreachable { switch: usize, host: usize },
    #[error("congestion control: {0}")]
    Algorithm(String),
    #[error("{what}: {value} is out of 0 to 1")]
    Share { what: &'static str, value: String },
}

impl Setup {
    pub(super) fn check(&self) -> Result<(), SetupError> {
        let hosts = self.topology.hosts() as u32;
        if self.flows.is_empty() {
            return Err(SetupError::NoFlow);
        }
        for (flow, at) in self.flows.iter().enumerate() {
            let (from, to) = (at.source, at.destination);
            if from >= hosts || to >= hosts || from == to {
                return Err(SetupError::Hosts { flow, from, to, last: hosts.saturating_sub(1) });
            }
            if at.bytes == 0 {
                return Err(SetupError::Empty { flow });
            }
        }
        for rate in self.topology.rates() {
            let bps = rate.as_bps();
            if bps % 1_000_000_000 != 0 || !(1..=1000).contains(&(bps / 1_000_000_000)) {
                return Err(SetupError::Rate { bps });
            }
        }
        let shares = [
            self.red.map(|red| ("red", red.probability)),
            self.pfc.map(|pfc| ("pfc", pfc.share)),
            self.fair_floor.map(|part| ("fair_floor", part)),
        ];
        for (what, value) in shares.into_iter().flatten() {
            if !(0.0..=1.0).contains(&value) {
                return Err(SetupError::Share { what, value: value.to_string() });
            }
        }
        self.algorithm.build().map(drop).map_err(|error| SetupError::Algorithm(error.to_string()))
    }

    /// Whether data carries telemetry.
    pub(super) const fn stamps(&self) -> bool {
        matches!(self.algorithm, AlgorithmConfig::Hpcc(_) | AlgorithmConfig::HpccReceiver(_))
    }

    /// Bytes of headers of a data packet.
    pub(super) const fn header(&self) -> u32 {
        self.conventions.header + if self.stamps() { self.conventions.telemetry } else { 0 }
    }

    /// Bytes of an acknowledgement. What the authors' carries is 14 bytes less than in data: no BTH of its own.
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

    /// What a flow takes alone on an idle network, by the reference's rule: all its bytes at the slower end's rate, without
    /// telemetry, and the round trip of the path.
    pub(super) fn alone(&self, flow: &Flow, base_rtt: u64, slowest: Rate) -> u64 {
        let packets = flow.bytes.div_ceil(u64::from(self.conventions.payload));
        let bytes = flow.bytes + packets * u64::from(self.conventions.header);
        base_rtt + (bytes as f64 * 8e12 / slowest.as_bps() as f64) as u64
    }
}
