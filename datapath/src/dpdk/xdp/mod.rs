//! AF_XDP ports: the driver of a Linux interface passes RoCEv2 packets to this process before the kernel's network stack handles them.
//!
//! DPDK's driver attaches the XDP program and binds the socket. Before that, this module makes the checks, generates the program, and
//! claims the interface so that no second process uses it.

mod object;
mod program;

use super::port_info::PortConfig;
use super::prepare::PortError;
use crate::capabilities;
use crate::fork::CloseOnFork;
use crate::linux::{self, Interface};
use crate::neighbour::xdp;
use crate::port_spec::PortSpec;
use crate::shared_memory;
use crate::socket_option;
use program::Selection;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

/// The largest IP packet in bytes. A buffer is a page of 4096 bytes, of which DPDK needs 320, the kernel 256, and the Ethernet header with
/// a VLAN tag 18.
pub(super) const MAX_MTU: u16 = 3502;
/// Bytes that the kernel reserves before a frame (`XDP_PACKET_HEADROOM`).
pub(super) const HEADROOM: usize = 256;
/// Buffers that the driver occupies: those in the fill ring, and those that were sent and not yet returned.
pub(super) const DRIVER_BUFFERS: u32 = 2 * 2048;
/// The capabilities that opening such a port requires: for a raw socket, a program, and locked memory.
const NEEDS: &str = "CAP_NET_ADMIN,CAP_NET_RAW,CAP_IPC_LOCK,CAP_BPF";
const NEEDED: u64 = capabilities::NET_ADMIN | capabilities::NET_RAW | capabilities::BPF;
/// Drivers that copy each frame. They have no hardware queue, so polling the kernel for frames has no effect.
const COPYING: [&str; 2] = ["veth", "tun"];

/// Resources of an open AF_XDP port other than DPDK's device.
pub(super) struct Attachment {
    /// A listener with the interface's index in its name. Other processes connect to it only to check whether it exists.
    _claim: CloseOnFork,
    object: CloseOnFork,
    copies: bool,
}

impl Attachment {
    /// Claims the interface and generates the program for DPDK. Returns `None` if `spec` is another kind of port.
    pub(super) fn new(
        spec: &PortSpec,
        config: &PortConfig,
        interface: Option<&Interface>,
    ) -> Result<Option<Self>, PortError> {
        let (PortSpec::Xdp(_), Some(interface)) = (spec, interface) else { return Ok(None) };
        let claim = claim(interface)?;
        remove_leftover(interface)?;
        let selection = match config.promiscuous {
            true => Selection::All,
            false => Selection::Roce { mac: interface.mac, numbers: config.numbers, vlan: config.vlan },
        };
        let (program, map) = program::program(selection);
        let object = in_memory(&object::object(&program, map, 1));
        let object =
            object.map_err(|e| refused(interface, format!("its program: {e}"), "free some memory"))?;
        let driver = linux::driver(&interface.name).unwrap_or_default();
        let copies = COPYING.contains(&driver.as_str());
        Ok(Some(Self { _claim: claim, object: object.into(), copies }))
    }

    /// Returns arguments for DPDK's driver to append after the interface. By default the driver polls the NIC's driver by a system call
    /// whenever it finds no frame. That has no effect on a driver that copies.
    pub(super) fn arguments(&self) -> String {
        let budget = if self.copies { ",busy_budget=0" } else { "" };
        format!(",xdp_prog=/proc/self/fd/{}{budget}", self.object.as_raw_fd())
    }
}

/// Returns whether the NIC's driver shares its buffers with the socket, or copies each frame.
pub(super) fn mode(socket: i32) -> &'static str {
    // From `linux/if_xdp.h`.
    const XDP_OPTIONS: libc::c_int = 8;
    const ZERO_COPY: libc::c_int = 1;
    let options = socket_option::number(&socket, libc::SOL_XDP, XDP_OPTIONS).unwrap_or(0);
    if options & ZERO_COPY == 0 { "copy mode" } else { "zero-copy" }
}

pub(super) fn check(spec: &PortSpec, interface: &Interface) -> Result<(), PortError> {
    let capable = capabilities::effective() & NEEDED == NEEDED;
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    let error = io::Error::last_os_error().raw_os_error();
    if fd >= 0 {
        // SAFETY: the descriptor is new and is closed once.
        unsafe { libc::close(fd) };
    } else if error == Some(libc::EAFNOSUPPORT) {
        let why = "this kernel has no AF_XDP (CONFIG_XDP_SOCKETS)".to_owned();
        let remedy = format!("use port `{}`, which works by AF_PACKET", interface.name);
        return Err(PortError::Interface { name: interface.name.clone(), why, remedy });
    }
    if fd < 0 || !capable {
        return Err(PortError::Permission { what: format!("port `{spec}`"), needs: NEEDS });
    }
    if interface.mtu > MAX_MTU.into() {
        return Err(PortError::Mtu {
            port: spec.to_string(),
            given: interface.mtu,
            limit: format!("AF_XDP keeps a frame in one page, so at most {MAX_MTU} bytes"),
            remedy: format!(
                "`ip link set dev {name} mtu {MAX_MTU}` at both ends of the link, or use port `{name}`",
                name = interface.name
            ),
        });
    }
    match linux::receive_queues(&interface.name) {
        Some(queues) if queues > 1 => {
            let why = format!("it has {queues} receive queues, and an AF_XDP port reads one");
            let name = &interface.name;
            let remedy = format!("`ethtool -L {name} combined 1`, or `ethtool -L {name} rx 1 tx 1`");
            Err(PortError::Interface { name: name.clone(), why, remedy })
        }
        _ => Ok(()),
    }
}

/// Returns an error for a port of another kind on an interface whose frames an AF_XDP port receives.
pub(super) fn check_not_taken(interface: &Interface) -> Result<(), PortError> {
    let held = name(interface).and_then(|name| UnixStream::connect_addr(&name)).is_ok();
    if held { Err(taken(interface)) } else { Ok(()) }
}

fn refused(interface: &Interface, why: String, remedy: &str) -> PortError {
    PortError::Interface { name: interface.name.clone(), why, remedy: remedy.to_owned() }
}

fn taken(interface: &Interface) -> PortError {
    let why = "an AF_XDP port of another process, or of this one, has its queue".to_owned();
    refused(interface, why, "end that process, or let both use the port without `xdp:`, which several share")
}

/// Returns the socket name of an interface's claim. Abstract socket names belong to a network namespace, as interface indexes do.
fn name(interface: &Interface) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(format!("ferroce/xdp/{}", interface.index))
}

fn claim(interface: &Interface) -> Result<CloseOnFork, PortError> {
    let listener = name(interface).and_then(|name| UnixListener::bind_addr(&name));
    let listener = listener.map_err(|error| match error.kind() {
        io::ErrorKind::AddrInUse => taken(interface),
        _ => refused(interface, format!("it cannot be claimed: {error}"), "close some files"),
    })?;
    Ok(OwnedFd::from(listener).into())
}

/// Detaches the program that a killed process left, because no other port has claimed the interface. Returns an error if another program is
/// attached.
fn remove_leftover(interface: &Interface) -> Result<(), PortError> {
    let Ok(Some(id)) = xdp::program_of(interface.index) else { return Ok(()) };
    let remedy = format!("end what uses it, or `ip link set dev {} xdp off`", interface.name);
    if xdp::name_of(id).is_ok_and(|name| name != object::NAME) {
        let why = format!("another XDP program, number {id}, is attached to it");
        return Err(refused(interface, why, &remedy));
    }
    xdp::detach(interface.index)
        .map_err(|e| refused(interface, format!("the XDP program {id} that is attached stays: {e}"), &remedy))
}

fn in_memory(bytes: &[u8]) -> io::Result<OwnedFd> {
    let mut file = std::fs::File::from(shared_memory::create(c"ferroce-xdp", bytes.len())?);
    file.write_all(bytes)?;
    Ok(file.into())
}
