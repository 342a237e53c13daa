//! Settings of a port to open, and properties of an open one.

use crate::port_spec::PortSpec;
use roce::CoreIndex;
use roce::wire::{Mac, Mtu, Numbers};

/// Fewest buffers of a worker core's queue, in addition to those in its driver's rings.
const MIN_BUFFERS: u32 = 1024;

/// Settings of a port to open.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The largest IP packet in bytes: 340 to 16000. By default the interface's MTU, or 4500 without an interface.
    pub mtu: Option<u16>,
    /// Buffers in the port's pool. Each queued frame occupies one.
    pub buffers: u32,
    /// Slots of each ring between the port and the link, if the driver allows a choice.
    pub ring_slots: u16,
    /// Whether the port receives frames for all addresses, as a switch does.
    pub promiscuous: bool,
    /// On a Linux interface: whether frames bypass the queueing discipline, which is faster but disables `tc`.
    pub qdisc_bypass: bool,
    /// On an AF_XDP port: the UDP ports and EtherTypes that distinguish its packets from the kernel's.
    pub numbers: Numbers,
    /// On an AF_XDP port: a VLAN whose frames all belong to the port.
    pub vlan: Option<u16>,
}

impl PortConfig {
    /// Returns the total number of buffers of a port with a queue for each of `cores` cores.
    #[must_use]
    pub fn all_buffers(&self, spec: &PortSpec, cores: u8) -> u32 {
        let others = u32::from(cores.clamp(1, CoreIndex::MAX) - 1);
        self.buffers.saturating_add(others * self.queue_buffers(spec, cores))
    }

    /// Returns the settings of a worker core's queue, which has its own buffers.
    pub(super) fn of_queue(&self, spec: &PortSpec, cores: u8) -> Self {
        Self { buffers: self.queue_buffers(spec, cores), ..self.clone() }
    }

    fn queue_buffers(&self, spec: &PortSpec, cores: u8) -> u32 {
        // A NIC's driver occupies a buffer for each slot of its rings.
        let kept = if matches!(spec, PortSpec::Pci(_)) { 2 * u32::from(self.ring_slots) } else { 0 };
        (self.buffers / u32::from(cores.max(1))).max(MIN_BUFFERS + kept)
    }
}

impl Default for PortConfig {
    fn default() -> Self {
        Self {
            mtu: None,
            buffers: 4096,
            ring_slots: 1024,
            promiscuous: false,
            qdisc_bypass: true,
            numbers: Numbers::DEFAULT,
            vlan: None,
        }
    }
}

/// The Linux interface of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxInterface {
    /// The interface index, from 1.
    pub index: u32,
    /// The interface name.
    pub name: String,
}

/// Properties of an open port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The name with which it was opened.
    pub name: String,
    /// The DPDK driver, or the kind of socket.
    pub driver: String,
    /// The source Ethernet address of its frames.
    pub mac: Mac,
    /// The largest RoCE path MTU that fits the port.
    pub mtu: Mtu,
    /// The largest IP packet in bytes.
    pub ip_mtu: u16,
    /// The largest frame in bytes, with Ethernet header and one VLAN tag, without FCS.
    pub max_frame: usize,
    /// The link's speed in Mb/s, if known.
    pub speed_mbps: Option<u32>,
    /// The NUMA node of the NIC, if known.
    pub numa_node: Option<u8>,
    /// The interface whose addresses and neighbours the port shares. `None` if the port has its own.
    pub linux_interface: Option<LinuxInterface>,
    /// The Ethernet address that represents every peer of a port on UDP sockets. `None` on a port that sends to Ethernet addresses.
    pub peer_mac: Option<Mac>,
}
