//! A burst of one frame, and the trace of a queue pair's turn.

use crate::qp::QueuePair;
use crate::{Outbox, Psn, TurnTrace};
use alloc::boxed::Box;
use cc::Rate;

#[derive(Debug)]
pub(super) struct Traced {
    acknowledged: Psn,
    pace: (Option<Rate>, u64),
}

impl Traced {
    /// Returns the changes of a turn, and stores the new state in `before`. The first traced turn has no changes.
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

pub(super) struct SingleFrame<'a> {
    frame: &'a mut [u8],
    length: Option<usize>,
}

impl<'a> SingleFrame<'a> {
    pub(super) const fn new(frame: &'a mut [u8]) -> Self {
        Self { frame, length: None }
    }

    pub(super) const fn length(&self) -> Option<usize> {
        self.length
    }
}

impl Outbox for SingleFrame<'_> {
    #[inline]
    fn room(&mut self) -> Option<&mut [u8]> {
        self.length.is_none().then_some(&mut *self.frame)
    }

    #[inline]
    fn commit(&mut self, length: usize) {
        self.length = Some(length);
    }
}
