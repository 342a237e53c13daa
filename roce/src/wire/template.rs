//! The headers of one path below the BTH, prepared for copying.

use super::constants::{
    BTH_LENGTH, ETHERNET_LENGTH, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, ROCE_PORT, UDP, UDP_LENGTH,
    VLAN_LENGTH,
};
use super::emit::EmitError;
use super::layers::{Family, Layers, fold, sum};
use super::path::{Mac, Path};
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Length of the longest headers: Ethernet with a VLAN tag, IPv6, UDP.
const ROOM: usize = ETHERNET_LENGTH + VLAN_LENGTH + 40 + UDP_LENGTH;
/// The same with IPv4. No packet is shorter, because a BTH and an ICRC follow.
const V4_ROOM: usize = ETHERNET_LENGTH + VLAN_LENGTH + 20 + UDP_LENGTH;

/// Headers below the BTH of one path's packets. [`emit`](Self::emit) writes the fields that differ between packets: the lengths, the IPv4
/// identification and its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Template {
    bytes: [u8; ROOM],
    family: Family,
    ip: u8,
    udp: u8,
    /// Sum of the 16-bit words of the IPv4 header, without those that differ between packets.
    sum: u16,
}

impl Template {
    /// Creates the headers of packets along `path`. The UDP checksum is 0; IPv4 packets have "don't fragment" set.
    ///
    /// # Errors
    /// Returns [`EmitError::Families`] if the path's two addresses are of different families.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a path has at most one tag, and ROOM is for a tag and the longest headers"
    )]
    pub fn new(path: &Path) -> Result<Self, EmitError> {
        let mut bytes = [0; ROOM];
        bytes[..6].copy_from_slice(&path.destination_mac.0);
        bytes[6..12].copy_from_slice(&path.source_mac.0);
        let mut ip = ETHERNET_LENGTH;
        if let Some(vlan) = path.vlan {
            bytes[12..14].copy_from_slice(&ETHERTYPE_VLAN.to_be_bytes());
            bytes[14..16].copy_from_slice(&vlan.0.to_be_bytes());
            ip += VLAN_LENGTH;
        }
        let (family, ethertype) = match (path.source, path.destination) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                write_ipv4(&mut bytes[ip..], path, from, to);
                (Family::V4, ETHERTYPE_IPV4)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                write_ipv6(&mut bytes[ip..], path, from, to);
                (Family::V6, ETHERTYPE_IPV6)
            }
            (from, to) => return Err(EmitError::Families { from, to }),
        };
        bytes[ip - 2..ip].copy_from_slice(&ethertype.to_be_bytes());
        let udp = ip + family.header_length();
        bytes[udp..udp + 2].copy_from_slice(&path.udp_source.to_be_bytes());
        bytes[udp + 2..udp + 4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        let sum = match family {
            Family::V4 => fold(sum(&bytes[ip..udp])),
            Family::V6 => 0,
        };
        Ok(Self { bytes, family, ip: ip as u8, udp: udp as u8, sum })
    }

    /// Replaces the destination's Ethernet address if the packets are for `peer`. Returns whether it changed.
    #[expect(clippy::indexing_slicing, reason = "the IP header lies within ROOM")]
    pub fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        let ip = usize::from(self.ip);
        let is_to = match (self.family, peer) {
            (Family::V4, IpAddr::V4(peer)) => self.bytes[ip + 16..ip + 20] == peer.octets(),
            (Family::V6, IpAddr::V6(peer)) => self.bytes[ip + 24..ip + 40] == peer.octets(),
            (Family::V4, IpAddr::V6(_)) | (Family::V6, IpAddr::V4(_)) => false,
        };
        let is_new = is_to && self.bytes[..6] != mac.0;
        if is_new {
            self.bytes[..6].copy_from_slice(&mac.0);
        }
        is_new
    }

    /// Returns whether IPv4 packets with these addresses, source first, are from this path's destination.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the indices are constants within ROOM"
    )]
    pub(crate) fn is_answered_by(&self, [source, destination]: [u32; 2]) -> bool {
        // The header is at one of two offsets: with a tag or without.
        let both = |ip: usize| u64::from_be_bytes(core::array::from_fn(|n| self.bytes[ip + 12 + n]));
        let ours = if usize::from(self.ip) == ETHERNET_LENGTH {
            both(ETHERNET_LENGTH)
        } else {
            both(ETHERNET_LENGTH + VLAN_LENGTH)
        };
        self.family == Family::V4 && ours == u64::from(destination) << 32 | u64::from(source)
    }

    /// Returns the layers of a packet with `length` bytes after its BTH.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the lengths are those of headers, and of a payload of at most MAX_PAYLOAD"
    )]
    pub(super) const fn layers(&self, length: usize) -> Layers {
        let (ip, udp) = (self.ip as usize, self.udp as usize);
        let bth = udp + UDP_LENGTH;
        let end = bth + BTH_LENGTH + length;
        Layers { family: self.family, ip, udp, bth, end, carried: None }
    }

    /// Writes the headers of a packet with these layers to `frame`, which must have room for it.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`emit` found room for these layers, which lie in their order"
    )]
    pub(super) fn write(&self, layers: &Layers, identification: u16, frame: &mut [u8]) {
        let Layers { ip, udp, bth, end, .. } = *layers;
        let udp_length = (end - udp) as u16;
        match self.family {
            Family::V4 => {
                // The offsets are constant, except for a tag. With BTH and ICRC the packet is long enough.
                let Some(start) = frame.first_chunk_mut() else { return };
                match self.ip as usize {
                    ETHERNET_LENGTH => self.write_v4::<ETHERNET_LENGTH>(udp_length, identification, start),
                    _ => {
                        self.write_v4::<{ ETHERNET_LENGTH + VLAN_LENGTH }>(udp_length, identification, start)
                    }
                }
            }
            Family::V6 => {
                frame[..bth].copy_from_slice(&self.bytes[..bth]);
                frame[ip + 4..ip + 6].copy_from_slice(&udp_length.to_be_bytes());
                frame[udp + 4..udp + 6].copy_from_slice(&udp_length.to_be_bytes());
            }
        }
    }

    /// Writes the headers of an IPv4 packet whose IP header is at `IP`. Later writes overwrite the bytes after the headers.
    #[inline(always)]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the indices are constants within V4_ROOM; the sum of three 16-bit words fits into 32 bits"
    )]
    fn write_v4<const IP: usize>(&self, udp_length: u16, identification: u16, start: &mut [u8; V4_ROOM]) {
        start.copy_from_slice(&self.bytes[..V4_ROOM]);
        let length = u32::from(udp_length) + 20;
        // The sum of three words, folded twice, leaves no carry.
        let sum = u32::from(self.sum) + length + u32::from(identification);
        let sum = (sum & 0xffff) + (sum >> 16);
        let sum = (sum & 0xffff) + (sum >> 16);
        let both = length << 16 | u32::from(identification);
        start[IP + 2..IP + 6].copy_from_slice(&both.to_be_bytes());
        start[IP + 10..IP + 12].copy_from_slice(&(!(sum as u16)).to_be_bytes());
        start[IP + 24..IP + 26].copy_from_slice(&udp_length.to_be_bytes());
    }
}

#[expect(clippy::indexing_slicing, reason = "ROOM holds the longest header behind a tag")]
fn write_ipv4(ip: &mut [u8], path: &Path, from: Ipv4Addr, to: Ipv4Addr) {
    ip[..2].copy_from_slice(&[0x45, path.traffic_class]);
    ip[6..10].copy_from_slice(&[0x40, 0, path.hop_limit, UDP]);
    ip[12..16].copy_from_slice(&from.octets());
    ip[16..20].copy_from_slice(&to.octets());
}

#[expect(clippy::indexing_slicing, reason = "ROOM holds the longest header behind a tag")]
fn write_ipv6(ip: &mut [u8], path: &Path, from: Ipv6Addr, to: Ipv6Addr) {
    let word = 6 << 28 | u32::from(path.traffic_class) << 20 | path.flow_label & 0xf_ffff;
    ip[..4].copy_from_slice(&word.to_be_bytes());
    ip[6..8].copy_from_slice(&[UDP, path.hop_limit]);
    ip[8..24].copy_from_slice(&from.octets());
    ip[24..40].copy_from_slice(&to.octets());
}
