//! Telemetry that the peer's packets carry, and the peer's answers to this side's telemetry.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use super::reporter::RATIO_ONE;
use super::seal::SealedFields;
use super::telemetry::Telemetry;
use super::{CongestionControl, Transport};
use crate::wire::{
    Bth, Feedback, Frame, Header, IN_BAND_ROOM, MAX_FEEDBACK, Opcode, Report, SETUP_LENGTH, Seal, Setup,
};
use crate::{Counters, Discard};
use cc::{Ack, ActiveFlows, CongestionController, Inflight, ReceiverLink};

impl CongestionControl {
    /// Records the UDP source port of a request: a different port is a different path.
    #[inline]
    pub(crate) fn on_request(&mut self, udp_source: u16) {
        if let Some(reporter) = self.telemetry.as_mut().and_then(|telemetry| telemetry.existing_reporter()) {
            reporter.on_request(udp_source);
        }
    }

    /// Returns whether a data packet carries telemetry, or an Acknowledge carries feedback. [`Self::on_telemetry`] must then handle it
    /// before the packet itself.
    #[inline]
    pub(crate) fn carries_telemetry(&self, frame: &Frame<'_>) -> bool {
        self.telemetry.as_ref().is_some_and(|telemetry| telemetry.has_reporter())
            || frame.carries_telemetry()
            || frame.header.bth().congestion & Bth::TELEMETRY != 0
    }

    /// Handles a packet without telemetry and without a mark. The reporter counts its bytes, and records the path of a request.
    #[inline(always)]
    pub(crate) fn on_plain(&mut self, is_request: bool, udp_source: u16, payload: usize) {
        if let Some(reporter) = self.telemetry.as_mut().and_then(|telemetry| telemetry.existing_reporter()) {
            reporter.on_plain(is_request.then_some(udp_source), payload);
        }
    }

    /// Handles the telemetry of a data packet, or the feedback with an Acknowledge.
    pub(crate) fn on_telemetry(
        &mut self,
        frame: &Frame<'_>,
        transport: &Transport<'_>,
        counters: &mut Counters,
        flows: &mut ActiveFlows,
    ) {
        let (bth, opcode) = (frame.header.bth(), frame.header.opcode());
        if !opcode.is_acknowledge() {
            if frame.carries_telemetry() {
                self.telemetry().reporter(transport.now);
            }
            let known = self.telemetry.as_mut().and_then(|telemetry| telemetry.existing_reporter());
            if let Some(reporter) = known {
                reporter.on_frame(transport.now, frame, flows);
            }
            return;
        }
        if bth.congestion & Bth::TELEMETRY != 0 && !frame.payload.is_empty() {
            let taken = Feedback::read(frame.payload)
                .and_then(|feedback| self.on_feedback(bth, opcode, &feedback, transport, counters));
            // The Acknowledge itself is valid, even if its feedback is not.
            if let Err(discard) = taken {
                counters.discard(discard);
            }
        }
    }

    /// Handles a packet that carries only congestion control, except a CNP. Returns whether packets must be ECN-capable from now on.
    ///
    /// # Errors
    /// Returns the reason if the packet was dropped.
    pub(crate) fn on_control(
        &mut self,
        frame: &Frame<'_>,
        transport: &Transport<'_>,
        counters: &mut Counters,
        flows: &mut ActiveFlows,
    ) -> Result<bool, Discard> {
        match &frame.header {
            Header::TelemetryRequest { .. } => {
                self.telemetry().reporter(transport.now).on_frame(transport.now, frame, flows);
            }
            Header::TelemetryResponse { bth, feedback } => {
                return self.on_response(bth, feedback, transport, counters);
            }
            Header::TelemetryNotification { bth, feedback } => {
                self.on_feedback(bth, Opcode::TELEMETRY_NOTIFICATION, feedback, transport, counters)?;
            }
            Header::DirectResponse { bth, feedback } => {
                self.on_direct(bth, feedback, transport, counters)?;
            }
            Header::TelemetrySetup { bth, setup, seal } => self.on_setup(bth, *setup, *seal, transport)?,
            Header::Connected { .. }
            | Header::Extended { .. }
            | Header::Datagram { .. }
            | Header::DatagramTelemetryRequest { .. }
            | Header::SelectiveAcknowledge { .. }
            | Header::SelectiveOffer { .. }
            | Header::CongestionNotification { .. } => return Err(Discard::Opcode),
        }
        Ok(false)
    }

    /// Handles the answer to a probe. Returns whether packets must be ECN-capable from now on.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn on_response(
        &mut self,
        bth: &Bth,
        feedback: &Feedback,
        transport: &Transport<'_>,
        counters: &mut Counters,
    ) -> Result<bool, Discard> {
        let telemetry = self.telemetry.as_mut().ok_or(Discard::Telemetry)?;
        telemetry.verify_feedback(bth, Opcode::TELEMETRY_RESPONSE, feedback, transport)?;
        telemetry.prober.on_peer_answered();
        let sample = telemetry.match_probe(bth, feedback.report, transport)?;
        counters.probe_responses += 1;
        if let Some(flow) = &mut self.flow {
            if feedback.report.hops() == Some(0) { flow.grow_window() } else { flow.open_window() }
        }
        Ok(sample.is_some_and(|sample| self.apply_sample(&sample, feedback.report, transport)))
    }

    /// Applies the measurement of a probe. Returns whether packets must be ECN-capable from now on.
    #[expect(clippy::arithmetic_side_effects, reason = "subtracting from an `Instant` saturates")]
    fn apply_sample(&mut self, sample: &ProbeSample, report: Report, transport: &Transport<'_>) -> bool {
        let hops = report.hops();
        let rate = report.path().and_then(|path| path.hops().map(|(_, hop)| hop.bandwidth).max());
        let enables_ect =
            hops.is_some_and(|hops| self.on_probe_answered(hops, rate, sample.ack.rtt, &transport.sequence));
        if let (Some(hops), Some(path), Some(telemetry)) = (hops, report.path(), &mut self.telemetry) {
            telemetry.on_path_length(path.path_id(), hops);
        }
        self.on_report(&sample.ack, sample.path, report);
        if let Some(rtt) = sample.ack.rtt {
            self.measure_rtt(transport.now, rtt);
            self.pace_factor(rtt);
        }
        let left_at = transport.now - sample.ack.rtt.unwrap_or_default();
        let is_missing = hops == Some(0) && self.check_telemetry(left_at);
        let prober = self.telemetry.as_ref().map(|telemetry| &telemetry.prober);
        if prober.is_some_and(|prober| prober.has_discovery_failed() && prober.is_answered()) {
            self.stop_probing();
        }
        enables_ect || is_missing
    }

    #[expect(clippy::arithmetic_side_effects, reason = "counts of packets stay below 2^64")]
    fn on_feedback(
        &mut self,
        bth: &Bth,
        opcode: Opcode,
        feedback: &Feedback,
        transport: &Transport<'_>,
        counters: &mut Counters,
    ) -> Result<(), Discard> {
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.verify_feedback(bth, opcode, feedback, transport)?;
            telemetry.prober.on_peer_answered();
        }
        let seq = match feedback.report {
            Report::Ready => {
                if let Some(telemetry) = &mut self.telemetry {
                    telemetry.sampler.on_ready();
                    telemetry.prober.end_first_window();
                    telemetry.policy.on_ready();
                }
                return Ok(());
            }
            Report::Window(_) => {
                if let Some(telemetry) = &mut self.telemetry {
                    telemetry.prober.on_window();
                }
                0
            }
            Report::Busiest { .. }
            | Report::Hop { .. }
            | Report::Shared { .. }
            | Report::All { .. }
            | Report::Ratio { .. } => transport.sequence.sent_number(bth.psn).ok_or(Discard::Telemetry)? + 1,
        };
        counters.feedback_received += 1;
        self.on_report(&self.ack_of(transport, seq), transport.path, feedback.report);
        Ok(())
    }

    /// Handles the report of a switch that a packet of this side encountered congestion.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "counts of packets stay below 2^64; `bytes` returns no more than its room"
    )]
    fn on_direct(
        &mut self,
        bth: &Bth,
        feedback: &Feedback,
        transport: &Transport<'_>,
        counters: &mut Counters,
    ) -> Result<(), Discard> {
        if let Some(telemetry) = &mut self.telemetry {
            let (content, length) = bytes(feedback.report);
            telemetry.auth.verify(&SealedFields::direct(bth), &content[..length], feedback.seal)?;
        }
        if !matches!(feedback.report, Report::Ratio { .. }) {
            return Err(Discard::Telemetry);
        }
        let seq = transport.sequence.sent_number(bth.psn).ok_or(Discard::Telemetry)? + 1;
        counters.feedback_received += 1;
        self.on_report(&self.ack_of(transport, seq), transport.path, feedback.report);
        Ok(())
    }

    /// Returns an acknowledgement of no bytes, for telemetry from packet `seq - 1`.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of packets stay below 2^64")]
    fn ack_of(&self, transport: &Transport<'_>, seq: u64) -> Ack {
        let mixed = self.telemetry.as_ref().filter(|telemetry| !telemetry.is_by_probes());
        let probes = mixed.map_or(0, |telemetry| telemetry.prober.sent());
        let next = transport.sequence.next + probes;
        Ack { now: transport.now, seq: seq + probes, next, acked_bytes: 0, ce_bytes: 0, rtt: None }
    }

    /// Applies a report on path `sprayed`, with spraying; otherwise on the path of all requests.
    #[expect(clippy::arithmetic_side_effects, reason = "a shared hop has at least one flow")]
    fn on_report(&mut self, ack: &Ack, sprayed: Option<u8>, report: Report) {
        // A report of 0 hops means that no switch of the path writes telemetry.
        if report.hops() != Some(0) {
            self.on_telemetry_received();
        }
        let path = report.path();
        if let (Some(telemetry), Some(path)) = (&mut self.telemetry, &path) {
            if report.hops() == Some(IN_BAND_ROOM) {
                telemetry.on_full_telemetry(ack.now, path.path_id());
            }
            if let Some(base_rtt) = &mut telemetry.base_rtt {
                base_rtt.on_telemetry(path);
            }
        }
        let Some(flow) = &mut self.flow else { return };
        let algorithm = flow.algorithm_mut();
        if let Report::Shared { hops, flows, .. } = report {
            algorithm.on_receiver_link(ReceiverLink { hop: hops - 1, flows });
        }
        let paths = self.telemetry.as_mut().and_then(|telemetry| telemetry.paths.as_mut());
        if let Some(paths) = paths.filter(|paths| paths.sprays()) {
            if let Some(inflight) = sprayed.and_then(|path| paths.on_sprayed(ack.now, path, report)) {
                algorithm.on_inflight(ack, &inflight);
            }
            return;
        }
        match report {
            Report::Ratio { utilisation, interval, .. } => {
                let utilisation = f64::from(utilisation) / RATIO_ONE;
                algorithm.on_inflight(ack, &Inflight { utilisation, interval: interval.into() });
            }
            Report::Window(window) => algorithm.on_window(window),
            Report::Busiest { .. }
            | Report::Hop { .. }
            | Report::Shared { .. }
            | Report::All { .. }
            | Report::Ready => {}
        }
        if let Some(path) = path {
            algorithm.on_telemetry(ack, &path);
        }
    }

    fn on_setup(
        &mut self,
        bth: &Bth,
        setup: Setup,
        seal: Option<Seal>,
        transport: &Transport<'_>,
    ) -> Result<(), Discard> {
        let first = transport.sequence.first_received;
        let sealed = SealedFields {
            to: transport.qpn,
            ..SealedFields::new(Opcode::TELEMETRY_SETUP, transport.destination, bth, first)
        };
        let telemetry = self.telemetry();
        telemetry.auth.verify(&sealed, &setup.pack(), seal)?;
        telemetry.reporter(transport.now).on_setup(transport.now, setup)
    }

    /// Returns `report` as feedback for an Acknowledge with this BTH, and records it as sent.
    #[expect(clippy::arithmetic_side_effects, reason = "counts of packets stay below 2^64")]
    pub(crate) fn piggyback(
        &mut self,
        opcode: Opcode,
        bth: &Bth,
        report: Report,
        transport: &Transport<'_>,
        counters: &mut Counters,
    ) -> Feedback {
        let telemetry = self.telemetry();
        let feedback = telemetry.feedback(opcode, bth, report, transport);
        if let Some(reporter) = telemetry.existing_reporter() {
            reporter.on_sent(report);
        }
        counters.feedback_sent += 1;
        feedback
    }
}

struct ProbeSample {
    ack: Ack,
    /// Path of the probe, if there are several.
    path: Option<u8>,
}

impl Telemetry {
    /// Finds the probe for an answer. Returns `None` for a probe that compares paths, to which the answer was applied.
    ///
    /// # Errors
    /// Returns [`Discard::Telemetry`] if no probe awaits this answer.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "an acknowledged probe was sent before, and counts of packets stay below 2^64"
    )]
    fn match_probe(
        &mut self,
        bth: &Bth,
        report: Report,
        transport: &Transport<'_>,
    ) -> Result<Option<ProbeSample>, Discard> {
        if let Some(paths) = &mut self.paths
            && paths.on_response(transport.now, bth.psn, report)
        {
            return Ok(None);
        }
        let (mut ack, data) = self.prober.on_response(transport.now, bth.psn)?;
        let path = self.paths.as_ref().and_then(|paths| paths.of_probe(ack.seq - 1));
        self.sampler.restart_attempts();
        if !transport.is_sending {
            // Only probes measure unacknowledged data, and each measures the time since the one before. A reference advances after two
            // probes that were both sent after its last advance.
            ack.seq -= 1;
        }
        if !self.is_by_probes() {
            // Probes and packets are counted together, with each probe at its position among the data. Otherwise a reference would not
            // advance while the other count is behind.
            ack.seq += data.unwrap_or(transport.sequence.una);
            ack.next += transport.sequence.next;
        }
        Ok(Some(ProbeSample { ack, path }))
    }

    #[expect(clippy::indexing_slicing, reason = "`bytes` returns no more than its room")]
    fn verify_feedback(
        &mut self,
        bth: &Bth,
        opcode: Opcode,
        feedback: &Feedback,
        transport: &Transport<'_>,
    ) -> Result<(), Discard> {
        if !self.auth.is_used() {
            return Ok(());
        }
        let sealed = SealedFields::new(opcode, transport.destination, bth, transport.sequence.first_sent);
        let (content, length) = bytes(feedback.report);
        self.auth.verify(&sealed, &content[..length], feedback.seal)
    }

    #[expect(clippy::indexing_slicing, reason = "`bytes` returns no more than its room")]
    pub(super) fn feedback(
        &mut self,
        opcode: Opcode,
        bth: &Bth,
        report: Report,
        transport: &Transport<'_>,
    ) -> Feedback {
        if !self.auth.is_used() {
            return Feedback { report, seal: None };
        }
        let sealed = SealedFields::new(opcode, transport.qpn, bth, transport.sequence.first_received);
        let (content, length) = bytes(report);
        Feedback { report, seal: self.auth.seal(&sealed, &content[..length]) }
    }

    pub(super) fn seal_setup(&mut self, bth: &Bth, setup: Setup, transport: &Transport<'_>) -> Option<Seal> {
        let first = transport.sequence.first_sent;
        let sealed = SealedFields::new(Opcode::TELEMETRY_SETUP, transport.qpn, bth, first);
        self.auth.seal(&sealed, &setup.pack())
    }
}

fn bytes(report: Report) -> ([u8; MAX_FEEDBACK], usize) {
    let mut bytes = [0; MAX_FEEDBACK];
    let length = Feedback { report, seal: None }.write(&mut bytes);
    (bytes, length)
}

const _: () = assert!(SETUP_LENGTH.is_multiple_of(4) && MAX_FEEDBACK.is_multiple_of(4));
