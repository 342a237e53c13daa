//! The GID table of a device, and the default GID index.

use crate::DeviceInfo;
use datapath::neighbour::link_local;
use roce::wire::Mac;
use std::net::IpAddr;

/// The position of an address in the table.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Order {
    LinkLocal,
    V4,
    V6,
}

fn order(ip: IpAddr) -> Order {
    match ip {
        IpAddr::V4(_) => Order::V4,
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Order::LinkLocal,
        IpAddr::V6(_) => Order::V6,
    }
}

/// Returns all addresses in Linux's order. The first is the link-local address derived from the MAC, even if the interface does not have it
/// yet, so that an index always means the same address.
pub(crate) fn table(mac: Mac, addresses: impl Iterator<Item = IpAddr>) -> Vec<IpAddr> {
    let first = IpAddr::from(link_local(mac));
    let mut others: Vec<_> = addresses.filter(|address| *address != first).collect();
    others.sort_by_key(|address| order(*address));
    others.insert(0, first);
    others
}

impl DeviceInfo {
    /// Returns the default GID index, chosen as perftest does: IPv4, else an IPv6 address that is not link-local, else the first.
    #[must_use]
    pub fn preferred_gid(&self) -> usize {
        let by_order = |wanted: Order| self.gids.iter().position(move |gid| order(*gid) == wanted);
        by_order(Order::V4).or_else(|| by_order(Order::V6)).unwrap_or(0)
    }

    /// Returns the default GID index for `peer`: the first address of the peer's kind (IPv4, IPv6, link-local), else of its family.
    #[must_use]
    pub fn gid_towards(&self, peer: IpAddr) -> usize {
        let of_kind = self.gids.iter().position(|gid| order(*gid) == order(peer));
        of_kind.or_else(|| self.gids.iter().position(|gid| gid.is_ipv4() == peer.is_ipv4())).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_is_that_of_linux() {
        let given = ["fd77::1", "10.0.0.1", "fe80::7", "10.0.0.2", "fe80::ff:fe00:1", "2001:db8::1"];
        let given = given.map(|address| address.parse::<IpAddr>().unwrap());
        let table = table(Mac([2, 0, 0, 0, 0, 1]), given.into_iter());
        let table: Vec<_> = table.iter().map(ToString::to_string).collect();
        let expected = ["fe80::ff:fe00:1", "fe80::7", "10.0.0.1", "10.0.0.2", "fd77::1", "2001:db8::1"];
        assert_eq!(table, expected);
    }
}
