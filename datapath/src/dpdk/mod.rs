//! Ports driven by DPDK.
//!
//! [`Eal`] starts DPDK in this process, once. [`Port`] opens the port of a [`PortSpec`](crate::port_spec::PortSpec), and sends and receives
//! bursts of [`Mbuf`]s.

mod descriptor;
mod devargs;
mod device;
mod eal;
mod hash;
mod log;
mod mbuf;
mod memif;
mod packet;
mod packet_ring;
mod pool;
mod port;
mod port_info;
mod prepare;
mod private_memory;
mod setup;
mod udp;
mod unprivileged;
mod vhost;
mod xdp;

pub(crate) use eal::check_version;
pub use eal::{Eal, EalConfig, EalError, Hugepages, version};
pub use mbuf::Mbuf;
pub use port::Port;
pub use port_info::{LinuxInterface, PortConfig, PortInfo};
pub use prepare::{PortError, check_port};
