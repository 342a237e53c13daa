//! The headers that all frames of a large datagram share: Ethernet with at most one tag, IPv4 without options or IPv6 without extension
//! headers, and UDP.

use roce::wire::SourceFields;
use std::net::IpAddr;

const ETHERNET: usize = 14;
const TAG: usize = 4;
const UDP: usize = 8;
const UDP_PROTOCOL: u8 = 17;
const ETHERTYPE_TAG: u16 = 0x8100;
const ETHERTYPE_IPV4: u16 = 0x0800;
const ETHERTYPE_IPV6: u16 = 0x86dd;
/// Most bytes of these headers.
pub(super) const LONGEST: usize = ETHERNET + TAG + 40 + UDP;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum IpVersion {
    V4,
    V6,
}

/// Offsets of the headers of a UDP datagram in its frame, which is at least as long as the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linux) struct Headers {
    family: IpVersion,
    ip: usize,
    udp: usize,
}

/// Fields of the IP header of a UDP datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::linux) struct Outer {
    pub(in crate::linux) source: IpAddr,
    pub(in crate::linux) destination: IpAddr,
    pub(in crate::linux) traffic_class: u8,
    pub(in crate::linux) hop_limit: u8,
}

/// Reasons why a frame does not have such headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoUdp {
    /// The frame ends within its headers.
    Short,
    /// The frame is neither IPv4 nor IPv6.
    EtherType,
    /// The IPv4 header is not 20 bytes long, because it has options.
    Options,
    /// The packet is a fragment.
    Fragment,
    /// The next protocol after the IP header is not UDP; it may be an IPv6 extension header.
    Protocol,
}

impl Headers {
    #[inline]
    pub(in crate::linux) fn parse(frame: &[u8]) -> Result<Self, NoUdp> {
        let ethertype = |at| Ok(u16::from_be_bytes(*chunk(frame, at)?));
        let (ip, kind) = match ethertype(ETHERNET - 2)? {
            ETHERTYPE_TAG => (ETHERNET + TAG, ethertype(ETHERNET + TAG - 2)?),
            kind => (ETHERNET, kind),
        };
        let (family, udp) = match kind {
            ETHERTYPE_IPV4 => {
                let [version, _, _, _, _, _, flags, offset, _, protocol] = *chunk::<10>(frame, ip)?;
                let fragment = u16::from_be_bytes([flags, offset]) & 0x3fff;
                check_v4(version, fragment, protocol)?;
                (IpVersion::V4, ip + 20)
            }
            ETHERTYPE_IPV6 => {
                let [version, _, _, _, _, _, next] = *chunk::<7>(frame, ip)?;
                if version >> 4 != 6 {
                    return Err(NoUdp::EtherType);
                }
                if next != UDP_PROTOCOL {
                    return Err(NoUdp::Protocol);
                }
                (IpVersion::V6, ip + 40)
            }
            _ => return Err(NoUdp::EtherType),
        };
        if frame.len() < udp + UDP { Err(NoUdp::Short) } else { Ok(Self { family, ip, udp }) }
    }

    pub(super) const fn udp(self) -> usize {
        self.udp
    }

    pub(in crate::linux) const fn length(self) -> usize {
        self.udp + UDP
    }

    /// Returns the length in bytes of the longest frame that the IP length field can describe.
    pub(super) const fn longest_frame(self) -> usize {
        match self.family {
            IpVersion::V4 => self.ip + u16::MAX as usize,
            IpVersion::V6 => self.udp + u16::MAX as usize,
        }
    }

    /// Returns true if the IP and UDP lengths match a frame of `length` bytes.
    #[inline]
    pub(in crate::linux) fn describe(self, frame: &[u8], length: usize) -> bool {
        let ip = match self.family {
            IpVersion::V4 => word(frame, self.ip + 2) as usize + self.ip,
            IpVersion::V6 => word(frame, self.ip + 4) as usize + self.udp,
        };
        ip == length && word(frame, self.udp + 4) as usize + self.udp == length
    }

    /// Returns true if the UDP checksum is 0, which means none.
    #[inline]
    pub(super) fn lacks_checksum(self, frame: &[u8]) -> bool {
        word(frame, self.udp + 6) == 0
    }

    /// Returns true if `next` can be the segment that the kernel creates `after` frames after `first`. It has the same headers except for
    /// lengths and checksums, and an identification that is greater by `after`.
    #[inline]
    pub(super) fn continues(self, first: &[u8], next: &[u8], after: u16) -> bool {
        self.resembles(first, next)
            && match self.family {
                IpVersion::V4 => word(next, self.ip + 4) == word(first, self.ip + 4).wrapping_add(after),
                IpVersion::V6 => true,
            }
    }

    /// Returns true if `next` has the same headers except for lengths, checksums and identification.
    #[inline]
    pub(super) fn resembles(self, first: &[u8], next: &[u8]) -> bool {
        let Self { family, ip, udp } = self;
        if next.len() < self.length() || !self.lacks_checksum(next) {
            return false;
        }
        let same = |from: usize, to: usize| first[from..to] == next[from..to];
        match family {
            IpVersion::V4 => same(0, ip + 2) && same(ip + 6, ip + 10) && same(ip + 12, udp + 4),
            IpVersion::V6 => same(0, ip + 4) && same(ip + 6, udp + 4),
        }
    }

    pub(in crate::linux) fn outer(self, frame: &[u8]) -> Option<Outer> {
        let rest = frame.get(self.ip..)?;
        Some(match self.family {
            IpVersion::V4 => Outer {
                source: (*rest.get(12..)?.first_chunk::<4>()?).into(),
                destination: (*rest.get(16..)?.first_chunk::<4>()?).into(),
                traffic_class: *rest.get(1)?,
                hop_limit: *rest.get(8)?,
            },
            IpVersion::V6 => Outer {
                source: (*rest.get(8..)?.first_chunk::<16>()?).into(),
                destination: (*rest.get(24..)?.first_chunk::<16>()?).into(),
                traffic_class: (word(rest, 0) >> 4) as u8,
                hop_limit: *rest.get(7)?,
            },
        })
    }

    /// Returns true if the frame has no tag and is for the UDP port `to`.
    pub(in crate::linux) fn is_untagged_to(self, frame: &[u8], to: u16) -> bool {
        self.ip == ETHERNET && word(frame, self.udp + 2) == to
    }

    pub(in crate::linux) fn source_port(self, frame: &[u8]) -> u16 {
        word(frame, self.udp)
    }

    pub(in crate::linux) fn source_fields(self, frame: &[u8]) -> SourceFields {
        let identification = if self.family == IpVersion::V4 { word(frame, self.ip + 4) } else { 0 };
        SourceFields { source_port: self.source_port(frame), identification }
    }

    pub(in crate::linux) fn set_source_port(self, frame: &mut [u8], port: u16) {
        frame[self.udp..self.udp + 2].copy_from_slice(&port.to_be_bytes());
    }

    /// Sets the identification of an IPv4 packet and updates the header checksum.
    pub(in crate::linux) fn renumber(self, frame: &mut [u8], identification: u16) {
        if self.family == IpVersion::V4 {
            let difference = identification.wrapping_sub(word(frame, self.ip + 4));
            self.rewrite(frame, frame.len(), difference);
        }
    }

    /// Changes `headers` to those of a frame of `length` bytes, without a UDP checksum. Adds `after` to the IPv4 identification.
    #[inline]
    pub(super) fn rewrite(self, headers: &mut [u8], length: usize, after: u16) {
        let Self { family, ip, udp } = self;
        let put = |headers: &mut [u8], at: usize, value: u16| {
            headers[at..at + 2].copy_from_slice(&value.to_be_bytes());
        };
        let udp_length = (length - udp) as u16;
        match family {
            IpVersion::V4 => {
                let [old_length, old, checksum] = [ip + 2, ip + 4, ip + 10].map(|at| word(headers, at));
                let (new_length, new) = ((length - ip) as u16, old.wrapping_add(after));
                // RFC 1624: an incremental update, so a damaged header stays damaged.
                let sum = [!checksum, !old_length, new_length, !old, new].map(u32::from).iter().sum();
                put(headers, ip + 2, new_length);
                put(headers, ip + 4, new);
                put(headers, ip + 10, !fold(sum));
            }
            IpVersion::V6 => put(headers, ip + 4, udp_length),
        }
        put(headers, udp + 4, udp_length);
        put(headers, udp + 6, 0);
    }

    /// Writes the sum of the pseudo-header to the UDP checksum field. The kernel or a NIC adds the rest.
    pub(super) fn begin_checksum(self, headers: &mut [u8]) {
        let Self { family, ip, udp } = self;
        let addresses = match family {
            IpVersion::V4 => ip + 12..ip + 20,
            IpVersion::V6 => ip + 8..ip + 40,
        };
        let length = u32::from(word(headers, udp + 4));
        let sum = fold(sum(&headers[addresses]) + u32::from(UDP_PROTOCOL) + length);
        headers[udp + 6..udp + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Sets the identification of a frame if it is a UDP datagram over IPv4.
pub(in crate::linux) fn renumber(frame: &mut [u8], identification: u16) {
    if let Ok(headers) = Headers::parse(frame) {
        headers.renumber(frame, identification);
    }
}

/// Returns the checksum of an IPv4 header whose checksum field is 0 (RFC 1071).
pub(in crate::linux) fn checksum(header: &[u8]) -> u16 {
    !fold(sum(header))
}

const fn check_v4(version: u8, fragment: u16, protocol: u8) -> Result<(), NoUdp> {
    match (version, fragment, protocol) {
        (0x45, 0, UDP_PROTOCOL) => Ok(()),
        (0x45, 0, _) => Err(NoUdp::Protocol),
        (0x45, _, _) => Err(NoUdp::Fragment),
        (0x40..=0x4f, _, _) => Err(NoUdp::Options),
        _ => Err(NoUdp::EtherType),
    }
}

#[inline]
fn chunk<const N: usize>(frame: &[u8], at: usize) -> Result<&[u8; N], NoUdp> {
    frame.get(at..).and_then(|rest| rest.first_chunk()).ok_or(NoUdp::Short)
}

#[inline]
fn word(frame: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([frame[at], frame[at + 1]])
}

/// Returns the sum of the 16-bit words of an even number of bytes, at most 64 KiB.
fn sum(bytes: &[u8]) -> u32 {
    bytes.chunks_exact(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum()
}

const fn fold(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}
