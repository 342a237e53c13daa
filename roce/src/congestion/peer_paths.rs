//! The paths of a peer, at the receiver. Each has its own records, because the counters of different links are unrelated.

use super::paths::PathChoice;
use super::reporter::ratio;
use super::signals::Signals;
use crate::wire::format::{Hops, Reading};
use crate::wire::telemetry::IntHeader;
use crate::wire::{Frame, Report};
use alloc::vec::Vec;
use cc::{Instant, PathRecords, PathTelemetry};
use core::time::Duration;

/// Records of a peer's paths, by UDP source port. The active path is that of the last request, whether the peer uses one path at a time or
/// sprays.
#[derive(Debug, Default)]
pub(super) struct PeerPaths {
    /// Port of the active path, from the first request on.
    active: Option<u16>,
    records: PathRecords,
    /// Other paths, at most [`PathChoice::MAX`] with the active one, because the peer chooses their number. A new path replaces the oldest.
    others: Vec<(u16, PathRecords)>,
    oldest: usize,
}

impl PeerPaths {
    /// Makes the path with this port the active one, because a request was sent over it.
    #[inline]
    pub(super) fn on_request(&mut self, port: u16) {
        if let Some(before) = self.active.replace(port).filter(|before| *before != port) {
            self.activate(before, port);
        }
    }

    #[cold]
    fn activate(&mut self, before: u16, port: u16) {
        match self.others.iter_mut().find(|(known, _)| *known == port) {
            Some((known, kept)) => {
                *known = before;
                core::mem::swap(kept, &mut self.records);
            }
            None => *self.entry_for(before) = core::mem::take(&mut self.records),
        }
    }

    pub(super) const fn active(&mut self) -> &mut PathRecords {
        &mut self.records
    }

    /// Returns the records of the path of a probe; `None` if it is the active one.
    pub(super) fn inactive_path(&mut self, port: u16) -> Option<&mut PathRecords> {
        if self.active.is_none_or(|active| active == port) {
            return None;
        }
        if let Some(at) = self.others.iter().position(|(known, _)| *known == port) {
            return Some(&mut self.others[at].1);
        }
        Some(self.entry_for(port))
    }

    pub(super) fn restart(&mut self) {
        self.records = PathRecords::new();
    }

    /// Discards the other paths, and frees their memory.
    pub(super) fn forget_others(&mut self) {
        (self.others, self.oldest) = (Vec::new(), 0);
    }

    /// Returns an entry for the records of a new port; if all are in use, that of the oldest.
    fn entry_for(&mut self, port: u16) -> &mut PathRecords {
        const MAX: usize = PathChoice::MAX as usize - 1;
        let at = if self.others.len() < MAX {
            // One at a time: a record is large, and most peers probe one path.
            self.others.reserve_exact(1);
            self.others.push((port, PathRecords::new()));
            self.others.len() - 1
        } else {
            self.oldest = (self.oldest + 1) % MAX;
            self.others[self.oldest] = (port, PathRecords::new());
            self.oldest
        };
        &mut self.others[at].1
    }
}

/// Returns the report on a path other than the active one, from a probe in any format. Returns `None` if a switch does not write `txBytes`
/// or the rate of its link. Their estimates (`estimate.rs`) assume a nearly full link, so all paths would appear equal.
pub(super) fn report_on_inactive_path(
    records: &mut PathRecords,
    (now, base_rtt): (Instant, Duration),
    int: IntHeader,
    probe: &Frame<'_>,
    ratio_only: bool,
) -> Option<Report> {
    let Some(carried) = probe.network.telemetry() else {
        let mut path = PathTelemetry::new(int.path_id());
        for (index, record) in (0u8..).zip(int.records(probe.payload)) {
            path.set(index, record.into());
        }
        if ratio_only {
            return ratio(records, now, &path, base_rtt);
        }
        let busiest = records.busiest(now, &path, base_rtt).and_then(|(index, _)| {
            let record = int.records(probe.payload).nth(usize::from(index))?;
            Some((index, record))
        });
        return Some(Report::Busiest { path_id: int.path_id(), hops: int.hops(), busiest });
    };
    let hops = match carried.read()? {
        Reading::Hops(hops) => hops,
        Reading::Inflight(utilisation) => {
            let interval = u32::try_from(base_rtt.as_nanos()).unwrap_or(u32::MAX);
            return Some(Report::Ratio { path_id: 0, utilisation, interval });
        }
        // A probe carries one of two signals, and the load needs both.
        Reading::Signal(signal) => {
            let utilisation = Signals::default().on_signal(signal, base_rtt)?;
            let interval = u32::try_from(base_rtt.as_nanos()).unwrap_or(u32::MAX);
            return Some(Report::Ratio { path_id: 0, utilisation, interval });
        }
    };
    let path = complete(&hops)?;
    if ratio_only {
        return ratio(records, now, &path, base_rtt);
    }
    let (index, hop) = records.busiest(now, &path, base_rtt)?;
    Some(Report::Hop { path_id: path.path_id(), hops: hops.count(), index, hop })
}

/// Returns the hops of a path; `None` if the reading of one is incomplete.
pub(super) fn complete(hops: &Hops) -> Option<PathTelemetry> {
    let mut path = PathTelemetry::new(hops.path_id());
    for (index, reading) in (0u8..).zip(hops.iter()) {
        path.set(index, reading.complete()?);
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_of_inactive_paths_have_their_own_records_up_to_the_limit() {
        let mut paths = PeerPaths::default();
        assert!(paths.inactive_path(1).is_none(), "no path is active yet");
        paths.on_request(1);
        assert!(paths.inactive_path(1).is_none());
        for port in 2..40 {
            assert!(paths.inactive_path(port).is_some());
        }
        assert_eq!(paths.others.len(), 7);
        paths.on_request(39);
        assert!(paths.inactive_path(39).is_none() && paths.inactive_path(1).is_some());
        assert_eq!(paths.others.len(), 7);
    }

    #[test]
    fn each_path_of_a_peer_that_sprays_keeps_its_records() {
        let mut paths = PeerPaths::default();
        let counter = |raw| cc::Counter::new(raw, 32, 1).unwrap();
        let mut measured = 0;
        for round in 0..3 {
            for port in 1..=8 {
                paths.on_request(port);
                let nanos = 1000 * (8 * round + u64::from(port));
                // The counters of different paths overlap.
                let tx_bytes = counter((nanos / 10).wrapping_sub(1000 * u64::from(port)) & 0xffff_ffff);
                let bandwidth = cc::Rate::from_gbps(10);
                let hop = cc::Hop { bandwidth, time: counter(nanos), tx_bytes, queue: 0 };
                let mut path = PathTelemetry::new(7);
                path.set(0, hop);
                let now = Instant::from_nanos(nanos);
                if let Some(inflight) = paths.active().inflight(now, &path, Duration::from_micros(10)) {
                    measured += 1;
                    assert!((inflight.utilisation - 0.08).abs() < 1e-3, "{inflight:?}");
                }
            }
        }
        assert_eq!((measured, paths.others.len()), (16, 7));
    }
}
