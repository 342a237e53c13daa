//! A received frame or large datagram in the buffer in which it was received.

use super::split::{HEADROOM, Tag};
use super::vnet_header::{Segmentation, VnetHeader};

#[derive(Debug)]
pub(in crate::linux) struct DatagramSlot<'a> {
    pub(in crate::linux) vnet: VnetHeader,
    /// [`HEADROOM`](super::HEADROOM) bytes, followed by the received bytes.
    pub(in crate::linux) room: &'a mut [u8],
    /// Length of the datagram in bytes.
    pub(in crate::linux) length: usize,
    pub(in crate::linux) tag: Option<Tag>,
}

impl DatagramSlot<'_> {
    /// Returns true if bytes of a large UDP datagram are missing.
    #[inline]
    pub(in crate::linux) fn is_cut_datagram(&self) -> bool {
        matches!(self.vnet.segmentation, Segmentation::Udp(_)) && self.room.len() < HEADROOM + self.length
    }
}
