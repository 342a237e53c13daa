//! Telemetry of datagrams: sends probes to the destinations, and answers the probes of senders.

use super::super::common::Common;
use super::super::{Context, SendOperation};
use super::send::key_of;
use super::{Kind, Unreliable};
use crate::Discard;
use crate::congestion::{Congestion, Destinations, FeedbackKey, Sender};
use crate::wire::{Frame, Header};
use alloc::boxed::Box;

fn sender<'a>(common: &Common, context: &Context<'a>) -> Sender<'a> {
    Sender {
        now: context.now,
        pd: common.identity.pd,
        qpn: common.identity.qpn,
        partition_key: common.partition_key,
        identification: common.identification,
        numbers: context.numbers,
        addresses: context.addresses,
    }
}

impl Unreliable {
    /// Starts to answer probes, and to pace each destination with the settings `each`, if any.
    pub(in crate::qp) fn begin_datagrams(
        &mut self,
        common: &Common,
        settings: &Congestion,
        each: Option<Congestion>,
    ) {
        let qpn = common.identity.qpn;
        self.destinations = each.map(|each| Box::new(Destinations::new(each, qpn)));
        self.authenticate(settings.feedback_key);
        if settings.ratio_only {
            self.probe_responder.disable();
        }
    }

    /// Starts to seal answers with `key`, if there is one.
    pub(in crate::qp) fn authenticate(&mut self, key: Option<FeedbackKey>) {
        self.probe_responder.authenticate(key);
    }

    /// Handles a packet for a datagram queue pair that is not a message.
    pub(super) fn on_probing(
        &mut self,
        ours: u32,
        common: &Common,
        frame: &Frame<'_>,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        match frame.header {
            Header::DatagramTelemetryRequest { queue_key, .. } if queue_key != ours => Err(Discard::QueueKey),
            Header::DatagramTelemetryRequest { source, .. } => self.probe_responder.on_request(frame, source),
            Header::TelemetryResponse { .. } => {
                let destinations = self.destinations.as_mut().ok_or(Discard::Telemetry)?;
                let sender = sender(common, context);
                destinations.on_response(&sender, frame, context.counters, context.flows, context.events)
            }
            _ => Err(Discard::Opcode),
        }
    }

    pub(super) fn transmit_reflection(
        &mut self,
        common: &Common,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let response = self.probe_responder.pop()?;
        let bth = common.bth(response.to, response.psn);
        let feedback = self.probe_responder.feedback(&response, common.identity.qpn, &bth);
        let header = Header::TelemetryResponse { bth, feedback };
        let length = response.template.emit(common.identification, &header, 0, frame).ok()?.seal();
        context.counters.feedback_sent += 1;
        Some(length)
    }

    pub(super) fn transmit_probe(
        &mut self,
        common: &Common,
        context: &mut Context<'_>,
        frame: &mut [u8],
    ) -> Option<usize> {
        let destinations = self.destinations.as_mut()?;
        destinations.transmit_probe(&sender(common, context), context.counters, context.events, frame)
    }

    /// Returns whether the pacer of its destination delays the next datagram. If so, the queue pair's own pacer is set to the same time.
    pub(super) fn is_held(&mut self, common: &mut Common, context: &Context<'_>) -> bool {
        let (Some(destinations), Kind::Datagram { queue_key, .. }) = (&mut self.destinations, self.kind)
        else {
            return false;
        };
        let Some(SendOperation::SendTo { to, .. }) = self.queue.front().map(|wqe| wqe.request.operation)
        else {
            return false;
        };
        // The completion reports a destroyed address handle.
        let Some((path, _)) = context.addresses.path_and_headers(to.address, common.identity.pd) else {
            return false;
        };
        let held = destinations.hold_until(context.now, path, to, key_of(&to, queue_key));
        held.map(|until| common.congestion.hold(until)).is_some()
    }

    /// Returns the algorithm that paces the destination of the last datagram; `None` if destinations are not paced separately.
    pub(in crate::qp) fn algorithm(&self) -> Option<&cc::Algorithm> {
        self.destinations.as_ref()?.algorithm()
    }

    #[inline]
    pub(in crate::qp) fn has_answer_due(&self) -> bool {
        self.probe_responder.is_due()
    }
}
