//! A packet socket that sends and receives large datagrams (packet(7), `PACKET_VNET_HDR`).
//!
//! In the kernel, a datagram of 64 KiB costs about as much as a frame. So frames of a burst that can be the segments of one datagram are
//! sent as one, and received datagrams are split here.

mod front;
mod group;
mod headers;
mod ring;
mod send_socket;
mod sending;
mod socket;
mod split;
mod support;
#[cfg(test)]
mod tests;
mod vnet_header;

pub use group::{Group, MAX_BYTES, MAX_SEGMENTS, Start};
pub use headers::NoUdp;
pub(crate) use send_socket::SendSocket;
pub use socket::{PacketSocket, SocketConfig};
pub use split::{BadDatagram, HEADROOM, Received, Tag};
pub use vnet_header::{Segmentation, VnetHeader};
