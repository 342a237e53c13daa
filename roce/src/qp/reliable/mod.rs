//! Reliable connections and XRC: requester and responder (IBA 9.7).
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

mod requester;
mod responder;
mod ring;
mod transmit;

use super::common::{Common, Connection, PsnState};
use super::{
    Changes, CheckedRecv, CheckedSend, CompletionStatus, Context, Identity, LossRecovery, Receives,
    RtrSettings, RtsSettings, State, Waiting,
};
use crate::congestion::{InFlight, Progress, Sequence, Transport};
use crate::event::Events;
use crate::wheel::earliest_of;
use crate::wire::{Bth, Frame, Header, Operation};
use crate::{CqId, Discard, FailureCause, FailureReason, Memory, Psn, SrqNumber};
use cc::Instant;
use requester::{Requester, RequesterError};
use responder::{Arrival, Refusal, Responder, Rights};

#[derive(Debug)]
pub(super) struct Reliable {
    requester: Requester,
    responder: Responder,
}

impl Reliable {
    pub(super) fn new(identity: &Identity) -> Self {
        Self { requester: Requester::new(), responder: Responder::new(identity) }
    }

    pub(super) fn reset(&mut self) {
        self.requester.reset();
        self.responder.reset();
    }

    pub(super) fn ready_to_receive(&mut self, settings: &RtrSettings) {
        self.responder.connect(settings);
    }

    pub(super) fn ready_to_send(&mut self, connection: &Connection, settings: &RtsSettings) {
        self.requester.connect(connection.mtu, connection.loss_recovery, settings);
    }

    pub(super) fn change(&mut self, changes: &Changes) {
        self.requester.change(changes);
        self.responder.change(changes);
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.requester.in_flight()
    }

    pub(super) fn acknowledged_bytes(&self) -> u64 {
        self.requester.acknowledged_bytes()
    }

    pub(super) fn psn_state(&self) -> PsnState {
        PsnState {
            acknowledged: self.requester.acknowledged_psn(),
            send: self.requester.send_psn(),
            expected: self.responder.expected_psn(),
            retries: self.requester.retries(),
        }
    }

    /// Returns whether no message is partly sent, and everything sent is acknowledged.
    pub(super) fn is_drained(&self) -> bool {
        !self.requester.has_begun() && self.requester.is_answered()
    }

    pub(super) fn release_early(&mut self, context: &mut Context<'_>) -> usize {
        self.responder.release_early(context)
    }

    pub(super) fn evict_early(&mut self, context: &mut Context<'_>) {
        self.responder.evict_early(context);
    }

    #[inline]
    pub(super) fn has_answer_due(&self) -> bool {
        self.responder.has_answer()
    }

    pub(super) fn lately_completed_to(&self) -> Option<CqId> {
        self.responder.lately_completed_to()
    }

    /// Returns the state in which requests wait, apart from the pacer.
    #[inline]
    pub(super) fn waits_for(&self, common: &Common) -> Waiting {
        self.requester.waits_for(common.congestion.window().unwrap_or(0))
    }

    pub(super) fn drop_responses(&mut self) {
        self.responder.drop_responses();
    }

    /// Enters ERR. The oldest send request completes as `cause` specifies, the receive in progress with `receive`, all others as flushed.
    pub(super) fn fail(
        &mut self,
        common: &mut Common,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        let why = cause.map(|cause| (cause, self.reason(cause, common, context)));
        common.enter_error(why, self.psn_state(), context);
        let send = match cause {
            Some(FailureCause::Request(status)) => status,
            _ => CompletionStatus::Flushed,
        };
        self.flush_sends(common, send, context);
        self.flush_receives(common, receive, context);
    }

    /// Returns the likely reason for a failure. The caller must not have flushed the send queue.
    fn reason(&self, cause: FailureCause, common: &Common, context: &Context<'_>) -> FailureReason {
        match cause {
            FailureCause::Request(CompletionStatus::RetryExceeded) => {
                self.why_unanswered(common, context.now, context.events)
            }
            FailureCause::Request(CompletionStatus::RemoteAccess) => self.requester.why_refused(),
            _ => cause.reason(),
        }
    }

    fn why_unanswered(&self, common: &Common, now: Instant, events: &Events) -> FailureReason {
        let peer = common.connection.map(|connection| connection.path.destination);
        let icmp_error = peer.and_then(|peer| events.unreachable(peer));
        let expected = [self.responder.first(), self.responder.expected_psn()];
        self.requester.why_unanswered(now, icmp_error, expected)
    }

    /// Returns the likely reason why the peer does not answer, or has no receive posted, while that lasts.
    pub(super) fn suspects(&self, common: &Common, now: Instant, events: &Events) -> Option<FailureReason> {
        match self.waits_for(common) {
            Waiting::Silence => Some(self.why_unanswered(common, now, events)),
            Waiting::ReceiverNotReady => Some(FailureReason::NoReceive),
            Waiting::Recovery => Some(self.why_unanswered(common, now, events))
                .filter(|reason| reason.is_path_mtu() && self.requester.retries() > 1)
                .or(Some(FailureReason::Loss)),
            Waiting::Idle
            | Waiting::Pacing
            | Waiting::Window
            | Waiting::Reads
            | Waiting::Fence
            | Waiting::Turn
            | Waiting::Port
            | Waiting::Pool
            | Waiting::Unpolled
            | Waiting::Answer => None,
        }
    }

    /// Fails the oldest send request, and then the queue pair.
    fn fail_request(&mut self, common: &mut Common, status: CompletionStatus, context: &mut Context<'_>) {
        self.drop_responses();
        self.fail(common, Some(FailureCause::Request(status)), CompletionStatus::Flushed, context);
    }

    pub(super) fn sends(&self) -> usize {
        self.requester.len()
    }

    pub(super) fn receives(&self) -> usize {
        self.responder.len()
    }

    #[inline]
    pub(super) fn post(&mut self, common: &Common, request: &mut CheckedSend) {
        self.requester.post(request, common.identity.capabilities.max_send);
    }

    pub(super) fn post_recv(&mut self, CheckedRecv(request): CheckedRecv) {
        self.responder.post(request);
    }

    pub(super) fn flush_sends(
        &mut self,
        common: &Common,
        status: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        self.requester.flush(status, context, &common.identity);
    }

    pub(super) fn flush_receives(
        &mut self,
        common: &Common,
        status: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        self.responder.flush(status, context, &common.identity);
    }

    /// Returns the state that congestion control may use now.
    fn transport<'a>(
        &self,
        common: &Common,
        connection: &'a Connection,
        context: &Context<'_>,
    ) -> Transport<'a> {
        Transport {
            path: None,
            now: context.now,
            qpn: common.identity.qpn,
            destination: connection.destination,
            partition_key: common.partition_key,
            identification: common.identification,
            numbers: context.numbers,
            template: &connection.template,
            is_sending: self.is_sending(common),
            sequence: self.sequence(),
        }
    }

    fn is_sending(&self, common: &Common) -> bool {
        common.state == State::ReadyToSend && self.requester.in_flight() > 0
    }

    fn sequence(&self) -> Sequence {
        let (una, next, sent) = self.requester.bounds();
        let (first_sent, first_received) = (self.requester.first(), self.responder.first());
        Sequence { una, next, sent, first_sent, first_received }
    }

    /// Receives a packet whose P_Key was checked.
    #[inline]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(super) fn on_packet<M: Memory>(
        &mut self,
        common: &mut Common,
        frame: &Frame<'_>,
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        common.check_peer(frame)?;
        let receives = common.identity.receives;
        match &frame.header {
            // An XRC initiator receives answers, a target receives requests.
            &Header::Connected { service, bth, operation } if service == receives.service() => match receives
            {
                Receives::Own | Receives::Shared(_) | Receives::Never => {
                    self.on_data(common, (bth, operation, None), frame, memory, context)
                }
                Receives::XrcTarget(_) => Err(Discard::Opcode),
            },
            &Header::Extended { bth, srq, operation } if matches!(receives, Receives::XrcTarget(_)) => {
                self.on_data(common, (bth, operation, Some(srq)), frame, memory, context)
            }
            Header::SelectiveAcknowledge { bth, ahead, held, .. } => {
                self.on_selective_acknowledge(common, *bth, (*ahead, *held), context)
            }
            &Header::SelectiveOffer { bth, accepts: true, first_sent, first_received } => {
                self.on_acceptance(common, bth.psn, [first_sent, first_received], context.now)
            }
            &Header::SelectiveOffer { bth, accepts: false, first_sent, first_received } => {
                self.on_offer(common, bth.psn, [first_sent, first_received])
            }
            Header::CongestionNotification { .. } => {
                context.counters.notifications_received += 1;
                common.congestion.on_notification(context.now);
                Ok(())
            }
            Header::Connected { .. }
            | Header::Extended { .. }
            | Header::Datagram { .. }
            | Header::DatagramTelemetryRequest { .. } => Err(Discard::Opcode),
            Header::TelemetryRequest { .. }
            | Header::TelemetryResponse { .. }
            | Header::TelemetryNotification { .. }
            | Header::DirectResponse { .. }
            | Header::TelemetrySetup { .. } => self.on_control(common, frame, context),
        }
    }

    /// Handles a packet that carries only congestion control.
    fn on_control(
        &mut self,
        common: &mut Common,
        frame: &Frame<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        let Some(connection) = common.connection else { return Err(Discard::QpState) };
        let mut transport = self.transport(common, &connection, context);
        transport.path = self.requester.path_of(frame.header.bth().psn);
        if common.congestion.on_control(frame, &transport, context.counters, context.flows)? {
            common.set_ect();
        }
        Ok(())
    }

    #[inline(never)]
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn on_data<M: Memory>(
        &mut self,
        common: &mut Common,
        (bth, operation, srq): (Bth, Operation, Option<SrqNumber>),
        frame: &Frame<'_>,
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        let is_marked = common.congestion.on_packet(context.now, frame);
        context.counters.rx_marked += u64::from(is_marked);
        if common.congestion.carries_telemetry(frame) {
            self.on_telemetry(common, operation, frame, context);
        }
        self.on_transport(common, (bth, operation, srq), is_marked, frame.payload, memory, context)
    }

    #[inline(always)]
    pub(super) fn on_transport<M: Memory>(
        &mut self,
        common: &mut Common,
        (bth, operation, srq): (Bth, Operation, Option<SrqNumber>),
        is_marked: bool,
        payload: &[u8],
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        if operation.is_answer() {
            return self.on_answer(common, bth, operation, payload, memory, context);
        }
        let identity = &common.identity;
        let rights = Rights { access: common.access, mtu: common.mtu() };
        let mut arrival = Arrival { memory, context, identity, rights, bth, srq, is_marked, payload };
        match self.responder.on_request(operation, &mut arrival) {
            Ok(()) => {
                common.async_events.on_request(common.state, &common.identity, context);
                Ok(())
            }
            Err(refusal) => Err(self.conclude_refused(common, refusal, context)),
        }
    }

    #[inline(never)]
    fn on_telemetry(
        &self,
        common: &mut Common,
        operation: Operation,
        frame: &Frame<'_>,
        context: &mut Context<'_>,
    ) {
        let Some(connection) = common.connection else { return };
        let mut transport = self.transport(common, &connection, context);
        if operation.is_answer() {
            transport.path = self.requester.path_of(frame.header.bth().psn);
        } else {
            common.congestion.on_request(frame.network.udp_source());
        }
        common.congestion.on_telemetry(frame, &transport, context.counters, context.flows);
    }

    /// Applies the consequences of a refusal, and returns how the packet counts.
    fn conclude_refused(
        &mut self,
        common: &mut Common,
        refusal: Refusal,
        context: &mut Context<'_>,
    ) -> Discard {
        match refusal {
            Refusal::Drop(discard) => {
                if discard == Discard::Duplicate {
                    common.congestion.on_duplicate(context.now);
                }
                discard
            }
            Refusal::FatalWithoutNak { discard, receive } => {
                self.fail(common, Some(FailureCause::Receive(receive)), receive, context);
                discard
            }
            Refusal::Fatal { code, discard, receive } => {
                self.responder.refuse(code);
                self.fail(common, Some(FailureCause::Refused(code, discard)), receive, context);
                discard
            }
        }
    }

    fn on_answer<M: Memory>(
        &mut self,
        common: &mut Common,
        bth: Bth,
        operation: Operation,
        payload: &[u8],
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        if common.state == State::ReadyToReceive {
            return Err(Discard::QpState);
        }
        let (requester, identity) = (&mut self.requester, &common.identity);
        let outcome = match operation {
            Operation::Acknowledge(aeth) => requester.on_acknowledge(bth.psn, aeth, context, identity),
            Operation::AtomicAcknowledge { original, .. } => {
                requester.on_atomic_acknowledge(bth.psn, original, memory, context, identity)
            }
            _ => requester.on_read_response(bth.psn, operation, payload, memory, context, identity),
        };
        self.conclude(common, outcome, bth, context)
    }

    fn on_selective_acknowledge(
        &mut self,
        common: &mut Common,
        bth: Bth,
        held: (u8, u128),
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        if common.connection.is_none_or(|connection| connection.loss_recovery == LossRecovery::GoBackN) {
            return Err(Discard::Opcode);
        }
        if common.state == State::ReadyToReceive {
            return Err(Discard::QpState);
        }
        let outcome = self.requester.on_selective_acknowledge(bth.psn, held, context, &common.identity);
        self.conclude(common, outcome, bth, context)
    }

    /// Handles an offer of selective repeat for the peer's direction. The first PSNs of both directions identify the connection, because an
    /// earlier one may have used the queue pair number.
    fn on_offer(&mut self, common: &Common, psn: Psn, [sent, received]: [Psn; 2]) -> Result<(), Discard> {
        if common.identity.receives == Receives::Never {
            return Err(Discard::Opcode);
        }
        // Before RTS this side's first PSN is not known.
        let is_known = common.state != State::ReadyToReceive;
        if sent != self.responder.first() || is_known && received != self.requester.first() {
            return Err(Discard::StaleOffer);
        }
        self.responder.on_offer(psn, received)
    }

    /// Handles the acceptance of an offer, which repeats the PSNs of the offer.
    fn on_acceptance(
        &mut self,
        common: &Common,
        psn: Psn,
        [sent, received]: [Psn; 2],
        now: Instant,
    ) -> Result<(), Discard> {
        if common.state == State::ReadyToReceive {
            return Err(Discard::QpState);
        }
        if [sent, received] != [self.requester.first(), self.responder.first()] {
            return Err(Discard::StaleOffer);
        }
        self.requester.on_acceptance(psn, now)
    }

    fn conclude(
        &mut self,
        common: &mut Common,
        outcome: Result<Progress, RequesterError>,
        bth: Bth,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        match outcome {
            Ok(progress) => {
                self.on_progress(common, progress, bth.congestion & Bth::BECN != 0, context.now);
                Ok(())
            }
            Err(RequesterError::Discard(discard)) => {
                if self.requester.record_stale(bth.psn) {
                    Ok(())
                } else {
                    Err(discard)
                }
            }
            Err(RequesterError::Fail(status)) => {
                self.fail_request(common, status, context);
                match status {
                    CompletionStatus::BadResponse => Err(Discard::BadResponse),
                    CompletionStatus::LocalProtection => Err(Discard::LocalProtection),
                    _ => Ok(()),
                }
            }
        }
    }

    #[inline]
    fn on_progress(&self, common: &mut Common, progress: Progress, is_marked: bool, now: Instant) {
        if common.congestion.on_progress(now, progress, is_marked, &self.sequence()) {
            common.set_ect();
        }
    }

    pub(super) fn poll_timeout(&self, common: &Common) -> Option<Instant> {
        if common.state == State::Error {
            // Answers before a NAK may still be paced.
            return common.congestion.paced_until();
        }
        earliest_of(self.requester.poll_timeout(), common.congestion.poll_timeout(self.is_sending(common)))
    }

    pub(super) fn on_timeout(&mut self, common: &mut Common, context: &mut Context<'_>) {
        let window = self.requester.recovery_limit(common.congestion.window().unwrap_or(0));
        let interval = |bytes| common.congestion.packet_interval(bytes);
        match self.requester.on_timeout(window, interval, context) {
            Ok(progress) => {
                if progress.lost && self.requester.is_unanswered() {
                    common.suspect_path(context);
                    self.requester.record_timeout(self.responder.expected_psn());
                }
                self.on_progress(common, progress, false, context.now);
            }
            Err(RequesterError::Fail(status)) => self.fail_request(common, status, context),
            Err(RequesterError::Discard(_)) => {}
        }
    }

    fn in_flight_state(&self) -> InFlight {
        match (self.requester.is_answered(), self.requester.will_all_be_acknowledged()) {
            (true, _) => InFlight::Acknowledged,
            (false, true) => InFlight::WillBeAcknowledged,
            (false, false) => InFlight::NeedsMorePackets,
        }
    }
}
