//! Writes headers before the payload of a received datagram, because a UDP socket does not deliver them.

use super::address;
use super::control::{ControlMessages, number};
use crate::linux::datagrams::checksum;
use crate::neighbour::group_mac;
use roce::wire::{Mac, ROCE_PORT};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Bytes of the longest headers: Ethernet, IPv6, UDP.
pub(super) const LONGEST: usize = 14 + 40 + 8;

#[derive(Clone, Copy, Debug)]
pub(super) struct EthernetAddresses {
    pub(super) own: Mac,
    /// The address that represents all peers.
    pub(super) peer: Mac,
}

/// The kernel's information about a received datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DatagramInfo {
    pub(super) source: SocketAddr,
    pub(super) destination: IpAddr,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    /// Payload bytes of each packet but the last, if there are several.
    pub(super) segment: Option<u16>,
}

impl DatagramInfo {
    /// Reads the address and the control messages of a datagram. Returns `None` if something is missing.
    pub(super) fn read(name: &[u8; address::ROOM], control: &ControlMessages) -> Option<Self> {
        let source = address::read(name)?;
        let (mut destination, mut class, mut hops, mut segment) = (None, None, None, None);
        for (level, kind, data) in control.messages() {
            match (level, kind) {
                // `struct in_pktinfo` ends with the destination address of the header, and `struct in6_pktinfo` begins with it.
                (libc::IPPROTO_IP, libc::IP_PKTINFO) => {
                    destination =
                        data.get(8..12).map(|ip| IpAddr::from(Ipv4Addr::new(ip[0], ip[1], ip[2], ip[3])));
                }
                (libc::IPPROTO_IPV6, libc::IPV6_PKTINFO) => {
                    destination = data.first_chunk::<16>().map(|ip| Ipv6Addr::from(*ip).into());
                }
                (libc::IPPROTO_IP, libc::IP_TOS) | (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    class = number(data);
                }
                (libc::IPPROTO_IP, libc::IP_TTL) | (libc::IPPROTO_IPV6, libc::IPV6_HOPLIMIT) => {
                    hops = number(data);
                }
                (libc::SOL_UDP, libc::UDP_GRO) => segment = number(data),
                _ => {}
            }
        }
        let destination = destination.filter(|ip| ip.is_ipv4() == source.is_ipv4())?;
        let segment = segment.map(u16::try_from).transpose().ok()?;
        Some(Self {
            source,
            destination,
            traffic_class: u8::try_from(class?).ok()?,
            hop_limit: u8::try_from(hops?).ok()?,
            segment,
        })
    }

    pub(super) const fn headers(&self) -> usize {
        match self.destination {
            IpAddr::V4(_) => LONGEST - 20,
            IpAddr::V6(_) => LONGEST,
        }
    }

    /// Writes the headers of a frame with `payload` bytes of UDP payload to `into`, which has [`headers`](Self::headers) bytes. The IPv4
    /// identification is 0, "don't fragment" is set, and the flow label is 0. Returns false if the packet would be too long for IP.
    ///
    /// # Panics
    /// Panics if `into` has another length.
    pub(super) fn write(
        &self,
        ethernet: EthernetAddresses,
        is_own: bool,
        payload: usize,
        into: &mut [u8],
    ) -> bool {
        let Ok(udp_length) = u16::try_from(payload + 8) else { return false };
        let to = group_mac(self.destination).unwrap_or(ethernet.own);
        let from = if is_own { ethernet.own } else { ethernet.peer };
        into[..6].copy_from_slice(&to.0);
        into[6..12].copy_from_slice(&from.0);
        let (ip, udp) = into[12..].split_at_mut(self.headers() - 12 - 8);
        match (self.source.ip(), self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let Some(length) = udp_length.checked_add(20) else { return false };
                ip[..4].copy_from_slice(&[8, 0, 0x45, self.traffic_class]);
                ip[4..6].copy_from_slice(&length.to_be_bytes());
                ip[6..14].copy_from_slice(&[0, 0, 0x40, 0, self.hop_limit, 17, 0, 0]);
                ip[14..18].copy_from_slice(&source.octets());
                ip[18..22].copy_from_slice(&destination.octets());
                let checksum = checksum(&ip[2..]);
                ip[12..14].copy_from_slice(&checksum.to_be_bytes());
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let word = 6 << 28 | u32::from(self.traffic_class) << 20;
                ip[..2].copy_from_slice(&[0x86, 0xdd]);
                ip[2..6].copy_from_slice(&word.to_be_bytes());
                ip[6..8].copy_from_slice(&udp_length.to_be_bytes());
                ip[8..10].copy_from_slice(&[17, self.hop_limit]);
                ip[10..26].copy_from_slice(&source.octets());
                ip[26..42].copy_from_slice(&destination.octets());
            }
            _ => return false,
        }
        udp[..2].copy_from_slice(&self.source.port().to_be_bytes());
        udp[2..4].copy_from_slice(&ROCE_PORT.to_be_bytes());
        udp[4..6].copy_from_slice(&udp_length.to_be_bytes());
        udp[6..8].fill(0);
        true
    }
}
