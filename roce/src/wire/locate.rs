//! Finds the layers of a frame, for [`parse`](super::parse) and for switches.

use super::constants::{
    BTH_LENGTH, ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ICRC_LENGTH, ROCE_PORT, UDP,
    UDP_LENGTH, VLAN_LENGTH,
};
use super::format::{Numbers, below_bth, csig};
use super::layers::{Family, InsertedTelemetry, Layers, chunk};
use crate::Discard;

/// Returns the family and offset of a frame's IP packet, and the length of a CSIG tag before it, if there is one.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "few tags follow each other")]
fn locate_ip(frame: &[u8], numbers: Numbers) -> Result<(Family, usize, Option<usize>), Discard> {
    let mut at = ETHERNET_LENGTH;
    let mut ethertype = u16::from_be_bytes(*chunk(frame, at - 2)?);
    if ethertype == ETHERTYPE_VLAN {
        at += VLAN_LENGTH;
        ethertype = u16::from_be_bytes(*chunk(frame, at - 2)?);
    }
    let tag = csig::length_of(ethertype, numbers);
    if let Some(length) = tag {
        at += length;
        ethertype = u16::from_be_bytes(*chunk(frame, at - 2)?);
    }
    Ok((family_of(ethertype).ok_or(Discard::EtherType)?, at, tag))
}

const fn family_of(ethertype: u16) -> Option<Family> {
    match ethertype {
        ETHERTYPE_IPV4 => Some(Family::V4),
        ETHERTYPE_IPV6 => Some(Family::V6),
        _ => None,
    }
}

/// Returns the family and offset of a frame's IP packet, after any tag of the length of CSIG's. Code that only reads traffic classes does
/// not have the network's numbers.
#[inline]
#[expect(clippy::arithmetic_side_effects, reason = "few tags follow each other")]
pub(super) fn locate_class(frame: &[u8]) -> Option<(Family, usize)> {
    let ethertype = |at| chunk(frame, at).ok().map(|bytes| u16::from_be_bytes(*bytes));
    let vlan = if ethertype(ETHERNET_LENGTH - 2)? == ETHERTYPE_VLAN { VLAN_LENGTH } else { 0 };
    let found = |at: usize| Some((family_of(ethertype(at - 2)?)?, at));
    let at = ETHERNET_LENGTH + vlan;
    let tagged = |length: usize| {
        let (family, ip) = found(at + length)?;
        let version = if family == Family::V4 { 4 } else { 6 };
        (frame.get(ip)? >> 4 == version).then_some((family, ip))
    };
    found(at).or_else(|| tagged(csig::COMPACT)).or_else(|| tagged(csig::WIDE))
}

impl Layers {
    /// Finds the layers by the lengths in the headers. From `bth` to `end` there is room for a BTH and an ICRC, and all of it is in the
    /// frame. Verifies no checksum.
    #[inline]
    pub fn locate(frame: &[u8], numbers: Numbers) -> Result<Self, Discard> {
        match Self::locate_plain(frame) {
            Some(layers) => Ok(layers),
            None => Self::locate_any(frame, numbers),
        }
    }

    /// Finds the layers of the most frequent kind, IPv4 without tag, options and telemetry, at constant offsets. Returns `None` for other
    /// kinds, and for any error. The port of INT always differs from that of RoCEv2.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the indices are constants within an array; a total length that holds them is above 20"
    )]
    pub fn locate_plain(frame: &[u8]) -> Option<Self> {
        const UDP_AT: usize = ETHERNET_LENGTH + 20;
        const BTH_AT: usize = UDP_AT + UDP_LENGTH;
        let head: &[u8; BTH_AT + BTH_LENGTH + ICRC_LENGTH] = frame.first_chunk()?;
        let short = |at: usize| u16::from_be_bytes([head[at], head[at + 1]]);
        let length = usize::from(short(16));
        let end = ETHERNET_LENGTH + length;
        let is_plain = short(12) == ETHERTYPE_IPV4
            && head[14] == 0x45
            && short(20) & 0x3fff == 0
            && head[23] == UDP
            && short(UDP_AT + 2) == ROCE_PORT
            && (head.len()..=frame.len()).contains(&end)
            && usize::from(short(UDP_AT + 4)) == length - 20;
        let (ip, udp, bth) = (ETHERNET_LENGTH, UDP_AT, BTH_AT);
        is_plain.then_some(Self { family: Family::V4, ip, udp, bth, end, carried: None })
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the lengths have 16 bits; from `udp` to `end` there is room for what `below` found"
    )]
    fn locate_any(frame: &[u8], numbers: Numbers) -> Result<Self, Discard> {
        let (family, ip, tag) = locate_ip(frame, numbers)?;
        let (length, protocol) = match family {
            Family::V4 => ipv4_length(chunk(frame, ip)?)?,
            Family::V6 => ipv6_length(chunk(frame, ip)?)?,
        };
        let (udp, end) = (ip + family.header_length(), ip + length);
        if end > frame.len() {
            return Err(Discard::Truncated);
        }
        let mut layers = Self { family, ip, udp, bth: udp + UDP_LENGTH, end, carried: None };
        if protocol != UDP || layers.port(frame)? != ROCE_PORT {
            layers = below_bth::find(&frame[..end], layers, protocol, numbers)?;
        }
        if end < layers.bth + BTH_LENGTH + ICRC_LENGTH {
            return Err(Discard::Truncated);
        }
        if let Some(length) = tag {
            if layers.carried.is_some() {
                return Err(Discard::Telemetry);
            }
            layers.carried = Some(InsertedTelemetry::Csig(length as u8));
        }
        let udp_length = usize::from(u16::from_be_bytes(*chunk(frame, layers.udp + 4)?));
        if udp_length != end - layers.udp - layers.outside_udp() {
            return Err(Discard::UdpHeader);
        }
        Ok(layers)
    }
}

/// Returns the packet's length and protocol. IPv4 options and fragments are refused.
#[inline]
fn ipv4_length(ip: &[u8; 20]) -> Result<(usize, u8), Discard> {
    if ip[0] >> 4 != 4 {
        return Err(Discard::IpHeader);
    }
    let fragment = u16::from_be_bytes([ip[6], ip[7]]) & 0x3fff;
    if ip[0] != 0x45 || fragment != 0 {
        return Err(Discard::IpHeader);
    }
    Ok((usize::from(u16::from_be_bytes([ip[2], ip[3]])), ip[9]))
}

/// Returns the packet's length and next header.
#[inline]
fn ipv6_length(ip: &[u8; 40]) -> Result<(usize, u8), Discard> {
    if ip[0] >> 4 != 6 {
        return Err(Discard::IpHeader);
    }
    Ok((40 + usize::from(u16::from_be_bytes([ip[4], ip[5]])), ip[6]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Bth, Header, Mac, Operation, Path, Service, emit};
    use crate::{Psn, Qpn};
    use core::net::IpAddr;

    /// Changes each header byte in each relevant way, and truncates the frame.
    #[test]
    fn the_fast_path_finds_the_same_layers_as_the_complete_search() {
        let mac = Mac([2; 6]);
        let [from, to] = [[10, 0, 0, 1], [10, 0, 0, 2]].map(IpAddr::from);
        let path = Path { udp_source: 0xc123, ..Path::new((mac, from), (mac, to)) };
        let bth = Bth { ack_request: true, ..Bth::new(Qpn::new(7), Psn::new(9)) };
        let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteMiddle };
        let mut frame = [0; 160];
        let length = emit(&path, 1, &header, 64, &mut frame).unwrap().seal();
        let good = &frame[..length];
        assert!(Layers::locate_plain(good).is_some());
        for at in 0..60 {
            for change in [1, 2, 0x40, 0x80, 0xff] {
                let mut frame = frame;
                frame[at] ^= change;
                for frame in [&frame[..length], &frame[..length + 9], &frame[..at]] {
                    if let Ok(plain @ Layers { carried: None, end, .. }) =
                        Layers::locate(frame, Numbers::DEFAULT)
                    {
                        let found = below_bth::find(&frame[..end], plain, UDP, Numbers::DEFAULT);
                        assert_eq!(found, Ok(plain), "a pass that finds nothing changes nothing");
                    }
                    let [short, long] =
                        [Layers::locate, Layers::locate_any].map(|locate| locate(frame, Numbers::DEFAULT));
                    assert_eq!(short, long, "byte {at} by {change:#x}");
                }
            }
        }
    }
}
