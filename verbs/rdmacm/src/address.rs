//! Addresses as C has them.

use crate::errno::{Errno, INVALID};
use libc::{AF_INET, AF_INET6, sockaddr, sockaddr_in, sockaddr_in6};
use std::ffi::c_int;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Reads an address; null is `EINVAL`, another family than IP `EAFNOSUPPORT`.
///
/// # Safety
/// Null, or an address as long as its family has it.
pub(crate) unsafe fn read(address: *const sockaddr) -> Result<SocketAddr, Errno> {
    if address.is_null() {
        return Err(INVALID);
    }
    // SAFETY: an address begins with its family; each family's structure is as long as the caller says. What it is aligned to
    // is not known.
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

/// Writes an address.
///
/// # Safety
/// `into` has room for a `sockaddr_in6`.
pub(crate) unsafe fn write(into: *mut sockaddr, address: SocketAddr) {
    // SAFETY: all-zero bytes are addresses, and `into` has room for either.
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

/// An address as a GID.
pub(crate) fn gid(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    }
}

/// Returns whether an address stands for all of ours. Linux takes a loopback address for one (`cma_any_addr`).
pub(crate) fn is_any(ip: IpAddr) -> bool {
    ip.is_unspecified() || ip.is_loopback()
}

/// The address that a GID is.
pub(crate) fn ip(gid: [u8; 16]) -> IpAddr {
    IpAddr::from(gid).to_canonical()
}
