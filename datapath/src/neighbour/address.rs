//! A local IP address with the prefix of its network.

use roce::wire::Mac;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;
use thiserror::Error;

/// A local IP address and the prefix length of its network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address: one of the device's GIDs.
    pub ip: IpAddr,
    /// Prefix length. With 0, every host is a neighbour.
    pub prefix: u8,
}

impl Address {
    /// Returns true if `peer` is on the same link.
    #[must_use]
    pub fn reaches(&self, peer: IpAddr) -> bool {
        match (self.ip, peer) {
            (IpAddr::V4(ours), IpAddr::V4(theirs)) => {
                let differs = ours.to_bits() ^ theirs.to_bits();
                differs.leading_zeros() >= u32::from(self.prefix)
            }
            (IpAddr::V6(ours), IpAddr::V6(theirs)) => {
                let differs = ours.to_bits() ^ theirs.to_bits();
                theirs.is_unicast_link_local() || differs.leading_zeros() >= u32::from(self.prefix)
            }
            _ => false,
        }
    }
}

/// The error for a string that is not an address.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("address {0:?}: not an IP address; write 10.0.0.1, 10.0.0.1/24 or fd00::1/64")]
pub struct AddressError(pub String);

impl FromStr for Address {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let wrong = || AddressError(text.to_owned());
        let (ip, prefix) = text.split_once('/').map_or((text, None), |(ip, prefix)| (ip, Some(prefix)));
        let ip: IpAddr = ip.parse().map_err(|_| wrong())?;
        let longest = if ip.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(0), str::parse).map_err(|_| wrong())?;
        if prefix > longest || ip.is_unspecified() || ip.is_multicast() {
            return Err(wrong());
        }
        Ok(Self { ip, prefix })
    }
}

/// Formats the string that [`from_str`](FromStr::from_str) parses.
impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.prefix {
            0 => self.ip.fmt(f),
            prefix => write!(f, "{}/{prefix}", self.ip),
        }
    }
}

impl From<IpAddr> for Address {
    fn from(ip: IpAddr) -> Self {
        Self { ip, prefix: 0 }
    }
}

/// Returns the IPv6 link-local address of an Ethernet address (RFC 4291 appendix A: modified EUI-64).
#[must_use]
pub fn link_local(mac: Mac) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    let eui = [a ^ 2, b, c, 0xff, 0xfe, d, e, f];
    Ipv6Addr::from_bits(0xfe80 << 112 | u128::from(u64::from_be_bytes(eui)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_prefix_selects_neighbours() {
        let reaches =
            |ours: &str, theirs: &str| ours.parse::<Address>().unwrap().reaches(theirs.parse().unwrap());
        assert!(reaches("10.0.0.1/24", "10.0.0.255") && !reaches("10.0.0.1/24", "10.0.1.2"));
        assert!(reaches("10.0.0.1", "192.168.1.1") && reaches("10.0.0.1/32", "10.0.0.1"));
        assert!(reaches("fd00::1/64", "fd00::ffff") && !reaches("fd00::1/64", "fd00:0:0:1::1"));
        assert!(reaches("fd00::1/64", "fe80::1") && !reaches("fd00::1/0", "10.0.0.1"));
    }

    /// RFC 4291: the interface identifier is a modified EUI-64 with an inverted universal/local bit.
    #[test]
    fn an_eui_64_has_its_universal_bit_flipped() {
        let mac = Mac([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        assert_eq!(link_local(mac).to_string(), "fe80::5054:ff:fe12:3456");
    }

    #[test]
    fn a_malformed_address_is_refused() {
        for text in ["", "10.0.0.1/33", "fd00::/129", "10.0.0.1/x", "0.0.0.0", "ff02::1", "host"] {
            assert_eq!(text.parse::<Address>(), Err(AddressError(text.into())));
        }
    }
}
