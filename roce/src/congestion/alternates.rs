//! A responder's memory of paths other than that of the peer's last request: their records must not mix.

use super::collector::ratio;
use super::paths::PathChoice;
use super::signals::Signals;
use crate::wire::format::{Hops, Reading};
use crate::wire::telemetry::IntHeader;
use crate::wire::{Frame, Report};
use alloc::vec::Vec;
use cc::{Instant, PathRecords, PathTelemetry};
use core::time::Duration;

/// Told apart by UDP source port. A peer can make us hold so many and no more; the oldest goes first.
#[derive(Debug, Default)]
pub(super) struct Alternates {
    /// The port of the peer's requests.
    data: Option<u16>,
    records: Vec<(u16, PathRecords)>,
    oldest: usize,
}

impl Alternates {
    /// A request came from this port. If the one before came from another, `records` are kept as that port's and become this port's:
    /// a peer that sprays comes back to each.
    #[inline]
    pub(super) fn on_request(&mut self, port: u16, records: Option<&mut PathRecords>) {
        if let Some(before) = self.data.replace(port).filter(|before| *before != port)
            && let Some(records) = records
        {
            self.exchange(before, port, records);
        }
    }

    #[cold]
    fn exchange(&mut self, before: u16, port: u16, records: &mut PathRecords) {
        match self.records.iter_mut().find(|(known, _)| *known == port) {
            Some((known, kept)) => {
                *known = before;
                core::mem::swap(kept, records);
            }
            None => *self.place(before) = core::mem::take(records),
        }
    }

    /// Forgets all paths, and gives their memory back.
    pub(super) fn forget(&mut self) {
        (self.records, self.oldest) = (Vec::new(), 0);
    }

    /// The records of a path that the last request did not take; none if it did.
    pub(super) fn of_probe(&mut self, port: u16) -> Option<&mut PathRecords> {
        if self.data.is_none_or(|data| data == port) {
            return None;
        }
        if let Some(at) = self.records.iter().position(|(known, _)| *known == port) {
            return Some(&mut self.records[at].1);
        }
        Some(self.place(port))
    }

    /// Records of a port that has none. They may take the oldest one's place.
    fn place(&mut self, port: u16) -> &mut PathRecords {
        const MOST: usize = PathChoice::MOST as usize - 1;
        let at = if self.records.len() < MOST {
            // One at a time: a record is large, and most peers probe one path.
            self.records.reserve_exact(1);
            self.records.push((port, PathRecords::new()));
            self.records.len() - 1
        } else {
            self.oldest = (self.oldest + 1) % MOST;
            self.records[self.oldest] = (port, PathRecords::new());
            self.oldest
        };
        &mut self.records[at].1
    }
}

/// Returns the report on such a path, from a probe in any format. Returns `None` if a switch writes no `txBytes`, or not its link's rate:
/// the estimate of them (`estimate.rs`) assumes a nearly full link, and would make all paths alike.
pub(super) fn elsewhere(
    records: &mut PathRecords,
    (now, base_rtt): (Instant, Duration),
    int: IntHeader,
    probe: &Frame<'_>,
    ratio_only: bool,
) -> Option<Report> {
    let Some(carried) = probe.network.carried() else {
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
        // A probe brings one of two: it takes both to say how busy the path is.
        Reading::Signal(signal) => {
            let utilisation = Signals::default().hear(signal, base_rtt)?;
            let interval = u32::try_from(base_rtt.as_nanos()).unwrap_or(u32::MAX);
            return Some(Report::Ratio { path_id: 0, utilisation, interval });
        }
    };
    let path = whole(&hops)?;
    if ratio_only {
        return ratio(records, now, &path, base_rtt);
    }
    let (index, hop) = records.busiest(now, &path, base_rtt)?;
    Some(Report::Hop { path_id: path.path_id(), hops: hops.count(), index, hop })
}

/// The hops of a path that all tell everything.
pub(super) fn whole(hops: &Hops) -> Option<PathTelemetry> {
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
    fn probes_elsewhere_have_records_of_their_own_and_a_limit() {
        let mut alternates = Alternates::default();
        assert!(alternates.of_probe(1).is_none(), "nobody knows yet where the data go");
        let mut records = PathRecords::new();
        alternates.on_request(1, Some(&mut records));
        assert!(alternates.of_probe(1).is_none());
        for port in 2..40 {
            assert!(alternates.of_probe(port).is_some());
        }
        assert_eq!(alternates.records.len(), 7);
        alternates.on_request(39, Some(&mut records));
        assert!(alternates.of_probe(39).is_none() && alternates.of_probe(1).is_some());
        assert_eq!(alternates.records.len(), 7);
    }

    #[test]
    fn a_peer_that_sprays_finds_its_records_again() {
        let (mut alternates, mut records) = (Alternates::default(), PathRecords::new());
        let counter = |raw| cc::Counter::new(raw, 32, 1).unwrap();
        let mut measured = 0;
        for round in 0..3 {
            for port in 1..=8 {
                alternates.on_request(port, Some(&mut records));
                let nanos = 1000 * (8 * round + u64::from(port));
                // Each path's counter is another one's past.
                let tx_bytes = counter((nanos / 10).wrapping_sub(1000 * u64::from(port)) & 0xffff_ffff);
                let bandwidth = cc::Rate::from_gbps(10);
                let hop = cc::Hop { bandwidth, time: counter(nanos), tx_bytes, queue: 0 };
                let mut path = PathTelemetry::new(7);
                path.set(0, hop);
                let now = Instant::from_nanos(nanos);
                if let Some(inflight) = records.inflight(now, &path, Duration::from_micros(10)) {
                    measured += 1;
                    assert!((inflight.utilisation - 0.08).abs() < 1e-3, "{inflight:?}");
                }
            }
        }
        assert_eq!((measured, alternates.records.len()), (16, 7));
    }
}
