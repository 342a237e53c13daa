//! The packets of congestion control: CNPs, feedback, setups, probes.

use super::pacing::Flow;
use super::reporter::ReportCarrier;
use super::telemetry::{DataTelemetry, Telemetry, insert_telemetry};
use super::{CongestionControl, Transport};
use crate::wire::{Bth, Header, Opcode, Template};
use crate::{Counters, Psn};
use cc::Instant;

/// Unanswered probes after which the first window grows if data is acknowledged: the peer most likely answers none.
const MAX_UNANSWERED_AT_START: u64 = 3;

impl CongestionControl {
    /// Returns whether a packet may be due. `true` may be wrong.
    #[inline]
    pub(crate) fn may_have_control_packets(&self, now: Instant) -> bool {
        self.notifier.is_due()
            || self.telemetry.as_ref().is_some_and(|telemetry| telemetry.may_have_control_packets(now))
    }

    /// Writes a due CNP: BECN set, PSN 0 (IBA A17.9.3).
    fn transmit_notification(
        &mut self,
        transport: &Transport<'_>,
        counters: &mut Counters,
        frame: &mut [u8],
    ) -> Option<usize> {
        if !self.notifier.is_due() {
            return None;
        }
        let bth = Bth { congestion: Bth::BECN, ..transport.bth(Psn::new(0)) };
        self.notifier.on_sent();
        counters.notifications_sent += 1;
        write(transport, &Header::CongestionNotification { bth }, frame)
    }

    /// Writes the next due packet, answers first. Sets `enables_ect` if an algorithm that uses marks has taken over.
    pub(crate) fn transmit_control(
        &mut self,
        transport: &Transport<'_>,
        counters: &mut Counters,
        frame: &mut [u8],
        enables_ect: &mut bool,
    ) -> Option<usize> {
        self.transmit_notification(transport, counters, frame)
            .or_else(|| self.transmit_feedback(transport, counters, frame))
            .or_else(|| self.transmit_setup(transport, frame))
            .or_else(|| self.transmit_path_probe(transport, counters, frame))
            .or_else(|| self.transmit_probe(transport, counters, frame, enables_ect))
    }

    fn transmit_feedback(
        &mut self,
        transport: &Transport<'_>,
        counters: &mut Counters,
        frame: &mut [u8],
    ) -> Option<usize> {
        let telemetry = self.telemetry.as_mut()?;
        let pending = telemetry.existing_reporter()?.pending_report()?;
        let bth = transport.bth(pending.psn);
        let header = match pending.carrier {
            ReportCarrier::Response => {
                let feedback =
                    telemetry.feedback(Opcode::TELEMETRY_RESPONSE, &bth, pending.report, transport);
                Header::TelemetryResponse { bth, feedback }
            }
            ReportCarrier::Notification | ReportCarrier::Either | ReportCarrier::Acknowledge => {
                let feedback =
                    telemetry.feedback(Opcode::TELEMETRY_NOTIFICATION, &bth, pending.report, transport);
                Header::TelemetryNotification { bth, feedback }
            }
        };
        telemetry.existing_reporter()?.on_sent(pending.report);
        counters.feedback_sent += 1;
        write(transport, &header, frame)
    }

    fn sending_telemetry(&mut self, transport: &Transport<'_>) -> Option<&mut Telemetry> {
        let telemetry = self.telemetry.as_deref_mut()?;
        telemetry.is_active = transport.is_sending || telemetry.prober.has_unacknowledged();
        telemetry.is_active.then_some(telemetry)
    }

    /// Writes the setup that requests a kind of answer, while data is in flight and the peer has not confirmed it.
    fn transmit_setup(&mut self, transport: &Transport<'_>, frame: &mut [u8]) -> Option<usize> {
        let telemetry = self.sending_telemetry(transport)?;
        telemetry.sampler.setup_due_at().filter(|&at| at <= transport.now)?;
        let setup = telemetry.sampler.setup()?;
        let bth = transport.bth(Psn::new(0));
        let seal = telemetry.seal_setup(&bth, setup, transport);
        telemetry.sampler.on_setup_sent(transport.now);
        telemetry.policy.on_telemetry_requested(transport.now);
        write(transport, &Header::TelemetrySetup { bth, setup, seal }, frame)
    }

    /// Writes the next probe of another path, while data is in flight.
    fn transmit_path_probe(
        &mut self,
        transport: &Transport<'_>,
        counters: &mut Counters,
        frame: &mut [u8],
    ) -> Option<usize> {
        let telemetry = self.sending_telemetry(transport)?;
        telemetry.path_due_at().filter(|&at| at <= transport.now)?;
        let (sent, unanswered_so_far) = (telemetry.prober.sent(), telemetry.prober.unanswered_so_far());
        let template = telemetry.paths.as_mut()?.on_probe(transport.now, sent, unanswered_so_far)?;
        let written = write_probe(transport, telemetry, &template, frame);
        telemetry.prober.skip(transport.now, transport.sequence.next);
        counters.probes_sent += 1;
        written
    }

    /// Writes a probe of the path of requests, while data is in flight or the pacer holds back the next packet.
    fn transmit_probe(
        &mut self,
        transport: &Transport<'_>,
        counters: &mut Counters,
        frame: &mut [u8],
        enables_ect: &mut bool,
    ) -> Option<usize> {
        let is_held = self.telemetry.as_ref().is_some_and(|it| it.prober.is_due_while_held(transport.now));
        if !is_held {
            let telemetry = self.sending_telemetry(transport)?;
            telemetry.prober.due_at().filter(|&at| at <= transport.now)?;
        }
        let telemetry = self.telemetry.as_deref_mut()?;
        if telemetry.prober.has_discovery_failed() {
            self.stop_probing();
            return None;
        }
        let template = telemetry.probe_template().unwrap_or(transport.template);
        let length = write_probe(transport, telemetry, template, frame)?;
        let is_paced = !is_held && telemetry.prober.is_regular_now();
        telemetry.prober.on_sent(transport.now, transport.sequence.next);
        telemetry.policy.on_telemetry_requested(transport.now);
        counters.probes_sent += 1;
        if let Some(flow) = self.flow.as_mut().filter(|_| is_paced) {
            flow.on_probe(length);
        }
        if let (MAX_UNANSWERED_AT_START.., Some(flow)) = (telemetry.prober.unanswered(), &mut self.flow)
            && flow.round_trip().is_some()
        {
            flow.grow_window();
        }
        // No other packet measures unacknowledged data.
        let is_given_up = telemetry.prober.is_given_up() && !transport.is_sending;
        *enables_ect |= is_given_up && self.substitute();
        Some(length)
    }

    /// Moves to a better path if one is selected and nothing is in flight. Returns whether new packets are delayed until then.
    #[inline]
    pub(crate) fn migrate(
        &mut self,
        now: Instant,
        transport: impl FnOnce() -> InFlight,
        counters: &mut Counters,
    ) -> bool {
        let Some(telemetry) = &mut self.telemetry else { return false };
        let Some(paths) = telemetry.paths.as_mut().filter(|paths| paths.has_pending_move()) else {
            return false;
        };
        match transport() {
            InFlight::Acknowledged => {}
            InFlight::WillBeAcknowledged => return true,
            InFlight::NeedsMorePackets => return false,
        }
        if paths.migrate(now) {
            counters.path_moves += 1;
            self.flow.as_mut().map(Flow::on_path_change);
            telemetry.on_other_path();
        }
        false
    }
}

/// State of the acknowledgements of the packets sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InFlight {
    Acknowledged,
    /// Everything sent will be acknowledged without another packet.
    WillBeAcknowledged,
    /// More must be sent before everything is acknowledged.
    NeedsMorePackets,
}

/// Writes a packet without payload to the connection's own path.
fn write(transport: &Transport<'_>, header: &Header, frame: &mut [u8]) -> Option<usize> {
    Some(transport.template.emit(transport.identification, header, 0, frame).ok()?.seal())
}

fn write_probe(
    transport: &Transport<'_>,
    telemetry: &Telemetry,
    template: &Template,
    frame: &mut [u8],
) -> Option<usize> {
    let (header, room) = telemetry.probe(transport.bth(telemetry.prober.psn()), transport.qpn);
    let carried = DataTelemetry::Format(telemetry.format);
    let behind = frame.get_mut(carried.inserted()..)?;
    let draft = template.emit(transport.identification, &header, room, behind).ok()?;
    let length = draft.seal();
    insert_telemetry(carried, frame, length, (transport.qpn, transport.numbers)).ok()
}
