//! Where an endpoint writes the frames that leave.

use crate::qp::Waiting;
use crate::wire::Mac;
use crate::{Psn, Qpn};
use cc::Rate;
use core::net::IpAddr;
use core::time::Duration;

/// Room for frames, one after the other, until there is no more.
pub trait Outbox {
    /// Returns room for the next frame: MTU + [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD) bytes. Without a [`Self::commit`] between,
    /// it is the same again.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// The first `length` bytes of the room are a frame.
    fn commit(&mut self, length: usize);

    /// The next turn to send begins. Returns whether frames to some peer have no room, so that [`Self::has_room_to`] decides.
    #[inline(always)]
    fn begin_turn(&mut self) -> bool {
        false
    }

    /// Returns whether frames to this queue pair, behind this Ethernet address, have room.
    fn has_room_to(&self, mac: Mac, qpn: Qpn) -> bool {
        let _ = (mac, qpn);
        true
    }

    /// Returns what a queue pair with more to send waits for, once there is no room.
    fn why_full(&self) -> Waiting {
        Waiting::Turn
    }

    /// Returns whether [`Self::trace`] wants to know of each turn.
    #[inline(always)]
    fn is_traced(&self) -> bool {
        false
    }

    /// A queue pair had its turn to send.
    fn trace(&mut self, turn: &TurnTrace) {
        let _ = turn;
    }
}

/// The changes between two turns of a queue pair, for trace points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnTrace {
    /// The queue pair.
    pub qpn: Qpn,
    /// Its peer's address; `None` without a connection.
    pub peer: Option<IpAddr>,
    /// The last PSN that the peer acknowledged, if it moved.
    pub acknowledged: Option<Psn>,
    /// The last round trip; `None` before the first.
    pub round_trip: Option<Duration>,
    /// Pacing rate and window in bytes, if one of them changed; a rate of `None` is no limit.
    pub pace: Option<(Option<Rate>, u64)>,
    /// Packets that were sent again in this turn.
    pub retransmitted: u64,
}
