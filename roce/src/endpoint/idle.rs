//! Frees memory that queue pairs keep for their peers: for telemetry that the peers no longer send, and for early packets.
//!
//! Visits a few queue pairs at a time, when frames arrive; early packets also have a timer.

use super::Endpoint;
use crate::Qpn;
use alloc::collections::VecDeque;
use cc::Instant;
use core::time::Duration;

/// Time between two searches.
const INTERVAL: Duration = Duration::from_millis(1);
/// Queue pairs that a search visits at most.
const VISITS: usize = 16;

/// Queue pairs that keep memory for telemetry, in the order of their next visits. Some may be destroyed.
#[derive(Debug, Default)]
pub(super) struct Keepers {
    qpns: VecDeque<Qpn>,
    next_look: Instant,
}

impl Endpoint {
    /// Adds the queue pair at place `index` to those to visit, if it keeps memory since its last frame.
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

    /// Searches for unused memory, if it is time.
    #[inline]
    pub(super) fn release_idle(&mut self, now: Instant) {
        if !self.keepers.qpns.is_empty() && self.keepers.next_look <= now {
            self.look(now);
        }
        if self.commons.early.next_look().is_some_and(|at| at <= now) {
            self.look_for_early(now);
        }
    }

    /// Frees unused memory for early packets. If a packet found no room, evicts the packets of the largest user among those visited, unless
    /// the queue pair that needs room uses more than half as much.
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
