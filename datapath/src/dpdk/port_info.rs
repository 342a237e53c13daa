//! Settings that open a port, and properties of an open one.

use crate::port_spec::PortSpec;
use roce::CoreIndex;
use roce::wire::{Mac, Mtu, Numbers};

/// The fewest buffers of another core's queue beside those that its driver keeps.
const LEAST_BUFFERS: u32 = 1024;

/// The settings that open a port.
#[derive(Clone, Debug)]
pub struct PortConfig {
    /// The largest IP packet in bytes: 340 to 16000. With none, the interface's if there is one, else 4500.
    pub mtu: Option<u16>,
    /// Buffers in the port's pool. Each frame that waits in a queue occupies one.
    pub buffers: u32,
    /// Slots of each ring between the port and what is behind it, if that can be chosen.
    pub ring_slots: u16,
    /// Takes frames for all addresses, as a switch does.
    pub promiscuous: bool,
    /// On a Linux interface: bypasses the queueing discipline when sending. Faster, but `tc` has no effect.
    pub qdisc_bypass: bool,
    /// On an AF_XDP port: the numbers that distinguish its packets from the kernel's.
    pub numbers: Numbers,
    /// On an AF_XDP port: the VLAN whose frames are all the port's.
    pub vlan: Option<u16>,
}

impl PortConfig {
    /// Returns the buffers that a port with `cores` cores has in all, if it has a queue for each.
    #[must_use]
    pub fn all_buffers(&self, spec: &PortSpec, cores: u8) -> u32 {
        let others = u32::from(cores.clamp(1, CoreIndex::MOST) - 1);
        self.buffers.saturating_add(others * self.queue_buffers(spec, cores))
    }

    /// Returns the settings of another core's queue, which has buffers of its own.
    pub(super) fn of_queue(&self, spec: &PortSpec, cores: u8) -> Self {
        Self { buffers: self.queue_buffers(spec, cores), ..self.clone() }
    }

    fn queue_buffers(&self, spec: &PortSpec, cores: u8) -> u32 {
        // A NIC's driver keeps a buffer in each slot of its rings.
        let kept = if matches!(spec, PortSpec::Pci(_)) { 2 * u32::from(self.ring_slots) } else { 0 };
        (self.buffers / u32::from(cores.max(1))).max(LEAST_BUFFERS + kept)
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

/// The kernel's interface under a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinuxInterface {
    /// Its index, from 1.
    pub index: u32,
    /// Its name.
    pub name: String,
}

/// The properties of an open port.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The name that it was opened by.
    pub name: String,
    /// DPDK's driver.
    pub driver: String,
    /// The Ethernet address to send from.
    pub mac: Mac,
    /// The largest RoCE path MTU that fits.
    pub mtu: Mtu,
    /// The largest IP packet in bytes.
    pub ip_mtu: u16,
    /// The largest frame in bytes, Ethernet header and a VLAN tag included, FCS excluded.
    pub max_frame: usize,
    /// The link's speed in Mb/s if it has one.
    pub speed_mbps: Option<u32>,
    /// The NUMA node of the NIC, if the machine says so.
    pub numa_node: Option<u8>,
    /// The interface whose addresses and neighbours are the port's too. None if the port is its own host.
    pub linux_interface: Option<LinuxInterface>,
}
