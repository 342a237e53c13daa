//! The next packet of an unreliable queue pair: congestion control first, then requests.

use super::super::common::{Common, Connection};
use super::super::local::run;
use super::super::operation::operation;
use super::super::wqe::Position;
use super::super::{CompletionStatus, Context, Datagram, SendOperation, State, buffers};
use super::{Kind, Unreliable, sent};
use crate::Memory;
use crate::congestion::{Sequence, Transport};
use crate::wire::{Header, Service, Template};

/// Bit with which a datagram has the queue pair's own Q_Key instead of the request's (IBA 10.2.5). So only a program that may set the queue
/// pair's Q_Key can send a Q_Key with this bit.
const CONTROLLED: u32 = 1 << 31;

/// Next packet, and the headers below it.
struct Planned<'a> {
    header: Header,
    template: &'a Template,
    offset: u32,
    length: u32,
    /// The packet is the last of its message.
    ends: bool,
}

impl Unreliable {
    /// Writes the next packet that may be sent.
    pub(in crate::qp) fn poll_transmit<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        self.transmit_control(common, context, frame)
            .or_else(|| self.transmit_request(common, memory, context, frame))
    }

    /// Writes a due packet of congestion control, to the peer or to a destination of datagrams.
    fn transmit_control(
        &mut self,
        common: &mut Common,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        if common.state == State::Error {
            return None;
        }
        match self.kind {
            Kind::Connected => {}
            Kind::Datagram { .. } => {
                return self
                    .transmit_reflection(common, context, frame)
                    .or_else(|| self.transmit_probe(common, context, frame));
            }
            Kind::Raw { .. } => return None,
        }
        if !common.congestion.may_have_control_packets(context.now) {
            return None;
        }
        let connection = common.connection?;
        let transport = self.transport(common, &connection, context);
        let mut enables_ect = false;
        let length =
            common.congestion.transmit_control(&transport, context.counters, frame, &mut enables_ect);
        if enables_ect {
            common.set_ect();
        }
        common.report_congestion_changes(context);
        length
    }

    /// Returns the state that congestion control may use now. Nothing is acknowledged, so only probes measure the path.
    pub(super) fn transport<'a>(
        &self,
        common: &Common,
        connection: &'a Connection,
        context: &Context<'_>,
    ) -> Transport<'a> {
        let (first_sent, first_received) = (self.origin, self.first_received);
        Transport {
            path: None,
            now: context.now,
            qpn: common.identity.qpn,
            destination: connection.destination,
            partition_key: common.partition_key,
            identification: common.identification,
            numbers: context.numbers,
            template: &connection.template,
            is_sending: false,
            sequence: Sequence {
                una: self.next,
                next: self.next,
                sent: self.next,
                first_sent,
                first_received,
            },
        }
    }

    fn transmit_request<M: Memory>(
        &mut self,
        common: &mut Common,
        memory: &M,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        match common.state {
            State::ReadyToSend => {}
            // A begun message is sent to its end; no other begins.
            State::SendQueueDrained if !self.is_drained() => {}
            _ => return None,
        }
        if let Kind::Raw { .. } = self.kind {
            return self.transmit_frame(common, memory, context, frame);
        }
        if let Err(status) = self.run_local(common, context) {
            self.fail_send(common, status, context);
        }
        self.queue.front()?;
        if !common.congestion.may_send(context.now) || self.is_held(common, context) {
            return None;
        }
        let Some(planned) = self.plan(common, context) else {
            // The address handle was destroyed.
            self.fail_send(common, CompletionStatus::LocalQpOperation, context);
            return None;
        };
        let Planned { header, template, offset, length, ends } = planned;
        let data = &self.queue.front()?.request.data;
        let mut draft = template.emit(common.identification, &header, length as usize, frame).ok()?;
        let pd = common.identity.pd;
        if buffers::gather(memory, context.regions, pd, data, offset, draft.payload()).is_err() {
            self.fail_send(common, CompletionStatus::LocalProtection, context);
            return None;
        }
        let on_wire = draft.seal();
        context.counters.tx_payload_bytes += u64::from(length);
        common.congestion.on_unacknowledged_data_sent(context.now, length, on_wire);
        if let Some(destinations) = &mut self.destinations {
            destinations.on_sent(context.now, length, on_wire);
        }
        self.next += 1;
        if ends {
            self.complete_front(common, context);
        }
        Some(on_wire)
    }

    /// Completes the oldest request, all of whose packets were sent.
    pub(super) fn complete_front(&mut self, common: &Common, context: &mut Context<'_>) {
        let identity = &common.identity;
        if let Some(wqe) = self.queue.pop()
            && (wqe.request.signalled || identity.signal_all)
        {
            context.cqs.push(identity.send_cq, sent(wqe, identity));
        }
    }

    fn run_local(&mut self, common: &Common, context: &mut Context<'_>) -> Result<(), CompletionStatus> {
        let identity = &common.identity;
        while let Some(wqe) = self.queue.front()
            && wqe.is_local()
        {
            run(&wqe.request.operation, context, identity)?;
            self.complete_front(common, context);
        }
        Ok(())
    }

    /// Returns the next packet of the oldest request; `None` if its address handle was destroyed.
    fn plan<'a>(&self, common: &'a Common, context: &'a Context<'_>) -> Option<Planned<'a>> {
        let wqe = self.queue.front()?;
        let psn = self.psn(self.next);
        match (self.kind, wqe.request.operation, &common.connection) {
            (Kind::Datagram { queue_key, .. }, SendOperation::SendTo { to, immediate }, _) => {
                let template = context.addresses.get(to.address, common.identity.pd)?;
                let mut bth = common.bth(to.qpn, psn);
                bth.solicited = wqe.request.solicited;
                let queue_key = key_of(&to, queue_key);
                let header = Header::Datagram { bth, queue_key, source: common.identity.qpn, immediate };
                Some(Planned { header, template, offset: 0, length: wqe.length, ends: true })
            }
            (Kind::Connected, _, Some(connection)) => {
                let offset = wqe.offset(self.next, connection.mtu);
                let length = (wqe.length - offset).min(connection.mtu);
                let position = Position::of((self.next - wqe.first) as u32, wqe.packets);
                let ends = matches!(position, Position::Last | Position::Only);
                let mut bth = common.bth(connection.destination, psn);
                bth.solicited = ends && wqe.request.solicited;
                let operation = operation(wqe, position, offset, offset + length)?;
                let header = Header::Connected { service: Service::Uc, bth, operation };
                Some(Planned { header, template: &connection.template, offset, length, ends })
            }
            _ => None,
        }
    }
}

/// Returns the Q_Key that a datagram carries; `ours` is the queue pair's.
pub(super) const fn key_of(to: &Datagram, ours: u32) -> u32 {
    if to.queue_key & CONTROLLED == 0 { to.queue_key } else { ours }
}
