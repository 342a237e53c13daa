//! Queue pairs whose peer acknowledges nothing: unreliable connections and datagrams (IBA 9.8).
//!
//! A send is done when its last packet has left. If anything is wrong with a packet that comes, it is counted and dropped, and
//! the rest of its message with it; the peer does not learn of it.

mod datagram;
mod probing;
mod raw;
mod receive;
mod send;

use super::changes::{self, Table};
use super::common::{Common, Ends};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::wqe::{self, Wqe};
use super::{
    Changes, CheckedRecv, CheckedSend, Completion, CompletionStatus, Context, Identity, RtrSettings, State,
};
use crate::congestion::{Destinations, Reflections};
use crate::wheel::sooner;
use crate::wire::Service;
use crate::{FailureCause, Psn};
use alloc::boxed::Box;
use alloc::collections::VecDeque;
use cc::Instant;
use receive::Message;

/// The state that the two services do not share.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// One peer, known from RTR on; messages of any length.
    Connected,
    /// Any peer; a message is a packet.
    Datagram {
        /// The Q_Key that packets must carry.
        queue_key: u32,
        /// Bytes of a packet.
        mtu: u32,
    },
    /// Whole Ethernet frames.
    Raw {
        /// Bytes of the longest, from RTR on; 0 before.
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

    /// Returns the settings that may change.
    pub(super) const fn changes(&self) -> Table {
        match self {
            Self::Connected => changes::UNRELIABLE,
            Self::Datagram { .. } => changes::DATAGRAM,
            Self::Raw { .. } => changes::RAW,
        }
    }

    /// Returns the bytes of the longest message, if the service has such a limit. It is known from RTR on, and before that nothing is sent.
    pub(super) fn longest(&self) -> Option<u32> {
        match *self {
            Self::Connected => None,
            Self::Datagram { mtu: longest, .. } | Self::Raw { longest } => Some(longest),
        }
        .filter(|&longest| longest > 0)
    }
}

/// Both directions of such a queue pair.
#[derive(Debug)]
pub(super) struct Unreliable {
    pub(super) kind: Kind,
    /// Send requests that have not left whole, oldest first.
    queue: SendQueue,
    /// The next packet's number.
    next: u64,
    /// One more than the last packet of the last request.
    end: u64,
    /// The first PSN sent.
    pub(super) origin: Psn,
    receives: ReceiveQueue,
    /// The first PSN of the connection that comes.
    first_received: Psn,
    /// The PSN that is expected, and the message that has begun.
    expected: Psn,
    message: Option<Message>,
    /// Of datagrams, if each destination is paced by itself.
    destinations: Option<Box<Destinations>>,
    /// Answers to probes of datagrams.
    reflections: Reflections,
}

impl Unreliable {
    /// Returns an unreliable connection, in RESET.
    pub(super) fn connected(identity: &Identity) -> Self {
        Self::new(identity, Kind::Connected)
    }

    /// Returns a datagram queue pair, in RESET.
    pub(super) fn datagram(identity: &Identity) -> Self {
        Self::new(identity, Kind::Datagram { queue_key: 0, mtu: 0 })
    }

    /// Returns a raw packet queue pair, in RESET.
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
            reflections: Reflections::default(),
        }
    }

    /// Forgets everything; the queues keep their room.
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

    /// Returns the state of both directions. The peer acknowledges nothing: what has left counts.
    pub(super) fn ends(&self) -> Ends {
        let send = self.psn(self.next);
        Ends { acknowledged: send.plus(Psn::CIRCLE - 1), send, expected: self.expected, retries: 0 }
    }

    /// Returns whether no message has begun that is not done.
    pub(super) fn is_drained(&self) -> bool {
        self.queue.front().is_none_or(|wqe| wqe.first == self.next)
    }

    /// Goes to ERR: the receive in progress ends as `receive`, all others as flushed.
    pub(super) fn fail(
        &mut self,
        common: &mut Common,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        let why = cause.map(|cause| (cause, cause.reason()));
        common.enter_error(why, self.ends(), context);
        self.flush_sends(common, CompletionStatus::Flushed, context);
        common.congestion.clear_hold();
        self.reflections.clear();
        self.flush_receives(common, receive, context);
    }

    /// Goes to SQE: nothing more is sent until the program resumes, but packets are still received (IBA 10.3.1.6).
    fn fail_send(&mut self, common: &mut Common, status: CompletionStatus, context: &mut Context<'_>) {
        common.enter_send_error(status, self.ends(), context);
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
        // Before RTR nothing is sent, whatever its packets are.
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
            // Nothing is owed any more.
            State::Error => common.congestion.paced_until(),
            State::Reset
            | State::Init
            | State::ReadyToReceive
            | State::ReadyToSend
            | State::SendQueueDrained
            | State::SendQueueError => {
                let probes = self.destinations.as_ref().and_then(|destinations| destinations.poll_timeout());
                sooner(common.congestion.poll_timeout(false), probes)
            }
        }
    }

    fn psn(&self, number: u64) -> Psn {
        self.origin.plus((number & u64::from(Psn::CIRCLE - 1)) as u32)
    }
}

/// Returns a send's completion if all goes well.
fn sent(wqe: &Wqe, identity: &Identity) -> Completion {
    Completion::new(wqe.request.id, CompletionStatus::Success, wqe.opcode(), identity.qpn)
}
