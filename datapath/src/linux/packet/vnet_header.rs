//! The virtio header that a packet socket with `PACKET_VNET_HDR` puts before each frame (linux/virtio_net.h): how the kernel cuts a large
//! datagram into frames, or how it would.

/// Bytes of the header: `struct virtio_net_hdr` without the number of buffers.
pub const LENGTH: usize = 10;

/// `VIRTIO_NET_HDR_F_NEEDS_CSUM`: the checksum field contains only the sum of the pseudo-header.
const NEEDS_CHECKSUM: u8 = 1;
/// `VIRTIO_NET_HDR_GSO_UDP_L4`: the datagram is a sequence of UDP datagrams of one size. Packet sockets know it since Linux 6.2.
const UDP_L4: u8 = 5;
/// The place of the checksum in a UDP header.
const UDP_CHECKSUM: u16 = 6;

/// How the kernel segments what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Segmentation {
    /// It is one frame.
    None,
    /// It is a sequence of UDP datagrams, each with so many bytes of payload. The last one may be shorter.
    Udp(u16),
    /// It is of another type, `gso_type` in Linux: a TCP segment, for example.
    Other(u8),
}

/// A virtio header, in the host's byte order.
///
/// The field `hdr_len` is not among its fields: the kernel calls it a hint, and writes the bytes that it has in one piece there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VnetHeader {
    /// How what follows is segmented.
    pub segmentation: Segmentation,
    /// Where the bytes begin whose checksum is missing, and the place of the checksum behind it; `None` if no checksum is missing.
    pub checksum: Option<(u16, u16)>,
}

impl VnetHeader {
    /// The header of a single frame with all its checksums.
    pub const FRAME: Self = Self { segmentation: Segmentation::None, checksum: None };

    /// The header of a large datagram whose UDP header begins at `udp`, in segments of `size` bytes of payload. The kernel demands that UDP's
    /// checksum is missing.
    #[must_use]
    pub const fn of_datagram(udp: u16, size: u16) -> Self {
        Self { segmentation: Segmentation::Udp(size), checksum: Some((udp, UDP_CHECKSUM)) }
    }

    /// Returns true if UDP's checksum is missing, and the UDP header begins at `udp`.
    #[must_use]
    pub fn lacks_udp_checksum_at(self, udp: usize) -> bool {
        self.checksum.is_some_and(|(start, offset)| usize::from(start) == udp && offset == UDP_CHECKSUM)
    }

    /// Parses the header that the kernel wrote.
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

    /// Returns the header as the kernel reads it, of a frame whose headers have `headers` bytes.
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
    fn a_header_parses_to_what_was_written() {
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
