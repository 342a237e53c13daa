//! RDMA verbs in Rust.
//!
//! A [`Device`] is a port with its poll-mode core. From it come [`ProtectionDomain`]s, [`MemoryRegion`]s,
//! [`CompletionQueue`]s and [`QueuePair`]s. Two queue pairs are connected by exchanging [`QpEndpoint`]s by any means.

mod completion;
mod config;
mod connect;
mod device;
mod domain;
mod error;
mod post;
mod queue_pair;

pub use completion::CompletionQueue;
pub use config::{Address, ConfigError, DeviceConfig};
pub use connect::{ConnectOptions, ParseEndpointError, QpEndpoint};
pub use datapath::engine::{CoreCounters, Idle, Progress, ResolveError, Stopped};
pub use datapath::io::{Loopback, PacketIo, pair};
pub use device::{Device, DeviceInfo, DeviceLimits, OwnPort};
pub use domain::{MemoryRegion, ProtectionDomain, RemoteBuffer};
pub use error::{BoundsError, Error, PollError, PostListError};
pub use queue_pair::{QueuePair, QueuePairBuilder};

pub use roce::qp::{
    AckTimeout, Capabilities, Completion, CompletionOpcode, CompletionStatus, Congestion,
    CongestionAlgorithm, Data, PostError, QpReport, RecvRequest, Remote, SendOperation, SendRequest, Sge,
    State,
};
pub use roce::wire::{Mac, Mtu, RnrTimer};
pub use roce::{Access, Counters, Discard, Qpn, Rkey};
