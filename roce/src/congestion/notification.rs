//! Congestion notification packets: the notification point of DCQCN (IBA annex A17.9.3).

use crate::wire::{Bth, Ecn, Frame};
use cc::Instant;
use core::time::Duration;

/// Sends the peer at most one CNP in an interval, regardless of the number of its marked packets.
#[derive(Debug)]
pub(super) struct Notifier {
    interval: Duration,
    last: Option<Instant>,
    is_due: bool,
}

impl Notifier {
    pub(super) const fn new(interval: Duration) -> Self {
        Self { interval, last: None, is_due: false }
    }

    /// Makes a CNP due if the packet is marked, unless it requests an exact echo. Returns whether it is marked.
    #[inline]
    pub(super) fn on_packet(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
        let is_marked = Ecn::from_traffic_class(frame.network.traffic_class()) == Ecn::Ce;
        if is_marked
            && frame.header.bth().congestion & Bth::EXACT_ECHO == 0
            && self.last.is_none_or(|last| now.saturating_since(last) >= self.interval)
        {
            self.is_due = true;
            self.last = Some(now);
        }
        is_marked
    }

    pub(super) const fn is_due(&self) -> bool {
        self.is_due
    }

    pub(super) const fn on_sent(&mut self) {
        self.is_due = false;
    }
}
