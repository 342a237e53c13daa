//! Ports, buffers, poll-mode cores and rings. The only crate that uses DPDK.
//!
//! Without the feature `dpdk`, the port trait, in-process ports, neighbour resolution and the poll-mode core remain. They are enough to run
//! endpoints in a test.
#![warn(clippy::disallowed_methods)]

#[cfg_attr(not(feature = "dpdk"), allow(dead_code, reason = "AF_XDP ports, which need DPDK, use all of it"))]
mod bpf;
pub mod capabilities;
pub mod capture;
pub mod clock;
mod detached;
#[cfg(feature = "dpdk")]
pub mod dpdk;
pub mod echo;
pub mod engine;
pub mod environment;
mod errno;
pub mod event_fd;
pub mod fork;
pub mod host_memory;
pub mod io;
pub mod linux;
pub mod machine;
pub mod mounts;
pub mod neighbour;
pub mod path_mtu;
pub mod pci;
pub mod port_spec;
mod prefetch;
mod probes;
pub mod scm_rights;
mod seqpacket;
mod shared_memory;
pub mod siblings;
pub mod signals;
mod socket_filter;
mod socket_option;
pub mod steering;
pub mod tcp;
mod unix_address;

pub use unix_address::unix_address;
