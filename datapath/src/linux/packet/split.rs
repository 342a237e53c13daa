//! Splits a received datagram into the frames that the kernel would make of it.
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

/// A received frame, or a received datagram of several.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// What was received of it.
    bytes: &'a [u8],
    /// Its bytes on the wire.
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

/// One of the frames of a [`Received`].
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    head: &'a [u8],
    payload: &'a [u8],
    tag: Option<Tag>,
    rewrite: Rewrite,
}

/// What changes in a frame's headers.
#[derive(Clone, Copy, Debug)]
enum Rewrite {
    Nothing,
    /// The UDP checksum at this place is removed.
    Checksum(usize),
    /// The headers become those of a segment, whose identification is so much higher than the first's.
    Segment(Headers, u16),
}

impl<'a> Received<'a> {
    /// Checks what a packet socket received: the first `bytes` of `length`, out of which the kernel has taken `tag`.
    ///
    /// # Errors
    /// Returns why it cannot be split.
    #[inline]
    pub fn parse(
        vnet: VnetHeader,
        bytes: &'a [u8],
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
        Ok(Self { bytes, length, tag, kind })
    }

    /// Returns the number of frames, 1 at least.
    #[must_use]
    pub const fn count(&self) -> usize {
        match self.kind {
            Kind::Frame(_) => 1,
            Kind::Datagram { count, .. } => count,
        }
    }

    /// Returns frame `number`, from 0 to [`count`](Self::count) - 1; `None` if it was not received whole.
    #[inline]
    #[must_use]
    pub fn frame(&self, number: usize) -> Option<Frame<'a>> {
        let Self { bytes, length, tag, kind } = *self;
        let (head, payload, rewrite) = match kind {
            Kind::Frame(_) if bytes.len() < length => return None,
            Kind::Frame(checksum) => {
                let (head, payload) = bytes.split_at(bytes.len().min(LONGEST));
                (head, payload, checksum.map_or(Rewrite::Nothing, Rewrite::Checksum))
            }
            Kind::Datagram { headers, size, .. } => {
                let from = headers.length() + number * size;
                let payload = bytes.get(from..length.min(from + size))?;
                (&bytes[..headers.length()], payload, Rewrite::Segment(headers, number as u16))
            }
        };
        Some(Frame { head, payload, tag, rewrite })
    }
}

impl Frame<'_> {
    /// Returns the frame's bytes, its tag included.
    #[inline]
    #[must_use]
    pub const fn length(&self) -> usize {
        let tag = if self.tag.is_some() { TAG } else { 0 };
        self.head.len() + tag + self.payload.len()
    }

    /// Writes the frame to `into`, which has its [`length`](Self::length).
    ///
    /// # Panics
    /// Panics if `into` is of another length.
    #[inline]
    pub fn write(&self, into: &mut [u8]) {
        let (head, payload) = into.split_at_mut(into.len() - self.payload.len());
        payload.copy_from_slice(self.payload);
        // The headers move behind the tag once they are written.
        let (untagged, length) = (self.head.len(), self.head.len() + self.payload.len());
        head[..untagged].copy_from_slice(self.head);
        match self.rewrite {
            Rewrite::Nothing => {}
            Rewrite::Checksum(at) => head[at..at + 2].fill(0),
            Rewrite::Segment(headers, after) => headers.rewrite(&mut head[..untagged], length, after),
        }
        if let Some(Tag(tag)) = self.tag {
            head.copy_within(ADDRESSES..untagged, ADDRESSES + TAG);
            head[ADDRESSES..ADDRESSES + TAG].copy_from_slice(&tag);
        }
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
