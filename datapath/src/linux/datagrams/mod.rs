//! Large UDP datagrams, which the kernel or a NIC segments into packets of one size, or assembles from them.
//!
//! In the kernel, a datagram of 64 KiB costs about as much as a frame. So frames of a burst that can be the segments of one datagram are
//! sent as one, and received datagrams are split here.

/// Bytes of the longest datagram.
pub(super) const LONGEST: usize = 64 << 10;
/// Requested size of a socket's queue in bytes. Linux doubles this number, to account for its own structures. Without CAP_NET_ADMIN, it
/// limits it to `net.core.rmem_max`, about six large datagrams by default.
pub(super) const QUEUE: libc::c_int = 8 << 20;

mod front;
mod group;
mod headers;
mod in_place;
mod single_peers;
mod slot;
mod split;
#[cfg(test)]
pub(super) mod tests;
mod vnet_header;

pub(super) use front::Front;
pub use group::{Group, MAX_BYTES, MAX_SEGMENTS, Start};
pub use headers::NoUdp;
pub(super) use headers::{Headers, Outer, checksum, renumber};
pub(super) use in_place::{InPlaceFrames, free};
pub(super) use single_peers::SinglePeers;
pub(super) use slot::DatagramSlot;
pub use split::{BadDatagram, HEADROOM, Received, Tag};
pub(super) use vnet_header::LENGTH as VNET_LENGTH;
pub use vnet_header::{Segmentation, VnetHeader};
