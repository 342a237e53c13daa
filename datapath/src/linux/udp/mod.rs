//! UDP sockets that send and receive RoCEv2 packets without any privilege (udp(7), `UDP_SEGMENT`, `UDP_GRO`).
//!
//! The kernel writes and removes the headers below UDP's payload. What is received gets headers again, from the kernel's control messages, so
//! that everything above sees frames.

mod address;
mod control;
mod identification;
mod rebuild;
mod receiving;
mod sending;
mod socket;
mod support;

pub use socket::UdpSockets;
