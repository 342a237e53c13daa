use cc::Rate;
use roce::qp::Congestion;
use roce::wire::Mtu;
use std::time::Duration;

/// One message from a host to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flow {
    /// From, a host's number from 1.
    pub source: u32,
    /// To, a host's number from 1.
    pub destination: u32,
    /// Bytes, 1 to 2³¹.
    pub bytes: u32,
    /// When it begins.
    pub start: Duration,
}

/// Hosts around one switch, and what they send each other.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// Hosts, numbered from 1.
    pub hosts: u32,
    /// What each link carries, in bits of frames.
    pub rate: Rate,
    /// One way, for each link.
    pub delay: Duration,
    /// Bytes that wait at each switch port at most.
    pub queue: u64,
    /// Frames that find more than so many bytes waiting are marked.
    pub ecn_threshold: Option<u64>,
    /// Payload bytes of a full packet.
    pub mtu: Mtu,
    /// How each flow is paced.
    pub congestion: Congestion,
    /// All flows.
    pub flows: Vec<Flow>,
    /// Each start is put off by up to so much, by the seed.
    pub jitter: Duration,
    /// The seed of everything.
    pub seed: u64,
    /// Virtual time after which a flow that has not ended counts as failed.
    pub limit: Duration,
}

/// Why a scenario can't run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum ScenarioError {
    #[error("{hosts} hosts: a switch has 2 to 256")]
    Hosts { hosts: u32 },
    #[error(
        "flow {flow} goes from host {source_host} to host {destination}: hosts are 1 to {hosts}, and not the same"
    )]
    Flow { flow: usize, source_host: u32, destination: u32, hosts: u32 },
    #[error("flow {flow} has {bytes} bytes: a message has 1 to 2^31")]
    Bytes { flow: usize, bytes: u32 },
    #[error("no flow: a scenario needs one at least")]
    NoFlow,
    #[error("the switch: {0}")]
    Switch(crate::ConfigError),
    #[error("flow {flow}: {why}")]
    Control { flow: usize, why: String },
    #[error("{left} flows have not ended after {seconds} s of virtual time")]
    Unfinished { left: usize, seconds: u64 },
}

impl Scenario {
    pub(super) fn check(&self) -> Result<(), ScenarioError> {
        let hosts = self.hosts;
        if !(2..=256).contains(&hosts) {
            return Err(ScenarioError::Hosts { hosts });
        }
        if self.flows.is_empty() {
            return Err(ScenarioError::NoFlow);
        }
        for (flow, &Flow { source, destination, bytes, .. }) in self.flows.iter().enumerate() {
            if source == destination || [source, destination].iter().any(|host| !(1..=hosts).contains(host)) {
                return Err(ScenarioError::Flow { flow, source_host: source, destination, hosts });
            }
            if bytes == 0 || bytes > 1 << 31 {
                return Err(ScenarioError::Bytes { flow, bytes });
            }
        }
        Ok(())
    }
}
