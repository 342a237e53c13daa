//! Splits a received datagram, where it lies, into the frames that the kernel would make of it.
//!
//! A frame's payload stays where it was received. Its headers are written before it, over the end of the frame before, so a frame exists
//! until the next one is asked for.
//!
//! Only lengths and the types of headers are trusted, after they have been checked against each other. UDP's checksum, which the kernel has
//! not computed for a datagram that it did not cut, is 0 in each frame: none. A RoCEv2 packet has its ICRC.

use super::headers::{Headers, LONGEST, NoUdp};
use super::vnet_header::{Segmentation, VnetHeader};

/// The most segments of a datagram: `UDP_MAX_SEGMENTS` since Linux 6.9.
const MAX_SEGMENTS: usize = 128;
/// Bytes of the Ethernet addresses, behind which a tag goes.
const ADDRESSES: usize = 12;
/// Bytes of a tag.
const TAG: usize = 4;
/// The bytes before what was received that belong to the first frame if it gets its tag back.
pub const HEADROOM: usize = TAG;
/// The place of the checksum in a UDP header.
const UDP_CHECKSUM: usize = 6;

/// A VLAN tag that the kernel has taken out of a frame: EtherType and tag control information.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub [u8; 4]);

/// Why a datagram cannot be split. It is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadDatagram {
    /// Its type of segmentation is another one than UDP's, with this number in `gso_type`.
    Type(u8),
    /// It is no UDP datagram.
    NoUdp(NoUdp),
    /// Its segments are of 0 bytes.
    Size,
    /// The lengths in its headers differ from its own.
    Length,
    /// Its virtio header names another checksum than UDP's.
    Checksum,
    /// It has more segments than the kernel makes.
    Segments(usize),
    /// It ends within its Ethernet header, or is shorter than what was received of it.
    Short,
}

impl From<NoUdp> for BadDatagram {
    fn from(why: NoUdp) -> Self {
        Self::NoUdp(why)
    }
}

/// A received frame, or a received datagram of several, apart from its bytes.
#[derive(Clone, Copy, Debug)]
pub struct Received {
    /// The first bytes, as they were received: all headers of a datagram of several frames. Its frames overwrite them.
    headers: [u8; LONGEST],
    /// Bytes of these.
    head: usize,
    /// Bytes that were received.
    received: usize,
    /// Bytes on the wire.
    length: usize,
    tag: Option<Tag>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A frame, and the place of a UDP checksum that is not complete.
    Frame(Option<usize>),
    /// A datagram in segments of `size` bytes of payload, and their number.
    Datagram { headers: Headers, size: usize, count: usize },
}

impl Received {
    /// Checks what a packet socket received: the first `bytes` of `length`, out of which the kernel has taken `tag`.
    ///
    /// # Errors
    /// Returns why it cannot be split.
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

    /// Returns the number of frames, 1 at least.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self.kind {
            Kind::Frame(_) => 1,
            Kind::Datagram { count, .. } => count,
        }
    }

    /// Assembles frame `number`, from 0 to [`count`](Self::count) - 1, in `room`: [`HEADROOM`] bytes and those that were received. Returns
    /// `None` if the frame was not received whole. The last frame may be assembled again; those before it are damaged.
    ///
    /// # Panics
    /// May panic if `room` has another length.
    #[inline]
    pub fn frame<'a>(&self, number: usize, room: &'a mut [u8]) -> Option<&'a [u8]> {
        // The end of the headers, and that of the frame.
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
            Kind::Frame(None) if self.tag.is_none() => return Some(&room[HEADROOM..HEADROOM + end]),
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

/// Checks a datagram of several frames.
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
