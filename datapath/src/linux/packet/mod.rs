//! A packet socket that sends and receives large datagrams (packet(7), `PACKET_VNET_HDR`).

mod queued;
mod ring;
mod send_socket;
mod sending;
mod socket;
mod support;

pub(crate) use send_socket::SendSocket;
pub use socket::{PacketSocket, SocketConfig};
