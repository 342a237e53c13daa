//! Connects a queue pair to the algorithms of `cc`: pacing, telemetry and its answers, marks, path selection.
//!
//! [`CongestionControl`] determines whether and how much a queue pair may send, and which telemetry its packets carry. It also creates
//! packets other than data and acknowledgements. The queue pair reports the packets sent, acknowledged and lost, and the congestion signals
//! received.

mod algorithm;
mod base_rtt;
mod control_packets;
mod destinations;
mod echo;
mod estimate;
mod feedback;
mod notification;
mod pacing;
mod paths;
mod peer_paths;
mod policy;
mod probe_responder;
mod prober;
mod reporter;
mod sampler;
mod seal;
mod settings;
mod signals;
mod telemetry;

pub use paths::PathChoice;
pub use seal::FeedbackKey;
pub use settings::{Congestion, CongestionAlgorithm, Unknown, Upgrade, When};

pub(crate) use control_packets::InFlight;
pub(crate) use destinations::{Destinations, Sender};
pub(crate) use echo::{Boundary, Echo};
pub(crate) use probe_responder::ProbeResponder;
pub(crate) use telemetry::{DataTelemetry, insert_telemetry};

use crate::wheel::earliest_of;
use crate::wire::{Bth, Frame, Mac, Numbers, Path, Report, Template};
use crate::{ControlError, Psn, Qpn};
use alloc::boxed::Box;
use cc::{Algorithm, CongestionController, DcqcnConfig, Instant};
use core::net::IpAddr;
use core::time::Duration;
use notification::Notifier;
use pacing::Flow;
use seal::FeedbackAuth;
use telemetry::Telemetry;

/// State of a connection that congestion control uses while it writes a packet or handles feedback.
#[derive(Clone, Copy)]
pub(crate) struct Transport<'a> {
    pub(crate) now: Instant,
    pub(crate) qpn: Qpn,
    pub(crate) destination: Qpn,
    pub(crate) partition_key: u16,
    pub(crate) identification: u16,
    /// Numbers of the network for telemetry formats.
    pub(crate) numbers: Numbers,
    /// Headers of the connection's own path.
    pub(crate) template: &'a Template,
    /// The queue pair is in RTS, and data is in flight.
    pub(crate) is_sending: bool,
    pub(crate) sequence: Sequence,
    /// Path of the packet that is being answered, with spraying.
    pub(crate) path: Option<u8>,
}

/// Packet numbers of both directions, which never wrap.
#[derive(Clone, Copy)]
pub(crate) struct Sequence {
    /// Oldest unacknowledged packet.
    pub(crate) una: u64,
    pub(crate) next: u64,
    /// Number after the highest packet ever sent.
    pub(crate) sent: u64,
    pub(crate) first_sent: Psn,
    pub(crate) first_received: Psn,
}

impl Sequence {
    /// Returns the number of the sent packet with this PSN that is nearest to the oldest unacknowledged one.
    fn sent_number(&self, psn: Psn) -> Option<u64> {
        let una = self.first_sent.plus((self.una & u64::from(Psn::CIRCLE - 1)) as u32);
        self.una.checked_add_signed(i64::from(psn.distance(una))).filter(|&number| number < self.sent)
    }
}

impl Transport<'_> {
    fn bth(&self, psn: Psn) -> Bth {
        Bth { partition_key: self.partition_key, ..Bth::new(self.destination, psn) }
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Payload bytes newly acknowledged.
    pub(crate) bytes: u64,
    pub(crate) rtt: Option<Duration>,
    /// A loss that was not reported before.
    pub(crate) lost: bool,
}

/// Congestion control of a queue pair. Rarely used parts are boxed, because most queue pairs are idle.
#[derive(Debug)]
pub(crate) struct CongestionControl {
    /// Set in RTS.
    flow: Option<Flow>,
    notifier: Notifier,
    /// Set when this side or the peer first uses telemetry.
    telemetry: Option<Box<Telemetry>>,
    /// DCQCN parameters that replace a fixed window once the peer answers marks.
    by_marks: Option<Box<DcqcnConfig>>,
    paced_until: Option<Instant>,
}

impl CongestionControl {
    pub(crate) const fn new() -> Self {
        Self {
            flow: None,
            notifier: Notifier::new(Congestion::NOTIFICATION_INTERVAL),
            telemetry: None,
            by_marks: None,
            paced_until: None,
        }
    }

    /// Seals answers with `key` from RTR on, if there is one.
    pub(crate) fn authenticate(&mut self, key: Option<FeedbackKey>) {
        if key.is_some() {
            self.telemetry.get_or_insert_default().auth = FeedbackAuth::new(key);
        }
    }

    /// Starts pacing, before RTS.
    ///
    /// # Errors
    /// Returns a [`ControlError`], and changes nothing, if a parameter is out of its range or the telemetry format does not fit the path.
    pub(crate) fn start(
        &mut self,
        settings: &Congestion,
        qpn: Qpn,
        path: Option<&Path>,
    ) -> Result<(), ControlError> {
        // Only telemetry can replace an unknown line rate, so an upgrade by round trip cannot use it.
        let needs_line_rate = |upgrade: &Upgrade| matches!(upgrade.when, When::RttBelow(_));
        if settings.unknown.line_rate
            && (settings.algorithm.line_rate().is_some()
                || settings.upgrade.as_ref().is_some_and(needs_line_rate))
        {
            return Err(ControlError::LineRate);
        }
        let algorithm = settings.algorithm.build().map_err(ControlError::Congestion)?;
        if let Some(path) = path {
            if !settings.format.fits(path.destination) {
                let (format, address) = (settings.format, path.destination);
                return Err(ControlError::Format { format, address });
            }
            if let Some(upgrade) = &settings.upgrade {
                upgrade.to.build().map_err(ControlError::Congestion)?;
            }
            let telemetry = self.telemetry.take().map(|telemetry| *telemetry);
            self.telemetry = Telemetry::start(telemetry, settings, qpn, path).map(Box::new);
        }
        let mut flow = Flow::new(algorithm);
        let discovers_telemetry =
            settings.upgrade.is_some_and(|upgrade| upgrade.when == When::TelemetryAnswered);
        if discovers_telemetry && settings.probe_interval.is_some() {
            flow.limit_window();
        }
        self.flow = Some(flow);
        self.by_marks = settings.by_marks().map(Box::new);
        self.notifier = Notifier::new(settings.notification_interval);
        Ok(())
    }

    /// Returns whether direct responses of switches have an effect: the algorithm, or the one that may take over, computes with in-flight
    /// shares.
    pub(crate) fn uses_direct_responses(&self) -> bool {
        self.telemetry.as_ref().is_some_and(|telemetry| telemetry.policy.may_compute())
    }

    /// Returns the algorithm in use; `None` before RTS.
    pub(crate) fn algorithm(&self) -> Option<&Algorithm> {
        self.flow.as_ref().map(Flow::algorithm)
    }

    /// Returns whether the pacer permits a packet now. If not, records the time until which it delays the packet.
    #[inline]
    pub(crate) fn may_send(&mut self, now: Instant) -> bool {
        self.paced_until = self.flow.as_ref().map(Flow::free_at).filter(|&at| at > now);
        if let (Some(until), Some(telemetry)) = (self.paced_until, &mut self.telemetry) {
            telemetry.prober.on_held(now, until);
        }
        self.paced_until.is_none()
    }

    /// Delays the next packet until `until`, for another pacer.
    pub(crate) const fn hold(&mut self, until: Instant) {
        self.paced_until = Some(until);
    }

    /// Starts a turn: window and rate are read once, for all its packets.
    #[inline]
    pub(crate) fn begin_turn(&mut self, now: Instant) {
        self.clear_hold();
        if let Some(flow) = &mut self.flow {
            flow.begin_turn(now);
        }
    }

    /// Ends the delay: the queue pair may send again, or has nothing more to send.
    #[inline]
    pub(crate) const fn clear_hold(&mut self) {
        self.paced_until = None;
    }

    #[inline]
    pub(crate) const fn paced_until(&self) -> Option<Instant> {
        self.paced_until
    }

    /// Returns the congestion window of this turn, bytes; `None` before RTS.
    #[inline]
    pub(crate) fn window(&self) -> Option<u64> {
        self.flow.as_ref().map(Flow::window)
    }

    /// Returns the congestion window of the next turn, bytes; 0 before RTS.
    pub(crate) fn next_window(&self) -> u64 {
        self.flow.as_ref().map_or(0, Flow::next_window)
    }

    /// Returns the last and the shortest round trip; `None` before the first.
    pub(crate) fn round_trip(&self) -> Option<(Duration, Duration)> {
        self.flow.as_ref()?.round_trip()
    }

    /// Returns the congestion byte of a data packet's BTH.
    #[inline]
    pub(crate) fn data_bits(&self) -> u8 {
        self.flow.as_ref().map_or(0, Flow::data_bits)
    }

    /// Returns the telemetry that the next data packet carries, if the frame has `room` more bytes for it.
    #[inline]
    pub(crate) fn data_telemetry(&self, room: usize) -> DataTelemetry {
        self.telemetry.as_ref().map_or(DataTelemetry::None, |telemetry| telemetry.data_telemetry(room))
    }

    /// Returns the headers of requests: those of `path` with spraying, otherwise of the active path if there are several.
    #[inline]
    pub(crate) fn template<'a>(&'a self, path: Option<u8>, own: &'a Template) -> &'a Template {
        self.telemetry.as_ref().and_then(|telemetry| telemetry.template(path)).unwrap_or(own)
    }

    /// Returns the headers of answers, which use one of the paths with spraying.
    #[inline]
    pub(crate) fn answer_template<'a>(&'a self, own: &'a Template) -> &'a Template {
        let paths = self.telemetry.as_ref().and_then(|telemetry| telemetry.paths.as_ref());
        paths.map_or(own, |paths| paths.answer_template())
    }

    /// Handles a request that the peer retransmitted although it had arrived.
    pub(crate) fn on_duplicate(&mut self, now: Instant) {
        if let Some(paths) = self.telemetry.as_mut().and_then(|telemetry| telemetry.paths.as_mut()) {
            paths.on_duplicate(now);
        }
    }

    #[inline]
    pub(crate) fn report_for_acknowledge(&self) -> Option<Report> {
        self.telemetry.as_ref()?.report_for_acknowledge()
    }

    #[inline]
    pub(crate) fn poll_timeout(&self, is_sending: bool) -> Option<Instant> {
        let algorithm = self.flow.as_ref().and_then(|flow| flow.algorithm().poll_timeout());
        let telemetry = match &self.telemetry {
            Some(telemetry) if is_sending || telemetry.prober.has_unacknowledged() => telemetry.due_at(),
            _ => None,
        };
        let paced = self.paced_until.and_then(|at| earliest_of(Some(at), self.probe_while_held_at()));
        earliest_of(earliest_of(paced, algorithm), telemetry)
    }

    /// Returns when the next probe is due if the pacer still delays the next packet then.
    fn probe_while_held_at(&self) -> Option<Instant> {
        self.telemetry.as_ref()?.prober.due_while_held_at()
    }

    /// Returns the time between two packets of `bytes` bytes at the pacing rate.
    pub(crate) fn packet_interval(&self, bytes: u32) -> Duration {
        let rate = self.flow.as_ref().and_then(|flow| flow.algorithm().pacing_rate());
        rate.map_or(Duration::ZERO, |rate| rate.time_for(bytes.into()))
    }

    pub(crate) fn on_timeout(&mut self, now: Instant) {
        if let Some(flow) = &mut self.flow
            && flow.algorithm().poll_timeout().is_some_and(|at| at <= now)
        {
            flow.algorithm_mut().on_timeout(now);
            flow.begin_turn(now);
        }
    }

    /// Records a data packet: its number, its payload bytes, the bytes of the whole frame, and the telemetry that it carries.
    #[inline]
    pub(crate) fn on_data_sent(
        &mut self,
        now: Instant,
        number: u64,
        payload: u32,
        frame: usize,
        carried: DataTelemetry,
    ) {
        if let Some(telemetry) = &mut self.telemetry {
            // The answer to a READ request is data, which carries no feedback.
            let requests_telemetry =
                payload > 0 && matches!(carried, DataTelemetry::Int | DataTelemetry::Format(_));
            telemetry.on_data_sent(now, payload, requests_telemetry);
        }
        if let Some(flow) = &mut self.flow {
            flow.algorithm_mut().on_send(now, number, payload);
            flow.on_wire(now, frame);
        }
    }

    /// Records a frame of unacknowledged data, a READ response or an unreliable packet. No window limits it: it is paced, and probes
    /// measure its path.
    #[inline]
    pub(crate) fn on_unacknowledged_data_sent(&mut self, now: Instant, payload: u32, frame: usize) {
        let mut rounds = 1;
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.prober.on_unacknowledged_data();
            rounds = telemetry.rounds_in_flight();
        }
        if let Some(flow) = &mut self.flow {
            // The frame has no number that an acknowledgement could contain.
            flow.algorithm_mut().on_send(now, 0, payload);
            flow.on_wire_unacknowledged(now, frame, rounds);
        }
    }

    /// Adapts the pace of unacknowledged data to the round trip of a probe.
    fn pace_factor(&mut self, rtt: Duration) {
        let base_rtt = self.telemetry.as_ref().and_then(|telemetry| telemetry.policy.window_base_rtt());
        if let (Some(base_rtt), Some(flow)) = (base_rtt, &mut self.flow) {
            flow.on_probe_rtt(rtt, base_rtt);
        }
    }

    /// Handles an answer that advanced the window, or a loss. `is_marked` means that the acknowledged packets were CE-marked. Returns
    /// whether packets must be ECN-capable from now on, because another algorithm has taken over.
    #[inline]
    pub(crate) fn on_progress(
        &mut self,
        now: Instant,
        progress: Progress,
        is_marked: bool,
        sequence: &Sequence,
    ) -> bool {
        let enables_ect = match progress.rtt {
            Some(rtt) if self.telemetry.is_some() => {
                self.measure_rtt(now, rtt);
                self.on_round_trip(rtt, sequence)
            }
            _ => false,
        };
        let is_missing = progress.rtt.is_some_and(|rtt| self.check_telemetry(now - rtt));
        let enables_ect = enables_ect || is_missing;
        let Some(flow) = &mut self.flow else { return enables_ect };
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.on_acknowledged(progress.bytes);
        }
        if progress.bytes > 0 || progress.rtt.is_some() {
            let bounds = (sequence.una, sequence.next);
            flow.on_ack(now, bounds, progress.bytes, is_marked, progress.rtt);
        }
        if progress.lost {
            flow.algorithm_mut().on_loss(now);
        }
        enables_ect
    }

    /// Handles a CNP.
    pub(crate) fn on_notification(&mut self, now: Instant) {
        self.switch_to_dcqcn();
        if let Some(flow) = &mut self.flow {
            flow.algorithm_mut().on_congestion_notification(now);
        }
    }

    /// Handles a packet of the peer. Returns whether it is CE-marked.
    #[inline]
    pub(crate) fn on_packet(&mut self, now: Instant, frame: &Frame<'_>) -> bool {
        self.notifier.on_packet(now, frame)
    }

    /// Checks whether the connection may use another path.
    ///
    /// # Errors
    /// Returns [`ControlError::Format`] if the telemetry format does not fit the path.
    pub(crate) fn check_path(&self, path: &Path) -> Result<(), ControlError> {
        let format = self.telemetry.as_ref().map(|telemetry| telemetry.format());
        match format.filter(|format| !format.fits(path.destination)) {
            Some(format) => Err(ControlError::Format { format, address: path.destination }),
            None => Ok(()),
        }
    }

    pub(crate) fn on_path(&mut self, path: &Path) {
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.on_path(path);
        }
    }

    pub(crate) fn redirect(&mut self, peer: IpAddr, mac: Mac) {
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.redirect(peer, mac);
        }
    }

    #[inline]
    pub(crate) fn holds_telemetry(&self) -> bool {
        self.telemetry.as_ref().is_some_and(|telemetry| telemetry.has_reporter())
    }

    pub(crate) fn release_telemetry(&mut self, now: Instant) -> bool {
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.release(now);
            if !telemetry.is_used() {
                self.telemetry = None;
            }
        }
        self.holds_telemetry()
    }

    fn telemetry(&mut self) -> &mut Telemetry {
        self.telemetry.get_or_insert_with(|| Box::new(Telemetry::default()))
    }
}
