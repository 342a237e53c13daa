//! Protects DPDK's memif driver from its peer.
//!
//! When the peer disconnects, the driver unmaps the connection's memory on DPDK's interrupt thread, even while the polling thread uses it:
//! the process crashes. It also crashes if a peer connects and disconnects before the driver's first message. So the driver never has a
//! direct connection to the peer. A [`Relay`] forwards their messages and detects first that a peer has disconnected. Its
//! [`Gate`](gate::Gate) then excludes the polling thread while the driver cleans up.

mod gate;
mod interrupt;
mod relay;
mod socket;

pub(super) use relay::{Connection, Relay};
