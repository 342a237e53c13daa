//! The burst into which an endpoint writes the frames that leave.

use crate::qp::{QueuePair, Waiting};
use crate::{Psn, Qpn};
use alloc::boxed::Box;
use cc::Rate;
use core::net::IpAddr;
use core::time::Duration;

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

/// The state of a traced queue pair after its last turn.
#[derive(Debug)]
pub(super) struct Traced {
    acknowledged: Psn,
    pace: (Option<Rate>, u64),
}

impl Traced {
    /// Returns what a queue pair's turn changed, and remembers it in `before`. The first turn that is traced is compared with nothing.
    pub(super) fn turn(before: &mut Option<Box<Self>>, qp: &QueuePair, retransmitted: u64) -> TurnTrace {
        let report = qp.report();
        let now = Self { acknowledged: report.acknowledged_psn, pace: (report.rate, report.window) };
        let known = before.as_deref();
        let turn = TurnTrace {
            qpn: qp.identity().qpn,
            peer: qp.peer().map(|peer| peer.address),
            acknowledged: known.filter(|it| it.acknowledged != now.acknowledged).map(|_| now.acknowledged),
            round_trip: report.round_trip.map(|(last, _)| last),
            pace: (known.is_none_or(|it| it.pace != now.pace)).then_some(now.pace),
            retransmitted,
        };
        *before = Some(Box::new(now));
        turn
    }
}

/// Room for frames, one after the other, until there is no more.
pub trait Outbox {
    /// Returns room for the next frame: MTU + [`MAX_OVERHEAD`](crate::wire::MAX_OVERHEAD) bytes. Without a [`Self::commit`] between,
    /// it is the same again.
    fn room(&mut self) -> Option<&mut [u8]>;

    /// The first `length` bytes of the room are a frame.
    fn commit(&mut self, length: usize);

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

/// Room for one frame.
pub(super) struct Single<'a> {
    frame: &'a mut [u8],
    length: Option<usize>,
}

impl<'a> Single<'a> {
    pub(super) const fn new(frame: &'a mut [u8]) -> Self {
        Self { frame, length: None }
    }

    /// The length of the frame that was written.
    pub(super) const fn length(&self) -> Option<usize> {
        self.length
    }
}

impl Outbox for Single<'_> {
    #[inline]
    fn room(&mut self) -> Option<&mut [u8]> {
        self.length.is_none().then_some(&mut *self.frame)
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.length = Some(length);
    }
}
