//! Sockets that are open only for their effect on the kernel.

use crate::errno::check;
use crate::fork::CloseOnFork;
use crate::{socket_filter, socket_option};
use roce::wire::{Numbers, ROCE_PORT};
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// Opens UDP 4791, and the port of RoCEv2 packets with INT-MD, for IPv4 and IPv6. The kernel also receives a peer's packets, and without
/// these sockets would answer them with port-unreachable. A filter drops the packets before they are queued.
///
/// Skips a port that another program has open, and a disabled family: there the kernel sends no port-unreachable.
pub(super) fn roce_port(interface: u32, numbers: Numbers) -> Vec<CloseOnFork> {
    let families = [libc::AF_INET, libc::AF_INET6].into_iter();
    families
        .flat_map(|family| [(family, ROCE_PORT), (family, numbers.int_port())])
        .filter_map(|(family, port)| match reserve(interface, family, port) {
            Ok(socket) => Some(CloseOnFork::from(socket)),
            Err(error) => {
                tracing::debug!("UDP {port} of family {family} is not held open: {error}");
                None
            }
        })
        .collect()
}

fn reserve(interface: u32, family: libc::c_int, port: u16) -> io::Result<OwnedFd> {
    // SAFETY: socket takes integers.
    let fd = check(unsafe { libc::socket(family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) })?;
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    let on: libc::c_int = 1;
    socket_option::set(&socket, libc::SOL_SOCKET, libc::SO_REUSEADDR, &on)?;
    socket_option::set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, &on)?;
    // Without this, the kernel segments a large datagram before the filter drops the segments. Supported since Linux 5.0.
    let _ = socket_option::set(&socket, libc::IPPROTO_UDP, libc::UDP_GRO, &on);
    // Only on this interface, so that a port on another interface can bind UDP 4791.
    bind_to_interface(&socket, interface);
    socket_filter::drop_all(&socket)?;
    if family == libc::AF_INET6 {
        socket_option::set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, &on)?;
        // SAFETY: all-zero bytes are a valid sockaddr_in6, with the unspecified address.
        let mut any: libc::sockaddr_in6 = unsafe { std::mem::zeroed() };
        any.sin6_family = libc::AF_INET6 as libc::sa_family_t;
        any.sin6_port = port.to_be();
        bind(&socket, &any)?;
    } else {
        // SAFETY: all-zero bytes are a valid sockaddr_in, with the unspecified address.
        let mut any: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        any.sin_family = libc::AF_INET as libc::sa_family_t;
        any.sin_port = port.to_be();
        bind(&socket, &any)?;
    }
    Ok(socket)
}

/// Makes the socket send and receive only through this interface, if this process has the permission. Otherwise, routes decide.
pub(super) fn bind_to_interface(socket: &impl AsRawFd, index: u32) {
    let index = index as libc::c_int;
    if let Err(error) = socket_option::set(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, &index) {
        tracing::debug!("not bound to interface {index}: {error}");
    }
}

fn bind<T>(socket: &OwnedFd, address: &T) -> io::Result<()> {
    // SAFETY: `address` is a socket address of `size_of::<T>()` bytes, with its family.
    check(unsafe {
        let address = std::ptr::from_ref(address).cast();
        libc::bind(socket.as_raw_fd(), address, size_of::<T>() as libc::socklen_t)
    })
    .map(drop)
}
