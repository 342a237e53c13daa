//! One path of a sender: its headers and its load.

use crate::congestion::reporter::RATIO_ONE;
use crate::wire::{Report, Template};
use cc::{Instant, PathRecords, Rate};
use core::time::Duration;

#[derive(Debug)]
pub(super) struct PathEntry {
    pub(super) port: u16,
    pub(super) template: Template,
    /// Records of probes and, with spraying, of data.
    records: PathRecords,
    /// Load of the path's busiest link, and when it was reported.
    load: Option<(PathLoad, Instant)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct PathLoad {
    pub(super) share: f64,
    pub(super) capacity: Option<Rate>,
    /// Whether the link is the last of several hops: the receiver's own link, which all paths share. Its share already contains this side's
    /// load.
    pub(super) is_last: bool,
}

impl PathEntry {
    pub(super) const fn new(port: u16, template: Template) -> Self {
        Self { port, template, records: PathRecords::new(), load: None }
    }

    pub(super) fn load(&self, now: Instant, oldest: Duration) -> Option<PathLoad> {
        let (load, reported) = self.load?;
        (now.saturating_since(reported) <= oldest).then_some(load)
    }

    /// Applies a report. Returns the load since the last one.
    pub(super) fn on_report(&mut self, now: Instant, report: Report, interval: Duration) -> Option<PathLoad> {
        let load = self.measure(now, report, interval)?;
        self.load = Some((load, now));
        Some(load)
    }

    /// Applies a report, and averages the load with the one before. Returns whether the report has a load.
    pub(super) fn on_smoothed_report(&mut self, now: Instant, report: Report, interval: Duration) -> bool {
        let before = self.load.map(|(before, _)| before.share);
        let Some(load) = self.on_report(now, report, interval) else { return false };
        let share = before.map_or(load.share, |before| (before + load.share) / 2.0);
        self.load = Some((PathLoad { share, ..load }, now));
        true
    }

    /// Measures the busiest link since the last report on this path.
    fn measure(&mut self, now: Instant, report: Report, interval: Duration) -> Option<PathLoad> {
        let is_last = |index| report.hops().is_some_and(|hops| hops > 1 && index + 1 == hops);
        let (capacity, is_last) = match report {
            Report::Busiest { busiest: Some((index, record)), .. } => {
                (Some(record.speed().rate()), is_last(index))
            }
            Report::Hop { index, hop, .. } | Report::Shared { index, hop, .. } => {
                (Some(hop.bandwidth), is_last(index))
            }
            Report::All { records, .. } => (records.iter().map(|record| record.speed().rate()).min(), false),
            Report::Ratio { utilisation, .. } => {
                let share = f64::from(utilisation) / RATIO_ONE;
                return Some(PathLoad { share, capacity: None, is_last: false });
            }
            Report::Busiest { .. } | Report::Window(_) | Report::Ready => return None,
        };
        let share = self.records.inflight(now, &report.path()?, interval)?.utilisation;
        Some(PathLoad { share, capacity, is_last })
    }
}
