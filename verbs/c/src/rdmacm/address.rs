//! Conversions between C addresses and Rust addresses.

pub(crate) use crate::ibverbs::query::gid_of as gid;
use crate::rdmacm::errno::{Errno, INVALID, last};
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address. Returns `EINVAL` for null, and `EAFNOSUPPORT` for a family other than IP.
///
/// # Safety
/// The caller must pass null, or an address as long as its family requires.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(INVALID);
    }
    // SAFETY: an address begins with its family, and the caller guarantees that it is as long as the family requires. The reads need no
    // alignment.
    unsafe {
        match c_int::from((&raw const (*address).sa_family).read_unaligned()) {
            AF_INET => {
                let v4 = address.cast::<sockaddr_in>().read_unaligned();
                let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
                Ok(SocketAddr::new(ip.into(), u16::from_be(v4.sin_port)))
            }
            AF_INET6 => {
                let v6 = address.cast::<sockaddr_in6>().read_unaligned();
                let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
                Ok(SocketAddr::new(ip.into(), u16::from_be(v6.sin6_port)))
            }
            _ => Err(Errno(libc::EAFNOSUPPORT)),
        }
    }
}

///
/// # Safety
/// The caller must pass room for a `sockaddr_in6`.
pub(crate) unsafe fn write(into: *mut sockaddr, address: SocketAddr) {
    // SAFETY: all-zero bytes are a valid address, and `into` has room for either family.
    unsafe {
        match address.ip() {
            IpAddr::V4(ip) => {
                let mut v4: sockaddr_in = std::mem::zeroed();
                v4.sin_family = AF_INET as u16;
                v4.sin_port = address.port().to_be();
                v4.sin_addr.s_addr = u32::from(ip).to_be();
                into.cast::<sockaddr_in>().write_unaligned(v4);
            }
            IpAddr::V6(ip) => {
                let mut v6: sockaddr_in6 = std::mem::zeroed();
                v6.sin6_family = AF_INET6 as u16;
                v6.sin6_port = address.port().to_be();
                v6.sin6_addr.s6_addr = ip.octets();
                into.cast::<sockaddr_in6>().write_unaligned(v6);
            }
        }
    }
}

/// Returns whether an address stands for all local ones. As in Linux, a loopback address does, too (`cma_any_addr`).
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// Returns the number of leading bits that two addresses of one family have in common; 0 for different families.
pub(crate) fn common_bits(one: IpAddr, other: IpAddr) -> u32 {
    match (one, other) {
        (IpAddr::V4(one), IpAddr::V4(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        (IpAddr::V6(one), IpAddr::V6(other)) => (one.to_bits() ^ other.to_bits()).leading_zeros(),
        _ => 0,
    }
}

/// Returns the source address of the kernel's route to `peer`. Sends no packet.
pub(crate) fn kernel_source(peer: IpAddr) -> Result<IpAddr, Errno> {
    let family = if peer.is_ipv4() { AF_INET } else { AF_INET6 };
    // Direct system calls, because a program may replace libc's functions by its own, which call this library.
    // SAFETY: socket has only numbers as arguments; all-zero bytes are a valid address with room for either family, of the length that is
    // passed; this function owns the descriptor.
    unsafe {
        let socket = libc::syscall(libc::SYS_socket, family, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0);
        if socket < 0 {
            return Err(last());
        }
        let mut place: libc::sockaddr_storage = std::mem::zeroed();
        let mut length = size_of_val(&place) as libc::socklen_t;
        let at = &raw mut place;
        // The port has no effect on the route.
        write(at.cast(), SocketAddr::new(peer, 9));
        let asked = libc::syscall(libc::SYS_connect, socket, at, length) == 0
            && libc::syscall(libc::SYS_getsockname, socket, at, &raw mut length) == 0;
        let source = if asked { read(at.cast()).map(|source| source.ip()) } else { Err(last()) };
        libc::syscall(libc::SYS_close, socket);
        source
    }
}
