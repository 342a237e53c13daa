//! The configuration of an engine.

use crate::neighbour::Address;
use roce::EndpointConfig;
use roce::wire::{Mac, Vlan};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;
use thiserror::Error;

/// Which threads run the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// The thread that polls a completion queue runs a turn with each poll, and control calls run turns until they have an answer. No
    /// second thread is needed, which suits machines with few CPUs. Requests of peers are answered only while the program polls.
    Inline,
    /// A separate thread named `ferroce-core`.
    Dedicated {
        /// CPU to pin the thread to; `None` for no pinning. With several cores, each has the next CPU that the process may use.
        core: Option<usize>,
    },
    /// The thread that polls runs the core, as with `Inline`. While none polls, a separate thread runs the core, and sleeps on the port's
    /// descriptor when idle. Suits programs that poll and programs that wait.
    Adaptive,
}

/// A string that is not a [`Progress`].
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("progress {0:?}: no such mode; write inline, adaptive, dedicated or dedicated:CPU")]
pub struct ProgressError(pub String);

impl FromStr for Progress {
    type Err = ProgressError;

    fn from_str(text: &str) -> Result<Self, ProgressError> {
        let wrong = || ProgressError(text.to_owned());
        match text.split_once(':') {
            None if text == "inline" => Ok(Self::Inline),
            None if text == "adaptive" => Ok(Self::Adaptive),
            None if text == "dedicated" => Ok(Self::Dedicated { core: None }),
            Some(("dedicated", core)) => {
                core.parse().map(|core| Self::Dedicated { core: Some(core) }).map_err(|_| wrong())
            }
            _ => Err(wrong()),
        }
    }
}

/// Formats the string that [`from_str`](FromStr::from_str) parses.
impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Inline => f.write_str("inline"),
            Self::Adaptive => f.write_str("adaptive"),
            Self::Dedicated { core: None } => f.write_str("dedicated"),
            Self::Dedicated { core: Some(core) } => write!(f, "dedicated:{core}"),
        }
    }
}

/// Behaviour of a dedicated thread whose core is idle. Any work ends the idle state at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Idle {
    /// Busy-polls: the lowest latency, but occupies a CPU.
    Busy,
    /// Yields the CPU, then sleeps. Suits cores that share a CPU.
    Yield {
        /// Longest sleep, at most 10 ms. A received packet is delayed until the sleep ends.
        longest_sleep: Duration,
    },
}

impl Default for Idle {
    fn default() -> Self {
        Self::Yield { longest_sleep: Duration::from_micros(50) }
    }
}

/// Configuration of the cores of a port.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// The port's name, for messages.
    pub name: String,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The VLAN of the port's frames, with the priority of its address resolution; `None` for untagged frames.
    pub vlan: Option<Vlan>,
    /// Index of the Linux interface that the port shares. The kernel then does address resolution. The exception is a port on a VLAN, to
    /// which the kernel's interface does not belong: there the core does it.
    pub interface: Option<u32>,
    /// The Ethernet address that represents every peer of a port on UDP sockets. The kernel routes the packets of such a port, and delivers
    /// each received one to one process of the interface. `None` on a port that sends to Ethernet addresses.
    pub peer_mac: Option<Mac>,
    /// Local addresses. The core answers resolution requests for them unless the kernel does.
    pub addresses: Vec<Address>,
    /// Whether the user has chosen `addresses` among those of the interface. Otherwise the port uses all addresses, including those that
    /// are added later.
    pub addresses_chosen: bool,
    /// The gateway to peers outside the addresses' prefixes, unless the kernel's routes name one.
    pub gateway: Option<IpAddr>,
    /// Which threads run the cores.
    pub progress: Progress,
    /// Whether ACKs may wait for the program's replies, on one core whose port is a socket of the kernel.
    pub delays_acks: bool,
    /// Number of cores, 1 to 16.
    pub cores: u8,
    /// The behaviour of an idle core.
    pub idle: Idle,
    /// Limits and secrets of the endpoints.
    pub endpoint: EndpointConfig,
}

/// Reasons why a core could not be started.
#[derive(Debug, Error)]
#[allow(missing_docs)]
pub enum StartError {
    #[error(
        "progress dedicated:{core}: this process may not use CPU {core}, only {allowed:?}; write dedicated{first}",
        first = .allowed.first().map_or_else(String::new, |cpu| format!(":{cpu}"))
    )]
    Cpu { core: usize, allowed: Vec<usize> },
    #[error("queue_pairs = {given}: with cores = {cores} the limit is {limit}; lower queue_pairs")]
    TooManyQps { given: u32, limit: usize, cores: u8 },
    #[error("cores = {given}: out of range; write 1 to {limit}")]
    Cores { given: u8, limit: u8 },
    #[error(
        "cores = {given}: this process may use {cpus} CPUs{from}, and each dedicated core needs one; lower cores, or use progress adaptive"
    )]
    CoresOfCpus { given: u8, cpus: usize, from: String },
    #[error("cannot create a thread for the core: {0}")]
    Thread(#[source] std::io::Error),
    #[error(transparent)]
    Siblings(#[from] crate::siblings::JoinError),
    #[error("cannot open a queue for each core: {0}")]
    Queues(#[source] crate::io::QueueError),
    #[error("cannot read the neighbours of the Linux interface that the port shares: {0}")]
    Netlink(#[source] std::io::Error),
}

/// The error of calls to a core that has stopped.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("the core of port {port} has stopped: {reason}")]
pub struct Stopped {
    /// The port's name.
    pub port: String,
    /// Why it stopped.
    pub reason: String,
}

/// Reasons why an address could not be resolved.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum ResolveError {
    #[error(
        "no answer from {address} by {protocol} on port {port} after {tries} tries; check the address, that the host is up, and that both ports are on one network"
    )]
    NoAnswer { address: IpAddr, protocol: &'static str, port: String, tries: u32 },
    #[error("no route to {address} from port {port}: {reason}")]
    NoRoute { address: IpAddr, port: String, reason: String },
    #[error(
        "cannot look up {address} from port {port}: {}; free descriptors or memory of this process, or raise its limits",
        std::io::Error::from_raw_os_error(*errno)
    )]
    Exhausted { address: IpAddr, port: String, errno: i32 },
    #[error("port {port} already resolves {limit} addresses; try again")]
    Busy { port: String, limit: usize },
    #[error(transparent)]
    Stopped(#[from] Stopped),
}
