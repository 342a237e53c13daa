//! The buffer into which an endpoint writes frames.

use crate::qp::Waiting;
use crate::wire::Mac;
use crate::{Psn, Qpn};
use cc::Rate;
use core::net::IpAddr;
use core::time::Duration;

/// Room for frames, one after the other.
pub trait Outbox {
    /// Returns room for the next frame: MTU + [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD) bytes; `None` if there is none. Without a
    /// [`Self::commit`], the next call returns the same room again.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// Completes a frame, which is the first `length` bytes of the room.
    fn commit(&mut self, length: usize);

    /// Begins the next turn. Returns whether [`Self::has_room_to`] must be called, because some peers have no room for frames.
    #[inline(always)]
    fn begin_turn(&mut self) -> bool {
        false
    }

    /// Returns whether there is room for frames to this queue pair at this Ethernet address.
    fn has_room_to(&self, mac: Mac, qpn: Qpn) -> bool {
        let _ = (mac, qpn);
        true
    }

    /// Returns the waiting state of a queue pair with more to send when there is no room.
    fn why_full(&self) -> Waiting {
        Waiting::Turn
    }

    /// Returns whether to call [`Self::trace`] for each turn.
    #[inline(always)]
    fn is_traced(&self) -> bool {
        false
    }

    /// Records a queue pair's turn.
    fn trace(&mut self, turn: &TurnTrace) {
        let _ = turn;
    }
}

/// Changes between two turns of a queue pair, for trace points.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnTrace {
    /// Queue pair.
    pub qpn: Qpn,
    /// Address of its peer; `None` without a connection.
    pub peer: Option<IpAddr>,
    /// Last PSN that the peer acknowledged, if it changed.
    pub acknowledged: Option<Psn>,
    /// Last round trip; `None` before the first.
    pub round_trip: Option<Duration>,
    /// Pacing rate and window in bytes, if one of them changed; a rate of `None` is unlimited.
    pub pace: Option<(Option<Rate>, u64)>,
    /// Packets retransmitted in this turn.
    pub retransmitted: u64,
}
