//! System calls of UDP sockets.

use super::address;
use crate::errno::check;
use crate::linux::datagrams::QUEUE;
use crate::{socket_filter, socket_option};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

pub(super) const NO_LARGE: &str =
    "packets leave singly, because Linux or the interface does not cut large UDP datagrams";

/// From `linux/udp.h`; `libc` lacks it here.
const UDP_NO_CHECK6_RX: libc::c_int = 102;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AddressFamily {
    V4,
    V6,
}

impl AddressFamily {
    const fn any(self) -> IpAddr {
        match self {
            Self::V4 => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Self::V6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        }
    }
}

/// Opens a socket on an interface, whose packets have "don't fragment" set.
///
/// # Errors
/// Returns the kernel's error: `EAFNOSUPPORT` without the family, `EPERM` before Linux 5.7 without CAP_NET_RAW.
fn socket(family: AddressFamily, interface: u32) -> io::Result<OwnedFd> {
    let domain = if family == AddressFamily::V4 { libc::AF_INET } else { libc::AF_INET6 };
    // SAFETY: socket takes integers.
    let fd = unsafe { libc::socket(domain, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    let socket = unsafe { OwnedFd::from_raw_fd(fd) };
    set(&socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, interface as libc::c_int)?;
    match family {
        AddressFamily::V4 => {
            set(&socket, libc::IPPROTO_IP, libc::IP_MTU_DISCOVER, libc::IP_PMTUDISC_PROBE)?;
            set(&socket, libc::IPPROTO_IP, libc::IP_MULTICAST_LOOP, 0)?;
        }
        AddressFamily::V6 => {
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_V6ONLY, 1)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MTU_DISCOVER, libc::IPV6_PMTUDISC_PROBE)?;
            set(&socket, libc::IPPROTO_IPV6, libc::IPV6_MULTICAST_LOOP, 0)?;
        }
    }
    Ok(socket)
}

/// Opens a socket that receives the datagrams to UDP port `port` of an interface, with control messages about each. Other processes of the
/// user may open it too. Linux then distributes the datagrams by addresses and ports.
///
/// # Errors
/// Returns the kernel's error: `EADDRINUSE` if another program or user has the port.
pub(super) fn receiver(family: AddressFamily, interface: u32, port: u16) -> io::Result<OwnedFd> {
    let socket = socket(family, interface)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_REUSEPORT, 1)?;
    set(&socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    if set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, QUEUE).is_err() {
        set(&socket, libc::SOL_SOCKET, libc::SO_RCVBUF, QUEUE)?;
    }
    // Supported since Linux 5.0. Without it, the kernel delivers packets one by one.
    let _ = set(&socket, libc::SOL_UDP, libc::UDP_GRO, 1);
    let (level, options) = match family {
        AddressFamily::V4 => (libc::IPPROTO_IP, [libc::IP_PKTINFO, libc::IP_RECVTOS, libc::IP_RECVTTL]),
        AddressFamily::V6 => {
            (libc::IPPROTO_IPV6, [libc::IPV6_RECVPKTINFO, libc::IPV6_RECVTCLASS, libc::IPV6_RECVHOPLIMIT])
        }
    };
    options.into_iter().try_for_each(|option| set(&socket, level, option, 1))?;
    if family == AddressFamily::V6 {
        // RoCEv2 senders write no UDP checksum over IPv6 either.
        set(&socket, libc::SOL_UDP, UDP_NO_CHECK6_RX, 1)?;
    }
    bind(&socket, SocketAddr::new(family.any(), port))?;
    Ok(socket)
}

/// Opens a socket that sends from a port chosen by the kernel, and receives nothing. Also returns that port.
///
/// # Errors
/// Returns the kernel's error.
pub(super) fn sender(family: AddressFamily, interface: u32) -> io::Result<(OwnedFd, u16)> {
    let socket = socket(family, interface)?;
    socket_filter::drop_all(&socket)?;
    let _ = set(&socket, libc::SOL_SOCKET, libc::SO_SNDBUF, QUEUE);
    bind(&socket, SocketAddr::new(family.any(), 0))?;
    let mut name = [0; address::ROOM];
    let mut length = name.len() as libc::socklen_t;
    // SAFETY: there is room for the name and its length.
    check(unsafe { libc::getsockname(socket.as_raw_fd(), name.as_mut_ptr().cast(), &mut length) })?;
    let name = address::read(&name).ok_or(io::ErrorKind::InvalidData)?;
    Ok((socket, name.port()))
}

/// Returns a descriptor that is readable while any of `sockets` is.
///
/// # Errors
/// Returns the kernel's error if the process has no descriptor left.
pub(super) fn any_of(sockets: &[impl AsRawFd]) -> io::Result<OwnedFd> {
    // SAFETY: epoll_create1 takes an integer.
    let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
    // SAFETY: the descriptor is new and has no other owner.
    let any = unsafe { OwnedFd::from_raw_fd(fd) };
    for socket in sockets {
        let mut event = libc::epoll_event { events: libc::EPOLLIN as u32, u64: 0 };
        // SAFETY: both descriptors are open, and the kernel only reads the event.
        check(unsafe {
            libc::epoll_ctl(any.as_raw_fd(), libc::EPOLL_CTL_ADD, socket.as_raw_fd(), &mut event)
        })?;
    }
    Ok(any)
}

fn set(socket: &OwnedFd, level: libc::c_int, option: libc::c_int, value: libc::c_int) -> io::Result<()> {
    socket_option::set(socket, level, option, &value)
}

fn bind(socket: &OwnedFd, to: SocketAddr) -> io::Result<()> {
    let (name, length) = address::write(to, 0);
    // SAFETY: `name` is an address of `length` bytes, with its family.
    check(unsafe { libc::bind(socket.as_raw_fd(), name.as_ptr().cast(), length as libc::socklen_t) })
        .map(drop)
}
