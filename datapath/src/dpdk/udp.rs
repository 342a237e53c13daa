//! Opens the UDP sockets of a port that uses DPDK only for its buffers.

use super::packet::of_sockets;
use super::port_info::{PortConfig, PortInfo};
use super::prepare::{PortError, max_frame, prepare};
use crate::linux::udp::{PEER_MAC, UdpSockets, own_address};
use crate::port_spec::PortSpec;
use std::io;

pub(super) fn open(spec: &PortSpec, config: &PortConfig) -> Result<(PortInfo, UdpSockets), PortError> {
    let prepared = prepare(spec, config)?;
    let max_frame = max_frame(prepared.mtu);
    let interface = prepared.interface.ok_or_else(|| PortError::Driver {
        port: spec.to_string(),
        step: "opening its UDP sockets",
        errno: String::new(),
        messages: "it is on no interface".into(),
    })?;
    let mac = own_address(&interface);
    let sockets = UdpSockets::open(&interface, mac, PEER_MAC, max_frame);
    let sockets = sockets.map_err(|error| failed(spec, &interface.name, &error))?;
    let info = of_sockets(spec, &interface, prepared.mtu, "UDP sockets".into());
    Ok((PortInfo { mac, peer_mac: Some(PEER_MAC), ..info }, sockets))
}

fn failed(spec: &PortSpec, interface: &str, error: &io::Error) -> PortError {
    let name = interface.to_owned();
    match error.raw_os_error() {
        Some(libc::EADDRINUSE) => PortError::Interface {
            name,
            why: "another program or user has UDP port 4791 there".into(),
            remedy: "end it: `ss -lunp sport = :4791` shows it, unless it is the module `rdma_rxe`".into(),
        },
        // On Linux before 5.7.
        Some(libc::EPERM) => PortError::Permission { what: format!("port `{spec}`"), needs: "CAP_NET_RAW" },
        _ => PortError::Driver {
            port: spec.to_string(),
            step: "opening its UDP sockets",
            errno: error.to_string(),
            messages: "Linux says no more".into(),
        },
    }
}
