//! Shields DPDK's memif driver from its peer.
//!
//! As soon as the peer disconnects, the driver unmaps the connection's memory on DPDK's interrupt thread, even while the polling thread
//! uses it: the process crashes. It also crashes if a peer connects and disconnects before the driver's first message. So the driver never
//! talks to the peer directly: a [`Relay`] forwards their messages and is the first to see a peer disconnect. Then its [`Gate`](gate::Gate)
//! keeps the polling thread out while the driver cleans up.

mod gate;
mod interrupt;
mod relay;
mod socket;

pub(super) use relay::{Connection, Relay};
