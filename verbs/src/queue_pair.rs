//! Queue pairs: their creation, connection and posting.

use crate::completion::CqHandle;
use crate::congestion::DEFAULT_CONGESTION;
use crate::device::{Inner, random};
use crate::errors::PostListError;
use crate::fault::{self, Verb};
use crate::service::{Any, Connected, Datagrams, Raw, Rc, Transport, Uc, Ud};
use crate::srq::SrqHandle;
use crate::state::QpSettings;
use crate::xrc::XrcdHandle;
use crate::{
    Access, CompletionQueue, ConnectOptions, Error, ProtectionDomain, QpEndpoint, SendRequest,
    SharedReceiveQueue,
};
use datapath::engine::QpRings;
use roce::qp::{Capabilities, Congestion, Modify, PostError, QpInit, QpReport, RecvRequest, State};
use roce::wire::Service;
use roce::{PdId, Psn, QpFailure, Qpn};
use std::marker::PhantomData;
use std::net::IpAddr;
use std::sync::Arc;

/// The default Q_Key of datagram queue pairs.
pub const DEFAULT_QUEUE_KEY: u32 = 0x1111_1111;

/// A builder for queue pairs of service `S`.
///
/// ```
/// # use ferroce_verbs::{Access, Capabilities, CompletionQueue, Error, ProtectionDomain, QueuePair};
/// fn build(domain: &ProtectionDomain, sent: &CompletionQueue, received: &CompletionQueue) -> Result<QueuePair, Error> {
///     let deep = Capabilities { max_send: 1024, ..Capabilities::default() };
///     domain.queue_pair(sent, received).capabilities(deep).access(Access::REMOTE_WRITE).build()
/// }
/// ```
#[derive(Debug)]
#[must_use = "nothing is created before build()"]
pub struct QueuePairBuilder<S = Rc> {
    device: Arc<Inner>,
    pd: PdId,
    send_cq: Arc<CqHandle>,
    recv_cq: Arc<CqHandle>,
    capabilities: Capabilities,
    access: Access,
    signal_all: bool,
    srq: Option<Arc<SrqHandle>>,
    gid_index: Option<usize>,
    partition_key: u16,
    selective_repeat: bool,
    service: Service,
    queue_key: u32,
    kind: PhantomData<S>,
}

impl QueuePairBuilder<Rc> {
    pub(crate) fn new(pd: &ProtectionDomain, send_cq: &CompletionQueue, recv_cq: &CompletionQueue) -> Self {
        Self {
            device: pd.device.clone(),
            pd: pd.pd,
            send_cq: send_cq.handle().clone(),
            recv_cq: recv_cq.handle().clone(),
            capabilities: Capabilities::default(),
            access: Access::ALL | Access::REMOTE_FLUSH,
            signal_all: false,
            srq: None,
            gid_index: None,
            partition_key: 0xffff,
            selective_repeat: true,
            service: Service::Rc,
            queue_key: DEFAULT_QUEUE_KEY,
            kind: PhantomData,
        }
    }
}

impl<S> QueuePairBuilder<S> {
    fn of<T>(self, service: Service) -> QueuePairBuilder<T> {
        QueuePairBuilder {
            device: self.device,
            pd: self.pd,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            capabilities: self.capabilities,
            access: self.access,
            signal_all: self.signal_all,
            srq: self.srq,
            gid_index: self.gid_index,
            partition_key: self.partition_key,
            selective_repeat: self.selective_repeat,
            service,
            queue_key: self.queue_key,
            kind: PhantomData,
        }
    }

    /// Uses the receive requests of `queue`; the queue pair has no receive queue of its own.
    pub fn receive_from(self, queue: &SharedReceiveQueue) -> Self {
        Self { srq: Some(queue.handle().clone()), ..self }
    }

    /// Puts completions of receive requests into `queue` instead of the one passed to
    /// [`ProtectionDomain::queue_pair`].
    pub fn receive_completions(self, queue: &CompletionQueue) -> Self {
        Self { recv_cq: queue.handle().clone(), ..self }
    }

    /// Sets the transport service at run time. The default is a reliable connection.
    pub fn service(self, service: Service) -> QueuePairBuilder<Any> {
        self.of(service)
    }

    /// Sets the service to the unreliable connection.
    pub fn unreliable(self) -> QueuePairBuilder<Uc> {
        self.of(Service::Uc)
    }

    /// Sets the service to unreliable datagrams.
    pub fn datagrams(self) -> QueuePairBuilder<Ud> {
        self.of(Service::Ud)
    }

    /// Sets the service to [raw packets](crate::raw).
    pub fn raw(self) -> QueuePairBuilder<Raw> {
        self.of(Service::Raw)
    }

    /// Sets the Q_Key that datagrams to this queue pair must carry. The default is 0x11111111, as in perftest and the
    /// examples of libibverbs.
    pub fn queue_key(self, key: u32) -> Self {
        Self { queue_key: key, ..self }
    }

    /// Sets the depths of the queues, and the limits of their requests.
    pub fn capabilities(self, capabilities: Capabilities) -> Self {
        Self { capabilities, ..self }
    }

    /// Sets which operations the peer may request. The rights of each region apply as well. The default is all operations.
    pub fn access(self, access: Access) -> Self {
        Self { access, ..self }
    }

    /// Makes every send request create a completion, signalled or not.
    pub fn signal_all(self, all: bool) -> Self {
        Self { signal_all: all, ..self }
    }

    /// Sets the GID index of the queue pair's address. The default is the [preferred](crate::DeviceInfo::preferred_gid) one.
    pub fn gid_index(self, index: usize) -> Self {
        Self { gid_index: Some(index), ..self }
    }

    /// Sets the P_Key that both sides carry. The default is 0xFFFF.
    pub fn partition_key(self, key: u16) -> Self {
        Self { partition_key: key, ..self }
    }

    /// Offers selective repeat: after a loss, only lost packets are resent. It is used if both ends offer it in the [`QpEndpoint`] that
    /// they exchange, and otherwise offered to the peer after a loss. The default is `true`; memory is needed only after a loss. With
    /// `false`, or on a device whose [configuration](crate::DeviceConfig::selective_repeat) does not allow it, the queue pair uses
    /// go-back-N whatever the peer offers.
    pub fn selective_repeat(self, offer: bool) -> Self {
        Self { selective_repeat: offer, ..self }
    }

    /// Creates the queue pair in INIT, in which receive requests may be posted.
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded, the device has no such GID, or the core has stopped.
    pub fn build(self) -> Result<QueuePair<S>, Error> {
        let (access, queue_key, partition_key) = (self.access, self.queue_key, self.partition_key);
        let init = match self.service {
            Service::Rc | Service::Uc | Service::Xrc => Modify::Init { access, partition_key },
            Service::Ud => Modify::InitDatagram { queue_key, partition_key },
            Service::Raw => Modify::InitRaw,
        };
        let mut qp = self.build_reset()?;
        qp.transition(init)?;
        Ok(qp)
    }

    /// Creates the queue pair in RESET, for transitions by [`QueuePair::modify`].
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_reset(self) -> Result<QueuePair<S>, Error> {
        fault::check_call::<Error>(Verb::CreateQp)?;
        self.check()?;
        let gid = self.device.gid(self.gid_index)?;
        let psn = random_psn()?;
        let init = QpInit {
            service: self.service,
            pd: self.pd,
            send_cq: self.send_cq.id,
            recv_cq: self.recv_cq.id,
            capabilities: self.capabilities,
            signal_all: self.signal_all,
            srq: self.srq.as_ref().map(|srq| srq.id),
        };
        let (device, core) = (&self.device, self.core());
        let create = || device.engine.call_on(core, move |state, now| state.create_qp(now, init));
        let rings = device.create_on(core, create)?;
        [&self.send_cq, &self.recv_cq].into_iter().for_each(|cq| cq.producer_cores.add(core));
        let owned = Owned::Queues { _send_cq: self.send_cq, _recv_cq: self.recv_cq, _srq: self.srq };
        let mut qp = QueuePair::new(self.device, rings, (gid, psn), &init, owned);
        qp.selective_repeat = self.selective_repeat && qp.device.selective_repeat;
        Ok(qp)
    }

    fn core(&self) -> usize {
        match (&self.srq, self.service) {
            (Some(srq), _) => srq.core,
            // Address handles, multicast groups and flow rules exist on core 0 only.
            (None, Service::Ud | Service::Raw) => 0,
            (None, Service::Rc | Service::Uc | Service::Xrc) => self.device.loads.least(),
        }
    }

    fn check(&self) -> Result<(), Error> {
        for (cq, what) in
            [(&self.send_cq, "the send completion queue"), (&self.recv_cq, "the receive completion queue")]
        {
            if !Arc::ptr_eq(&cq.device, &self.device) {
                return Err(Error::OtherDevice { what });
            }
        }
        if let Some(srq) = &self.srq
            && !Arc::ptr_eq(&srq.device, &self.device)
        {
            return Err(Error::OtherDevice { what: "the shared receive queue" });
        }
        if self.service == Service::Raw {
            self.device.info.longest_raw(self.srq.is_some())?;
        }
        let limits = &self.device.info.limits;
        let Capabilities { max_send, max_recv, max_send_sge, max_recv_sge, max_inline } = self.capabilities;
        for (what, value, least, most) in [
            ("max_send", max_send, 1, limits.max_requests),
            ("max_recv", max_recv, 0, limits.max_requests),
            ("max_send_sge", max_send_sge, 0, limits.max_sge),
            ("max_recv_sge", max_recv_sge, 0, limits.max_sge),
            ("max_inline", max_inline, 0, limits.max_inline),
        ] {
            if !(least..=most).contains(&value) {
                return Err(Error::value(what, value, format!("{least} to {most}")));
            }
        }
        Ok(())
    }
}

/// Returns an unpredictable initial PSN.
pub(crate) fn random_psn() -> Result<Psn, Error> {
    Ok(Psn::new(u32::from_ne_bytes(random()?)))
}

/// One end of a connection, or a port for datagrams. Only one thread may use it at a time.
///
/// `S` is its [service](crate::service), by default the reliable connection. It decides which requests `post_send` accepts.
///
/// ```no_run
/// # use ferroce_verbs::{CompletionQueue, ConnectOptions, ProtectionDomain, QpEndpoint, SendRequest, Sge};
/// # fn send(domain: &ProtectionDomain, cq: &CompletionQueue, data: Sge, said: &str) -> Result<(), Box<dyn std::error::Error>> {
/// let mut qp = domain.queue_pair(cq, cq).build()?;
/// println!("the peer connects to {}", qp.endpoint());
/// let peer: QpEndpoint = said.parse()?;
/// qp.connect(&peer, &ConnectOptions::new().retry_count(3))?;
/// qp.post_send(SendRequest::send(1, data))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct QueuePair<S = Rc> {
    pub(crate) rings: QpRings,
    pub(crate) core: usize,
    gid: IpAddr,
    pub(crate) service: Service,
    psn: Psn,
    selective_repeat: bool,
    /// State after the program's last transition. The core may have moved the queue pair to ERR since.
    pub(crate) state: State,
    pub(crate) settings: QpSettings,
    capabilities: Capabilities,
    pub(crate) device: Arc<Inner>,
    owned: Owned,
    /// Attached multicast groups, each with its membership at the interface.
    pub(crate) groups: Vec<(IpAddr, Option<datapath::fork::CloseOnFork>)>,
    kind: PhantomData<S>,
}

/// Objects that must live as long as the queue pair.
#[derive(Debug)]
pub(crate) enum Owned {
    Queues {
        _send_cq: Arc<CqHandle>,
        _recv_cq: Arc<CqHandle>,
        _srq: Option<Arc<SrqHandle>>,
    },
    /// An XRC target delivers messages to the shared receive queues of its domain.
    Target {
        _domain: Arc<XrcdHandle>,
    },
}

impl<S> QueuePair<S> {
    pub(crate) fn new(
        device: Arc<Inner>,
        rings: QpRings,
        (gid, psn): (IpAddr, Psn),
        init: &QpInit,
        owned: Owned,
    ) -> Self {
        Self {
            psn,
            core: device.engine.core_of(rings.qpn()),
            rings,
            gid,
            service: init.service,
            selective_repeat: false,
            state: State::Reset,
            settings: QpSettings::new(),
            capabilities: init.capabilities,
            device,
            owned,
            groups: Vec::new(),
            kind: PhantomData,
        }
    }

    /// Returns whether the queue pair is an XRC target, which receives messages and cannot post.
    #[must_use]
    pub fn is_target(&self) -> bool {
        matches!(self.owned, Owned::Target { .. })
    }

    /// Returns the queue pair number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.rings.qpn()
    }

    /// Returns the data that the peer needs to connect.
    #[must_use]
    pub fn endpoint(&self) -> QpEndpoint {
        QpEndpoint {
            ip: self.gid,
            qpn: self.qpn(),
            psn: self.psn,
            mtu: self.device.path_mtu(),
            max_rd_atomic: self.device.info.limits.max_rd_atomic,
            selective_repeat: self.selective_repeat,
        }
    }

    /// Returns an error unless the queue pair is in Init.
    pub(crate) fn check_new(&self) -> Result<(), Error> {
        let (qpn, state) = (self.qpn(), self.state);
        if state == State::Init { Ok(()) } else { Err(Error::NotInInit { qpn, state }) }
    }

    /// Returns the transport service.
    #[must_use]
    pub fn service(&self) -> Service {
        self.service
    }

    #[inline]
    fn ring_doorbell(&self) {
        self.rings.ring_doorbell();
        self.device.engine.posted(self.core);
    }

    /// Returns why the queue pair rejects send requests in its current state, or `None` if it accepts them.
    #[inline]
    fn refusal(&self) -> Option<PostError> {
        match self.state {
            State::ReadyToSend | State::SendQueueDrained | State::SendQueueError | State::Error => None,
            // An XRC target never sends, whatever its state.
            _ if self.is_target() => Some(PostError::Service { qpn: self.qpn() }),
            state @ (State::Reset | State::Init | State::ReadyToReceive) => {
                Some(PostError::State { qpn: self.qpn(), state })
            }
        }
    }

    /// Posts one receive request.
    ///
    /// # Errors
    /// Returns an error if the queue is full or the request exceeds a limit. The request is then not posted.
    pub fn post_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        fault::check_call::<PostError>(Verb::PostRecv)?;
        let result = self.push_recv(request);
        self.ring_doorbell();
        result
    }

    fn push_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        if self.state == State::Reset {
            return Err(PostError::State { qpn: self.qpn(), state: State::Reset });
        }
        self.rings.push_recv(request)
    }

    /// Posts requests in order until the first error, and rings the doorbell once. Returns the number of posted
    /// requests.
    ///
    /// # Errors
    /// Returns which request was refused, and why. All requests before it are posted.
    pub fn post_recv_list(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest>,
    ) -> Result<usize, PostListError> {
        let mut posted = 0;
        fault::check_call(Verb::PostRecv).map_err(|error| PostListError { posted, error })?;
        let result =
            requests.into_iter().try_for_each(|request| self.push_recv(request).inspect(|()| posted += 1));
        self.ring_doorbell();
        result.map(|()| posted).map_err(|error| PostListError { posted, error })
    }

    /// Returns the queue pair's current report.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn query(&self) -> Result<QpReport, Error> {
        let qpn = self.qpn();
        let report = self.device.engine.call_on(self.core, move |state, _| state.endpoint.report(qpn))?;
        report.ok_or(Error::Control(roce::ControlError::NoQp(qpn)))
    }

    /// Returns the cause of ERR or SQE, with the likely reason: the peer, the PSNs and the retries. Returns `None` if the queue pair has
    /// not failed, or if the program moved it to the error state.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn failure(&self) -> Result<Option<QpFailure>, Error> {
        Ok(self.query()?.failure)
    }

    /// Moves the queue pair to the error state, which flushes all outstanding requests.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn fail(&mut self) -> Result<(), Error> {
        self.modify(Modify::Error)
    }

    /// Returns the depths and limits that the program chose at creation.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.capabilities
    }
}

impl<S: Connected> QueuePair<S> {
    /// Resolves the peer's Ethernet address and moves to RTS. Waits up to 3 s for the neighbour's answer. Requests
    /// are answered even before the peer's own `connect` returns.
    ///
    /// # Errors
    /// Returns an error if the peer cannot be reached, an option is out of range, or the queue pair is already connected.
    pub fn connect(&mut self, remote: &QpEndpoint, options: &ConnectOptions) -> Result<(), Error> {
        self.connect_as(&self.endpoint(), remote, options)
    }

    /// Connects as [`connect`](Self::connect) does, with an address, a first PSN and limits that both sides have agreed on.
    pub(crate) fn connect_as(
        &mut self,
        ours: &QpEndpoint,
        remote: &QpEndpoint,
        options: &ConnectOptions,
    ) -> Result<(), Error> {
        fault::check_call::<Error>(Verb::ModifyQp)?;
        self.check_new()?;
        let mut plan = options.plan(&self.device.current(), ours, remote)?;
        plan.receive.path.destination_mac = self.device.engine.resolve(remote.ip)?;
        if options.congestion.is_none() {
            plan.send.congestion = self.ruled_congestion(plan.receive.path);
        }
        self.transition(Modify::ReadyToReceive(plan.receive))?;
        self.transition(Modify::ReadyToSend(plan.send))
    }
}

impl<S: Datagrams> QueuePair<S> {
    /// Moves a datagram queue pair to RTS, for messages of up to the port's path MTU. `congestion` paces all datagrams that it sends. The
    /// default is the device's first matching rule without a peer.
    ///
    /// # Errors
    /// Returns an error if the queue pair is not for datagrams, or is already open.
    pub fn open(&mut self, congestion: Option<Congestion>) -> Result<(), Error> {
        let congestion = congestion.unwrap_or(DEFAULT_CONGESTION);
        self.modify(Modify::ReadyToReceiveDatagrams { mtu: self.device.path_mtu(), feedback_key: None })?;
        self.modify(Modify::ReadyToSendDatagrams { send_psn: self.psn, congestion })
    }
}

impl<S: Transport> QueuePair<S> {
    /// Posts one send request.
    ///
    /// # Errors
    /// Returns an error if the queue is full, the request exceeds a limit, or the queue pair is not connected. The request is then not
    /// posted.
    pub fn post_send(&mut self, request: S::Request) -> Result<(), PostError> {
        fault::check_call::<PostError>(Verb::PostSend)?;
        let result = match self.refusal() {
            None => self.rings.push_send(request.into()),
            Some(error) => Err(error),
        };
        // After an error too: a program with a full queue waits for the core to complete requests.
        self.ring_doorbell();
        self.device.engine.progress_after_post(self.core);
        result
    }

    /// Posts requests in order until the first error, and rings the doorbell once. Returns the number of posted
    /// requests. An inline core sends them when the program polls next.
    ///
    /// # Errors
    /// Returns which request was refused, and why. All requests before it are posted.
    pub fn post_send_list(
        &mut self,
        requests: impl IntoIterator<Item = S::Request>,
    ) -> Result<usize, PostListError> {
        let (mut posted, mut requests) = (0, requests.into_iter());
        fault::check_call(Verb::PostSend).map_err(|error| PostListError { posted, error })?;
        if let Some(error) = self.refusal() {
            return requests.next().map_or(Ok(posted), |_| Err(PostListError { posted, error }));
        }
        let result =
            requests.try_for_each(|request| self.rings.push_send(request.into()).inspect(|()| posted += 1));
        self.ring_doorbell();
        result.map(|()| posted).map_err(|error| PostListError { posted, error })
    }
}

impl QueuePair<Any> {
    /// Posts all requests in order, or none of them, and empties the list. Rings the doorbell once. An inline core sends the requests when
    /// the program polls next.
    ///
    /// # Errors
    /// Returns an error if a request is refused: that of the first refused request. No request is then posted.
    pub fn post_send_all(&mut self, requests: &mut Vec<SendRequest>) -> Result<(), PostError> {
        if requests.len() > 1
            && let Err(error) = self.rings.check_sends(requests)
        {
            requests.clear();
            // A program with a full queue waits for the core to complete requests.
            self.ring_doorbell();
            return Err(error);
        }
        self.post_send_list(requests.drain(..)).map(drop).map_err(|list| list.error)
    }
}

impl<S> Drop for QueuePair<S> {
    fn drop(&mut self) {
        let qpn = self.qpn();
        // A stopped core has no queue pairs left.
        let _ = self.device.engine.call_on(self.core, move |state, now| state.destroy_qp(now, qpn));
        self.device.loads.release(self.core);
        if !self.device.engine.is_inherited() {
            tracing::info!("{}: QP {qpn} is destroyed", self.device.info.port);
        }
    }
}
