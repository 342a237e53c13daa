//! Errors of the verbs.

use crate::cm;
use crate::fault::{Errno, PortFaultError, Verb};
use datapath::engine::{ResolveError, Stopped};
use datapath::port_spec::PortSpecError;
use datapath::siblings::ClaimError;
use roce::qp::{PostError, State};
use roce::{ControlError, Qpn};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use thiserror::Error;

/// An error of a verb.
///
/// ```
/// # use ferroce_verbs::{Device, DeviceConfig};
/// if let Err(error) = Device::open(&DeviceConfig::on("ring:")) {
///     eprintln!("{error}");
///     eprintln!("what to do: {}", error.remedy().unwrap_or_default());
/// }
/// ```
#[derive(Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum Error {
    #[error("{}{remedy}", port_failure(port, source.as_ref()), remedy = port_remedy(&source.to_string()))]
    Port { port: String, source: Box<dyn std::error::Error + Send + Sync> },
    #[error(transparent)]
    Config(#[from] crate::errors::ConfigError),
    #[error("{0}{remedy}", remedy = remedy(.0))]
    Control(#[from] ControlError),
    #[error(transparent)]
    CoreStopped(#[from] Stopped),
    #[error(transparent)]
    Resolve(#[from] ResolveError),
    #[error(
        "the queue pair's address on port {port} is not {family}, so it cannot reach {peer}; choose another GID index, or give the port such an address"
    )]
    Family { port: String, family: &'static str, peer: IpAddr },
    #[error("device {port} has no address; `ip address add 192.0.2.1/24 dev {}`", .port.rsplit(':').next().unwrap_or_default())]
    NoAddress { port: String },
    #[error("GID index {index}: the device has no GID there; choose one of {}", list(.present))]
    GidIndex { index: usize, present: Vec<usize> },
    #[error("MTU {given} does not fit port {port}: its frames carry at most {limit}; choose a smaller MTU")]
    Mtu { given: u32, limit: u32, port: String },
    #[error(transparent)]
    Bounds(#[from] BoundsError),
    #[error(
        "a region of {length} bytes: the system has too little memory; register less, or raise `ulimit -v`"
    )]
    OutOfMemory { length: usize },
    #[error(
        "multicast group {group}: cannot join at the interface: {reason}; check that it exists and has MULTICAST set"
    )]
    Multicast { group: IpAddr, reason: String },
    #[error(
        "format {format}: port {port} carries no telemetry below UDP; leave it out, or open the interface as packet:{}, which needs CAP_NET_RAW",
        .port.rsplit(':').next().unwrap_or_default()
    )]
    Format { port: String, format: roce::wire::Format },
    #[error("raw packet queue pair on port {port}: {reason}")]
    Raw { port: String, reason: &'static str },
    #[error(
        "type 1 memory window: port {port} has cores = {cores}, and all queue pairs of a domain share such a window; create a type 2 window, or set cores = 1"
    )]
    WindowOfCores { port: String, cores: u8 },
    #[error("{what} belongs to another device; create it on the one that uses it")]
    OtherDevice { what: &'static str },
    #[error(
        "queue pair {qpn} is in {state:?}, not in Init; connect one as build() returns it, and only once"
    )]
    NotInInit { qpn: Qpn, state: State },
    #[error("{what} is {value}: it must be {limit}")]
    Value { what: &'static str, value: String, limit: String },
    #[error("cannot create an eventfd: {0}; close descriptors, or raise `ulimit -n`")]
    Descriptor(#[source] std::io::Error),
    #[error("queue pair 1 is in use, or too many of its datagrams are queued; try again")]
    Management,
    #[error("cannot read random bytes: {0}")]
    Random(String),
    #[error("listener on {at}: a listener has the port already; choose another port, or 0 for any free one")]
    PortTaken { at: SocketAddr },
    #[error("listener on port {port}: the processes of the interface did not grant it: {source}")]
    Claim { port: u16, source: ClaimError },
    #[error("connection to {peer}: rejected, reason {reason} (IBA 12.6.7.2){remedy}", remedy = cm::remedy(*reason))]
    Rejected { peer: SocketAddr, reason: u16, private_data: Vec<u8> },
    #[error(
        "connection to {peer}: no answer within {timeout:?}; check that a program listens there, or raise the timeout"
    )]
    NoAnswer { peer: SocketAddr, timeout: Duration },
    #[error("connection to {peer}: the peer ended it")]
    Ended { peer: SocketAddr },
    #[error("{verb}: it failed with {errno}, because of an injected fault; call it again")]
    Injected { verb: Verb, errno: Errno },
    #[error(transparent)]
    Fault(#[from] PortFaultError),
}

roce::debug_as_display!(Error, PollError, PostListError);

/// Returns the remedy for a reached limit, or an empty text if there is none.
fn remedy(error: &ControlError) -> &'static str {
    match error {
        ControlError::Limit { what: "queue pairs in a multicast group", .. } => "; detach one first",
        ControlError::Limit { what, .. }
            if what.starts_with("queue pairs") || *what == "completion queues" =>
        {
            "; raise queue_pairs in ferroce.toml or by FERROCE_QUEUE_PAIRS"
        }
        ControlError::Limit { what: "memory regions", .. } => "; deregister one first",
        ControlError::Limit { .. } => "; destroy one first",
        _ => "",
    }
}

/// Returns the reason why a port did not open. The message of a [`PortSpecError`] already contains the name.
fn port_failure(port: &str, source: &(dyn std::error::Error + Send + Sync + 'static)) -> String {
    if source.is::<PortSpecError>() { source.to_string() } else { format!("port {port}: {source}") }
}

/// Returns the remedy if a limit of the process prevents a port from opening. The messages of the system and DPDK do not mention the limit.
fn port_remedy(reason: &str) -> &'static str {
    const FILES: &str = "; raise the limit of open files, `ulimit -n`";
    const MEMORY: &str = "; free memory, or raise the limits `ulimit -v`, `ulimit -d` and `ulimit -l`";
    const THREADS: &str =
        "; raise the limits of processes and memory: `ulimit -u`, `ulimit -v` and `ulimit -d`";
    const RINGS: &str = "; raise the limit of locked memory to 16 MiB: `ulimit -l 16384`, or for a container --ulimit memlock=-1";
    // The last message is the dynamic linker's, about a library that EAL loads.
    let remedies = [
        ("mmap failed on AF_PACKET socket", RINGS),
        // pthread_create(3): neither a process nor the memory for a stack is left.
        ("Resource temporarily unavailable", THREADS),
        ("Too many open files", FILES),
        ("Cannot allocate memory", MEMORY),
        ("failed to map segment", MEMORY),
    ];
    remedies.iter().find(|(said, _)| reason.contains(said)).map_or("", |(_, remedy)| remedy)
}

impl Error {
    /// Returns the remedy in the error's message, if there is one: the text after the first semicolon.
    #[must_use]
    pub fn remedy(&self) -> Option<String> {
        self.to_string().split_once("; ").map(|(_, remedy)| remedy.to_owned())
    }

    pub(crate) fn value(what: &'static str, value: impl ToString, limit: String) -> Self {
        Self::Value { what, value: value.to_string(), limit }
    }

    pub(crate) fn port(port: &str, cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Self {
        Self::Port { port: port.to_owned(), source: cause.into() }
    }
}

/// A range that exceeds its memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{length} bytes at offset {offset} exceed the region of {region} bytes")]
pub struct BoundsError {
    /// Offset of the range in the region, bytes.
    pub offset: usize,
    /// Length of the range, bytes.
    pub length: usize,
    /// Length of the region, bytes.
    pub region: usize,
}

/// The error of a list of requests of which only a part was posted.
#[derive(Clone, Copy, PartialEq, Eq, Error)]
#[error("{posted} requests were posted, but the next was refused: {error}")]
pub struct PostListError {
    /// The number of posted requests, which is the index of the refused one.
    pub posted: usize,
    /// The reason for the refusal.
    #[source]
    pub error: PostError,
}

/// The error of a completion queue that can no longer be polled.
#[derive(Clone, PartialEq, Eq, Error)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum PollError {
    #[error(
        "completion queue overflow: more than {depth} completions were not polled; its queue pairs are in the error state"
    )]
    Overflow { depth: u32 },
    #[error("{0}")]
    CoreStopped(String),
    #[error("poll_cq: it failed with {0}, because of an injected fault; poll again")]
    Injected(Errno),
}

fn list(numbers: &[usize]) -> String {
    numbers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_beyond_the_limit_of_locked_memory_name_it() {
        let said = "net_af_packet0: call to mmap failed on AF_PACKET socket for eth0:Resource temporarily unavailable";
        let error = Error::port("eth0", said);
        assert!(error.remedy().unwrap().contains("ulimit -l"), "{error}");
    }

    #[test]
    fn a_thread_beyond_the_limits_of_processes_and_memory_names_them() {
        let error = Error::port("eth0", std::io::Error::from_raw_os_error(libc::EAGAIN));
        for limit in ["ulimit -u", "ulimit -v", "ulimit -d"] {
            assert!(error.remedy().unwrap().contains(limit), "{error}");
        }
    }

    #[test]
    fn the_cause_of_a_port_that_does_not_open_is_kept() {
        let cause = std::io::Error::from_raw_os_error(libc::EACCES);
        let error: Box<dyn std::error::Error> = Box::new(Error::port("eth0", cause));
        let cause = error.source().and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(cause.and_then(std::io::Error::raw_os_error), Some(libc::EACCES));
    }

    #[test]
    fn the_debug_format_of_an_error_is_its_message() {
        let error = Error::from(crate::errors::ConfigError::NoPort);
        assert_eq!(format!("{error:?}"), error.to_string());
        assert!(error.remedy().unwrap().starts_with("set FERROCE_PORT"), "{error}");
        let error = crate::errors::ConfigError::NoPort;
        assert_eq!(format!("{error:?}"), error.to_string());
        let error = PostListError { posted: 3, error: PostError::BadAtomic };
        assert_eq!(format!("{error:?}"), error.to_string());
        assert_eq!(format!("{:?}", error.error), error.error.to_string());
        let error = PollError::Overflow { depth: 16 };
        assert_eq!(format!("{error:?}"), error.to_string());
    }

    #[test]
    fn a_message_ends_with_the_remedy() {
        let error = Error::GidIndex { index: 3, present: vec![0, 2] };
        assert_eq!(error.remedy().unwrap(), "choose one of 0, 2");
        assert_eq!(Error::Random("none left".into()).remedy(), None);
    }

    #[test]
    fn a_limit_has_the_remedy_of_its_object() {
        let limit = |what| Error::from(ControlError::Limit { what, limit: 64 }).remedy().unwrap();
        assert!(limit("queue pairs").contains("FERROCE_QUEUE_PAIRS"));
        assert_eq!(limit("queue pairs in a multicast group"), "detach one first");
        assert_eq!(limit("memory regions"), "deregister one first");
        assert_eq!(limit("memory windows"), "destroy one first");
    }

    #[test]
    fn a_rejection_has_a_remedy_for_each_reason_that_has_a_text() {
        let peer = SocketAddr::from(([10, 0, 0, 1], 7471));
        let rejected = |reason| Error::Rejected { peer, reason, private_data: Vec::new() }.remedy();
        assert!([8, 26, 28].map(rejected).iter().all(Option::is_some));
        assert_eq!(rejected(9999), None);
    }

    #[test]
    fn the_systems_error_is_the_source() {
        let error = Error::Descriptor(std::io::Error::from_raw_os_error(libc::EMFILE));
        let source =
            std::error::Error::source(&error).and_then(|source| source.downcast_ref::<std::io::Error>());
        assert_eq!(source.and_then(std::io::Error::raw_os_error), Some(libc::EMFILE));
    }
}
