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
pub(super) struct TelemetryHolders {
    qpns: VecDeque<Qpn>,
    next_scan: Instant,
}

impl Endpoint {
    /// Adds the queue pair in slot `index` to those to visit, if it has kept memory since its last frame.
    #[inline]
    pub(super) fn track_telemetry(&mut self, index: u32) {
        if let Some(slot) = self.qps.at_mut(index)
            && slot.qp.holds_telemetry()
            && !slot.is_telemetry_holder
        {
            slot.is_telemetry_holder = true;
            self.telemetry_holders.qpns.push_back(slot.qp.identity().qpn);
        }
    }

    /// Searches for unused memory, if a search is due.
    #[inline]
    pub(super) fn release_idle(&mut self, now: Instant) {
        if !self.telemetry_holders.qpns.is_empty() && self.telemetry_holders.next_scan <= now {
            self.scan_telemetry(now);
        }
        if self.shared.early.next_scan().is_some_and(|at| at <= now) {
            self.scan_early_memory(now);
        }
    }

    /// Frees unused memory for early packets. If a packet had no room, evicts the packets of the largest user among those visited, unless
    /// the queue pair that needs room uses more than half as much.
    #[cold]
    fn scan_early_memory(&mut self, now: Instant) {
        let (visits, least) = self.shared.early.begin_scan(now);
        let mut largest: Option<(usize, Qpn)> = None;
        for _ in 0..visits {
            let Some(qpn) = self.shared.early.next_holder() else { break };
            let Some((_, qp, mut context)) = self.open(now, qpn) else { continue };
            let bytes = qp.release_early(&mut context);
            if bytes > 0 {
                largest = largest.filter(|&(most, _)| most >= bytes).or(Some((bytes, qpn)));
                self.shared.early.visit_again(qpn);
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
    fn scan_telemetry(&mut self, now: Instant) {
        self.telemetry_holders.next_scan = now + INTERVAL;
        for _ in 0..VISITS.min(self.telemetry_holders.qpns.len()) {
            let Some(qpn) = self.telemetry_holders.qpns.pop_front() else { break };
            let slot = self.qps.find(qpn).and_then(|index| self.qps.at_mut(index));
            let Some(slot) = slot else { continue };
            slot.is_telemetry_holder = slot.qp.release_telemetry(now);
            if slot.is_telemetry_holder {
                self.telemetry_holders.qpns.push_back(qpn);
            }
        }
    }
}
