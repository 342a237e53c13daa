//! RDMA verbs in Rust.
//!
//! A [`Device`] is a port with its poll-mode core. From it come [`ProtectionDomain`]s, [`MemoryRegion`]s,
//! [`CompletionQueue`]s and [`QueuePair`]s. Two queue pairs are connected by exchanging [`QpEndpoint`]s by any means.
//!
//! Two devices of one process, joined by an in-process cable; with a port's name and [`Device::open`] instead of
//! [`pair`] and [`Device::open_on`], the same program runs between hosts:
//!
//! ```
//! use ferroce_verbs::*;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (left, right) = pair(1024, 4500);
//! let open = |port, name: &str, ip: &str, last| {
//!     let config = DeviceConfig::new().address(ip.parse()?).progress(Progress::Dedicated { core: None });
//!     let own = OwnPort { name: name.into(), mac: Mac([2, 0, 0, 0, 0, last]) };
//!     Ok::<_, Error>(Device::open_on(port, own, &config)?)
//! };
//! let (here, there) = (open(left, "left", "10.0.0.1/24", 1)?, open(right, "right", "10.0.0.2/24", 2)?);
//!
//! // The responder: memory that a peer may write, and a queue pair.
//! let domain = there.allocate_pd()?;
//! let memory = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
//! let cq = there.create_cq(16)?;
//! let mut responder = domain.queue_pair(&cq, &cq).build()?;
//!
//! // The requester.
//! let domain = here.allocate_pd()?;
//! let buffer = MemoryRegion::alloc(&domain, 4096, Access::LOCAL_READ)?;
//! let mut completions = here.create_cq(16)?;
//! let mut requester = domain.queue_pair(&completions, &completions).build()?;
//!
//! // Programs exchange endpoints over a socket, as text or in any format of serde.
//! let endpoint: QpEndpoint = responder.endpoint().to_string().parse()?;
//! responder.connect(&requester.endpoint(), &ConnectOptions::default())?;
//! requester.connect(&endpoint, &ConnectOptions::default())?;
//!
//! buffer.write(0, b"hello")?;
//! requester.post_send(SendRequest::write(7, buffer.sge(0, 5)?, memory.remote().at(100)))?;
//! let completion = completions.wait()?.ok()?;
//! assert_eq!(completion.id, 7);
//!
//! let mut bytes = [0; 5];
//! memory.read(100, &mut bytes)?;
//! assert_eq!(&bytes, b"hello");
//! # Ok(())
//! # }
//! ```
//!
//! With the feature `tokio`, tasks await completions (`Completions`) and connections (`cm::connect_async`).
//!
//! [`from_c`] lists the Rust name of each libibverbs call.

mod address;
#[cfg(feature = "tokio")]
mod awaited;
mod channel;
pub mod cm;
mod completion;
mod config;
mod config_file;
mod congestion;
mod connect;
mod device;
mod domain;
mod effective;
mod error;
mod event;
pub mod from_c;
mod gid;
mod implicit;
mod log;
mod management;
mod modify;
mod multicast;
pub mod observe;
mod queue_pair;
mod remote_buffer;
mod settings;
mod srq;
mod window;
mod xrc;

pub use address::{AddressHandle, AddressOptions};
#[cfg(feature = "tokio")]
pub use awaited::Completions;
pub use channel::CompletionChannel;
pub use completion::CompletionQueue;
pub use config::{Address, ConfigError, DeviceConfig, parse_ethertype, parse_option_type, port_list};
pub use congestion::{
    CcName, ChoiceError, CongestionChoice, CongestionRule, KeyError, Prefix, Setting, TelemetryMode,
    feedback_key_from_env, feedback_key_from_file, parse_bytes, parse_congestion, parse_duration, parse_rate,
};
pub use connect::{ConnectOptions, DEFAULT_CONGESTION, ParseEndpointError, QpEndpoint};
pub use datapath::engine::{
    AsyncEvent, CoreCounters, Idle, MAD_LENGTH, Mad, Progress, ResolveError, Stopped,
};
pub use datapath::io::{Loopback, PacketIo, pair};
pub use device::{Device, DeviceInfo, DeviceLimits, OwnPort};
pub use domain::{MemoryRegion, ProtectionDomain};
pub use error::{BoundsError, Error, PollError, PostListError};
pub use event::Events;
pub use log::start_log;
pub use management::{ManagementPort, Sent};
pub use queue_pair::{DEFAULT_QUEUE_KEY, QueuePair, QueuePairBuilder};
pub use remote_buffer::{ParseRemoteBufferError, RemoteBuffer};

pub use settings::QpSettings;
pub use srq::SharedReceiveQueue;
pub use window::MemoryWindow;
pub use xrc::{TargetBuilder, XrcDomain};

pub use roce::qp::{
    AckTimeout, Capabilities, Changes, Completion, CompletionOpcode, CompletionStatus, Congestion,
    CongestionAlgorithm, Data, Datagram, FeedbackKey, LossRecovery, Modify, PathChoice, PostError, QpReport,
    RecvRequest, Remote, RequestFailed, Reverse, RtrSettings, RtsSettings, SendOperation, SendRequest, Sge,
    State, Unknown, Upgrade, Waiting, WaitingTimes, When, udp_source_port, udp_source_port_of_datagrams,
    udp_source_port_of_flow,
};
pub use roce::wire::format::{Numbers, NumbersError};
pub use roce::wire::{Feth, Format, Mac, Mtu, NakCode, Path, RnrTimer, Service, Vlan};
pub use roce::{
    Access, AddressId, BindError, Binding, ControlError, Counters, CqId, Discard, Event, FailureCause,
    FailureReason, GROUP_QPN, Lkey, MOST_GROUPS, MOST_MEMBERS, Psn, QpFailure, Qpn, Rkey, SrqId, SrqNumber,
    SrqReport, Unreachable, WindowKind,
};
