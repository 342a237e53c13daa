//! System calls of packet sockets, and tests for features of the kernel.

use crate::linux;
use crate::linux::datagrams::VnetHeader;
use crate::socket_option;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(super) const NO_LARGE: &str =
    "frames leave singly, because Linux before 6.2 sends no large datagrams by packet sockets";

/// Opens a packet socket with virtio headers. It is not bound to an interface and receives nothing.
///
/// # Errors
/// Returns the kernel's error: `EPERM` without CAP_NET_RAW.
pub(super) fn packet_socket() -> io::Result<OwnedFd> {
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    socket_option::set(&socket, libc::SOL_PACKET, libc::PACKET_VNET_HDR, &on)?;
    Ok(socket)
}

/// Binds the socket to all protocols of an interface, which starts reception.
///
/// # Errors
/// Returns the kernel's error: `ENETDOWN` if the interface is down.
pub(super) fn bind(socket: &OwnedFd, interface: u32) -> io::Result<()> {
    bind_to(socket, interface, libc::ETH_P_ALL)
}

/// Binds the socket to one protocol of an interface.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn bind_to(socket: &OwnedFd, interface: u32, protocol: libc::c_int) -> io::Result<()> {
    let address = address(interface, protocol);
    // SAFETY: the address has the length that is passed.
    let bound = unsafe {
        let length = size_of_val(&address) as libc::socklen_t;
        libc::bind(socket.as_raw_fd(), (&raw const address).cast(), length)
    };
    if bound == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn address(interface: u32, protocol: libc::c_int) -> libc::sockaddr_ll {
    // SAFETY: all-zero bytes are a valid address.
    let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
    address.sll_family = libc::AF_PACKET as libc::sa_family_t;
    address.sll_protocol = (protocol as u16).to_be();
    address.sll_ifindex = interface as libc::c_int;
    address
}

/// Clears the socket's pending error. Returns true if there was one.
pub(super) fn take_error(socket: &OwnedFd) -> bool {
    socket_option::number(socket, libc::SOL_SOCKET, libc::SO_ERROR).is_ok_and(|error| error != 0)
}

/// Returns the number of datagrams since the last call for which the ring had no room.
pub(super) fn ring_drops(socket: &OwnedFd) -> u32 {
    let mut statistics = libc::tpacket_stats { tp_packets: 0, tp_drops: 0 };
    let mut length = size_of_val(&statistics) as libc::socklen_t;
    // SAFETY: there is room for the statistics and their length.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            (&raw mut statistics).cast(),
            &mut length,
        )
    };
    if result == 0 { statistics.tp_drops } else { 0 }
}

/// Returns true if the kernel accepts large datagrams from packet sockets. Tests this with a datagram that no host accepts, on the loopback
/// interface. If that interface is down, returns true, and the port tests it with its first large datagram.
///
/// # Errors
/// Returns the kernel's error: `EPERM` without CAP_NET_RAW.
pub(super) fn sends_large() -> io::Result<bool> {
    let Ok(lo) = linux::interface("lo") else { return Ok(true) };
    let (socket, address) = (packet_socket()?, address(lo.index, libc::ETH_P_IP));
    let datagram = probe();
    // SAFETY: the bytes and the address have the lengths that are passed.
    let sent = unsafe {
        libc::sendto(
            socket.as_raw_fd(),
            datagram.as_ptr().cast(),
            datagram.len(),
            libc::MSG_DONTWAIT,
            (&raw const address).cast(),
            size_of_val(&address) as libc::socklen_t,
        )
    };
    Ok(sent >= 0 || io::Error::last_os_error().raw_os_error() != Some(libc::EINVAL))
}

/// Returns a datagram of two one-byte segments to an Ethernet address other than the loopback interface's, so that the kernel's IP layer
/// drops it.
fn probe() -> Vec<u8> {
    let vnet = VnetHeader::of_datagram(34, 1).bytes(42);
    let ethernet = [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0];
    // 127.0.0.1 to 127.0.0.1: 30 bytes, of which 10 are UDP to the discard port. The kernel does not verify its checksums.
    let ip = [0x45, 0, 0, 30, 0, 0, 0x40, 0, 1, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
    let udp = [0, 9, 0, 9, 0, 10, 0, 0, 0, 0];
    [&vnet[..], &ethernet, &ip, &udp].concat()
}
