//! A burst of one frame, and what a traced queue pair did in its turn.

use crate::qp::QueuePair;
use crate::{Outbox, Psn, TurnTrace};
use alloc::boxed::Box;
use cc::Rate;

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
