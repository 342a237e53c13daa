//! Opens the packet socket of a port that uses DPDK only for its buffers.

use super::port_info::{LinuxInterface, PortConfig, PortInfo};
use super::prepare::{PortError, max_frame, no_raw_sockets, prepare};
use super::setup::numa_node;
use crate::linux::Interface;
use crate::linux::packet::{PacketSocket, SocketConfig};
use crate::port_spec::PortSpec;

pub(super) fn open(spec: &PortSpec, config: &PortConfig) -> Result<(PortInfo, PacketSocket), PortError> {
    let prepared = prepare(spec, config)?;
    let max_frame = max_frame(prepared.mtu);
    let failed = |errno, messages: &str| PortError::Driver {
        port: spec.to_string(),
        step: "opening its packet socket",
        errno,
        messages: messages.into(),
    };
    let interface = prepared.interface.ok_or_else(|| failed(String::new(), "it is on no interface"))?;
    let settings = SocketConfig {
        max_frame,
        slots: config.ring_slots.into(),
        qdisc_bypass: config.qdisc_bypass,
        promiscuous: config.promiscuous,
    };
    let socket = PacketSocket::open(&interface, &settings);
    let socket = socket.map_err(|error| match error.raw_os_error() {
        Some(libc::EPERM) => no_raw_sockets(spec),
        _ => failed(error.to_string(), "Linux says no more"),
    })?;
    let datagrams =
        if socket.sends_large() { "large datagrams" } else { "single frames: Linux is older than 6.2" };
    let driver = format!("packet socket ({datagrams})");
    Ok((of_sockets(spec, &interface, prepared.mtu, driver), socket))
}

/// Describes a port on the socket or sockets of an interface. It has the interface's Ethernet address.
pub(super) fn of_sockets(spec: &PortSpec, interface: &Interface, ip_mtu: u16, driver: String) -> PortInfo {
    PortInfo {
        name: spec.to_string(),
        driver,
        mac: interface.mac,
        mtu: crate::path_mtu::path_mtu(ip_mtu.into()),
        ip_mtu,
        max_frame: max_frame(ip_mtu),
        speed_mbps: interface.speed_mbps,
        numa_node: numa_node(spec),
        linux_interface: Some(LinuxInterface { index: interface.index, name: interface.name.clone() }),
        peer_mac: None,
    }
}
