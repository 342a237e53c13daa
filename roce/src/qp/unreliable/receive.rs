//! Receives the packets of an unreliable queue pair.

use super::super::common::Common;
use super::super::wqe::MAX_MESSAGE;
use super::super::{Completion, CompletionOpcode, CompletionStatus, Context, Identity, RecvRequest, buffers};
use super::datagram::GRH;
use super::{Kind, Unreliable};
use crate::srq::SharedQueues;
use crate::wire::{Frame, Header, Immediate, Operation, Reth, SendTail, Service};
use crate::{Access, Discard, FailureCause, Memory, Psn, Qpn};

/// Message of several packets of which the first has arrived.
#[derive(Debug)]
pub(super) enum Message {
    Send { request: RecvRequest, received: u32 },
    Write { reth: Reth, received: u32 },
}

#[derive(Clone, Copy)]
struct Part {
    begins: bool,
    ends: bool,
}

/// Received packet, and the context in which it is placed.
pub(super) struct Arrival<'a, 'b, M> {
    pub(super) common: &'a mut Common,
    pub(super) memory: &'a mut M,
    pub(super) context: &'a mut Context<'b>,
    pub(super) solicited: bool,
    pub(super) payload: &'a [u8],
}

impl Unreliable {
    /// Receives a packet whose P_Key was checked.
    pub(in crate::qp) fn on_packet<M: Memory>(
        &mut self,
        common: &mut Common,
        frame: &Frame<'_>,
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        match (self.kind, frame.header) {
            (
                Kind::Datagram { queue_key: ours, .. },
                Header::Datagram { bth, queue_key, source, immediate },
            ) => {
                if queue_key != ours {
                    return Err(Discard::QueueKey);
                }
                let network = frame.network.ip_header();
                let mut grh = [0; GRH];
                grh[GRH - network.len()..].copy_from_slice(network);
                let (solicited, payload) = (bth.solicited, frame.payload);
                let mut arrival = Arrival { common, memory, context, solicited, payload };
                self.on_datagram(&grh, Some(source), immediate, &mut arrival)
            }
            (Kind::Datagram { queue_key, .. }, _) => self.on_probing(queue_key, common, frame, context),
            (Kind::Raw { .. }, _) => Err(Discard::Opcode),
            (Kind::Connected, header) => {
                common.check_peer(frame)?;
                match header {
                    Header::Connected { service: Service::Uc, bth, operation } => {
                        let is_marked = common.congestion.on_packet(context.now, frame);
                        context.counters.rx_marked += u64::from(is_marked);
                        self.on_telemetry(common, frame, context);
                        let (solicited, payload) = (bth.solicited, frame.payload);
                        let mut arrival = Arrival { common, memory, context, solicited, payload };
                        self.on_request(bth.psn, operation, &mut arrival)?;
                        let Arrival { common, context, .. } = arrival;
                        common.async_events.on_request(common.state, &common.identity, context);
                        Ok(())
                    }
                    Header::CongestionNotification { .. } => {
                        context.counters.notifications_received += 1;
                        common.congestion.on_notification(context.now);
                        Ok(())
                    }
                    Header::TelemetryRequest { .. }
                    | Header::TelemetryResponse { .. }
                    | Header::TelemetryNotification { .. }
                    | Header::DirectResponse { .. }
                    | Header::TelemetrySetup { .. } => self.on_control(common, frame, context),
                    Header::Connected { .. }
                    | Header::Extended { .. }
                    | Header::Datagram { .. }
                    | Header::DatagramTelemetryRequest { .. }
                    | Header::SelectiveAcknowledge { .. }
                    | Header::SelectiveOffer { .. } => Err(Discard::Opcode),
                }
            }
        }
    }

    fn on_telemetry(&self, common: &mut Common, frame: &Frame<'_>, context: &mut Context<'_>) {
        if let Some(connection) = common.connection.filter(|_| common.congestion.carries_telemetry(frame)) {
            let transport = self.transport(common, &connection, context);
            common.congestion.on_request(frame.network.udp_source());
            common.congestion.on_telemetry(frame, &transport, context.counters, context.flows);
        }
    }

    /// Handles a packet that carries only congestion control.
    fn on_control(
        &self,
        common: &mut Common,
        frame: &Frame<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        let connection = common.connection.ok_or(Discard::QpState)?;
        let transport = self.transport(common, &connection, context);
        if common.congestion.on_control(frame, &transport, context.counters, context.flows)? {
            common.set_ect();
        }
        Ok(())
    }

    /// Handles a request packet. After a lost packet, the whole message is dropped (IBA 9.8.2.2.3).
    fn on_request<M: Memory>(
        &mut self,
        psn: Psn,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let part = part(operation).ok_or(Discard::Opcode)?;
        let is_gap = psn != self.expected;
        self.expected = psn.plus(1);
        if is_gap || part.begins {
            self.abandon(arrival.context.srqs);
        }
        if !part.begins && self.message.is_none() {
            return Err(Discard::PsnGap);
        }
        let executed = self.execute(operation, part, arrival);
        if executed.is_err() {
            self.abandon(arrival.context.srqs);
        }
        executed
    }

    /// Drops the message in progress. The next message uses its receive request.
    pub(in crate::qp) fn abandon(&mut self, shared: &mut SharedQueues) {
        if let Some(Message::Send { request, .. }) = self.message.take() {
            self.receives.return_borrowed(request, shared);
        }
    }

    fn execute<M: Memory>(
        &mut self,
        operation: Operation,
        part: Part,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let mtu = arrival.common.mtu();
        let length = arrival.payload.len() as u32;
        let fits = match part {
            Part { ends: false, .. } => length == mtu,
            Part { begins: false, .. } => (1..=mtu).contains(&length),
            Part { .. } => length <= mtu,
        };
        if !fits {
            return Err(if length > mtu { Discard::Oversized } else { Discard::Length });
        }
        match operation {
            Operation::SendFirst | Operation::SendMiddle => self.on_send(None, arrival),
            Operation::SendLast(tail) | Operation::SendOnly(tail) => self.on_send(Some(tail), arrival),
            Operation::WriteFirst(reth) => self.on_write(Some(reth), None, arrival),
            Operation::WriteMiddle => self.on_write(None, None, arrival),
            Operation::WriteLast(immediate) => self.on_write(None, Some(immediate), arrival),
            Operation::WriteOnly(reth, immediate) => self.on_write(Some(reth), Some(immediate), arrival),
            _ => Err(Discard::Opcode),
        }
    }

    fn on_send<M: Memory>(
        &mut self,
        tail: Option<SendTail>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let (request, received) = match self.message.take() {
            Some(Message::Send { request, received }) => (request, received),
            Some(Message::Write { .. }) => return Err(Discard::Sequence),
            None => (self.receives.borrow(arrival.context.srqs).ok_or(Discard::ReceiverNotReady)?, 0),
        };
        let total = received + arrival.payload.len() as u32;
        if total > buffers::room(&request.buffers) {
            self.message = Some(Message::Send { request, received });
            return Err(Discard::LocalProtection);
        }
        let (regions, pd) = (&*arrival.context.regions, arrival.common.identity.pd);
        let placed = buffers::place(arrival.memory, regions, pd, &request.buffers, received, arrival.payload);
        if placed.is_err() {
            self.message = Some(Message::Send { request, received });
            let status = CompletionStatus::LocalProtection;
            self.fail(arrival.common, Some(FailureCause::Receive(status)), status, arrival.context);
            return Err(Discard::LocalProtection);
        }
        let immediate = match tail {
            None => {
                self.message = Some(Message::Send { request, received: total });
                arrival.context.counters.rx_payload_bytes += arrival.payload.len() as u64;
                return Ok(());
            }
            Some(SendTail::Immediate(immediate)) => Some(immediate),
            // An unreliable connection has no SEND with invalidate, whose opcode is refused by the parser.
            Some(SendTail::Plain | SendTail::Invalidate(_)) => None,
        };
        self.receives.commit_borrowed(arrival.context.srqs);
        self.deliver(request.id, CompletionOpcode::Recv, total, immediate, None, arrival);
        Ok(())
    }

    /// Places a packet of a WRITE. `begin` is `Some` in the first packet, `end` in the last, with its immediate data if any.
    fn on_write<M: Memory>(
        &mut self,
        begin: Option<Reth>,
        end: Option<Option<Immediate>>,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Discard> {
        let (reth, received) = match (begin, &self.message) {
            (Some(reth), _) => (reth, 0),
            (None, Some(Message::Write { reth, received })) => (*reth, *received),
            (None, _) => return Err(Discard::Sequence),
        };
        let length = arrival.payload.len() as u32;
        let total = u64::from(received) + u64::from(length);
        let announced = u64::from(reth.length);
        let fits = if end.is_some() { total == announced } else { total < announced };
        if !fits || reth.length > MAX_MESSAGE {
            return Err(Discard::Length);
        }
        if !arrival.common.access.contains(Access::REMOTE_WRITE) {
            return Err(Discard::RemoteAccess);
        }
        let immediate = end.flatten();
        if immediate.is_some() && self.receives.is_empty(arrival.context.srqs) {
            return Err(Discard::ReceiverNotReady);
        }
        if length > 0 {
            let (regions, Identity { pd, qpn, .. }) = (&*arrival.context.regions, arrival.common.identity);
            let address = reth.address.wrapping_add(u64::from(received));
            // The whole range is checked before its first byte is written.
            if begin.is_some() {
                let whole =
                    regions.remote(reth.rkey, pd, qpn, reth.address, reth.length, Access::REMOTE_WRITE);
                whole.map_err(|error| error.discard())?;
            }
            let slice = regions.remote(reth.rkey, pd, qpn, address, length, Access::REMOTE_WRITE);
            let placed = slice.and_then(|slice| arrival.memory.place(slice, arrival.payload));
            placed.map_err(|error| error.discard())?;
        }
        if end.is_none() {
            self.message = Some(Message::Write { reth, received: received + length });
            arrival.context.counters.rx_payload_bytes += u64::from(length);
            return Ok(());
        }
        self.message = None;
        match immediate
            .and_then(|data| self.receives.pop(arrival.context.srqs).map(|request| (data, request)))
        {
            Some((data, request)) => {
                let opcode = CompletionOpcode::RecvWithWrite;
                self.deliver(request.id, opcode, reth.length, Some(data), None, arrival);
            }
            None => arrival.context.counters.rx_payload_bytes += u64::from(length),
        }
        Ok(())
    }

    pub(super) fn deliver<M>(
        &mut self,
        id: u64,
        opcode: CompletionOpcode,
        length: u32,
        immediate: Option<Immediate>,
        source: Option<Qpn>,
        arrival: &mut Arrival<'_, '_, M>,
    ) {
        let completion = Completion {
            id,
            status: CompletionStatus::Success,
            opcode,
            qpn: arrival.common.identity.qpn,
            length,
            immediate,
            invalidated: None,
            solicited: arrival.solicited,
            source,
            srq: self.receives.shared(),
        };
        arrival.context.counters.rx_payload_bytes += arrival.payload.len() as u64;
        arrival.context.cqs.push(arrival.common.identity.recv_cq, completion);
    }

    /// Completes the oldest receive request with `status`, all others as flushed.
    pub(in crate::qp) fn flush_receives(
        &mut self,
        common: &Common,
        status: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        let identity = &common.identity;
        let mut status = status;
        self.abandon(context.srqs);
        while let Some(request) = self.receives.pop_own() {
            let completion = Completion::new(request.id, status, CompletionOpcode::Recv, identity.qpn);
            context.cqs.push(identity.recv_cq, completion);
            status = CompletionStatus::Flushed;
        }
    }
}

/// Returns the position of a packet in its message; `None` for operations that an unreliable connection does not have.
const fn part(operation: Operation) -> Option<Part> {
    match operation {
        Operation::SendFirst | Operation::WriteFirst(_) => Some(Part { begins: true, ends: false }),
        Operation::SendMiddle | Operation::WriteMiddle => Some(Part { begins: false, ends: false }),
        Operation::SendLast(_) | Operation::WriteLast(_) => Some(Part { begins: false, ends: true }),
        Operation::SendOnly(_) | Operation::WriteOnly(..) => Some(Part { begins: true, ends: true }),
        Operation::ReadRequest(_)
        | Operation::Flush(..)
        | Operation::AtomicWrite(_)
        | Operation::ReadResponseFirst(_)
        | Operation::ReadResponseMiddle
        | Operation::ReadResponseLast(_)
        | Operation::ReadResponseOnly(_)
        | Operation::Acknowledge(_)
        | Operation::AtomicAcknowledge { .. }
        | Operation::CompareSwap(_)
        | Operation::FetchAdd(_) => None,
    }
}
