//! RDMA verbs in Rust.
//!
//! A [`Device`] is a port with its poll-mode cores. [`ProtectionDomain`]s, [`MemoryRegion`]s, [`CompletionQueue`]s and [`QueuePair`]s are
//! created on it. To connect two queue pairs, programs exchange [`QpEndpoint`]s by any means.
//!
//! The following program connects two devices of one process by an in-process cable. With a port's name and [`Device::open`] instead of
//! [`port::pair`] and [`Device::open_on`], it runs between hosts:
//!
//! ```
//! use ferroce_verbs::port::{Mac, OwnPort, pair};
//! use ferroce_verbs::{
//!     Access, ConnectOptions, Device, DeviceConfig, Error, MemoryRegion, Progress, QpEndpoint, SendRequest,
//! };
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
//! The root exports the items that most programs need; each module covers one subject, such as [`congestion`] or [`errors`]. [`from_c`]
//! lists the Rust name of each libibverbs call.
#![warn(clippy::disallowed_methods)]

mod address;
#[cfg(feature = "tokio")]
mod asynchronous;
mod channel;
pub mod cm;
mod completion;
mod config;
mod config_file;
pub mod congestion;
mod connect;
mod cores;
mod default_file;
mod device;
mod device_names;
mod device_settings;
mod domain;
mod error;
pub mod event;
pub mod fault;
pub mod from_c;
mod log;
pub mod management;
mod modify;
mod multicast;
pub mod observe;
mod queue_pair;
pub mod raw;
mod remote_buffer;
pub mod service;
mod settings;
mod srq;
pub mod sysfs;
mod toml_error;
pub mod window;
pub mod xrc;

pub use address::{AddressHandle, AddressOptions};
#[cfg(feature = "tokio")]
pub use asynchronous::Completions;
pub use channel::CompletionChannel;
pub use completion::CompletionQueue;
pub use config::DeviceConfig;
pub use connect::{ConnectOptions, QpEndpoint};
pub use datapath::engine::Progress;
pub use device::{Device, DeviceInfo};
pub use device_settings::DeviceSetting;
pub use domain::{MemoryRegion, ProtectionDomain};
pub use error::Error;
pub use log::{log_filter, start_log};
pub use queue_pair::{QueuePair, QueuePairBuilder};
pub use remote_buffer::RemoteBuffer;
pub use roce::qp::{
    Capabilities, Completion, CompletionOpcode, CompletionStatus, Data, Datagram, RecvRequest, Remote,
    SendOperation, SendRequest, Sge,
};
pub use roce::wire::{Mtu, Service};
pub use roce::{Access, Lkey, Psn, Qpn, Rkey};
pub use srq::SharedReceiveQueue;

/// The errors of calls, and of texts that do not parse. Most calls return [`Error`].
pub mod errors {
    pub use crate::config::ConfigError;
    pub use crate::connect::ParseEndpointError;
    pub use crate::error::{BoundsError, PollError, PostListError};
    pub use crate::remote_buffer::ParseRemoteBufferError;
    pub use crate::toml_error::{line_of, with_remedy};
    pub use datapath::engine::{ResolveError, Stopped};
    pub use roce::qp::{PostError, RequestFailed};
    pub use roce::{BindError, ControlError, ParseQpnError};
}

/// The port of a device: its addresses and limits, and ports that a program provides.
pub mod port {
    pub use crate::config::{Address, port_list};
    pub use crate::device::{DeviceLimits, OwnPort};
    pub use datapath::engine::Idle;
    pub use datapath::io::{Loopback, PacketIo, pair};
    pub use datapath::neighbour::GidTable;
    pub use roce::wire::{Mac, Vlan};
    pub use roce::{MAX_GROUPS, MAX_MEMBERS};
}

/// The states of a queue pair, and the transitions of [`QueuePair::modify`].
pub mod state {
    pub use crate::settings::QpSettings;
    pub use roce::qp::{AckTimeout, Changes, LossRecovery, Modify, RtrSettings, RtsSettings, State};
    pub use roce::wire::RnrTimer;
}

/// Fields of packets that a program may set or read.
pub mod wire {
    pub use crate::queue_pair::DEFAULT_QUEUE_KEY;
    pub use roce::qp::{udp_source_port, udp_source_port_of_datagrams, udp_source_port_of_flow};
    pub use roce::wire::{Feth, Path};
    pub use roce::{AddressId, GROUP_QPN};
}

#[cfg(test)]
mod tests {
    /// Returns the names that the root of the crate exports, without those of its modules.
    fn exports() -> Vec<&'static str> {
        let root = include_str!("lib.rs").split("\npub mod errors {").next().unwrap_or_default();
        let lists = root.split("\npub use ").skip(1).filter_map(|rest| rest.split(';').next());
        lists
            .flat_map(|list| match list.split_once('{') {
                Some((_, names)) => names.trim_end_matches('}').split(',').map(str::trim).collect(),
                None => vec![list.rsplit("::").next().unwrap_or(list)],
            })
            .filter(|name| !name.is_empty())
            .collect()
    }

    fn sources() -> String {
        let mut text = String::new();
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let mut folders = vec![root.join("src")];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match entry.is_dir() {
                    true => folders.push(entry),
                    false => text += &std::fs::read_to_string(entry).unwrap(),
                }
            }
        }
        text
    }

    #[test]
    fn every_entry_point_has_an_example() {
        let sources = sources();
        let mut tried = 0;
        for name in exports() {
            let mut places = [" ", "(", "<"].into_iter().map(|end| format!("\npub struct {name}{end}"));
            let Some(at) = places.find_map(|place| sources.find(&place)) else { continue };
            let lines = sources[..at].lines().rev();
            let mut doc = lines.take_while(|line| line.starts_with("///") || line.starts_with("#["));
            assert!(doc.any(|line| line.starts_with("/// ```")), "{name} has no example");
            tried += 1;
        }
        assert!(tried > 12, "{tried}");
    }

    #[test]
    fn the_crate_root_exports_at_most_40_names() {
        let names = exports();
        assert!(names.contains(&"QueuePair") && names.contains(&"Sge"), "{names:?}");
        assert!(names.len() <= 40, "{} names: put some in modules: {names:?}", names.len());
    }
}
