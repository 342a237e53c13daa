//! Queue pairs whose peer acknowledges nothing: unreliable connections and datagrams (IBA 9.8).
//!
//! A send is done when its last packet has left. Whatever is wrong with a packet that comes, nobody is told: it is counted
//! and dropped, and the rest of its message with it.

mod receive;
mod send;

use super::alarms::{self, Alarms};
use super::changes::{self, Changes};
use super::flow::Flow;
use super::notify::Notifier;
use super::posting::{check_buffers, check_send};
use super::queue_pair::Connection;
use super::receive_queue::ReceiveQueue;
use super::wqe::{self, Wqe};
use super::{
    Books, Completion, CompletionStatus, Congestion, Identity, Modify, PostError, QpReport, RecvRequest,
    RtrSettings, SendOperation, SendRequest, State,
};
use crate::{Access, ControlError, FailureCause, Psn, QpFailure};
use alloc::collections::VecDeque;
use cc::{CongestionController, Instant};
use receive::Message;

/// What the two services don't share.
#[derive(Debug)]
pub(super) enum Kind {
    /// One peer, known from RTR on; messages of any length.
    Connected(Option<Connection>),
    /// Any peer; a message is a packet.
    Datagram {
        /// What packets must carry.
        queue_key: u32,
        /// Bytes of a packet.
        mtu: u32,
    },
}

/// One queue pair of such a service.
#[derive(Debug)]
pub(crate) struct Unreliable {
    identity: Identity,
    state: State,
    access: Access,
    partition_key: u16,
    kind: Kind,
    /// Send requests that have not left whole, oldest first.
    queue: VecDeque<Wqe>,
    /// The next packet's number.
    next: u64,
    /// One more than the last packet of the last request.
    end: u64,
    origin: Psn,
    receives: ReceiveQueue,
    /// The PSN that is expected, and the message that has begun.
    expected: Psn,
    message: Option<Message>,
    flow: Option<Flow>,
    notifier: Notifier,
    alarms: Alarms,
    /// The pacer holds a packet back until then.
    paced_until: Option<Instant>,
    /// IPv4 identification of the next packet.
    identification: u16,
}

impl Unreliable {
    /// An unreliable connection, in RESET.
    pub(crate) fn connected(identity: Identity) -> Self {
        Self::new(identity, Kind::Connected(None))
    }

    /// A datagram queue pair, in RESET.
    pub(crate) fn datagram(identity: Identity) -> Self {
        Self::new(identity, Kind::Datagram { queue_key: 0, mtu: 0 })
    }

    fn new(identity: Identity, kind: Kind) -> Self {
        Self {
            identity,
            state: State::Reset,
            access: Access::LOCAL_READ,
            partition_key: 0,
            kind,
            queue: VecDeque::with_capacity(identity.capabilities.max_send as usize),
            next: 0,
            end: 0,
            origin: Psn::new(0),
            receives: ReceiveQueue::new(&identity),
            expected: Psn::new(0),
            message: None,
            flow: None,
            notifier: Notifier::new(Congestion::NOTIFICATION_INTERVAL),
            alarms: Alarms::default(),
            paced_until: None,
            identification: 0,
        }
    }

    /// The peer of a connected one.
    pub(super) const fn connection_mut(&mut self) -> Option<&mut Connection> {
        match &mut self.kind {
            Kind::Connected(connection) => connection.as_mut(),
            Kind::Datagram { .. } => None,
        }
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn report(&self) -> QpReport {
        QpReport {
            send_psn: self.psn(self.next),
            expected_psn: self.expected,
            ..QpReport::new(self.state, self.flow.as_ref())
        }
    }

    /// Goes to another state, or says why not and stays as it is (IBA 10.3.1).
    pub(crate) fn modify(&mut self, modify: Modify, books: &mut Books<'_>) -> Result<(), ControlError> {
        let name = modify.name();
        match (self.state, modify, &mut self.kind) {
            (_, Modify::Reset, _) => self.reset(),
            (_, Modify::Error, _) => self.fail(None, CompletionStatus::Flushed, books),
            (State::Reset, Modify::Init { access, partition_key }, Kind::Connected(_)) => {
                (self.access, self.partition_key) = (access, partition_key);
                self.state = State::Init;
            }
            (
                State::Reset,
                Modify::InitDatagram { queue_key: key, partition_key },
                Kind::Datagram { queue_key, .. },
            ) => {
                *queue_key = key;
                self.partition_key = partition_key;
                self.state = State::Init;
            }
            (State::Init, Modify::ReadyToReceive(settings), Kind::Connected(_)) => self.connect(&settings)?,
            (State::Init, Modify::ReadyToReceiveDatagrams { mtu: most }, Kind::Datagram { mtu, .. }) => {
                *mtu = most.bytes();
                self.state = State::ReadyToReceive;
            }
            (State::ReadyToReceive, Modify::ReadyToSend(settings), Kind::Connected(_)) => {
                self.ready_to_send(settings.send_psn, &settings.congestion)?;
            }
            (
                State::ReadyToReceive,
                Modify::ReadyToSendDatagrams { send_psn, congestion },
                Kind::Datagram { .. },
            ) => self.ready_to_send(send_psn, &congestion)?,
            (State::ReadyToSend, Modify::Drain { notify }, _) => {
                self.state = State::SendQueueDrained;
                self.alarms.on_drain(notify);
                self.look_whether_drained(books);
            }
            (State::SendQueueDrained | State::SendQueueError, Modify::Resume, _) => {
                self.state = State::ReadyToSend;
            }
            (_, Modify::Change(changes), _) => self.change(&changes)?,
            (from, _, _) => {
                return Err(ControlError::Transition { qpn: self.identity.qpn, from, to: name });
            }
        }
        Ok(())
    }

    fn reset(&mut self) {
        let kind = match self.kind {
            Kind::Connected(_) => Kind::Connected(None),
            Kind::Datagram { .. } => Kind::Datagram { queue_key: 0, mtu: 0 },
        };
        *self = Self::new(self.identity, kind);
    }

    fn change(&mut self, changes: &Changes) -> Result<(), ControlError> {
        let table = match &self.kind {
            Kind::Connected(_) => changes::UNRELIABLE,
            Kind::Datagram { .. } => changes::DATAGRAM,
        };
        changes.check(table, self.identity.qpn, self.state, !self.has_begun())?;
        match &mut self.kind {
            Kind::Connected(Some(connection)) => {
                changes.path.map_or(Ok(()), |path| connection.move_to(&path))?;
            }
            Kind::Connected(None) => {}
            Kind::Datagram { queue_key, .. } => *queue_key = changes.queue_key.unwrap_or(*queue_key),
        }
        self.access = changes.access.unwrap_or(self.access);
        self.partition_key = changes.partition_key.unwrap_or(self.partition_key);
        Ok(())
    }

    fn connect(&mut self, settings: &RtrSettings) -> Result<(), ControlError> {
        self.kind = Kind::Connected(Some(Connection::new(settings)?));
        self.expected = settings.receive_psn;
        self.state = State::ReadyToReceive;
        Ok(())
    }

    /// Of all settings a sender that hears nothing has only its first PSN and its pace.
    fn ready_to_send(&mut self, send_psn: Psn, congestion: &Congestion) -> Result<(), ControlError> {
        let algorithm = congestion.algorithm.build().map_err(ControlError::Congestion)?;
        if let Kind::Connected(Some(connection)) = &mut self.kind
            && congestion.algorithm.wants_ecn()
        {
            connection.mark_capable();
        }
        self.flow = Some(Flow::new(algorithm));
        self.notifier = Notifier::new(congestion.notification_interval);
        self.origin = send_psn;
        self.state = State::ReadyToSend;
        Ok(())
    }

    /// To ERR: the receive in progress ends as `receive`, all others as flushed. Without a cause it was asked for.
    pub(crate) fn fail(
        &mut self,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        books: &mut Books<'_>,
    ) {
        if self.state != State::Error {
            alarms::on_error(cause.map(|cause| self.failure(cause)), &self.identity, books);
        }
        self.state = State::Error;
        self.flush_sends(CompletionStatus::Flushed, books);
        self.flush_receives(receive, books);
    }

    /// How it ended. Nobody acknowledges anything: what has left counts.
    fn failure(&self, cause: FailureCause) -> QpFailure {
        let peer = match &self.kind {
            Kind::Connected(Some(connection)) => Some((connection.path.destination, connection.destination)),
            Kind::Connected(None) | Kind::Datagram { .. } => None,
        };
        let send = self.psn(self.next);
        let acknowledged = send.plus(Psn::CIRCLE - 1);
        QpFailure { qpn: self.identity.qpn, cause, peer, acknowledged, send, expected: self.expected }
    }

    fn has_begun(&self) -> bool {
        self.queue.front().is_some_and(|wqe| wqe.first != self.next)
    }

    fn look_whether_drained(&mut self, books: &mut Books<'_>) {
        if self.state == State::SendQueueDrained && !self.has_begun() {
            self.alarms.on_drained(&self.identity, books);
        }
    }

    /// To SQE: nothing more is sent until somebody says so, but all is received (IBA 10.3.1.6).
    fn fail_send(&mut self, status: CompletionStatus, books: &mut Books<'_>) {
        self.state = State::SendQueueError;
        self.flush_sends(status, books);
    }

    fn flush_sends(&mut self, status: CompletionStatus, books: &mut Books<'_>) {
        let mut status = status;
        while let Some(wqe) = self.queue.pop_front() {
            books.cqs.push(self.identity.send_cq, Completion { status, ..sent(&wqe, &self.identity) });
            status = CompletionStatus::Flushed;
        }
        self.next = self.end;
        self.paced_until = None;
    }

    pub(crate) fn send_room(&self) -> u32 {
        self.identity.capabilities.max_send - self.queue.len() as u32
    }

    pub(crate) fn recv_room(&self) -> u32 {
        let begun = !self.receives.is_shared() && matches!(self.message, Some(Message::Send { .. }));
        self.identity.capabilities.max_recv - self.receives.len() as u32 - u32::from(begun)
    }

    pub(crate) fn post_send(&mut self, request: SendRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        let length = check_send(&request, &self.identity)?;
        let mtu = self.check_service(&request, length)?;
        match self.state {
            State::ReadyToSend | State::SendQueueDrained if self.send_room() == 0 => {
                return Err(PostError::QueueFull { limit: self.identity.capabilities.max_send });
            }
            State::ReadyToSend | State::SendQueueDrained => self.enqueue(request, length, mtu),
            State::SendQueueError | State::Error => {
                self.enqueue(request, length, mtu);
                self.flush_sends(CompletionStatus::Flushed, books);
            }
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                return Err(PostError::State { qpn: self.identity.qpn, state });
            }
        }
        Ok(())
    }

    /// The service has this operation, and a message of this length; gives the bytes of its packets.
    fn check_service(&self, request: &SendRequest, length: u32) -> Result<u32, PostError> {
        match (&self.kind, &request.operation) {
            (
                Kind::Connected(connection),
                SendOperation::Send { .. }
                | SendOperation::Write { .. }
                | SendOperation::Bind(_)
                | SendOperation::LocalInvalidate { .. },
            ) => {
                // Before RTR nothing is sent, whatever its packets are.
                Ok(connection.as_ref().map_or(256, |connection| connection.mtu))
            }
            (Kind::Datagram { mtu, .. }, SendOperation::SendTo { .. }) => match length {
                length if length > *mtu => Err(PostError::DatagramTooLong { given: length, limit: *mtu }),
                _ => Ok((*mtu).max(256)),
            },
            _ => Err(PostError::Service { qpn: self.identity.qpn }),
        }
    }

    fn enqueue(&mut self, request: SendRequest, length: u32, mtu: u32) {
        let packets = if request.operation.is_local() { 0 } else { wqe::packets(length, mtu) };
        let wqe = Wqe::new(request, length, self.end, packets, 0);
        self.end = wqe.end();
        self.queue.push_back(wqe);
    }

    pub(crate) fn post_recv(&mut self, request: RecvRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        let capabilities = &self.identity.capabilities;
        check_buffers(request.buffers.len(), capabilities.max_recv_sge)?;
        if self.receives.is_shared() {
            return Err(PostError::SharedReceives { qpn: self.identity.qpn });
        }
        match self.state {
            State::Reset => return Err(PostError::State { qpn: self.identity.qpn, state: self.state }),
            State::Error => {
                self.receives.push(request);
                self.flush_receives(CompletionStatus::Flushed, books);
            }
            State::Init
            | State::ReadyToReceive
            | State::ReadyToSend
            | State::SendQueueDrained
            | State::SendQueueError => {
                if self.recv_room() == 0 {
                    return Err(PostError::QueueFull { limit: capabilities.max_recv });
                }
                self.receives.push(request);
            }
        }
        Ok(())
    }

    /// When time alone changes something.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        let algorithm = self.flow.as_ref().and_then(|flow| flow.algorithm().poll_timeout());
        [self.paced_until, algorithm].into_iter().flatten().min()
    }

    pub(crate) fn on_timeout(&mut self, books: &mut Books<'_>) {
        if let Some(flow) = &mut self.flow
            && flow.algorithm().poll_timeout().is_some_and(|at| at <= books.now)
        {
            flow.algorithm_mut().on_timeout(books.now);
        }
    }

    fn psn(&self, number: u64) -> Psn {
        self.origin.plus((number & u64::from(Psn::CIRCLE - 1)) as u32)
    }
}

/// A send's completion when all goes well.
fn sent(wqe: &Wqe, identity: &Identity) -> Completion {
    Completion::new(wqe.request.id, CompletionStatus::Success, wqe.opcode(), identity.qpn)
}
