//! Source addresses that no other host on the network can have. Frames with such a source are forged, and an answer would be sent to many
//! hosts or to this one (RFC 1122 3.2.1.3, RFC 4291).

use super::Address;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The lowest address of class E, which includes the limited broadcast address.
const RESERVED: Ipv4Addr = Ipv4Addr::new(240, 0, 0, 0);

/// Returns true if no host can have the address, or if it is the broadcast address of a network of `ours`.
pub(super) fn is_martian(ours: &[Address], source: IpAddr) -> bool {
    match source {
        IpAddr::V4(source) => {
            let is_this_network = source.octets()[0] == 0;
            let is_special = is_this_network || source.is_multicast() || source >= RESERVED;
            is_special
                || is_foreign_loopback(ours, source.into())
                || ours.iter().any(|a| is_broadcast(a, source))
        }
        IpAddr::V6(source) => is_special(source) || is_foreign_loopback(ours, source.into()),
    }
}

fn is_special(source: Ipv6Addr) -> bool {
    source.is_unspecified() || source.is_multicast() || source.to_ipv4_mapped().is_some()
}

/// Returns true for a loopback address, unless `ours` includes one: on the interface `lo`, loopback addresses are neighbours.
fn is_foreign_loopback(ours: &[Address], source: IpAddr) -> bool {
    source.is_loopback() && !ours.iter().any(|ours| ours.ip.is_loopback())
}

/// Returns true if `source` has only zeros or only ones after the prefix of `ours` (RFC 1122 3.2.1.3). Networks of one or two addresses
/// have no broadcast address. Without a prefix, the network is unknown.
fn is_broadcast(ours: &Address, source: Ipv4Addr) -> bool {
    let host_bits = match (ours.ip, ours.prefix) {
        (IpAddr::V4(_), prefix @ 1..=30) => u32::MAX >> prefix,
        _ => return false,
    };
    let host = source.to_bits() & host_bits;
    ours.reaches(source.into()) && (host == 0 || host == host_bits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_martian_for(ours: &[&str], source: &str) -> bool {
        let ours: Vec<Address> = ours.iter().map(|address| address.parse().unwrap()).collect();
        is_martian(&ours, source.parse().unwrap())
    }

    /// RFC 1122 3.2.1.3, RFC 4291: addresses that are not valid as a source.
    #[test]
    fn martian_source_addresses_are_recognised() {
        for source in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.1.2.3",
            "224.0.0.1",
            "239.1.2.3",
            "240.0.0.1",
            "255.255.255.255",
            "10.0.0.0",
            "10.0.0.255",
            "::",
            "::1",
            "ff02::1",
            "::ffff:10.0.0.2",
        ] {
            assert!(is_martian_for(&["10.0.0.1/24", "fd00::1/64"], source), "{source}");
        }
    }

    #[test]
    fn addresses_of_hosts_are_not_martian() {
        for source in
            ["10.0.0.1", "10.0.0.2", "10.0.1.255", "223.255.255.254", "fd00::2", "fe80::1", "2001:db8::1"]
        {
            assert!(!is_martian_for(&["10.0.0.1/24", "fd00::1/64"], source), "{source}");
        }
    }

    /// In a network with a 31-bit prefix, both addresses are hosts.
    #[test]
    fn small_networks_have_no_broadcast_address() {
        assert!(
            !is_martian_for(&["10.0.0.0/31"], "10.0.0.1") && !is_martian_for(&["10.0.0.1/32"], "10.0.0.0")
        );
        assert!(!is_martian_for(&["10.0.0.1"], "10.0.0.255"), "the prefix is unknown");
    }

    #[test]
    fn loopback_addresses_are_neighbours_on_the_loopback_interface() {
        assert!(!is_martian_for(&["127.0.0.1/8"], "127.0.0.2") && !is_martian_for(&["::1/128"], "::1"));
    }
}
