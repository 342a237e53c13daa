//! Queue pairs whose peer sends no acknowledgements: unreliable connections, datagrams, raw packets (IBA 9.8).
//!
//! A send completes when its last packet was sent. A received packet with an error is counted and dropped, with the rest of its message; no
//! NAK reports it.

mod datagram;
mod probing;
mod raw;
mod receive;
mod send;

use super::changes::{self, Table};
use super::common::{Common, PsnState};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::wqe::{self, Wqe};
use super::{
    Changes, CheckedRecv, CheckedSend, Completion, CompletionStatus, Context, Identity, RtrSettings, State,
};
use crate::congestion::{Destinations, ProbeResponder};
use crate::wheel::earliest_of;
use crate::wire::Service;
use crate::{FailureCause, Psn};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use cc::Instant;
use receive::Message;

/// State that depends on the service.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One peer, set at RTR; messages of any length.
    Connected,
    /// Any peer; one packet per message.
    Datagram {
        queue_key: u32,
        /// Longest payload, bytes.
        mtu: u32,
    },
    /// Whole Ethernet frames.
    Raw {
        /// Longest frame, bytes; 0 before RTR.
        longest: u32,
    },
}

impl Kind {
    pub(super) const fn service(&self) -> Service {
        match self {
            Self::Connected => Service::Uc,
            Self::Datagram { .. } => Service::Ud,
            Self::Raw { .. } => Service::Raw,
        }
    }

    pub(super) const fn changes(&self) -> Table {
        match self {
            Self::Connected => changes::UNRELIABLE,
            Self::Datagram { .. } => changes::DATAGRAM,
            Self::Raw { .. } => changes::RAW,
        }
    }

    /// Returns the longest message in bytes; `None` if the service does not limit it, and before RTR.
    pub(super) fn longest(&self) -> Option<u32> {
        match *self {
            Self::Connected => None,
            Self::Datagram { mtu: longest, .. } | Self::Raw { longest } => Some(longest),
        }
        .filter(|&longest| longest > 0)
    }
}

#[derive(Debug)]
pub(super) struct Unreliable {
    pub(super) kind: Kind,
    /// Send requests with packets that were not sent, oldest first.
    queue: SendQueue,
    /// Number of the next packet.
    next: u64,
    /// Number after the last packet of the last request.
    end: u64,
    /// First PSN that this side sends.
    pub(super) origin: Psn,
    receives: ReceiveQueue,
    /// First PSN that the peer sends.
    first_received: Psn,
    /// Next PSN expected from the peer.
    expected: Psn,
    message: Option<Message>,
    /// State of each destination of datagrams, if destinations are paced separately.
    destinations: Option<Box<Destinations>>,
    /// Answers to probes for datagrams.
    probe_responder: ProbeResponder,
}

impl Unreliable {
    pub(super) fn connected(identity: &Identity) -> Self {
        Self::new(identity, Kind::Connected)
    }

    pub(super) fn datagram(identity: &Identity) -> Self {
        Self::new(identity, Kind::Datagram { queue_key: 0, mtu: 0 })
    }

    pub(super) fn raw(identity: &Identity) -> Self {
        Self::new(identity, Kind::Raw { longest: 0 })
    }

    fn new(identity: &Identity, kind: Kind) -> Self {
        Self::with(kind, SendQueue::new(), ReceiveQueue::new(identity))
    }

    fn with(kind: Kind, queue: SendQueue, receives: ReceiveQueue) -> Self {
        let [origin, first_received, expected] = [Psn::new(0); 3];
        Self {
            kind,
            queue,
            next: 0,
            end: 0,
            origin,
            receives,
            first_received,
            expected,
            message: None,
            destinations: None,
            probe_responder: ProbeResponder::default(),
        }
    }

    /// Resets everything except the capacity of the queues.
    pub(super) fn reset(&mut self) {
        let mut queue = core::mem::take(&mut self.queue);
        queue.clear();
        let mut receives = core::mem::replace(&mut self.receives, ReceiveQueue::Own(VecDeque::new()));
        receives.clear();
        let kind = match self.kind {
            Kind::Connected => Kind::Connected,
            Kind::Datagram { .. } => Kind::Datagram { queue_key: 0, mtu: 0 },
            Kind::Raw { .. } => Kind::Raw { longest: 0 },
        };
        *self = Self::with(kind, queue, receives);
    }

    pub(super) const fn ready_to_receive(&mut self, settings: &RtrSettings) {
        (self.first_received, self.expected) = (settings.receive_psn, settings.receive_psn);
    }

    pub(super) fn change(&mut self, changes: &Changes) {
        if let Kind::Datagram { queue_key, .. } = &mut self.kind {
            *queue_key = changes.queue_key.unwrap_or(*queue_key);
        }
    }

    /// Returns the PSNs of both directions. The peer sends no acknowledgements, so everything sent counts as acknowledged.
    pub(super) fn psn_state(&self) -> PsnState {
        let send = self.psn(self.next);
        PsnState { acknowledged: send.plus(Psn::CIRCLE - 1), send, expected: self.expected, retries: 0 }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.queue.front().is_none_or(|wqe| wqe.first == self.next)
    }

    /// Enters ERR. The oldest receive request completes with `receive`, all others as flushed.
    pub(super) fn fail(
        &mut self,
        common: &mut Common,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        let why = cause.map(|cause| (cause, cause.reason()));
        common.enter_error(why, self.psn_state(), context);
        self.flush_sends(common, CompletionStatus::Flushed, context);
        common.congestion.clear_hold();
        self.probe_responder.clear();
        self.flush_receives(common, receive, context);
    }

    /// Enters SQE: sends nothing until the program resumes, but still receives packets (IBA 10.3.1.6).
    fn fail_send(&mut self, common: &mut Common, status: CompletionStatus, context: &mut Context<'_>) {
        common.enter_send_error(status, self.psn_state(), context);
        self.flush_sends(common, status, context);
    }

    pub(super) fn flush_sends(
        &mut self,
        common: &Common,
        status: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        let identity = &common.identity;
        let mut status = status;
        while let Some(wqe) = self.queue.pop() {
            context.cqs.push(identity.send_cq, Completion { status, ..sent(wqe, identity) });
            status = CompletionStatus::Flushed;
        }
        self.next = self.end;
    }

    pub(super) fn sends(&self) -> usize {
        self.queue.len()
    }

    pub(super) fn receives(&self) -> usize {
        let begun = !self.receives.is_shared() && matches!(self.message, Some(Message::Send { .. }));
        self.receives.len() + usize::from(begun)
    }

    pub(super) fn post(&mut self, common: &Common, checked: &mut CheckedSend) {
        // The MTU is 0 before RTR, when nothing is sent.
        let mtu = match self.kind {
            Kind::Connected => common.mtu(),
            Kind::Datagram { mtu, .. } | Kind::Raw { longest: mtu } => mtu,
        };
        let wqe = self.queue.push(checked, common.identity.capabilities.max_send);
        let is_local = wqe.request.operation.is_local();
        let packets = if is_local { 0 } else { wqe::packets(wqe.length, mtu.max(256)) };
        wqe.begin(self.end, packets, 0);
        self.end += u64::from(packets);
    }

    pub(super) fn post_recv(&mut self, CheckedRecv(request): CheckedRecv) {
        self.receives.push(request);
    }

    pub(super) fn poll_timeout(&self, common: &Common) -> Option<Instant> {
        match common.state {
            // In ERR no control packet is due.
            State::Error => common.congestion.paced_until(),
            State::Reset
            | State::Init
            | State::ReadyToReceive
            | State::ReadyToSend
            | State::SendQueueDrained
            | State::SendQueueError => {
                let probes = self.destinations.as_ref().and_then(|destinations| destinations.poll_timeout());
                earliest_of(common.congestion.poll_timeout(false), probes)
            }
        }
    }

    fn psn(&self, number: u64) -> Psn {
        self.origin.plus((number & u64::from(Psn::CIRCLE - 1)) as u32)
    }
}

fn sent(wqe: &Wqe, identity: &Identity) -> Completion {
    Completion::new(wqe.request.id, CompletionStatus::Success, wqe.opcode(), identity.qpn)
}
