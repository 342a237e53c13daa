//! The virtio header before each frame of a packet socket with `PACKET_VNET_HDR` (`linux/virtio_net.h`): how the kernel segments a large
//! datagram to send, or would segment a received one.

/// Bytes of the header: `struct virtio_net_hdr` without the number of buffers.
pub const LENGTH: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field contains only the sum of the pseudo-header.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: UDP segments of one size. Packet sockets support it since Linux 6.2.
const UDP_L4: u8 = 5;
const UDP_CHECKSUM: u16 = 6;

/// The way in which the kernel segments a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// The datagram is a single frame.
    None,
    /// The datagram is split into UDP datagrams with this many payload bytes each. The last may be shorter.
    Udp(u16),
    /// The datagram is split in another way, `gso_type` in Linux, for example as a TCP segment.
    Other(u8),
}

/// A virtio header.
///
/// Has no field for `hdr_len`, which is only a hint: the kernel writes the length of its linear buffer there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    /// How the datagram is segmented.
    pub segmentation: Segmentation,
    /// Start of the bytes whose checksum is missing, and the offset of the checksum from there. `None` if none is missing.
    pub checksum: Option<(u16, u16)>,
}

impl VnetHeader {
    /// The header of a single frame with complete checksums.
    pub const FRAME: Self = Self { segmentation: Segmentation::None, checksum: None };

    /// Returns the header of a large datagram with its UDP header at offset `udp` and segments of `size` payload bytes. The kernel requires
    /// that the UDP checksum is missing.
    #[must_use]
    pub const fn of_datagram(udp: u16, size: u16) -> Self {
        Self { segmentation: Segmentation::Udp(size), checksum: Some((udp, UDP_CHECKSUM)) }
    }

    /// Returns true if the UDP checksum is missing and the UDP header is at offset `udp`.
    #[must_use]
    pub fn lacks_udp_checksum_at(self, udp: usize) -> bool {
        self.checksum.is_some_and(|(start, offset)| usize::from(start) == udp && offset == UDP_CHECKSUM)
    }

    /// Parses a header in native byte order.
    #[must_use]
    pub const fn parse(bytes: [u8; LENGTH]) -> Self {
        let [flags, kind, _, _, s0, s1, c0, c1, o0, o1] = bytes;
        let segmentation = match kind {
            0 => Segmentation::None,
            UDP_L4 => Segmentation::Udp(u16::from_ne_bytes([s0, s1])),
            other => Segmentation::Other(other),
        };
        let place = (u16::from_ne_bytes([c0, c1]), u16::from_ne_bytes([o0, o1]));
        Self { segmentation, checksum: if flags & NEEDS_CHECKSUM == 0 { None } else { Some(place) } }
    }

    /// Returns the header in native byte order, for a datagram whose headers have `headers` bytes.
    #[must_use]
    pub const fn bytes(self, headers: u16) -> [u8; LENGTH] {
        let (kind, size) = match self.segmentation {
            Segmentation::None => (0, 0),
            Segmentation::Udp(size) => (UDP_L4, size),
            Segmentation::Other(kind) => (kind, 0),
        };
        let (flags, (start, offset)) = match self.checksum {
            Some(place) => (NEEDS_CHECKSUM, place),
            None => (0, (0, 0)),
        };
        let ([h0, h1], [s0, s1]) = (headers.to_ne_bytes(), size.to_ne_bytes());
        let ([c0, c1], [o0, o1]) = (start.to_ne_bytes(), offset.to_ne_bytes());
        [flags, kind, h0, h1, s0, s1, c0, c1, o0, o1]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_header_parses_to_the_same() {
        let datagram = VnetHeader::of_datagram(34, 1040);
        assert!(datagram.lacks_udp_checksum_at(34) && !datagram.lacks_udp_checksum_at(38));
        for header in [VnetHeader::FRAME, datagram] {
            assert_eq!(VnetHeader::parse(header.bytes(42)), header);
        }
        assert_eq!(VnetHeader::FRAME.bytes(0), [0; LENGTH]);
    }

    #[test]
    fn other_types_keep_their_number() {
        // VIRTIO_NET_HDR_GSO_TCPV4, with VIRTIO_NET_HDR_GSO_ECN, and VIRTIO_NET_HDR_GSO_UDP.
        for kind in [1, 0x81, 3] {
            let header = VnetHeader::parse([0, kind, 0, 0, 1, 1, 0, 0, 0, 0]);
            assert_eq!(header.segmentation, Segmentation::Other(kind));
        }
    }
}
