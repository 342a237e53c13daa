//! The receiver of telemetry: reads the telemetry in the peer's packets, and answers it.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::estimate::Estimates;
use super::peer_paths::{PeerPaths, report_on_inactive_path};
use super::sampler::ETA_ONE;
use super::signals::Signals;
use crate::wire::format::{Hops, Reading};
use crate::wire::telemetry::{HopRecord, IntHeader, MAX_HOPS};
use crate::wire::{Frame, Header, IN_BAND_ROOM, Records, Report, ReportKind, Reverse, Setup};
use crate::{Discard, Psn};
use alloc::boxed::Box;
use cc::{
    ActiveFlows, FlowMark, Hop, HopIndex, HpccConfig, Inflight, Instant, PathRecords, PathTelemetry, Rate,
    RxHpcc,
};
use core::num::NonZeroU32;
use core::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReportCarrier {
    /// In the answer to a probe.
    Response,
    /// In the next Acknowledge.
    Acknowledge,
    /// In a separate packet.
    Notification,
    /// In an Acknowledge if one is due, otherwise in a separate packet.
    Either,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PendingReport {
    pub(super) carrier: ReportCarrier,
    /// PSN of the packet that carried the telemetry.
    pub(super) psn: Psn,
    pub(super) report: Report,
}

enum Evaluation {
    Report(Report),
    /// Busiest hop, to be reported in its own format.
    Busiest(Option<(HopIndex, Hop)>),
}

/// Time without telemetry from the peer after which the records are obsolete.
const IDLE_TIME: Duration = Duration::from_secs(2);

/// Limit of pending answers to probes: a newer one replaces the oldest.
const MAX_PENDING_RESPONSES: usize = 4;

/// Answers a peer's telemetry as its setup requests; without a setup, with the busiest hop. At most one answer to data is pending, and a
/// newer one replaces it; answers to probes are pending separately.
#[derive(Debug)]
pub(super) struct Reporter {
    /// Algorithm, if the peer requests windows.
    receiver: Option<Box<RxHpcc>>,
    setup: Option<Setup>,
    /// A setup must be confirmed.
    is_ready_due: bool,
    ratio_only: bool,
    mark: FlowMark,
    /// When the peer's last telemetry or setup arrived.
    last_active: Instant,
    last_telemetry: Option<Instant>,
    pending: Option<PendingReport>,
    /// Answers to probes, oldest first. Several may arrive at the same time, on the active path and on others, with data between them.
    responses: [Option<PendingReport>; MAX_PENDING_RESPONSES],
    paths: PeerPaths,
    /// Estimates of the values that switches omit.
    estimates: Estimates,
    /// Last signals, of which each packet carries one.
    signals: Signals,
}

impl Reporter {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            receiver: None,
            setup: None,
            is_ready_due: false,
            ratio_only: false,
            mark: FlowMark::default(),
            last_active: now,
            last_telemetry: None,
            pending: None,
            responses: [None; MAX_PENDING_RESPONSES],
            paths: PeerPaths::default(),
            estimates: Estimates::default(),
            signals: Signals::default(),
        }
    }

    /// Restricts reports to the utilisation of the busiest link (rtgwg-00 9.1).
    pub(super) const fn only_ratios(&mut self, ratio_only: bool) {
        self.ratio_only = ratio_only;
    }

    /// Applies a setup of the peer. A repeated one is confirmed again, and the records stay.
    pub(super) fn on_setup(&mut self, now: Instant, setup: Setup) -> Result<(), Discard> {
        self.last_active = now;
        if self.setup != Some(setup) {
            self.receiver = match setup.reverse {
                Reverse::Window => {
                    let receiver = RxHpcc::new(config(&setup)).map_err(|_| Discard::Telemetry)?;
                    Some(Box::new(receiver))
                }
                Reverse::Ack | Reverse::Notification => None,
            };
            self.paths.restart();
            self.setup = Some(setup);
        }
        self.is_ready_due = true;
        Ok(())
    }

    pub(super) fn on_frame(&mut self, now: Instant, frame: &Frame<'_>, flows: &mut ActiveFlows) {
        let psn = frame.header.bth().psn;
        if let Header::TelemetryRequest { int, .. } = frame.header {
            self.last_active = now;
            if let Some(records) = self.paths.inactive_path(frame.network.udp_source()) {
                let base_rtt = self.setup.map_or(DEFAULT_T, |setup| setup.base_rtt);
                let report = report_on_inactive_path(records, (now, base_rtt), int, frame, self.ratio_only);
                return self.answer(ReportCarrier::Response, psn, report);
            }
            let report = match frame.network.telemetry() {
                Some(carried) => carried.read().and_then(|reading| self.on_reading(now, &reading, flows)),
                None => self.on_records(now, int, int.records(frame.payload), flows),
            };
            // The sender must know that its path is too long for telemetry in data, which windows do not say.
            let report = match &self.receiver {
                Some(receiver) if report.is_none() && int.hops() > IN_BAND_ROOM => {
                    let base_rtt = receiver.hpcc().config().base_rtt;
                    let records = self.paths.active();
                    report_on_inactive_path(records, (now, base_rtt), int, frame, self.ratio_only)
                }
                _ => report,
            };
            let carrier = if matches!(report, Some(Report::Window(_))) {
                ReportCarrier::Either
            } else {
                ReportCarrier::Response
            };
            return self.answer(carrier, psn, report);
        }
        self.estimates.on_received(frame.payload.len());
        let report = match (&frame.in_band, frame.network.telemetry()) {
            (_, Some(carried)) => carried.read().and_then(|reading| self.on_reading(now, &reading, flows)),
            (Some(in_band), None) if in_band.int.is_subscription() => return,
            (Some(in_band), None) => self.on_records(now, in_band.int, in_band.records(), flows),
            (None, None) => return,
        };
        self.last_active = now;
        let carrier = match self.setup.map_or(Reverse::Ack, |setup| setup.reverse) {
            Reverse::Ack => ReportCarrier::Acknowledge,
            Reverse::Notification => ReportCarrier::Notification,
            Reverse::Window => ReportCarrier::Either,
        };
        self.answer(carrier, psn, report);
    }

    /// Handles a packet without telemetry; `request_from` is the UDP source port of a request, which identifies its path.
    #[inline]
    pub(super) fn on_plain(&mut self, request_from: Option<u16>, payload: usize) {
        if let Some(port) = request_from {
            self.on_request(port);
        }
        self.estimates.on_received(payload);
    }

    /// Returns whether the memory can be freed: the peer has recently sent no telemetry, and never a setup.
    pub(super) fn is_obsolete(&self, now: Instant) -> bool {
        self.setup.is_none() && self.is_idle(now)
    }

    /// Discards all paths but the active one if the peer has recently sent no telemetry.
    pub(super) fn forget_idle(&mut self, now: Instant) {
        if self.is_idle(now) {
            self.paths.forget_others();
        }
    }

    fn is_idle(&self, now: Instant) -> bool {
        now.saturating_since(self.last_active) >= IDLE_TIME
    }

    /// Records the UDP source port of a request: a different port is a different path, even with the same path id.
    pub(super) fn on_request(&mut self, port: u16) {
        self.paths.on_request(port);
    }

    fn answer(&mut self, carrier: ReportCarrier, psn: Psn, report: Option<Report>) {
        let Some(report) = report else { return };
        let new = PendingReport { carrier, psn, report };
        if carrier != ReportCarrier::Response {
            let together = self.pending.map_or(report, |waiting| combined(waiting.report, report));
            self.pending = Some(PendingReport { report: together, ..new });
            return;
        }
        match self.responses.iter_mut().find(|place| place.is_none()) {
            Some(place) => *place = Some(new),
            None => {
                self.responses.rotate_left(1);
                self.responses[MAX_PENDING_RESPONSES - 1] = Some(new);
            }
        }
    }

    #[expect(clippy::indexing_slicing, reason = "the busiest hop is one of those kept")]
    fn on_records(
        &mut self,
        now: Instant,
        int: IntHeader,
        records: impl Iterator<Item = HopRecord>,
        flows: &mut ActiveFlows,
    ) -> Option<Report> {
        let mut path = PathTelemetry::new(int.path_id());
        let mut kept = [None; MAX_HOPS as usize];
        for ((index, record), place) in (0u8..).zip(records).zip(&mut kept) {
            path.set(index, record.into());
            *place = Some(record);
        }
        let busiest = match self.on_path(now, &path, flows)? {
            Evaluation::Report(report) => return Some(report),
            Evaluation::Busiest(busiest) => busiest,
        };
        let (path_id, hops) = (int.path_id(), int.hops());
        if let Some(records) = self.all_records(|| Records::of(kept.into_iter().flatten())) {
            return Some(Report::All { path_id, records });
        }
        if let (Some(flows), Some((index, hop))) = (self.flow_count(flows), busiest) {
            return Some(Report::Shared { path_id, hops, index, hop, flows });
        }
        let busiest = busiest.and_then(|(index, _)| kept[usize::from(index)].map(|record| (index, record)));
        Some(Report::Busiest { path_id, hops, busiest })
    }

    fn on_reading(&mut self, now: Instant, reading: &Reading, flows: &mut ActiveFlows) -> Option<Report> {
        let hops = match reading {
            Reading::Hops(hops) => hops,
            Reading::Inflight(share) => return self.on_inflight(now, *share, flows),
            Reading::Signal(signal) => {
                let base_rtt = self.setup.map_or(DEFAULT_T, |setup| setup.base_rtt);
                let share = self.signals.on_signal(*signal, base_rtt)?;
                return self.on_inflight(now, share, flows);
            }
        };
        let path_id = hops.path_id();
        let path = self.completed(hops);
        let busiest = match self.on_path(now, &path, flows)? {
            Evaluation::Report(report) => return Some(report),
            Evaluation::Busiest(busiest) => busiest,
        };
        let is_whole = path.hops().count() == usize::from(hops.count());
        let all_hops = || Records::of_hops(path.hops().map(|(_, hop)| hop)).filter(|_| is_whole);
        if let Some(records) = self.all_records(all_hops) {
            return Some(Report::All { path_id, records });
        }
        Some(match busiest {
            None => Report::Busiest { path_id, hops: 0, busiest: None },
            Some((index, hop)) => match self.flow_count(flows) {
                Some(flows) => Report::Shared { path_id, hops: hops.count(), index, hop, flows },
                None => Report::Hop { path_id, hops: hops.count(), index, hop },
            },
        })
    }

    fn flow_count(&self, flows: &ActiveFlows) -> Option<NonZeroU32> {
        self.setup.filter(|setup| setup.reports == ReportKind::Flows).map(|_| flows.count())
    }

    /// Returns the records of all links, if the peer requested them and they can be encoded.
    fn all_records(&self, records: impl FnOnce() -> Option<Records>) -> Option<Records> {
        self.setup.filter(|setup| setup.reports == ReportKind::All).and_then(|_| records())
    }

    fn completed(&mut self, hops: &Hops) -> PathTelemetry {
        let line_rate = self.setup.map(|setup| Rate::from_bps(setup.line_rate));
        let target = self
            .setup
            .map_or(HpccConfig::DEFAULT_TARGET_UTILISATION, |setup| config(&setup).target_utilisation);
        let mut path = PathTelemetry::new(hops.path_id());
        for (index, reading) in hops.iter().enumerate() {
            if let Some(hop) = self.estimates.complete(index, reading, line_rate, target) {
                path.set(index as u8, hop);
            }
        }
        path
    }

    /// Handles an in-flight share that the switches computed. The interval of their measurement is not known, so the time since the last
    /// one replaces it.
    fn on_inflight(&mut self, now: Instant, share: u32, flows: &mut ActiveFlows) -> Option<Report> {
        let (since, base_rtt) = self.periods(now);
        let interval = u32::try_from(since.min(base_rtt).as_nanos()).unwrap_or(u32::MAX);
        // Flows that do not use the count also use a share of the link.
        flows.on_packet(now, count_over(base_rtt), &mut self.mark);
        let Some(receiver) = &mut self.receiver else {
            return Some(Report::Ratio { path_id: 0, utilisation: share, interval });
        };
        let inflight = Inflight { utilisation: f64::from(share) / RATIO_ONE, interval: interval.into() };
        receiver.on_inflight(now, inflight, flows.count()).map(Report::Window)
    }

    /// Returns the time since the last telemetry, and the sender's `T`; without a setup the former replaces it.
    fn periods(&mut self, now: Instant) -> (Duration, Duration) {
        let since =
            self.last_telemetry.replace(now).map_or(Duration::ZERO, |last| now.saturating_since(last));
        let base_rtt = self.setup.map_or(since, |setup| setup.base_rtt).max(Duration::from_nanos(1));
        (since, base_rtt)
    }

    /// Finds the busiest hop: that of the highest normalised in-flight bytes, counted over `T`.
    fn on_path(&mut self, now: Instant, path: &PathTelemetry, flows: &mut ActiveFlows) -> Option<Evaluation> {
        let (_, base_rtt) = self.periods(now);
        // A receiver counts all its flows, including those that do not use the count.
        flows.on_packet(now, count_over(base_rtt), &mut self.mark);
        if let Some(receiver) = &mut self.receiver {
            let window = receiver.on_telemetry(now, path, flows.count())?;
            return Some(Evaluation::Report(Report::Window(window)));
        }
        let records = self.paths.active();
        if self.ratio_only {
            return ratio(records, now, path, base_rtt).map(Evaluation::Report);
        }
        Some(Evaluation::Busiest(records.busiest(now, path, base_rtt)))
    }

    pub(super) fn report_for_acknowledge(&self) -> Option<Report> {
        let may_piggyback = |pending: &PendingReport| {
            matches!(pending.carrier, ReportCarrier::Acknowledge | ReportCarrier::Either)
        };
        self.pending.filter(may_piggyback).map(|pending| pending.report)
    }

    /// Returns whether a report is pending, as a separate packet or with an Acknowledge.
    #[inline]
    pub(super) const fn may_have_pending(&self) -> bool {
        self.is_ready_due || self.pending.is_some() || self.responses[0].is_some()
    }

    /// Returns the report to send in a separate packet.
    pub(super) fn pending_report(&self) -> Option<PendingReport> {
        if self.is_ready_due {
            return Some(PendingReport {
                carrier: ReportCarrier::Notification,
                psn: Psn::new(0),
                report: Report::Ready,
            });
        }
        self.responses[0].or(self.pending.filter(|pending| pending.carrier != ReportCarrier::Acknowledge))
    }

    pub(super) fn on_sent(&mut self, report: Report) {
        if report == Report::Ready {
            self.is_ready_due = false;
        } else if self.responses[0].is_some_and(|pending| pending.report == report) {
            self.responses[0] = None;
            self.responses.rotate_left(1);
        } else {
            self.pending = None;
        }
    }
}

/// `T` of a path without a setup.
const DEFAULT_T: Duration = Duration::from_micros(100);

/// Combines a pending report with a newer one. A newer report replaces the pending one, except that ratios since the last answer are
/// averaged, weighted by their intervals. Otherwise most of the time would be unmeasured.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "sums of two 32-bit numbers fit into 64 bits; an average is no more than the larger of the two, and `whole` is not 0"
)]
fn combined(waiting: Report, newer: Report) -> Report {
    let (
        Report::Ratio { path_id: before, utilisation: first, interval: t },
        Report::Ratio { path_id, utilisation: second, interval },
    ) = (waiting, newer)
    else {
        return newer;
    };
    let whole = u64::from(t) + u64::from(interval);
    if before != path_id || whole == 0 {
        return newer;
    }
    let weighed = u128::from(first) * u128::from(t) + u128::from(second) * u128::from(interval);
    let utilisation = (weighed / u128::from(whole)) as u32;
    Report::Ratio { path_id, utilisation, interval: u32::try_from(whole).unwrap_or(u32::MAX) }
}

pub(super) fn ratio(
    records: &mut PathRecords,
    now: Instant,
    path: &PathTelemetry,
    base_rtt: Duration,
) -> Option<Report> {
    let inflight = records.inflight(now, path, base_rtt)?;
    // The cast saturates.
    let utilisation = (inflight.utilisation * RATIO_ONE) as u32;
    let interval = u32::try_from(inflight.interval).unwrap_or(u32::MAX);
    Some(Report::Ratio { path_id: path.path_id(), utilisation, interval })
}

/// Utilisation of 1 on the wire.
pub(super) const RATIO_ONE: f64 = (1u32 << 20) as f64;

/// Returns the time over which flows are counted: several round trips, so that a slow flow is in each count.
#[expect(clippy::arithmetic_side_effects, reason = "2^64 ns are far below the longest Duration")]
fn count_over(base_rtt: Duration) -> Duration {
    (8 * base_rtt).clamp(Duration::from_micros(100), Duration::from_millis(200))
}

/// Converts a setup, unchecked.
fn config(setup: &Setup) -> HpccConfig {
    HpccConfig {
        base_rtt: setup.base_rtt,
        line_rate: Rate::from_bps(setup.line_rate),
        min_rate: Rate::from_bps(setup.min_rate),
        target_utilisation: f64::from(setup.target_utilisation) / ETA_ONE,
        max_stage: setup.max_stage,
        additive_increase: Rate::from_bps(setup.additive_increase),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver that computes divides its link among all flows, including those whose senders compute.
    #[test]
    fn senders_that_compute_by_shares_are_counted_too() {
        let (mut flows, now) = (ActiveFlows::new(), Instant::from_nanos(1_000_000));
        for expected in 1..=3 {
            let report = Reporter::new(now).on_inflight(now, 1 << 19, &mut flows);
            assert!(matches!(report, Some(Report::Ratio { .. })), "{report:?}");
            assert_eq!(flows.count().get(), expected);
        }
    }
}
