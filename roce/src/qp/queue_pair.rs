//! The queue pair of any service: states, posting, packets received and sent.

use super::changes::{self, Changes, MAX_RD_ATOMIC, limit};
use super::common::{Common, Connection, Peer};
use super::posting::{CheckedRecv, CheckedSend, PostRules};
use super::reliable::Reliable;
use super::unreliable::{Kind, Unreliable};
use super::waiting::Waiting;
use super::{
    CompletionStatus, Context, Identity, LossRecovery, Modify, PostError, QpReport, RecvRequest, RtrSettings,
    RtsSettings, SendRequest, State,
};
use crate::congestion::{Congestion, CongestionControl};
use crate::event::Events;
use crate::srq::SharedQueues;
use crate::wire::{FastPathPacket, Frame, Mac, Service};
use crate::{ControlError, CqId, Discard, FailureCause, FailureReason, Memory, Outbox, Psn};
use cc::{Algorithm, Instant, RecordedHop};
use core::net::IpAddr;

/// Queue pair of any service. A host has many, most of them idle, so rarely used parts are boxed.
#[derive(Debug)]
pub(crate) struct QueuePair {
    common: Common,
    transport: Transport,
}

pub(crate) struct Sent {
    pub(crate) bytes: u64,
    pub(crate) has_more: bool,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "each queue pair is in its own box; most are reliable")]
enum Transport {
    Reliable(Reliable),
    Unreliable(Unreliable),
}

/// Limits the size of an idle queue pair, because a host has many.
const _: () = assert!(size_of::<QueuePair>() <= 1592);

macro_rules! either {
    ($transport:expr, $part:ident => $call:expr) => {
        match $transport {
            Transport::Reliable($part) => $call,
            Transport::Unreliable($part) => $call,
        }
    };
}

impl QueuePair {
    pub(crate) fn new(service: Service, identity: Identity) -> Self {
        let transport = match service {
            Service::Rc | Service::Xrc => Transport::Reliable(Reliable::new(&identity)),
            Service::Uc => Transport::Unreliable(Unreliable::connected(&identity)),
            Service::Ud => Transport::Unreliable(Unreliable::datagram(&identity)),
            Service::Raw => Transport::Unreliable(Unreliable::raw(&identity)),
        };
        Self { common: Common::new(identity), transport }
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.common.identity
    }

    pub(crate) fn service(&self) -> Service {
        match &self.transport {
            Transport::Reliable(_) => self.common.identity.receives.service(),
            Transport::Unreliable(unreliable) => unreliable.kind.service(),
        }
    }

    pub(crate) fn report(&self) -> QpReport {
        let of_algorithm = QpReport::new(self.common.state, self.algorithm());
        let (in_flight, acknowledged_bytes, window, psn_state) = match &self.transport {
            Transport::Reliable(reliable) => (
                reliable.in_flight(),
                reliable.acknowledged_bytes(),
                self.common.congestion.next_window(),
                reliable.psn_state(),
            ),
            Transport::Unreliable(unreliable) => (0, 0, of_algorithm.window, unreliable.psn_state()),
        };
        QpReport {
            in_flight,
            window,
            mtu: self.common.mtu(),
            acknowledged_bytes,
            acknowledged_psn: psn_state.acknowledged,
            outstanding: either!(&self.transport, part => part.sends()) as u32,
            receives: either!(&self.transport, part => part.receives()) as u32,
            round_trip: self.common.congestion.round_trip(),
            send_psn: psn_state.send,
            expected_psn: psn_state.expected,
            failure: self.common.failure.as_deref().copied(),
            ..of_algorithm
        }
    }

    /// Returns the algorithm that paces the queue pair or the destination of its last datagram; `None` before RTS.
    fn algorithm(&self) -> Option<&Algorithm> {
        let of_destination = match &self.transport {
            Transport::Reliable(_) => None,
            Transport::Unreliable(unreliable) => unreliable.algorithm(),
        };
        of_destination.or_else(|| self.common.congestion.algorithm())
    }

    pub(crate) fn hops(&self) -> impl Iterator<Item = RecordedHop> {
        self.algorithm().into_iter().flat_map(Algorithm::hops)
    }

    /// Returns the likely reason why requests wait for the peer; `None` if they do not.
    pub(crate) fn suspects(&self, now: Instant, events: &Events) -> Option<FailureReason> {
        match &self.transport {
            Transport::Reliable(reliable) if self.common.state != State::Error => {
                reliable.suspects(&self.common, now, events)
            }
            Transport::Reliable(_) | Transport::Unreliable(_) => None,
        }
    }

    /// Makes a state transition (IBA 10.3.1).
    ///
    /// # Errors
    /// Returns a [`ControlError`] if the transition is not possible; the queue pair is then unchanged.
    pub(crate) fn modify(&mut self, modify: Modify, context: &mut Context<'_>) -> Result<(), ControlError> {
        let common = &mut self.common;
        match (common.state, modify) {
            (_, Modify::Reset) => {
                self.abandon(context.srqs);
                self.reset();
            }
            (_, Modify::Error) => self.silence_and_fail(context),
            (State::ReadyToSend, Modify::Drain { notify }) => {
                common.state = State::SendQueueDrained;
                common.async_events.on_drain(notify);
                self.look_whether_drained(context);
            }
            (State::SendQueueDrained | State::SendQueueError, Modify::Resume) => {
                common.state = State::ReadyToSend;
                common.failure = None;
            }
            (_, Modify::Change(changes)) => self.change(&changes)?,
            (_, modify) => self.advance(modify)?,
        }
        Ok(())
    }

    /// Makes a transition towards RTS. Its settings differ by service.
    fn advance(&mut self, modify: Modify) -> Result<(), ControlError> {
        let mut connected = Kind::Connected;
        let kind = match &mut self.transport {
            Transport::Reliable(_) => &mut connected,
            Transport::Unreliable(unreliable) => &mut unreliable.kind,
        };
        let common = &mut self.common;
        match (common.state, modify, kind) {
            // INIT to INIT is legal for all services, as in Linux.
            (State::Reset | State::Init, Modify::Init { access, partition_key }, Kind::Connected) => {
                (common.access, common.partition_key) = (access, partition_key);
                common.state = State::Init;
            }
            (
                State::Reset | State::Init,
                Modify::InitDatagram { queue_key: key, partition_key },
                Kind::Datagram { queue_key, .. },
            ) => {
                (*queue_key, common.partition_key) = (key, partition_key);
                common.state = State::Init;
            }
            (State::Reset | State::Init, Modify::InitRaw, Kind::Raw { .. }) => common.state = State::Init,
            (State::Init, Modify::ReadyToReceive(settings), Kind::Connected) => {
                self.ready_to_receive(&settings)?;
            }
            (
                State::Init,
                Modify::ReadyToReceiveDatagrams { mtu: most, feedback_key },
                Kind::Datagram { mtu, .. },
            ) => {
                *mtu = most.bytes();
                common.state = State::ReadyToReceive;
                if let Transport::Unreliable(unreliable) = &mut self.transport {
                    unreliable.authenticate(feedback_key);
                }
            }
            (State::Init, Modify::ReadyToReceiveRaw { longest: most }, Kind::Raw { longest }) => {
                *longest = most;
                common.state = State::ReadyToReceive;
            }
            (State::ReadyToReceive, Modify::ReadyToSend(settings), Kind::Connected) => {
                self.ready_to_send(&settings)?;
            }
            (
                State::ReadyToReceive,
                Modify::ReadyToSendDatagrams { send_psn, congestion },
                Kind::Datagram { .. },
            ) => self.begin_to_send(send_psn, &congestion)?,
            (State::ReadyToReceive, Modify::ReadyToSendRaw, Kind::Raw { .. }) => {
                common.state = State::ReadyToSend;
            }
            (from, modify, _) => {
                return Err(ControlError::Transition { qpn: common.identity.qpn, from, to: modify.name() });
            }
        }
        Ok(())
    }

    /// Abandons the message in progress, and returns its shared receive request to the queue.
    pub(crate) fn abandon(&mut self, shared: &mut SharedQueues) {
        match &mut self.transport {
            // A reliable service does not return the request of an unfinished message.
            Transport::Reliable(_) => {}
            Transport::Unreliable(unreliable) => unreliable.abandon(shared),
        }
    }

    /// Resets everything except the capacity of the queues.
    fn reset(&mut self) {
        let identity = self.common.identity;
        self.common = Common::new(identity);
        either!(&mut self.transport, part => part.reset());
    }

    fn silence_and_fail(&mut self, context: &mut Context<'_>) {
        if let Transport::Reliable(reliable) = &mut self.transport {
            reliable.drop_responses();
        }
        self.fail(None, CompletionStatus::Flushed, context);
    }

    fn ready_to_receive(&mut self, settings: &RtrSettings) -> Result<(), ControlError> {
        limit("max_dest_rd_atomic", settings.max_dest_rd_atomic, MAX_RD_ATOMIC)?;
        self.common.connection = Some(Connection::new(settings)?);
        self.common.congestion.authenticate(settings.feedback_key);
        either!(&mut self.transport, part => part.ready_to_receive(settings));
        self.common.state = State::ReadyToReceive;
        Ok(())
    }

    fn ready_to_send(&mut self, settings: &RtsSettings) -> Result<(), ControlError> {
        limit("retry_count", settings.retry_count, 7)?;
        limit("rnr_retry", settings.rnr_retry, 7)?;
        limit("max_rd_atomic", settings.max_rd_atomic, MAX_RD_ATOMIC)?;
        self.begin_to_send(settings.send_psn, &settings.congestion)?;
        if let (Transport::Reliable(reliable), Some(connection)) =
            (&mut self.transport, &self.common.connection)
        {
            reliable.ready_to_send(connection, settings);
        }
        Ok(())
    }

    /// Enters RTS: checks the congestion settings, and starts congestion control.
    fn begin_to_send(&mut self, send_psn: Psn, settings: &Congestion) -> Result<(), ControlError> {
        let Common { congestion, connection, identity, .. } = &mut self.common;
        let path = connection.as_ref().map(|connection| connection.path);
        let is_connected = matches!(self.transport, Transport::Reliable(_));
        let is_selective = connection
            .as_ref()
            .is_some_and(|connection| connection.loss_recovery == LossRecovery::SelectiveRepeat);
        let allowed = settings.check_spray(is_connected, is_selective);
        allowed.map_err(|reason| ControlError::Spray { qpn: identity.qpn, reason })?;
        let is_datagram =
            matches!(&self.transport, Transport::Unreliable(Unreliable { kind: Kind::Datagram { .. }, .. }));
        let (paced, each) = match self.transport {
            Transport::Reliable(_) => (*settings, None),
            Transport::Unreliable(_) if is_datagram => {
                let allowed = settings.check_datagrams();
                allowed.map_err(|reason| ControlError::Datagrams {
                    qpn: identity.qpn,
                    algorithm: settings.algorithm.name(),
                    reason,
                })?;
                settings.for_datagrams()
            }
            Transport::Unreliable(_) => (settings.for_unacknowledged_data(), None),
        };
        if let Some(each) = &each {
            // Checks, before any datagram is sent, the settings with which each destination starts.
            CongestionControl::new().start(each, identity.qpn, None)?;
        }
        congestion.start(&paced, identity.qpn, path.as_ref())?;
        if paced.wants_ecn() {
            self.common.set_ect();
        }
        if let Transport::Unreliable(unreliable) = &mut self.transport {
            unreliable.origin = send_psn;
            if is_datagram {
                unreliable.begin_datagrams(&self.common, settings, each);
            }
        }
        self.common.state = State::ReadyToSend;
        Ok(())
    }

    /// Changes all settings or none.
    fn change(&mut self, changes: &Changes) -> Result<(), ControlError> {
        let table = match &self.transport {
            Transport::Reliable(_) => changes::RELIABLE,
            Transport::Unreliable(unreliable) => unreliable.kind.changes(),
        };
        let common = &mut self.common;
        let is_drained = either!(&self.transport, part => part.is_drained());
        changes.check(table, common.identity.qpn, common.state, is_drained)?;
        if let Some(path) = &changes.path {
            common.move_to(path)?;
        }
        common.access = changes.access.unwrap_or(common.access);
        common.partition_key = changes.partition_key.unwrap_or(common.partition_key);
        either!(&mut self.transport, part => part.change(changes));
        Ok(())
    }

    /// Enters ERR. The receive in progress completes with `receive`, all others as flushed. `cause` is `None` if the program requested it.
    pub(crate) fn fail(
        &mut self,
        cause: Option<FailureCause>,
        receive: CompletionStatus,
        context: &mut Context<'_>,
    ) {
        either!(&mut self.transport, part => part.fail(&mut self.common, cause, receive, context));
    }

    /// Returns whether requests of the queue pair complete in `cq`. In RESET it has no requests.
    pub(crate) fn completes_to(&self, cq: CqId) -> bool {
        let Identity { send_cq, recv_cq, .. } = *self.identity();
        let lately = match &self.transport {
            Transport::Reliable(reliable) => reliable.lately_completed_to(),
            Transport::Unreliable(_) => None,
        };
        self.common.state != State::Reset && (send_cq == cq || recv_cq == cq || lately == Some(cq))
    }

    pub(crate) fn peer(&self) -> Option<Peer> {
        self.common.peer()
    }

    pub(crate) fn uses_direct_responses(&self) -> bool {
        matches!(self.transport, Transport::Reliable(_)) && self.common.congestion.uses_direct_responses()
    }

    pub(crate) fn redirect(&mut self, peer: IpAddr, mac: Mac) -> bool {
        self.common.redirect(peer, mac)
    }

    #[inline]
    pub(crate) fn holds_telemetry(&self) -> bool {
        self.common.congestion.holds_telemetry()
    }

    pub(crate) fn release_telemetry(&mut self, now: Instant) -> bool {
        self.common.congestion.release_telemetry(now)
    }

    /// Frees memory for early packets that is no longer needed. Returns the bytes still in use.
    pub(crate) fn release_early(&mut self, context: &mut Context<'_>) -> usize {
        match &mut self.transport {
            Transport::Reliable(reliable) => reliable.release_early(context),
            Transport::Unreliable(_) => 0,
        }
    }

    /// Drops all early packets; the peer retransmits them.
    pub(crate) fn evict_early(&mut self, context: &mut Context<'_>) {
        if let Transport::Reliable(reliable) = &mut self.transport {
            reliable.evict_early(context);
        }
    }

    #[inline]
    pub(crate) fn has_answer_due(&self) -> bool {
        match &self.transport {
            Transport::Reliable(reliable) => reliable.has_answer_due(),
            Transport::Unreliable(unreliable) => unreliable.has_answer_due(),
        }
    }

    pub(crate) fn send_room(&self) -> u32 {
        let taken = either!(&self.transport, part => part.sends());
        self.common.identity.capabilities.max_send.saturating_sub(taken as u32)
    }

    pub(crate) fn recv_room(&self) -> u32 {
        let taken = either!(&self.transport, part => part.receives());
        self.common.identity.capabilities.max_recv.saturating_sub(taken as u32)
    }

    pub(crate) fn post_rules(&self) -> PostRules {
        let identity = &self.common.identity;
        match &self.transport {
            Transport::Reliable(_) => PostRules::new(identity, identity.receives.service(), None),
            Transport::Unreliable(unreliable) => {
                PostRules::new(identity, unreliable.kind.service(), unreliable.kind.longest())
            }
        }
    }

    pub(crate) fn check_send(&self, request: SendRequest) -> Result<CheckedSend, PostError> {
        let checked = self.post_rules().send.check(request)?;
        let Identity { qpn, capabilities, .. } = self.common.identity;
        match self.common.state {
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                Err(PostError::State { qpn, state })
            }
            State::ReadyToSend | State::SendQueueDrained if self.send_room() == 0 => {
                Err(PostError::QueueFull { limit: capabilities.max_send })
            }
            _ => Ok(checked),
        }
    }

    pub(crate) fn check_recv(&self, request: RecvRequest) -> Result<CheckedRecv, PostError> {
        let checked = self.post_rules().recv.check(request)?;
        let Identity { qpn, capabilities, .. } = self.common.identity;
        match self.common.state {
            state @ State::Reset => Err(PostError::State { qpn, state }),
            State::Error => Ok(checked),
            _ if self.recv_room() == 0 => Err(PostError::QueueFull { limit: capabilities.max_recv }),
            _ => Ok(checked),
        }
    }

    /// Accepts send requests, and flushes them after an error.
    pub(crate) fn take_sends(&mut self, requests: &mut [CheckedSend], context: &mut Context<'_>) {
        let common = &mut self.common;
        // Requests posted before a reset are dropped.
        if let State::Reset | State::Init | State::ReadyToReceive = common.state {
            return;
        }
        either!(&mut self.transport, part => requests.iter_mut().for_each(|request| part.post(common, request)));
        if let State::SendQueueError | State::Error = common.state {
            either!(&mut self.transport, part => part.flush_sends(common, CompletionStatus::Flushed, context));
        }
    }

    /// Accepts a receive request, and flushes it after an error.
    pub(crate) fn take_recv(&mut self, request: CheckedRecv, context: &mut Context<'_>) {
        // Requests posted before a reset are dropped.
        if self.common.state == State::Reset {
            return;
        }
        either!(&mut self.transport, part => part.post_recv(request));
        if self.common.state == State::Error {
            let status = CompletionStatus::Flushed;
            either!(&mut self.transport, part => part.flush_receives(&self.common, status, context));
        }
    }

    /// Returns whether a plain packet is from the peer, the state receives packets, and only the transport handles it.
    #[inline(always)]
    pub(crate) fn expects(&self, packet: &FastPathPacket<'_>) -> bool {
        matches!(self.common.state, State::ReadyToReceive | State::ReadyToSend)
            && matches!(self.transport, Transport::Reliable(_))
            && self.common.expects(packet)
    }

    /// Receives a packet that [`Self::expects`] accepted.
    #[inline(always)]
    pub(crate) fn on_fast_path<M: Memory>(
        &mut self,
        packet: &FastPathPacket<'_>,
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        let Self { common, transport: Transport::Reliable(reliable) } = self else {
            return Err(Discard::Opcode);
        };
        let (bth, operation, payload) = packet.read()?;
        common.congestion.on_plain(!operation.is_answer(), packet.udp_source(), payload.len());
        let taken = reliable.on_transport(common, (bth, operation, None), false, payload, memory, context);
        common.on_taken(taken, context)
    }

    /// Receives a packet for this queue pair whose ICRC is correct.
    #[inline]
    pub(crate) fn on_packet<M: Memory>(
        &mut self,
        frame: &Frame<'_>,
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        let common = &mut self.common;
        match common.state {
            State::Reset | State::Init | State::Error => return Err(Discard::QpState),
            State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained | State::SendQueueError => {}
        }
        common.check_partition(frame)?;
        let taken = either!(&mut self.transport, part => part.on_packet(common, frame, memory, context));
        self.look_whether_drained(context);
        self.common.on_taken(taken, context)
    }

    /// Receives a frame that a steering rule directs to this queue pair.
    pub(crate) fn on_frame<M: Memory>(
        &mut self,
        frame: &[u8],
        memory: &mut M,
        context: &mut Context<'_>,
    ) -> Result<(), Discard> {
        match &mut self.transport {
            Transport::Reliable(_) => Err(Discard::Opcode),
            Transport::Unreliable(unreliable) => {
                unreliable.on_frame(&mut self.common, frame, memory, context)
            }
        }
    }

    /// Writes packets until `quantum` bytes are written or none may be sent.
    #[inline]
    pub(crate) fn transmit<M: Memory, O: Outbox>(
        &mut self,
        memory: &M,
        context: &mut Context<'_>,
        out: &mut O,
        quantum: u64,
    ) -> Sent {
        let common = &mut self.common;
        common.congestion.begin_turn(context.now);
        let mut sent = Sent { bytes: 0, has_more: true };
        while sent.bytes < quantum
            && let Some(frame) = out.room()
        {
            let length =
                either!(&mut self.transport, part => part.poll_transmit(common, memory, context, frame));
            let Some(length) = length else {
                sent.has_more = false;
                break;
            };
            out.commit(length);
            sent.bytes += length as u64;
            common.identification = common.identification.wrapping_add(1);
            context.counters.tx_frames += 1;
        }
        self.look_whether_drained(context);
        sent
    }

    /// Returns the waiting state of the queue pair when it has nothing more to send now.
    #[inline]
    pub(crate) fn waits_for(&self) -> Waiting {
        if self.common.congestion.paced_until().is_some() {
            return Waiting::Pacing;
        }
        match &self.transport {
            Transport::Reliable(reliable) => reliable.waits_for(&self.common),
            Transport::Unreliable(_) => Waiting::Idle,
        }
    }

    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        either!(&self.transport, part => part.poll_timeout(&self.common))
    }

    pub(crate) fn on_timeout(&mut self, context: &mut Context<'_>) {
        self.common.congestion.on_timeout(context.now);
        if let Transport::Reliable(reliable) = &mut self.transport {
            reliable.on_timeout(&mut self.common, context);
        }
    }

    /// Raises send queue drained if the state is SQD and no begun message is unfinished.
    #[inline]
    fn look_whether_drained(&mut self, context: &mut Context<'_>) {
        if self.common.state == State::SendQueueDrained && either!(&self.transport, part => part.is_drained())
        {
            self.common.async_events.on_drained(&self.common.identity, context);
        }
    }
}
