//! ICMP messages about RoCEv2 packets that did not arrive (RFC 792, RFC 4443). They are not authenticated, so they only explain failures,
//! and do not cause any.

use super::constants::{
    ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ROCE_PORT, UDP, VLAN_LENGTH,
};
use super::layers::chunk;
use crate::Unreachable;
use core::net::IpAddr;

const ICMP: u8 = 1;
const ICMPV6: u8 = 58;

/// Common fields of both IP versions.
struct Ip<'a> {
    protocol: u8,
    source: IpAddr,
    destination: IpAddr,
    payload: &'a [u8],
}

/// Parses an IP header. The packet may be truncated, as the one inside an ICMP message is.
fn ip(packet: &[u8]) -> Option<Ip<'_>> {
    let address = |at: usize| Some(IpAddr::from(*chunk::<4>(packet, at).ok()?));
    let long = |at: usize| Some(IpAddr::from(*chunk::<16>(packet, at).ok()?));
    match *packet.first()? >> 4 {
        4 => Some(Ip {
            protocol: *packet.get(9)?,
            source: address(12)?,
            destination: address(16)?,
            payload: packet.get(usize::from(packet.first()? & 0xf) * 4..)?,
        }),
        6 => Some(Ip {
            protocol: *packet.get(6)?,
            source: long(8)?,
            destination: long(24)?,
            payload: packet.get(40..)?,
        }),
        _ => None,
    }
}

/// Returns the destination of a RoCEv2 packet of this host, and the reason why it did not arrive, if `frame` is an ICMP message about one.
pub(crate) fn unreachable(frame: &[u8]) -> Option<(IpAddr, Unreachable)> {
    let ethertype = |at: usize| chunk(frame, at.checked_sub(2)?).ok().map(|bytes| u16::from_be_bytes(*bytes));
    let mut at = ETHERNET_LENGTH;
    if ethertype(at)? == ETHERTYPE_VLAN {
        at = at.checked_add(VLAN_LENGTH)?;
    }
    if !matches!(ethertype(at)?, ETHERTYPE_IPV4 | ETHERTYPE_IPV6) {
        return None;
    }
    let outer = ip(frame.get(at..)?)?;
    let [kind, code, _, _, a, b, c, d, ..] = *outer.payload else { return None };
    let what = match (outer.protocol, kind, code) {
        (ICMP, 3, 3) | (ICMPV6, 1, 4) => Unreachable::Port,
        (ICMP, 3, 4) => Unreachable::TooBig { mtu: u16::from_be_bytes([c, d]) },
        (ICMPV6, 2, _) => {
            let mtu = u32::from_be_bytes([a, b, c, d]);
            Unreachable::TooBig { mtu: u16::try_from(mtu).unwrap_or(u16::MAX) }
        }
        (ICMP, 3, 9 | 10 | 13) | (ICMPV6, 1, 1 | 5) => Unreachable::Prohibited,
        (ICMP, 3, _) | (ICMPV6, 1, _) => Unreachable::Address,
        _ => return None,
    };
    let inner = ip(outer.payload.get(8..)?)?;
    let port = u16::from_be_bytes(*chunk(inner.payload, 2).ok()?);
    let is_ours = inner.source == outer.destination && inner.protocol == UDP && port == ROCE_PORT;
    is_ours.then_some((inner.destination, what))
}
