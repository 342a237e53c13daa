//! The next packet of a reliable connection: answers first, then control packets, then requests.

use super::super::common::{Common, Connection};
use super::super::{CompletionStatus, Context, Receives, State, buffers};
use super::Reliable;
use super::requester::Plan;
use super::responder::PlannedResponse;
use crate::congestion::{DataTelemetry, insert_telemetry};
use crate::wire::{Bth, Header, MAX_OVERHEAD, NakCode, Operation, Report, Reth, Service, Template};
use crate::{Access, AccessError, Discard, FailureCause, Memory, Psn, Rkey};

enum Failure {
    /// A buffer is not, or no longer, accessible.
    Access,
    /// `frame` is too short for the packet, which is a bug of the caller. Nothing is sent.
    Frame,
}

impl From<AccessError> for Failure {
    fn from(_: AccessError) -> Self {
        Self::Access
    }
}

/// Result of a source of packets.
enum Source {
    Empty,
    /// The bytes of a packet; `None` if `frame` is too short for it. Nothing else is sent now.
    Served(Option<usize>),
}

impl Reliable {
    /// Writes the next packet that may be sent.
    #[inline]
    pub(in crate::qp) fn poll_transmit<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let waits = common.congestion.migrate(context.now, || self.in_flight_state(), context.counters);
        // Nearly all packets are requests.
        if self.responder.has_answer()
            || self.requester.has_control_due()
            || common.congestion.may_have_control_packets(context.now)
        {
            let length = self.transmit_control(common, memory, context, frame);
            if length.is_some() {
                return length;
            }
        }
        if waits { None } else { self.transmit_request(common, memory, context, frame) }
    }

    /// Writes a packet that precedes requests, from the first source that has one. Requests are last, because the other sources have few
    /// packets, and most of those are answers to the peer.
    #[inline(never)]
    fn transmit_control<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let connection = common.connection?;
        // The acceptance precedes the answers, because it changes their meaning to that of selective repeat.
        if let Source::Served(length) = self.transmit_acceptance(common, &connection, frame) {
            return length;
        }
        // Answers precede requests, because the peer's requests depend on them. In ERR nothing else is sent.
        let length = self.transmit_answer(common, &connection, memory, context, frame);
        if length.is_some() || common.state == State::Error {
            return length;
        }
        // The offer precedes the retransmissions of go-back-N, because an early acceptance makes them unnecessary.
        if let Source::Served(length) = self.transmit_offer(common, &connection, frame) {
            return length;
        }
        if let Source::Served(length) = self.transmit_keep_alive(common, &connection, frame) {
            return length;
        }
        // Congestion control is last: the packets before it are rare, while probes and reports are frequent.
        self.transmit_congestion_control(common, &connection, context, frame)
    }

    fn transmit_acceptance(&mut self, common: &Common, connection: &Connection, frame: &mut [u8]) -> Source {
        let Some(first_received) = self.responder.acceptance() else { return Source::Empty };
        let firsts = [self.responder.first(), first_received];
        let length = write_offer(common, connection, (self.responder.expected_psn(), firsts, true), frame);
        self.responder.on_acceptance_sent();
        Source::Served(length)
    }

    fn transmit_offer(&mut self, common: &Common, connection: &Connection, frame: &mut [u8]) -> Source {
        if !self.requester.is_offer_due() {
            return Source::Empty;
        }
        let firsts = [self.requester.first(), self.responder.first()];
        let length = write_offer(common, connection, (self.requester.oldest_psn(), firsts, false), frame);
        self.requester.on_offer_sent();
        Source::Served(length)
    }

    fn transmit_keep_alive(&mut self, common: &Common, connection: &Connection, frame: &mut [u8]) -> Source {
        match self.requester.take_keep_alive() {
            // An XRC initiator's packets name a shared receive queue, which a keep-alive cannot.
            Some(psn) if common.identity.receives != Receives::Never => {
                Source::Served(write_keep_alive(common, connection, psn, frame))
            }
            _ => Source::Empty,
        }
    }

    fn transmit_congestion_control(
        &self,
        common: &mut Common,
        connection: &Connection,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let transport = self.transport(common, connection, context);
        let mut enables_ect = false;
        let length =
            common.congestion.transmit_control(&transport, context.counters, frame, &mut enables_ect);
        if enables_ect {
            common.set_ect();
        }
        common.report_congestion_changes(context);
        length
    }

    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn transmit_answer<M: Memory>(
        &mut self,
        common: &mut Common,
        connection: &Connection,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let PlannedResponse { operation, psn, congestion, held, read } =
            self.responder.plan(connection.mtu)?;
        if read.is_some() && !common.congestion.may_send(context.now) {
            return None;
        }
        let mut bth = Bth { congestion, ..common.bth(connection.destination, psn) };
        let service = common.identity.receives.service();
        if let Operation::Acknowledge(_) = operation
            && held.is_none()
            && let Some(report) = common.congestion.report_for_acknowledge()
        {
            bth.congestion |= Bth::TELEMETRY;
            let header = Header::Connected { service, bth, operation };
            return self.transmit_piggybacked(common, connection, &header, report, context, frame);
        }
        let header = match (held, operation) {
            (Some((ahead, held)), Operation::Acknowledge(aeth)) => {
                Header::SelectiveAcknowledge { bth, msn: aeth.msn, ahead, held }
            }
            _ => Header::Connected { service, bth, operation },
        };
        let payload = read.map_or(0, |(_, read)| read.length);
        let qpn = common.identity.qpn;
        let template = common.congestion.answer_template(&connection.template);
        let written = write(template, common.identification, &header, payload, frame, |into| {
            if let Some((pd, read)) = read.filter(|(_, read)| read.length > 0) {
                let (regions, access) = (&*context.regions, Access::REMOTE_READ);
                let slice = regions.remote(read.rkey, pd, qpn, read.address, read.length, access)?;
                memory.gather(slice, into)?;
            }
            Ok(())
        });
        match written {
            Ok(length) => {
                self.responder.commit();
                if read.is_some() {
                    context.counters.tx_payload_bytes += u64::from(payload);
                    common.congestion.on_unacknowledged_data_sent(context.now, payload, length);
                }
                Some(length)
            }
            Err(Failure::Frame) => None,
            Err(Failure::Access) => {
                self.responder.refuse_response(psn);
                let cause = FailureCause::Refused(NakCode::RemoteAccessError, Discard::RemoteAccess);
                self.fail(common, Some(cause), CompletionStatus::Flushed, context);
                // The NAK is the next answer.
                self.transmit_answer(common, connection, memory, context, frame)
            }
        }
    }

    fn transmit_piggybacked(
        &mut self,
        common: &mut Common,
        connection: &Connection,
        header: &Header,
        report: Report,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let transport = self.transport(common, connection, context);
        let (opcode, bth) = (header.opcode(), header.bth());
        let feedback = common.congestion.piggyback(opcode, bth, report, &transport, context.counters);
        let length = feedback.length() as u32;
        let template = common.congestion.answer_template(&connection.template);
        let written = write(template, common.identification, header, length, frame, |into| {
            feedback.write(into);
            Ok(())
        });
        self.responder.commit();
        written.ok()
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; a packet is far shorter than the address space"
    )]
    fn transmit_request<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        match common.state {
            State::ReadyToSend => {}
            // A begun message is sent to its end, and retransmitted if it is lost. No other message begins (IBA 10.3.1.5).
            State::SendQueueDrained if self.requester.has_begun() => {}
            _ => return None,
        }
        let connection = common.connection.as_ref()?;
        let window = self.requester.recovery_limit(common.congestion.window()?);
        let plan = match self.requester.plan(window, context.now) {
            None if self.requester.is_at_local() => {
                let begin = common.state == State::ReadyToSend;
                if let Err(status) = self.requester.run_local(begin, context, &common.identity) {
                    self.fail_request(common, status, context);
                    return None;
                }
                self.requester.plan(window, context.now)
            }
            plan => plan,
        }?;
        if !common.congestion.may_send(context.now) {
            return None;
        }
        let mut bth = common.bth(connection.destination, plan.psn);
        bth.ack_request = plan.token.ack_request;
        bth.solicited = plan.solicited;
        bth.congestion = common.congestion.data_bits();
        // Without room for telemetry in the frame, the packet is sent without it.
        let room = frame.len().saturating_sub(plan.token.length as usize + MAX_OVERHEAD);
        let carried = common.congestion.data_telemetry(room);
        if carried == DataTelemetry::Int {
            bth.congestion |= Bth::TELEMETRY;
        }
        let header = match plan.srq {
            None => Header::Connected { service: Service::Rc, bth, operation: plan.operation },
            Some(srq) => Header::Extended { bth, srq, operation: plan.operation },
        };
        let Plan { token, data, offset, is_oldest, .. } = plan;
        let fill = |into: &mut [u8]| {
            Ok(buffers::gather(memory, context.regions, common.identity.pd, data, offset, into)?)
        };
        let (template, identification) =
            (common.congestion.template(token.path, &connection.template), common.identification);
        let written = match frame.get_mut(carried.inserted()..) {
            Some(behind) => write(template, identification, &header, token.length, behind, fill),
            None => Err(Failure::Frame),
        };
        let of = (common.identity.qpn, context.numbers);
        let written = written
            .and_then(|length| insert_telemetry(carried, frame, length, of).map_err(|_| Failure::Frame));
        match written {
            Ok(length) => {
                let payload = token.length;
                let number = self.requester.sent(token, context);
                context.counters.tx_payload_bytes += u64::from(payload);
                common.congestion.on_data_sent(context.now, number, payload, length, carried);
                Some(length)
            }
            Err(Failure::Access) if is_oldest => {
                self.fail_request(common, CompletionStatus::LocalProtection, context);
                None
            }
            // The requests before this one complete first. Their acknowledgements call this again.
            Err(Failure::Access | Failure::Frame) => None,
        }
    }
}

fn write_offer(
    common: &Common,
    connection: &Connection,
    (psn, [first_sent, first_received], accepts): (Psn, [Psn; 2], bool),
    frame: &mut [u8],
) -> Option<usize> {
    let bth = common.bth(connection.destination, psn);
    let header = Header::SelectiveOffer { bth, accepts, first_sent, first_received };
    let template = common.congestion.answer_template(&connection.template);
    write(template, common.identification, &header, 0, frame, |_| Ok(())).ok()
}

/// Writes a keep-alive: a WRITE of 0 bytes with AckReq.
fn write_keep_alive(common: &Common, connection: &Connection, psn: Psn, frame: &mut [u8]) -> Option<usize> {
    let bth = Bth { ack_request: true, ..common.bth(connection.destination, psn) };
    let reth = Reth { address: 0, rkey: Rkey::new(0), length: 0 };
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteOnly(reth, None) };
    write(&connection.template, common.identification, &header, 0, frame, |_| Ok(())).ok()
}

#[inline(always)]
fn write(
    template: &Template,
    identification: u16,
    header: &Header,
    payload: u32,
    frame: &mut [u8],
    fill: impl FnOnce(&mut [u8]) -> Result<(), Failure>,
) -> Result<usize, Failure> {
    let Ok(mut draft) = template.emit_here(identification, header, payload as usize, frame) else {
        debug_assert!(false, "a packet that was planned can be written");
        return Err(Failure::Frame);
    };
    fill(draft.payload())?;
    Ok(draft.seal())
}
