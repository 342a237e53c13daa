//! Shields DPDK's memif driver from its peer.
//!
//! The driver unmaps a connection's memory on DPDK's interrupt thread as soon as the peer leaves, whatever the polling thread does with it
//! then: the process dies. It dies too when a peer connects and leaves before the greeting. So the driver never meets the peer: a [`Relay`]
//! passes their messages on, and sees a peer leave first. It then keeps the polling thread away by the [`Gate`](gate::Gate) while the
//! driver clears up.

mod bell;
mod gate;
mod relay;
mod socket;

pub(super) use relay::{Meeting, Relay};
