//! Resolves IP addresses to Ethernet addresses: with the kernel's table if a port shares a Linux interface, otherwise with its own ARP and
//! neighbour discovery. An address is resolved when a queue pair connects, never on the data path.

mod address;
mod arp;
mod gid_table;
mod kernel;
mod martian;
mod ndp;
mod table;

pub use address::{Address, AddressError, link_local};
pub use gid_table::GidTable;
#[cfg(feature = "dpdk")]
pub(crate) use kernel::xdp;
pub(crate) use kernel::{Change, Notifications};
pub use kernel::{Kernel, addresses_of};
pub use table::{Neighbours, Resolution, Unresolved};

use roce::wire::Mac;
use std::net::IpAddr;
use thiserror::Error;

const ETHERNET: usize = 14;
const ARP_TYPE: [u8; 2] = [0x08, 0x06];
const IPV6_TYPE: [u8; 2] = [0x86, 0xdd];
const ICMPV6: u8 = 58;

/// The error for an ARP or neighbour discovery packet that is malformed or not from this link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("malformed ARP or neighbour discovery packet")]
pub struct Malformed;

/// Returns the Ethernet address of a multicast group (RFC 1112 6.4, RFC 2464 7), or `None` for a unicast address.
#[must_use]
pub fn group_mac(address: IpAddr) -> Option<Mac> {
    let [.., b, c, d] = match address {
        IpAddr::V4(group) => group.octets(),
        IpAddr::V6(group) => return group.is_multicast().then(|| ndp::multicast(group)),
    };
    address.is_multicast().then_some(Mac([0x01, 0, 0x5e, b & 0x7f, c, d]))
}

/// Returns true if a frame is ARP or IPv6 neighbour discovery.
#[must_use]
#[inline]
pub fn is_resolution(frame: &[u8]) -> bool {
    match frame.get(12..ETHERNET) {
        Some(kind) if kind == ARP_TYPE => true,
        // ICMPv6 types 135 and 136 directly after the IPv6 header (RFC 4861 4.3, 4.4).
        Some(kind) if kind == IPV6_TYPE => {
            frame.get(20) == Some(&ICMPV6) && matches!(frame.get(54), Some(135 | 136))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 1112 6.4, RFC 2464 7: the low bits of the group are those of the Ethernet address.
    #[test]
    fn a_group_has_an_ethernet_address_of_its_own() {
        let mac = |text: &str| group_mac(text.parse().unwrap());
        assert_eq!(mac("239.129.2.3"), Some(Mac([0x01, 0, 0x5e, 1, 2, 3])));
        assert_eq!(mac("ff0e::1:2:3"), Some(Mac([0x33, 0x33, 0, 2, 0, 3])));
        assert_eq!((mac("10.0.0.1"), mac("fd00::1")), (None, None));
    }
}
