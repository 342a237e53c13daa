//! Splits a received datagram in place into the frames that the kernel would have created from it.
//!
//! A frame's payload stays where it was received. Its headers are written before the payload, over the end of the previous frame, so a
//! frame is valid until the next one is requested.
//!
//! Only lengths and header types are used, after they have been checked against each other. The kernel has not computed the UDP checksum of
//! an unsegmented datagram. It is set to 0 in each frame, which means none. A RoCEv2 packet has its ICRC.

use super::headers::{Headers, LONGEST, NoUdp};
use super::vnet_header::{Segmentation, VnetHeader};

/// Most segments of a datagram: `UDP_MAX_SEGMENTS` since Linux 6.9.
const MAX_SEGMENTS: usize = 128;
const ADDRESSES: usize = 12;
const TAG: usize = 4;
/// Bytes before the received ones that the first frame needs for its tag.
pub const HEADROOM: usize = TAG;
const UDP_CHECKSUM: usize = 6;

/// A VLAN tag that the kernel removed from a frame: EtherType and tag control information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub [u8; 4]);

/// Reasons why a datagram cannot be split, and is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadDatagram {
    /// Its segmentation type, `gso_type`, is not UDP.
    Type(u8),
    /// It is not a UDP datagram.
    NoUdp(NoUdp),
    /// Its segment size is 0.
    Size,
    /// The lengths in its headers do not match its own length.
    Length,
    /// Its virtio header refers to a checksum that is not UDP's.
    Checksum,
    /// It has more segments than the kernel creates.
    Segments(usize),
    /// It ends within its Ethernet header, or more bytes were received than its length.
    Short,
}

impl From<NoUdp> for BadDatagram {
    fn from(why: NoUdp) -> Self {
        Self::NoUdp(why)
    }
}

/// A received frame or large datagram, without its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The first bytes as they were received, which frames overwrite. For a large datagram: all its headers.
    headers: [u8; LONGEST],
    head: usize,
    received: usize,
    /// Length on the wire in bytes.
    length: usize,
    tag: Option<Tag>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A frame, with the offset of its UDP checksum if that is incomplete.
    Frame(Option<usize>),
    /// A large datagram with `size` payload bytes in each of its `count` segments.
    Datagram { headers: Headers, size: usize, count: usize },
}

impl Received {
    /// Checks a received datagram: its first `bytes`, its full `length` in bytes, and the `tag` that the kernel removed from it.
    ///
    /// # Errors
    /// Returns the reason why the datagram cannot be split.
    #[inline]
    pub fn parse(
        vnet: VnetHeader,
        bytes: &[u8],
        length: usize,
        tag: Option<Tag>,
    ) -> Result<Self, BadDatagram> {
        if bytes.len() <= ADDRESSES || bytes.len() > length {
            return Err(BadDatagram::Short);
        }
        let kind = match vnet.segmentation {
            Segmentation::None if vnet.checksum.is_none() => Kind::Frame(None),
            Segmentation::None => {
                let udp = Headers::parse(bytes).map(Headers::udp).ok();
                let udp = udp.filter(|udp| vnet.lacks_udp_checksum_at(*udp));
                Kind::Frame(udp.map(|udp| udp + UDP_CHECKSUM))
            }
            Segmentation::Udp(size) => datagram(vnet, bytes, length, size.into())?,
            Segmentation::Other(kind) => return Err(BadDatagram::Type(kind)),
        };
        let head = match kind {
            Kind::Frame(_) => bytes.len().min(LONGEST),
            Kind::Datagram { headers, .. } => headers.length(),
        };
        let mut headers = [0; LONGEST];
        headers[..head].copy_from_slice(&bytes[..head]);
        Ok(Self { headers, head, received: bytes.len(), length, tag, kind })
    }

    /// Returns the number of frames, at least 1.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self.kind {
            Kind::Frame(_) => 1,
            Kind::Datagram { count, .. } => count,
        }
    }

    /// Assembles frame `number`, from 0 to [`count`](Self::count) - 1, in `room`, which has [`HEADROOM`] bytes followed by the received
    /// ones. Returns `None` if the frame was not received completely. Overwrites the previous frame, so only the last assembled frame can
    /// be assembled again.
    ///
    /// # Panics
    /// May panic if `room` has another length.
    #[inline]
    pub fn frame<'a>(&self, number: usize, room: &'a mut [u8]) -> Option<&'a mut [u8]> {
        let (start, end) = match self.kind {
            Kind::Frame(_) => (self.head, self.length),
            Kind::Datagram { size, .. } => {
                let start = self.head + number * size;
                (start, self.length.min(start + size))
            }
        };
        if end > self.received {
            return None;
        }
        let mut headers = self.headers;
        match self.kind {
            Kind::Frame(None) if self.tag.is_none() => return Some(&mut room[HEADROOM..HEADROOM + end]),
            Kind::Frame(None) => {}
            Kind::Frame(Some(checksum)) => headers[checksum..checksum + 2].fill(0),
            Kind::Datagram { headers: places, .. } => {
                places.rewrite(&mut headers, self.head + end - start, number as u16);
            }
        }
        let (addresses, others) = headers[..self.head].split_at(ADDRESSES);
        let tag = self.tag.as_ref().map_or(&[][..], |Tag(tag)| tag);
        let frame = &mut room[HEADROOM + start - self.head - tag.len()..HEADROOM + end];
        frame[..ADDRESSES].copy_from_slice(addresses);
        frame[ADDRESSES..][..tag.len()].copy_from_slice(tag);
        frame[ADDRESSES + tag.len()..][..others.len()].copy_from_slice(others);
        Some(frame)
    }
}

fn datagram(vnet: VnetHeader, bytes: &[u8], length: usize, size: usize) -> Result<Kind, BadDatagram> {
    let headers = Headers::parse(bytes)?;
    if size == 0 {
        return Err(BadDatagram::Size);
    }
    if vnet.checksum.is_some() && !vnet.lacks_udp_checksum_at(headers.udp()) {
        return Err(BadDatagram::Checksum);
    }
    if !headers.describe(bytes, length) {
        return Err(BadDatagram::Length);
    }
    // A datagram without payload is one frame.
    let count = (length - headers.length()).div_ceil(size).max(1);
    if count > MAX_SEGMENTS {
        return Err(BadDatagram::Segments(count));
    }
    Ok(Kind::Datagram { headers, size, count })
}
