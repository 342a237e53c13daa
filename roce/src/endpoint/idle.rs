//! Frees the memory that queue pairs keep for their peers: for telemetry, once those peers no longer send any, and for packets that came
//! early.
//!
//! A few queue pairs at a time are visited, when frames come; early packets also have a timer.

use super::Endpoint;
use crate::Qpn;
use alloc::collections::VecDeque;
use cc::Instant;
use core::time::Duration;

/// Between two looks.
const INTERVAL: Duration = Duration::from_millis(1);
/// Queue pairs that one look visits at most.
const VISITS: usize = 16;

/// Queue pairs that keep memory for telemetry, in the order of their next visits. Some may be gone.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    qpns: VecDeque<Qpn>,
    next_look: Instant,
}

impl Endpoint {
    /// The queue pair at this place has taken a frame in: it may keep memory now that it did not keep before.
    #[inline]
    pub(super) fn watch_memory(&mut self, index: u32) {
        if let Some(slot) = self.qps.at_mut(index)
            && slot.qp.keeps_telemetry()
            && !slot.is_keeper
        {
            slot.is_keeper = true;
            self.keepers.qpns.push_back(slot.qp.identity().qpn);
        }
    }

    /// A frame has come: it may be time to look for memory that is not needed any more.
    #[inline]
    pub(super) fn release_idle(&mut self, now: Instant) {
        if !self.keepers.qpns.is_empty() && self.keepers.next_look <= now {
            self.look(now);
        }
        if self.commons.early.next_look().is_some_and(|at| at <= now) {
            self.look_for_early(now);
        }
    }

    /// Frees what is not needed any more. If a packet found no room, evicts the packets of the queue pair that uses most of those
    /// visited, unless the one that needs room uses more than half as much.
    #[cold]
    fn look_for_early(&mut self, now: Instant) {
        let (visits, least) = self.commons.early.begin_look(now);
        let mut largest: Option<(usize, Qpn)> = None;
        for _ in 0..visits {
            let Some(qpn) = self.commons.early.next_holder() else { break };
            let Some((_, qp, mut context)) = self.open(now, qpn) else { continue };
            let bytes = qp.release_early(&mut context);
            if bytes > 0 {
                largest = largest.filter(|&(most, _)| most >= bytes).or(Some((bytes, qpn)));
                self.commons.early.visit_again(qpn);
            }
        }
        if let (Some((bytes, qpn)), Some(least)) = (largest, least)
            && bytes >= least
            && let Some((_, qp, mut context)) = self.open(now, qpn)
        {
            qp.evict_early(&mut context);
        }
    }

    #[cold]
    fn look(&mut self, now: Instant) {
        self.keepers.next_look = now + INTERVAL;
        for _ in 0..VISITS.min(self.keepers.qpns.len()) {
            let Some(qpn) = self.keepers.qpns.pop_front() else { break };
            let slot = self.qps.find(qpn).and_then(|index| self.qps.at_mut(index));
            let Some(slot) = slot else { continue };
            slot.is_keeper = slot.qp.release_telemetry(now);
            if slot.is_keeper {
                self.keepers.qpns.push_back(qpn);
            }
        }
    }
}
