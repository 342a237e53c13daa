//! Checks before a port is opened. Each error states the setting and the remedy.

use super::devargs::ETHERNET;
use super::port_info::PortConfig;
use super::xdp;
use crate::capabilities::effective_user;
use crate::linux::{self, Interface};
use crate::path_mtu::ROCE_OVERHEAD;
use crate::pci::{Nic, PciError};
use crate::port_spec::{PortSpec, SocketRole};
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// The smallest path MTU (256) plus its headers.
const MIN_MTU: u16 = 256 + ROCE_OVERHEAD;
/// The largest MTU whose frames fit DPDK's 16-bit buffer sizes.
const MAX_MTU: u16 = 16000;
/// The MTU without an interface: a path MTU of 4096 plus room for telemetry.
const DEFAULT_MTU: u16 = 4500;
/// The largest MTU of DPDK's tap driver, which stops at a longer frame.
const TAP_MTU: u16 = 1500;

/// Reasons why a port did not open: one line, with the remedy.
#[derive(Clone, Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum PortError {
    #[error("no interface `{name}`; there are: {existing}")]
    NoInterface { name: String, existing: String },
    #[error("cannot use interface `{name}`: {why}; {remedy}")]
    Interface { name: String, why: String, remedy: String },
    #[error("{what} needs {needs}; {}", crate::capabilities::remedy(needs))]
    Permission { what: String, needs: &'static str },
    #[error(transparent)]
    Nic(#[from] PciError),
    #[error("an MTU of {given} does not fit port `{port}`: {limit}; {remedy}")]
    Mtu { port: String, given: u32, limit: String, remedy: String },
    #[error("socket `{socket}`: {why}; {remedy}")]
    Socket { socket: String, why: String, remedy: &'static str },
    #[error("capture file `{file}`: {why}")]
    File { file: String, why: String },
    #[error(
        "cannot create a pool of {buffers} buffers of {room} bytes: {why}; set fewer buffers, or give DPDK more memory"
    )]
    Pool { buffers: u32, room: usize, why: String },
    #[error("port `{port}` does not open: {step} fails ({errno}): {messages}")]
    Driver { port: String, step: &'static str, errno: String, messages: String },
    #[error(
        "cannot open port `{port}` in a process forked from one with a device, because DPDK's threads and locks are lost; start a program"
    )]
    Forked { port: String },
}

pub(super) struct Prepared {
    /// The largest IP packet in bytes.
    pub mtu: u16,
    /// The Linux interface that the port shares.
    pub interface: Option<Interface>,
}

/// Checks whether a port can work on this machine, without opening it. Returns its IP MTU in bytes.
///
/// # Errors
/// Returns the error that opening the port would return, as far as it is known without DPDK.
pub fn check_port(spec: &PortSpec, config: &PortConfig) -> Result<u16, PortError> {
    if matches!(spec, PortSpec::Packet(_)) {
        raw_sockets(spec)?;
    }
    prepare(&spec.clone().resolve(), config).map(|prepared| prepared.mtu)
}

pub(super) fn prepare(spec: &PortSpec, config: &PortConfig) -> Result<Prepared, PortError> {
    let prepared = |mtu, interface| Prepared { mtu, interface };
    match spec {
        PortSpec::Interface(name)
        | PortSpec::Packet(name)
        | PortSpec::AfPacket(name)
        | PortSpec::PcapInterface(name) => {
            let interface = usable_interface(name)?;
            // A port on a packet socket opens its own, and `resolve` chooses one only if that works.
            if matches!(spec, PortSpec::AfPacket(_) | PortSpec::PcapInterface(_)) {
                raw_sockets(spec)?;
            }
            xdp::check_not_taken(&interface)?;
            let mtu = interface_mtu(spec, config, &interface)?;
            Ok(prepared(mtu, Some(interface)))
        }
        PortSpec::Udp(name) => {
            let interface = interface_that_is_up(name)?;
            xdp::check_not_taken(&interface)?;
            let mtu = interface_mtu(spec, config, &interface)?;
            // Frames never need the loopback interface's MTU of 64 KiB.
            let mtu = if config.mtu.is_none() && mtu == MAX_MTU { DEFAULT_MTU } else { mtu };
            Ok(prepared(mtu, Some(interface)))
        }
        PortSpec::Xdp(name) => {
            let interface = usable_interface(name)?;
            xdp::check(spec, &interface)?;
            let mtu = interface_mtu(spec, config, &interface)?;
            Ok(prepared(mtu, Some(interface)))
        }
        PortSpec::Tap(name) => {
            tap(name)?;
            Ok(prepared(tap_mtu(spec, config)?, None))
        }
        PortSpec::Memif { socket, role, .. } | PortSpec::Virtio { socket, role } => {
            socket_place(socket, *role)?;
            Ok(prepared(mtu(spec, config)?, None))
        }
        PortSpec::Pcap { rx, tx } => {
            readable(rx.as_deref())?;
            writable(tx.as_deref())?;
            Ok(prepared(mtu(spec, config)?, None))
        }
        PortSpec::Pci(address) => {
            Nic::new(address).check()?;
            Ok(prepared(mtu(spec, config)?, None))
        }
        PortSpec::Ring { .. } | PortSpec::Null | PortSpec::Eal(_) => Ok(prepared(mtu(spec, config)?, None)),
    }
}

fn mtu(spec: &PortSpec, config: &PortConfig) -> Result<u16, PortError> {
    let remedy = "choose an MTU in this range, 4500 for a path MTU of 4096";
    mtu_within(spec, config.mtu.unwrap_or(DEFAULT_MTU), MAX_MTU, remedy)
}

fn tap_mtu(spec: &PortSpec, config: &PortConfig) -> Result<u16, PortError> {
    let remedy = "use a veth pair: DPDK's tap driver does not support jumbo frames";
    mtu_within(spec, config.mtu.unwrap_or(TAP_MTU), TAP_MTU, remedy)
}

fn mtu_within(spec: &PortSpec, mtu: u16, most: u16, remedy: &str) -> Result<u16, PortError> {
    if (MIN_MTU..=most).contains(&mtu) {
        return Ok(mtu);
    }
    let limit = format!("{MIN_MTU} to {most} bytes");
    Err(PortError::Mtu { port: spec.to_string(), given: mtu.into(), limit, remedy: remedy.into() })
}

fn interface_mtu(spec: &PortSpec, config: &PortConfig, interface: &Interface) -> Result<u16, PortError> {
    let (port, name) = (spec.to_string(), &interface.name);
    let most = interface.mtu.min(u32::from(MAX_MTU)) as u16;
    if most < MIN_MTU {
        let limit = format!("a path MTU of 256 needs {MIN_MTU}");
        let remedy = format!("`ip link set dev {name} mtu 1500`");
        return Err(PortError::Mtu { port, given: interface.mtu, limit, remedy });
    }
    let mtu = config.mtu.unwrap_or(most);
    if mtu > most {
        let limit = format!("the interface's is {most}");
        let remedy = format!("`ip link set dev {name} mtu {mtu}`, at both ends of the link");
        return Err(PortError::Mtu { port, given: mtu.into(), limit, remedy });
    }
    if mtu < MIN_MTU {
        let limit = format!("a path MTU of 256 needs {MIN_MTU}");
        return Err(PortError::Mtu { port, given: mtu.into(), limit, remedy: "choose a larger one".into() });
    }
    Ok(mtu)
}

fn usable_interface(name: &str) -> Result<Interface, PortError> {
    let found = interface_that_is_up(name)?;
    if found.mac.0 == [0; 6] {
        let remedy = format!("use port `udp:{name}`, or an interface with an Ethernet address");
        let why = "it has no Ethernet address".into();
        return Err(PortError::Interface { name: name.to_owned(), why, remedy });
    }
    Ok(found)
}

fn interface_that_is_up(name: &str) -> Result<Interface, PortError> {
    let found = linux::interface(name).map_err(|e| match e.raw_os_error() {
        Some(libc::ENODEV) => {
            PortError::NoInterface { name: name.to_owned(), existing: linux::interface_names().join(", ") }
        }
        _ => PortError::Interface {
            name: name.to_owned(),
            why: e.to_string(),
            remedy: format!("see `ip link show dev {name}`"),
        },
    })?;
    if !found.up {
        let remedy = format!("`ip link set dev {name} up`");
        return Err(PortError::Interface { name: name.to_owned(), why: "it is down".into(), remedy });
    }
    Ok(found)
}

fn raw_sockets(spec: &PortSpec) -> Result<(), PortError> {
    if crate::capabilities::opens_packet_sockets() {
        return Ok(());
    }
    Err(no_raw_sockets(spec))
}

pub(super) fn no_raw_sockets(spec: &PortSpec) -> PortError {
    PortError::Permission { what: format!("port `{spec}`"), needs: "CAP_NET_RAW" }
}

/// Checks that `name` is free, so that the port can create the tap, or is a persistent tap to which the port can attach.
fn tap(name: &str) -> Result<(), PortError> {
    if linux::interface(name).is_ok() && !linux::is_lasting_tap(name).unwrap_or(false) {
        return Err(PortError::Interface {
            name: name.to_owned(),
            why: "it exists already and is not a tap that a port can attach to".into(),
            remedy: format!(
                "choose another name, or create it with `ip tuntap add dev {name} mode tap multi_queue`"
            ),
        });
    }
    match std::fs::OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        Ok(_) => Ok(()),
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            Err(PortError::Permission { what: format!("port `tap:{name}`"), needs: "CAP_NET_ADMIN" })
        }
        Err(e) => Err(PortError::Interface {
            name: name.to_owned(),
            why: format!("/dev/net/tun: {e}"),
            remedy: "load the kernel's tun module, or pass the device into the container".into(),
        }),
    }
}

/// Checks that `socket` is a usable path for a socket.
///
/// With [`SocketRole::Auto`], a port connects to the process that listens there, which may get access to this process's memory. So that
/// process must not belong to another user, who could have created the socket first in a directory that both can write to. Root is exempt,
/// because it can read that memory anyway.
fn socket_place(socket: &str, role: SocketRole) -> Result<(), PortError> {
    let error = |why: String, remedy| PortError::Socket { socket: socket.to_owned(), why, remedy };
    let us = effective_user();
    let directory = Path::new(socket).parent().unwrap_or(Path::new("/"));
    if !directory.is_dir() {
        return Err(error(format!("there is no directory {}", directory.display()), "create it"));
    }
    match std::fs::symlink_metadata(socket) {
        Ok(there) if !there.file_type().is_socket() => {
            Err(error("it exists and is not a socket".into(), "remove it, or choose another path"))
        }
        Ok(there) if role == SocketRole::Auto && ![us, 0].contains(&there.uid()) => {
            let why = format!("it belongs to user {}, and this process to user {us}", there.uid());
            Err(error(why, "add `,client` if you trust that user, or choose a directory of your own"))
        }
        _ => Ok(()),
    }
}

fn readable(file: Option<&str>) -> Result<(), PortError> {
    let Some(file) = file else { return Ok(()) };
    let error = |e: std::io::Error| PortError::File { file: file.to_owned(), why: e.to_string() };
    std::fs::File::open(file).map(drop).map_err(error)
}

fn writable(file: Option<&str>) -> Result<(), PortError> {
    let Some(file) = file else { return Ok(()) };
    let path = Path::new(file);
    let result = match std::fs::OpenOptions::new().append(true).open(path) {
        Err(e) if e.kind() == ErrorKind::NotFound => match path.parent() {
            Some(directory) if !directory.as_os_str().is_empty() => std::fs::read_dir(directory).map(drop),
            _ => Ok(()),
        },
        opened => opened.map(drop),
    };
    result.map_err(|e| PortError::File { file: file.to_owned(), why: e.to_string() })
}

pub(super) fn max_frame(mtu: u16) -> usize {
    usize::from(mtu) + ETHERNET
}

pub(super) fn relay_failed(spec: &PortSpec, error: &std::io::Error) -> PortError {
    let (messages, errno) = ("check that the temporary directory is writable".into(), error.to_string());
    PortError::Driver { port: spec.to_string(), step: "passing messages to its driver", errno, messages }
}
