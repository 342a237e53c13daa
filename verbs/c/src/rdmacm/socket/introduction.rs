//! The headers of datagrams, as in rdma-core's rsockets.
//!
//! The first datagram to a peer is sent through the kernel's UDP, after an introduction with the sender's QPN. The peer introduces itself
//! in return, without data. Further datagrams are sent through the queue pairs, each after its sender's address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Header of a datagram on a queue pair: the address of the sender's socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Source(pub(super) SocketAddr);

impl Source {
    pub(super) const MAX: usize = 24;

    /// Returns the bytes of the header, and its length.
    pub(super) fn write(self) -> ([u8; Self::MAX], usize) {
        let mut bytes = [0; Self::MAX];
        bytes[2..4].copy_from_slice(&self.0.port().to_be_bytes());
        let length = match self.0 {
            SocketAddr::V4(source) => {
                bytes[4..8].copy_from_slice(&source.ip().octets());
                8
            }
            SocketAddr::V6(source) => {
                bytes[4..8].copy_from_slice(&source.flowinfo().to_be_bytes());
                bytes[8..].copy_from_slice(&source.ip().octets());
                Self::MAX
            }
        };
        (bytes[0], bytes[1]) = (if length == 8 { 4 } else { 6 }, length as u8);
        (bytes, length)
    }

    /// Reads the header at the start of a datagram. Also returns the offset of the data. Returns `None` if the header is invalid.
    pub(super) fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let port = u16::from_be_bytes([*bytes.get(2)?, *bytes.get(3)?]);
        let (ip, length) = match (bytes[0], bytes[1]) {
            (4, 8) => (IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?), 8),
            (6, 24) => (IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?), Self::MAX),
            _ => return None,
        };
        Some((Self(SocketAddr::new(ip, port)), length))
    }
}

const TAG: [u8; 4] = [0x55; 4];
/// Types of introductions: with a datagram, and without one.
const DATA: u8 = 0;
const CONTROL: u8 = 7;

/// Header of a message in the kernel's UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Introduction {
    pub(super) qpn: u32,
    /// The address of the queue pair's device, of the same family as the message.
    pub(super) ip: IpAddr,
    /// Whether a datagram follows. It does if the sender does not know the receiver's QPN.
    pub(super) has_data: bool,
}

impl Introduction {
    pub(super) const MAX: usize = 28;

    /// Returns the bytes of the header, and its length.
    pub(super) fn write(&self) -> ([u8; Self::MAX], usize) {
        let mut bytes = [0; Self::MAX];
        bytes[..4].copy_from_slice(&TAG);
        bytes[5] = if self.has_data { DATA } else { CONTROL };
        bytes[8..12].copy_from_slice(&self.qpn.to_be_bytes());
        let length = match self.ip {
            IpAddr::V4(ip) => {
                bytes[12..16].copy_from_slice(&ip.octets());
                16
            }
            IpAddr::V6(ip) => {
                bytes[12..].copy_from_slice(&ip.octets());
                Self::MAX
            }
        };
        (bytes[4], bytes[6]) = (if length == 16 { 4 } else { 6 }, length as u8);
        (bytes, length)
    }

    /// Reads the header at the start of a message from `from`. Also returns the offset of the data. Returns `None` if it is no
    /// introduction.
    pub(super) fn read(bytes: &[u8], from: IpAddr) -> Option<(Self, usize)> {
        let (length, address) = (usize::from(*bytes.get(6)?), bytes.get(12..)?);
        let ip = match (bytes[4], length, from) {
            (4, 16, IpAddr::V4(_)) => Ipv4Addr::from(*address.first_chunk::<4>()?).into(),
            (6, Self::MAX, IpAddr::V6(_)) => Ipv6Addr::from(*address.first_chunk::<16>()?).into(),
            _ => return None,
        };
        let qpn = u32::from_be_bytes(*bytes[8..12].first_chunk()?) & 0xff_ffff;
        let known = bytes[..4] == TAG;
        known.then_some((Self { qpn, ip, has_data: bytes[5] == DATA }, length))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> [SocketAddr; 2] {
        ["10.1.2.3:7174".parse().unwrap(), "[fd00::9]:513".parse().unwrap()]
    }

    #[test]
    fn a_source_is_read_as_it_was_written() {
        for source in sources() {
            let (bytes, length) = Source(source).write();
            assert_eq!(Source::read(&bytes[..length]), Some((Source(source), length)));
            // A shorter header, and one with another length field, is refused.
            assert_eq!(Source::read(&bytes[..length - 1]), None);
            assert_eq!(Source::read(&[&[bytes[0], 9], &bytes[2..]].concat()), None);
        }
        // Layout of rdma-core: version, length, port, address.
        let (bytes, length) = Source(sources()[0]).write();
        assert_eq!(bytes[..length], [4, 8, 0x1c, 0x06, 10, 1, 2, 3]);
        assert_eq!(Source::read(&[]), None);
    }

    #[test]
    fn an_introduction_is_read_as_it_was_written() {
        for source in sources() {
            for has_data in [false, true] {
                let introduction = Introduction { qpn: 0x12_3456, ip: source.ip(), has_data };
                let (bytes, length) = introduction.write();
                let read = |bytes: &[u8]| Introduction::read(bytes, source.ip());
                assert_eq!(read(&bytes[..length]), Some((introduction, length)));
                assert_eq!(read(&bytes[..length - 1]), None);
                let other = sources().map(|other| other.ip()).into_iter().find(|ip| *ip != source.ip());
                assert_eq!(Introduction::read(&bytes[..length], other.unwrap()), None, "another family");
                let mut foreign = bytes;
                foreign[3] = 0;
                assert_eq!(read(&foreign[..length]), None, "another tag");
            }
        }
        // Layout of rdma-core: tag, version, type, length, reserved, QPN, address.
        let introduction = Introduction { qpn: 0x42, ip: sources()[0].ip(), has_data: false };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 7, 16, 0, 0, 0, 0, 0x42, 10, 1, 2, 3];
        assert_eq!(introduction.write().0[..16], bytes);
    }
}
