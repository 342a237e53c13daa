use super::alarms::{self, Alarms};
use super::collector::Collector;
use super::flow::Flow;
use super::notify::Notifier;
use super::paths::Paths;
use super::posting::{check_buffers, check_send};
use super::requester::{Progress, Requester, Trouble};
use super::responder::{Arrival, Refusal, Responder, Rights};
use super::seal::Seals;
use super::telemetry::{Prober, Sampler};
use super::upgrade::Seen;
use super::{
    Books, CompletionStatus, Congestion, Identity, Modify, PostError, QpReport, Receives, RecvRequest,
    RtrSettings, RtsSettings, SendOperation, SendRequest, State,
};
use crate::wheel::sooner;
use crate::wire::{Bth, Format, Frame, Header, Opcode, Operation, Path, Template};
use crate::{Access, ControlError, Discard, FailureCause, Memory, Qpn};
use alloc::boxed::Box;
use cc::{CongestionController, Instant};

/// READs and atomics that one side may have outstanding at the other.
pub(super) const MAX_RD_ATOMIC: u8 = 16;

/// Where the peer is, from RTR on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Connection {
    pub(super) path: Path,
    /// The path's headers, ready to be copied.
    pub(super) template: Template,
    pub(super) destination: Qpn,
    pub(super) mtu: u32,
    pub(super) selective_repeat: bool,
}

impl Connection {
    /// The peer that a queue pair is told of on its way to RTR.
    pub(super) fn new(settings: &RtrSettings) -> Result<Self, ControlError> {
        Ok(Self {
            path: settings.path,
            template: Self::template(&settings.path)?,
            destination: settings.destination,
            mtu: settings.mtu.bytes(),
            selective_repeat: settings.selective_repeat,
        })
    }

    pub(super) fn template(path: &Path) -> Result<Template, ControlError> {
        let families = |_| ControlError::Families { from: path.source, to: path.destination };
        Template::new(path).map_err(families)
    }

    /// From now on packets carry ECT(0), so that switches mark them rather than drop them.
    pub(super) fn mark_capable(&mut self) {
        let traffic_class = self.path.traffic_class & !3 | 2;
        let path = Path { traffic_class, ..self.path };
        if let Ok(template) = Template::new(&path) {
            (self.path, self.template) = (path, template);
        }
    }
}

/// One reliable connection: both sides of it, and how its sending is paced. A host has many, most of them idle, so what few
/// need stands in boxes.
#[derive(Debug)]
pub(crate) struct QueuePair {
    pub(super) identity: Identity,
    pub(super) state: State,
    pub(super) access: Access,
    pub(super) partition_key: u16,
    pub(super) connection: Option<Connection>,
    pub(super) requester: Requester,
    pub(super) responder: Responder,
    pub(super) flow: Option<Flow>,
    pub(super) prober: Prober,
    /// Where there are several to choose from.
    pub(super) paths: Option<Box<Paths>>,
    /// What was asked for on the way to RTS, as long as a better algorithm may come of it.
    pub(super) upgrade: Option<Box<Congestion>>,
    /// Of telemetry, as this side sends it.
    pub(super) format: Format,
    /// The peer hears nothing of the network but ratios.
    pub(super) ratio_only: bool,
    pub(super) sampler: Sampler,
    /// From the first telemetry of the peer on: most queue pairs have none, and it is large.
    pub(super) collector: Option<Box<Collector>>,
    pub(super) seals: Seals,
    pub(super) notifier: Notifier,
    pub(super) alarms: Alarms,
    /// The pacer holds a packet back until then.
    pub(super) paced_until: Option<Instant>,
    /// IPv4 identification of the next packet.
    pub(super) identification: u16,
}

/// 2 KiB for an idle queue pair, with what its queues take.
const _: () = assert!(size_of::<QueuePair>() <= 1696);

impl QueuePair {
    pub(crate) fn new(identity: Identity) -> Self {
        Self {
            identity,
            state: State::Reset,
            access: Access::LOCAL_READ,
            partition_key: 0,
            connection: None,
            requester: Requester::new(),
            responder: Responder::new(&identity),
            flow: None,
            prober: Prober::default(),
            paths: None,
            upgrade: None,
            format: Format::Hpcc,
            ratio_only: false,
            sampler: Sampler::default(),
            collector: None,
            seals: Seals::default(),
            notifier: Notifier::new(Congestion::NOTIFICATION_INTERVAL),
            alarms: Alarms::default(),
            paced_until: None,
            identification: 0,
        }
    }

    pub(crate) const fn identity(&self) -> &Identity {
        &self.identity
    }

    pub(crate) fn report(&self) -> QpReport {
        QpReport {
            in_flight: self.requester.in_flight(),
            send_psn: self.requester.send_psn(),
            expected_psn: self.responder.expected_psn(),
            ..QpReport::new(self.state, self.flow.as_ref())
        }
    }

    /// Goes to another state, or says why not and stays as it is (IBA 10.3.1).
    pub(crate) fn modify(&mut self, modify: Modify, books: &mut Books<'_>) -> Result<(), ControlError> {
        let name = modify.name();
        match (self.state, modify) {
            (_, Modify::Reset) => {
                self.requester.reset();
                self.responder.reset();
                self.connection = None;
                self.flow = None;
                self.prober = Prober::default();
                self.paths = None;
                self.upgrade = None;
                self.format = Format::Hpcc;
                self.ratio_only = false;
                self.sampler = Sampler::default();
                self.collector = None;
                self.seals = Seals::default();
                self.notifier = Notifier::new(Congestion::NOTIFICATION_INTERVAL);
                self.alarms = Alarms::default();
                self.paced_until = None;
                self.state = State::Reset;
            }
            (_, Modify::Error) => {
                self.responder.silence();
                self.fail(None, CompletionStatus::Flushed, books);
            }
            (State::Reset | State::Init, Modify::Init { access, partition_key }) => {
                self.access = access;
                self.partition_key = partition_key;
                self.state = State::Init;
            }
            (State::Init, Modify::ReadyToReceive(settings)) => self.ready_to_receive(&settings)?,
            (State::ReadyToReceive, Modify::ReadyToSend(settings)) => self.ready_to_send(&settings)?,
            (State::ReadyToSend, Modify::Drain { notify }) => {
                self.state = State::SendQueueDrained;
                self.alarms.on_drain(notify);
                self.look_whether_drained(books);
            }
            (State::SendQueueDrained, Modify::Resume) => self.state = State::ReadyToSend,
            (_, Modify::Change(changes)) => self.change(&changes)?,
            (
                from,
                Modify::Init { .. }
                | Modify::InitDatagram { .. }
                | Modify::ReadyToReceive(_)
                | Modify::ReadyToReceiveDatagrams { .. }
                | Modify::ReadyToSend(_)
                | Modify::ReadyToSendDatagrams { .. }
                | Modify::Drain { .. }
                | Modify::Resume,
            ) => return Err(ControlError::Transition { qpn: self.identity.qpn, from, to: name }),
        }
        Ok(())
    }

    fn ready_to_receive(&mut self, settings: &RtrSettings) -> Result<(), ControlError> {
        limit("max_dest_rd_atomic", settings.max_dest_rd_atomic, MAX_RD_ATOMIC)?;
        self.connection = Some(Connection::new(settings)?);
        self.responder.connect(settings);
        self.state = State::ReadyToReceive;
        Ok(())
    }

    fn ready_to_send(&mut self, settings: &RtsSettings) -> Result<(), ControlError> {
        limit("retry_count", settings.retry_count, 7)?;
        limit("rnr_retry", settings.rnr_retry, 7)?;
        limit("max_rd_atomic", settings.max_rd_atomic, MAX_RD_ATOMIC)?;
        let congestion = &settings.congestion;
        let algorithm = congestion.algorithm.build().map_err(ControlError::Congestion)?;
        if let Some(connection) = &self.connection
            && !congestion.format.fits(connection.path.destination)
        {
            let (format, address) = (congestion.format, connection.path.destination);
            return Err(ControlError::Format { format, address });
        }
        if let Some(upgrade) = &congestion.upgrade {
            upgrade.to.build().map_err(ControlError::Congestion)?;
        }
        self.upgrade = congestion.upgrade.map(|_| Box::new(*congestion));
        (self.format, self.ratio_only) = (congestion.format, congestion.ratio_only);
        // RTR made it.
        let Some(connection) = &mut self.connection else { return Ok(()) };
        if congestion.algorithm.wants_ecn() {
            connection.mark_capable();
        }
        self.notifier = Notifier::new(congestion.notification_interval);
        self.sampler = Sampler::new(&congestion.algorithm, congestion);
        if let Some(collector) = &mut self.collector {
            collector.only_ratios(congestion.ratio_only);
        }
        self.seals = Seals::new(congestion.feedback_key);
        self.flow = Some(Flow::new(algorithm));
        self.prober = Prober::new(congestion.probe_interval);
        let (paths, line_rate) = (congestion.paths, congestion.algorithm.line_rate());
        self.paths = Paths::new(paths, &connection.path, self.identity.qpn, line_rate).map(Box::new);
        self.requester.connect(connection.mtu, connection.selective_repeat, settings);
        self.state = State::ReadyToSend;
        Ok(())
    }

    /// To ERR: the oldest send request ends as `cause` says, the receive in progress as `receive`, the others as flushed.
    /// Without a cause it was asked for.
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
        let send = match cause {
            Some(FailureCause::Request(status)) => status,
            _ => CompletionStatus::Flushed,
        };
        self.requester.flush(send, books, &self.identity);
        self.responder.flush(receive, books, &self.identity);
    }

    pub(crate) fn send_room(&self) -> u32 {
        self.identity.capabilities.max_send - self.requester.len() as u32
    }

    pub(crate) fn recv_room(&self) -> u32 {
        self.identity.capabilities.max_recv - self.responder.len() as u32
    }

    #[inline]
    pub(crate) fn post_send(&mut self, request: SendRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        let capabilities = &self.identity.capabilities;
        let is_target = matches!(self.identity.receives, Receives::Named(_));
        if is_target || matches!(request.operation, SendOperation::SendTo { .. }) {
            return Err(PostError::Service { qpn: self.identity.qpn });
        }
        let length = check_send(&request, &self.identity)?;
        match self.state {
            State::ReadyToSend | State::SendQueueDrained => {
                if self.send_room() == 0 {
                    return Err(PostError::QueueFull { limit: capabilities.max_send });
                }
                self.requester.post(request, length, capabilities.max_send);
            }
            State::Error => {
                self.requester.post(request, length, capabilities.max_send);
                self.requester.flush(CompletionStatus::Flushed, books, &self.identity);
            }
            state @ (State::Reset | State::Init | State::ReadyToReceive | State::SendQueueError) => {
                return Err(PostError::State { qpn: self.identity.qpn, state });
            }
        }
        Ok(())
    }

    pub(crate) fn post_recv(&mut self, request: RecvRequest, books: &mut Books<'_>) -> Result<(), PostError> {
        match self.identity.receives {
            Receives::Own => {}
            Receives::Shared(_) | Receives::Named(_) => {
                return Err(PostError::SharedReceives { qpn: self.identity.qpn });
            }
            Receives::Never => return Err(PostError::Service { qpn: self.identity.qpn }),
        }
        let capabilities = &self.identity.capabilities;
        check_buffers(request.buffers.len(), capabilities.max_recv_sge)?;
        match self.state {
            State::Reset => {
                return Err(PostError::State { qpn: self.identity.qpn, state: self.state });
            }
            State::Error => {
                self.responder.post(request);
                self.responder.flush(CompletionStatus::Flushed, books, &self.identity);
            }
            State::Init
            | State::ReadyToReceive
            | State::ReadyToSend
            | State::SendQueueDrained
            | State::SendQueueError => {
                if self.recv_room() == 0 {
                    return Err(PostError::QueueFull { limit: capabilities.max_recv });
                }
                self.responder.post(request);
            }
        }
        Ok(())
    }

    /// Takes in a packet whose ICRC is right and that names this queue pair.
    pub(crate) fn on_packet<M: Memory>(
        &mut self,
        frame: &Frame<'_>,
        memory: &mut M,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        self.check_addressing(frame)?;
        match &frame.header {
            &Header::Connected { service, .. } if service == self.identity.receives.service() => {
                self.on_transport(frame, memory, books)
            }
            Header::Extended { .. } => self.on_transport(frame, memory, books),
            Header::CongestionNotification { .. } => {
                books.counters.notifications_received += 1;
                if let Some(flow) = &mut self.flow {
                    flow.algorithm_mut().on_congestion_notification(books.now);
                }
                Ok(())
            }
            Header::TelemetryRequest { .. } => {
                self.collector().on_frame(books.now, frame, books.flows);
                Ok(())
            }
            Header::TelemetryResponse { bth, feedback } => self.on_response(bth, feedback, books),
            Header::TelemetryNotification { bth, feedback } => {
                self.on_feedback(bth, Opcode::TELEMETRY_NOTIFICATION, feedback, books)
            }
            Header::DirectResponse { bth, feedback } => self.on_direct(bth, feedback, books),
            Header::TelemetrySetup { bth, setup, seal } => self.on_setup(bth, *setup, *seal),
            Header::SelectiveAcknowledge { bth, held, .. } => {
                self.on_selective_acknowledge(*bth, *held, books)
            }
            Header::Connected { .. } | Header::Datagram { .. } => Err(Discard::Opcode),
        }
    }

    /// A request or an answer.
    #[inline]
    fn on_transport<M: Memory>(
        &mut self,
        frame: &Frame<'_>,
        memory: &mut M,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        let (&bth, &operation, srq) = match (&frame.header, self.identity.receives) {
            (Header::Connected { bth, operation, .. }, Receives::Own | Receives::Shared(_)) => {
                (bth, operation, None)
            }
            // An initiator gets answers, a target gets requests.
            (Header::Connected { bth, operation, .. }, Receives::Never) => (bth, operation, None),
            (Header::Extended { bth, srq, operation }, Receives::Named(_)) => (bth, operation, Some(*srq)),
            _ => return Err(Discard::Opcode),
        };
        let is_marked = self.notifier.on_packet(books.now, frame);
        books.counters.rx_marked += u64::from(is_marked);
        if !operation.is_answer()
            && let Some(collector) = &mut self.collector
        {
            collector.on_request(frame.path.udp_source);
        }
        self.on_riding_telemetry(frame, books);
        if operation.is_answer() {
            self.on_answer(bth, operation, frame.payload, memory, books)
        } else {
            let identity = &self.identity;
            let rights = Rights { access: self.access, mtu: self.mtu() };
            let mut arrival =
                Arrival { memory, books, identity, rights, bth, srq, is_marked, payload: frame.payload };
            let outcome = self.responder.on_request(operation, &mut arrival);
            self.conclude_request(outcome, books)
        }
    }

    /// Whether its peer is queue pair `destination` at `address`.
    pub(super) fn talks_to(&self, address: core::net::IpAddr, destination: Qpn) -> bool {
        self.connection
            .as_ref()
            .is_some_and(|peer| peer.destination == destination && peer.path.destination == address)
    }

    /// The queue pair takes packets, and this one comes from its peer and partition (IBA 9.6.1.1).
    #[inline]
    fn check_addressing(&self, frame: &Frame<'_>) -> Result<(), Discard> {
        let Some(connection) = &self.connection else { return Err(Discard::QpState) };
        if !matches!(self.state, State::ReadyToReceive | State::ReadyToSend | State::SendQueueDrained) {
            return Err(Discard::QpState);
        }
        if frame.path.source != connection.path.destination
            || frame.path.destination != connection.path.source
        {
            return Err(Discard::Address);
        }
        match same_partition(self.partition_key, frame.header.bth().partition_key) {
            true => Ok(()),
            false => Err(Discard::PartitionKey),
        }
    }

    /// What a request came to.
    #[inline]
    fn conclude_request(
        &mut self,
        outcome: Result<(), Refusal>,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        match outcome {
            Ok(()) => {
                self.alarms.on_request(self.state, &self.identity, books);
                Ok(())
            }
            Err(Refusal::Drop(discard)) => Err(discard),
            Err(Refusal::Quiet { discard, receive }) => {
                self.fail(Some(FailureCause::Receive(receive)), receive, books);
                Err(discard)
            }
            Err(Refusal::Fatal { code, discard, receive }) => {
                self.responder.refuse(code);
                self.fail(Some(FailureCause::Refused(code)), receive, books);
                Err(discard)
            }
        }
    }

    fn mtu(&self) -> u32 {
        self.connection.as_ref().map_or(0, |connection| connection.mtu)
    }

    fn on_answer<M: Memory>(
        &mut self,
        bth: Bth,
        operation: Operation,
        payload: &[u8],
        memory: &mut M,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        if self.state == State::ReadyToReceive {
            return Err(Discard::QpState);
        }
        let (requester, identity) = (&mut self.requester, &self.identity);
        let outcome = match operation {
            Operation::Acknowledge(aeth) => requester.on_acknowledge(bth.psn, aeth, books, identity),
            Operation::AtomicAcknowledge { original, .. } => {
                requester.on_atomic_acknowledge(bth.psn, original, memory, books, identity)
            }
            _ => requester.on_read_response(bth.psn, operation, payload, memory, books, identity),
        };
        self.conclude(outcome, bth, books)
    }

    fn on_selective_acknowledge(
        &mut self,
        bth: Bth,
        held: u128,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        if !self.connection.is_some_and(|connection| connection.selective_repeat) {
            return Err(Discard::Opcode);
        }
        if self.state == State::ReadyToReceive {
            return Err(Discard::QpState);
        }
        let outcome = self.requester.on_selective_acknowledge(bth.psn, held, books, &self.identity);
        self.conclude(outcome, bth, books)
    }

    /// What an answer came to.
    fn conclude(
        &mut self,
        outcome: Result<Progress, Trouble>,
        bth: Bth,
        books: &mut Books<'_>,
    ) -> Result<(), Discard> {
        match outcome {
            Ok(progress) => {
                self.on_progress(progress, bth.congestion & Bth::BECN != 0, books.now);
                self.look_whether_drained(books);
                Ok(())
            }
            Err(Trouble::Discard(discard)) => Err(discard),
            Err(Trouble::Fail(status)) => {
                self.fail_request(status, books);
                match status {
                    CompletionStatus::BadResponse => Err(Discard::Sequence),
                    CompletionStatus::LocalProtection => Err(Discard::LocalProtection),
                    _ => Ok(()),
                }
            }
        }
    }

    /// The oldest send request fails, and the queue pair with it.
    pub(super) fn fail_request(&mut self, status: CompletionStatus, books: &mut Books<'_>) {
        self.responder.silence();
        self.fail(Some(FailureCause::Request(status)), CompletionStatus::Flushed, books);
    }

    /// `is_marked`: what is acknowledged met congestion.
    fn on_progress(&mut self, progress: Progress, is_marked: bool, now: Instant) {
        if let Some(rtt) = progress.rtt {
            self.consider(Seen::RoundTrip(rtt));
        }
        let Some(flow) = &mut self.flow else { return };
        if let Some(paths) = &mut self.paths {
            paths.on_acknowledged(progress.bytes);
        }
        if progress.bytes > 0 || progress.rtt.is_some() {
            flow.on_ack(now, self.requester.bounds(), progress.bytes, is_marked, progress.rtt);
        }
        if progress.lost {
            flow.algorithm_mut().on_loss(now);
        }
    }

    /// When time alone changes something.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        if self.state == State::Error {
            // The answers before a NAK may still be paced.
            return self.paced_until;
        }
        let telemetry = self.telemetry_due_at();
        let algorithm = self.flow.as_ref().and_then(|flow| flow.algorithm().poll_timeout());
        sooner(sooner(self.requester.poll_timeout(), self.paced_until), sooner(telemetry, algorithm))
    }

    pub(crate) fn on_timeout(&mut self, books: &mut Books<'_>) {
        if let Some(flow) = &mut self.flow
            && flow.algorithm().poll_timeout().is_some_and(|at| at <= books.now)
        {
            flow.algorithm_mut().on_timeout(books.now);
        }
        match self.requester.on_timeout(books) {
            Ok(progress) => {
                if progress.lost {
                    self.doubt_path(books);
                }
                self.on_progress(progress, false, books.now);
            }
            Err(Trouble::Fail(status)) => self.fail_request(status, books),
            Err(Trouble::Discard(_)) => {}
        }
    }
}

/// The same partition, and one of the two a full member of it (IBA 10.9.3).
#[inline]
pub(super) const fn same_partition(ours: u16, theirs: u16) -> bool {
    (ours ^ theirs) & 0x7fff == 0 && (ours | theirs) & 0x8000 != 0
}

pub(super) fn limit(what: &'static str, value: u8, limit: u8) -> Result<(), ControlError> {
    if value <= limit {
        return Ok(());
    }
    Err(ControlError::Value { what, value: u64::from(value), limit: u64::from(limit) })
}
