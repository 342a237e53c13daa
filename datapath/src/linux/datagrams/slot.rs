//! A received frame or large datagram in the buffer in which it was received.

use super::split::Tag;
use super::vnet_header::VnetHeader;

#[derive(Debug)]
pub(in crate::linux) struct DatagramSlot<'a> {
    pub(in crate::linux) vnet: VnetHeader,
    /// [`HEADROOM`](super::HEADROOM) bytes, followed by the received bytes.
    pub(in crate::linux) room: &'a mut [u8],
    /// Length of the datagram in bytes.
    pub(in crate::linux) length: usize,
    pub(in crate::linux) tag: Option<Tag>,
}
