//! A responder's memory of paths that a peer only probes: their records must not mix with those of the path of its data.

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
    /// A request came from this port. Tells whether the peer's requests have moved.
    pub(super) fn on_request(&mut self, port: u16) -> bool {
        self.data.replace(port).is_some_and(|before| before != port)
    }

    /// Forgets all paths, and gives their memory back.
    pub(super) fn forget(&mut self) {
        (self.records, self.oldest) = (Vec::new(), 0);
    }

    /// The records of a path that only probes take; none where requests take it too.
    pub(super) fn of_probe(&mut self, port: u16) -> Option<&mut PathRecords> {
        const MOST: usize = PathChoice::MOST as usize - 1;
        if self.data.is_none_or(|data| data == port) {
            return None;
        }
        if let Some(at) = self.records.iter().position(|(known, _)| *known == port) {
            return Some(&mut self.records[at].1);
        }
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
        Some(&mut self.records[at].1)
    }
}

/// What to say of such a path, by what a probe brings in any format. Nothing where a switch tells no `txBytes`, or not its link's
/// rate: what stands in for them (`estimate.rs`) takes a link to be nearly full, and would make all paths alike.
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
fn whole(hops: &Hops) -> Option<PathTelemetry> {
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
        assert!(!alternates.on_request(1));
        assert!(alternates.of_probe(1).is_none());
        for port in 2..40 {
            assert!(alternates.of_probe(port).is_some());
        }
        assert_eq!(alternates.records.len(), 7);
        assert!(alternates.on_request(39), "moved");
        assert!(alternates.of_probe(39).is_none());
        assert!(!alternates.on_request(39));
    }
}
