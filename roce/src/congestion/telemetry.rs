//! A queue pair's use of telemetry: its requests, its answers, and the paths from which it chooses.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::base_rtt::BaseRtt;
use super::paths::{PathChoice, Paths};
use super::policy::Policy;
use super::prober::{PROBE_ROOM, Prober};
use super::reporter::Reporter;
use super::sampler::Sampler;
use super::seal::FeedbackAuth;
use super::settings::{Congestion, When};
use crate::wheel::earliest_of;
use crate::wire::telemetry::{IntHeader, MAX_HOPS};
use crate::wire::{
    Bth, Format, Header, IN_BAND_ROOM, MAX_IN_BAND, Mac, Numbers, Path, Report, SUBSCRIPTION_LENGTH,
    Subscription, Template,
};
use crate::{Discard, Qpn};
use alloc::boxed::Box;
use cc::Instant;
use core::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DataTelemetry {
    None,
    /// INT header after the BTH.
    Int,
    /// Another format, inserted below the BTH of the sealed packet.
    Format(Format),
    /// Subscription to direct responses, inserted below the BTH of the sealed packet.
    Subscription,
}

impl DataTelemetry {
    /// Returns the bytes inserted below the BTH.
    #[inline]
    pub(crate) fn inserted(self) -> usize {
        match self {
            Self::None | Self::Int => 0,
            Self::Format(format) => format.inserted(),
            Self::Subscription => SUBSCRIPTION_LENGTH,
        }
    }
}

/// Inserts telemetry into a sealed packet of `length` bytes that begins `carried.inserted()` bytes into `frame`. Returns the length of the
/// result.
///
/// # Errors
/// Returns a [`Discard`] if `frame` is too short.
#[inline]
pub(crate) fn insert_telemetry(
    carried: DataTelemetry,
    frame: &mut [u8],
    length: usize,
    (qpn, numbers): (Qpn, Numbers),
) -> Result<usize, Discard> {
    match carried {
        DataTelemetry::None | DataTelemetry::Int | DataTelemetry::Format(Format::Hpcc) => Ok(length),
        DataTelemetry::Format(format) => format.insert(frame, length, numbers),
        DataTelemetry::Subscription => Subscription::insert(frame, length, qpn),
    }
}

/// Telemetry state of a queue pair. Queue pairs without telemetry have no such state.
#[derive(Debug)]
pub(super) struct Telemetry {
    /// Layout of the telemetry that this side sends.
    pub(super) format: Format,
    /// Q_Key of probes, of a datagram queue pair.
    pub(super) queue_key: Option<u32>,
    /// The peer receives only ratios.
    ratio_only: bool,
    /// Data was sent since none was in flight, so a request for telemetry may be due.
    pub(super) is_active: bool,
    pub(super) prober: Prober,
    pub(super) sampler: Sampler,
    /// Set by the peer's first telemetry. Boxed, because it is large and few queue pairs have one.
    reporter: Option<Box<Reporter>>,
    pub(super) auth: FeedbackAuth,
    /// Paths, if there are several to choose from.
    pub(super) paths: Option<Box<Paths>>,
    /// Whether the algorithm computes with telemetry.
    pub(super) policy: Policy,
    /// Measurement of the base round trip, if none is configured or telemetry can verify it.
    pub(super) base_rtt: Option<BaseRtt>,
    /// Path id of the last probe's answer, for HPCC INT.
    probed_path: Option<u16>,
    /// Hops that the next probe has room for.
    probe_room: u8,
}

impl Default for Telemetry {
    fn default() -> Self {
        Self {
            format: Format::Hpcc,
            queue_key: None,
            ratio_only: false,
            is_active: false,
            prober: Prober::default(),
            sampler: Sampler::default(),
            reporter: None,
            auth: FeedbackAuth::default(),
            paths: None,
            policy: Policy::default(),
            base_rtt: None,
            probed_path: None,
            probe_room: PROBE_ROOM,
        }
    }
}

impl Telemetry {
    /// Creates the state that these settings need; `None` if they need none. Reports and seals from before RTS continue.
    pub(super) fn start(before: Option<Self>, settings: &Congestion, qpn: Qpn, path: &Path) -> Option<Self> {
        let Congestion { format, ratio_only, .. } = *settings;
        let (mut reporter, auth) =
            before.map_or_else(Default::default, |before| (before.reporter, before.auth));
        if let Some(reporter) = &mut reporter {
            reporter.only_ratios(ratio_only);
        }
        let sampler = Sampler::new(&settings.algorithm, settings);
        // The algorithm uses the load of sprayed paths, so the load is counted over the base round trip.
        let base_rtt = settings.algorithm.as_hpcc().map(|hpcc| hpcc.base_rtt);
        let choice = settings.paths.map(|choice| PathChoice {
            interval: base_rtt.filter(|_| choice.spray).unwrap_or(choice.interval),
            ..choice
        });
        let paths = Paths::new(choice, path, qpn, settings.line_rate()).map(Box::new);
        let is_discovery = settings.upgrade.is_some_and(|upgrade| upgrade.when == When::TelemetryAnswered);
        let mut prober = Prober::new(settings.probe_interval, base_rtt);
        if let Some(config) = settings.probed_first_window() {
            prober = prober.first_window(config.initial_window());
        }
        let telemetry = Self {
            format,
            queue_key: None,
            ratio_only,
            is_active: false,
            prober: prober.discovering(is_discovery),
            sampler,
            reporter,
            auth: auth.with_key(settings.feedback_key),
            paths,
            policy: Policy::new(settings),
            base_rtt: base_rtt_of(settings),
            probed_path: None,
            probe_room: PROBE_ROOM,
        };
        telemetry.is_used().then_some(telemetry)
    }

    /// Returns whether only probes collect telemetry, so that only their numbers are used.
    pub(super) const fn is_by_probes(&self) -> bool {
        self.prober.is_regular() && !self.sampler.requests_with_data()
    }

    /// Returns whether the state is needed: this side uses telemetry, or the peer has sent some.
    pub(super) fn is_used(&self) -> bool {
        self.prober.is_used()
            || self.sampler.is_needed()
            || self.auth.is_used()
            || self.paths.is_some()
            || self.policy.is_undecided()
            || self.base_rtt.is_some()
            || self.reporter.is_some()
            || self.ratio_only
            || self.format != Format::Hpcc
    }

    pub(super) fn release(&mut self, now: Instant) {
        if self.reporter.as_ref().is_some_and(|reporter| reporter.is_obsolete(now)) {
            self.reporter = None;
        }
        if let Some(reporter) = &mut self.reporter {
            reporter.forget_idle(now);
        }
    }

    /// Returns the number of base round trips for which unacknowledged data has been in flight. A probe is sent in each, and the answer to
    /// the first may only be delayed. The number is 1 if the algorithm in use has no windows.
    #[inline]
    pub(super) fn rounds_in_flight(&self) -> u64 {
        if self.policy.window_base_rtt().is_some() { self.prober.unanswered().saturating_sub(1) } else { 1 }
    }

    /// Handles the number of switches that a probe has counted. Data packets have room for 5: on a longer path, probes replace telemetry in
    /// data. Otherwise the congestion of the later links would not be seen. Probes have room for 8, and for 15 once that was too little.
    pub(super) fn on_path_length(&mut self, path_id: u16, switches: u8) {
        if self.format != Format::Hpcc {
            return;
        }
        // There may be more switches than the probe had room for.
        let is_cut = switches >= self.probe_room && switches < MAX_HOPS;
        if is_cut {
            self.probe_room = MAX_HOPS;
        }
        self.probed_path = (!is_cut).then_some(path_id);
        let is_long = switches > IN_BAND_ROOM;
        let is_change = self.sampler.suspend(is_long);
        if is_change && !is_long {
            self.prober.only_unacknowledged();
        }
        if let Some(base_rtt) = self.base_rtt.as_ref().filter(|_| is_change && is_long) {
            self.prober.probe_all(base_rtt.effective(false));
        }
        let replaces_data = is_long && self.sampler.is_suspended();
        if !is_cut && (replaces_data || switches == MAX_HOPS) {
            self.policy.on_long_path(switches);
        }
    }

    /// Handles the path of full telemetry in data: unless a probe has counted its switches, one is sent, at most once a base round trip.
    #[cold]
    pub(super) fn on_full_telemetry(&mut self, now: Instant, path_id: u16) {
        let base_rtt = self.base_rtt.as_ref().filter(|_| self.probed_path != Some(path_id));
        if let Some(base_rtt) = base_rtt.filter(|_| self.format == Format::Hpcc) {
            self.prober.probe_once(now, base_rtt.effective(false));
        }
    }

    pub(super) const fn format(&self) -> Format {
        self.format
    }

    /// Returns the reporter that answers the peer's telemetry, and creates it if there is none.
    pub(super) fn reporter(&mut self, now: Instant) -> &mut Reporter {
        let ratio_only = self.ratio_only;
        self.reporter.get_or_insert_with(|| {
            let mut reporter = Box::new(Reporter::new(now));
            reporter.only_ratios(ratio_only);
            reporter
        })
    }

    #[inline]
    pub(super) fn existing_reporter(&mut self) -> Option<&mut Reporter> {
        self.reporter.as_deref_mut()
    }

    /// Returns whether the peer has sent telemetry, so that every data packet must be counted.
    #[inline]
    pub(super) const fn has_reporter(&self) -> bool {
        self.reporter.is_some()
    }

    /// Returns the telemetry that the next data packet carries, if the frame has `room` more bytes for it.
    #[inline]
    pub(super) fn data_telemetry(&self, room: usize) -> DataTelemetry {
        if self.sampler.is_due() {
            return match self.format {
                Format::Hpcc if room >= MAX_IN_BAND => DataTelemetry::Int,
                Format::Hpcc => DataTelemetry::None,
                format if room >= format.longest() => DataTelemetry::Format(format),
                _ => DataTelemetry::None,
            };
        }
        let subscribes = self.sampler.subscribes() && room >= SUBSCRIPTION_LENGTH;
        if subscribes { DataTelemetry::Subscription } else { DataTelemetry::None }
    }

    /// Returns the headers of `path` with spraying, otherwise of the active path.
    #[inline]
    pub(super) fn template(&self, path: Option<u8>) -> Option<&Template> {
        self.paths.as_ref().map(|paths| paths.template(path))
    }

    /// Returns the next probe with this BTH, and the length of its payload.
    pub(super) const fn probe(&self, bth: Bth, source: Qpn) -> (Header, usize) {
        if let Some(queue_key) = self.queue_key {
            let bth = Bth { congestion: Bth::TELEMETRY, ..bth };
            return (Header::DatagramTelemetryRequest { bth, queue_key, source }, 0);
        }
        let int = IntHeader::with_room(if matches!(self.format, Format::Hpcc) { self.probe_room } else { 0 });
        (Header::TelemetryRequest { bth, int }, int.room_bytes())
    }

    /// Returns the headers of the next probe, if they are not the connection's own.
    pub(super) fn probe_template(&self) -> Option<&Template> {
        let path = self.paths.as_ref()?.of_probe(self.prober.sent());
        self.template(path)
    }

    #[inline]
    pub(super) fn report_for_acknowledge(&self) -> Option<Report> {
        self.reporter.as_ref()?.report_for_acknowledge()
    }

    #[inline]
    pub(super) fn on_data_sent(&mut self, now: Instant, payload: u32, requests_telemetry: bool) {
        self.is_active = true;
        self.sampler.on_data_sent();
        self.prober.on_data(payload);
        if requests_telemetry {
            self.policy.on_telemetry_requested(now);
        }
    }

    #[inline]
    pub(super) fn on_acknowledged(&mut self, bytes: u64) {
        if let Some(paths) = &mut self.paths {
            paths.on_acknowledged(bytes);
        }
    }

    /// Returns whether an answer to the peer's telemetry, or a packet of this side, may be due.
    #[inline]
    pub(super) fn may_have_control_packets(&self, now: Instant) -> bool {
        let due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        let may_request =
            || due(self.prober.due_at()) || due(self.sampler.setup_due_at()) || self.path_due_at().is_some();
        self.reporter.as_ref().is_some_and(|reporter| reporter.may_have_pending())
            || ((self.is_active || self.prober.has_unacknowledged()) && may_request())
            || self.prober.is_due_while_held(now)
            || self.policy.has_unreported()
            || self.base_rtt.as_ref().is_some_and(BaseRtt::has_notice)
    }

    /// Returns when the next telemetry packet is due while data is in flight.
    #[inline]
    pub(super) fn due_at(&self) -> Option<Instant> {
        earliest_of(earliest_of(self.prober.due_at(), self.sampler.setup_due_at()), self.path_due_at())
    }

    /// Returns when the next path is probed. The limit for peers that never answer applies to these probes, too.
    #[inline]
    pub(super) fn path_due_at(&self) -> Option<Instant> {
        self.paths.as_ref().filter(|_| !self.prober.is_given_up())?.due_at()
    }

    pub(super) fn on_path(&mut self, path: &Path) {
        self.on_other_path();
        if let Some(paths) = &mut self.paths {
            paths.set_headers(path);
        }
    }

    /// Discards the measured base round trip, because the path has changed.
    pub(super) fn on_other_path(&mut self) {
        self.base_rtt.as_mut().map(BaseRtt::restart);
    }

    pub(super) fn redirect(&mut self, peer: IpAddr, mac: Mac) {
        if let Some(paths) = &mut self.paths {
            for template in paths.templates() {
                template.redirect(peer, mac);
            }
        }
    }
}

/// Returns the measurement of the base round trip that these settings need.
fn base_rtt_of(settings: &Congestion) -> Option<BaseRtt> {
    if settings.unknown.base_rtt {
        return Some(BaseRtt::new(Congestion::FIRST_BASE_RTT, false));
    }
    let better = settings.upgrade.as_ref().and_then(|upgrade| upgrade.to.as_hpcc());
    let hpcc = settings.algorithm.as_hpcc().or(better)?;
    Some(BaseRtt::new(hpcc.base_rtt, true))
}
