//! Groups the frames of a burst into datagrams that the kernel segments into the same frames again (`VIRTIO_NET_HDR_GSO_UDP_L4`).
//!
//! The kernel increments the IPv4 identification from segment to segment, starting with that of the first header. It copies all other
//! fields of the headers, and computes the UDP checksum, which these frames lack. A RoCEv2 packet's ICRC covers everything but that
//! checksum, so it stays valid.

use super::headers::{Headers, LONGEST};
use super::vnet_header::{self, VnetHeader};
use arrayvec::ArrayVec;
use std::net::IpAddr;
use std::ops::Deref;

/// Most segments of a datagram: `UDP_MAX_SEGMENTS` before Linux 6.9, which raised it to 128.
pub const MAX_SEGMENTS: usize = 64;
/// Most bytes of a datagram with its headers. With the kernel's header, it fits into a receiver's slot. Most devices accept no datagram of
/// 64 KiB or more.
pub const MAX_BYTES: usize = 65_000;

/// The virtio header and the headers of a datagram.
pub type Start = ArrayVec<u8, { vnet_header::LENGTH + LONGEST }>;

/// The frames at the front of a burst that are sent as one datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    headers: Headers,
    count: usize,
    /// Payload bytes of each frame but the last.
    size: u16,
    /// Bytes of the datagram with its headers.
    bytes: usize,
}

impl Group {
    /// Returns the longest group at the front of `frames`, or `None` if the first frame must be sent singly.
    #[inline]
    #[must_use]
    pub fn first_of<F: Deref<Target = [u8]>>(frames: &[F]) -> Option<Self> {
        Self::first_by(frames, |headers, first, next, after| headers.continues(first, next, after))
    }

    /// As [`first_of`](Self::first_of), but ignores the identifications, because a UDP socket numbers the segments itself.
    #[inline]
    pub(in crate::linux) fn first_of_socket<F: Deref<Target = [u8]>>(frames: &[F]) -> Option<Self> {
        Self::first_by(frames, |headers, first, next, _| headers.resembles(first, next))
    }

    #[inline(always)]
    fn first_by<F: Deref<Target = [u8]>>(
        frames: &[F],
        continues: impl Fn(Headers, &[u8], &[u8], u16) -> bool,
    ) -> Option<Self> {
        let [first, second, ..] = frames else { return None };
        // Checked first, because it rules out most frames that are sent singly.
        if second.len() > first.len() {
            return None;
        }
        let headers = Headers::parse(first).ok()?;
        let size = first.len() - headers.length();
        if size == 0 || !headers.describe(first, first.len()) || !headers.lacks_checksum(first) {
            return None;
        }
        let most = MAX_BYTES.min(headers.longest_frame());
        let (mut count, mut bytes) = (1, first.len());
        for next in frames[1..].iter().take(MAX_SEGMENTS - 1) {
            let fits = (headers.length() + 1..=first.len()).contains(&next.len())
                && bytes + next.len() - headers.length() <= most;
            if !fits || !continues(headers, first, next, count as u16) || !headers.describe(next, next.len())
            {
                break;
            }
            count += 1;
            bytes += next.len() - headers.length();
            // Only the last frame may be shorter.
            if next.len() < first.len() {
                break;
            }
        }
        // Cannot truncate: the payload of a frame is shorter than 64 KiB.
        (count > 1).then_some(Self { headers, count, size: size as u16, bytes })
    }

    /// Returns the number of frames, at least 2.
    #[must_use]
    pub const fn count(&self) -> usize {
        self.count
    }

    /// Returns the IP address to which the datagram is sent. `first` is the first frame.
    pub(in crate::linux) fn destination(&self, first: &[u8]) -> Option<IpAddr> {
        self.headers.outer(first).map(|outer| outer.destination)
    }

    pub(in crate::linux) const fn size(&self) -> u16 {
        self.size
    }

    /// Returns the virtio header and the headers of the datagram, to send before the payloads. `first` is the first frame.
    #[must_use]
    pub fn start(&self, first: &[u8]) -> Start {
        let length = self.headers.length();
        let mut headers: ArrayVec<u8, LONGEST> = first[..length].iter().copied().collect();
        self.headers.rewrite(&mut headers, self.bytes, 0);
        self.headers.begin_checksum(&mut headers);
        let vnet = VnetHeader::of_datagram(self.headers.udp() as u16, self.size);
        vnet.bytes(length as u16).into_iter().chain(headers).collect()
    }

    /// Returns the payload of one of the frames.
    #[must_use]
    pub fn payload<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        &frame[self.headers.length()..]
    }
}
