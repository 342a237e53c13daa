//! One side of a test: its device, queue pairs and memory.

use super::args::{AtomicType, Connection, PerfArgs, QueueArgs};
use super::handshake::{Pause, Side};
use super::linked::{self, LinkedQp};
use super::plan::{Kind, Plan, Verb};
use super::stats::Bandwidth;
use crate::failure::Failure;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;
use verbs::cm::{Listener, Options};
use verbs::congestion::Congestion;
use verbs::port::GidTable;
use verbs::state::AckTimeout;
use verbs::wire::DEFAULT_QUEUE_KEY;
use verbs::{
    Access, AddressHandle, AddressOptions, Capabilities, Completion, CompletionOpcode, CompletionQueue,
    CompletionStatus, ConnectOptions, Data, Datagram, Device, DeviceInfo, MemoryRegion, Mtu,
    ProtectionDomain, QpEndpoint, Qpn, QueuePairBuilder, RecvRequest, RemoteBuffer, SendRequest,
    SharedReceiveQueue,
};

/// The size of the GRH in front of a datagram in its receive buffer (IBA 11.4.1.2).
const GRH_BYTES: u32 = 40;
/// The limit on completions per poll.
pub const BATCH: usize = 32;

/// A device with its queue pairs for a test.
#[derive(Debug)]
pub struct Link {
    /// The first field, so that queue pairs are destroyed before the objects that they use.
    pub qps: Vec<LinkedQp>,
    /// The listener of a server that connects its queue pairs by the connection manager.
    listener: Option<Listener>,
    tcp_port: u16,
    pub send_cq: CompletionQueue,
    recv_cq: CompletionQueue,
    /// The receive requests of all queue pairs, if they share them.
    shared: Option<SharedReceiveQueue>,
    pub memory: MemoryRegion,
    pub device: Device,
    remote: RemoteBuffer,
    /// The distance between the buffers of two queue pairs, bytes.
    slot: usize,
    /// The offset of the receiving half; 0 if one buffer serves both directions.
    inbound: usize,
    /// True if this side receives SENDs.
    receives: bool,
    /// SENDs that have arrived and that `take_arrival` has not counted.
    arrived: u64,
    /// The number of SENDs that have arrived, and the times of the first and the last.
    arrivals: Option<Arrivals>,
    rx_depth: u32,
    inline_size: u32,
    gid_index: Option<usize>,
    /// Datagrams: the destination of each queue pair's messages.
    datagrams: Vec<Datagram>,
    addresses: Vec<AddressHandle>,
    /// Datagrams: the buffer for the GRH of each message.
    headers: Option<MemoryRegion>,
    pd: ProtectionDomain,
    verb: Verb,
    atomic: AtomicType,
    is_client: bool,
    /// True if this side sends.
    pub sends: bool,
}

#[derive(Clone, Copy, Debug)]
struct Arrivals {
    count: u64,
    first: Instant,
    last: Instant,
}

/// The sizes of this side's queues.
#[derive(Clone, Copy, Debug)]
pub struct Queues {
    /// The limit on outstanding send requests of a queue pair.
    pub tx_depth: u32,
    /// The number of posted receive requests of a queue pair.
    pub rx_depth: u32,
    /// Send requests per post.
    pub post_list: u32,
    /// The size up to which messages are sent inline, bytes.
    pub inline_size: u32,
    /// The port of the server, of the control connection and of the connection manager.
    pub tcp_port: u16,
    /// The index of the GID in the flags, or of the first IPv6 one with `--ipv6`; `None` for the default.
    pub gid_index: Option<usize>,
}

impl Queues {
    /// Returns the sizes in the flags, or the defaults for `plan`, on the port of `info`.
    ///
    /// # Errors
    /// Returns a failure if the port has no IPv6 address for `--ipv6`.
    pub fn new(plan: &Plan, perf: &PerfArgs, info: &DeviceInfo) -> Result<Self, Failure> {
        let args = &perf.queue;
        let inline = match (plan.tool.verb, plan.tool.kind) {
            (Verb::Read | Verb::Atomic, _) => 0,
            (_, Kind::Bandwidth) => args.inline_size.unwrap_or(0),
            (_, Kind::Latency) => args.inline_size.unwrap_or(64),
        };
        let tx_depth = args.tx_depth.unwrap_or(128);
        let post_list = args.post_list.min(tx_depth);
        let gid_index = if args.ipv6 { Some(ipv6_gid(info)?) } else { args.gid_index };
        Ok(Self {
            tx_depth,
            rx_depth: args.rx_depth,
            post_list,
            inline_size: inline,
            tcp_port: perf.tcp_port,
            gid_index,
        })
    }

    /// Returns the number of requests per completion. The default is perftest's: 100, and 1 above 8 KiB.
    pub fn cq_mod(&self, size: u64, args: &QueueArgs) -> u32 {
        let default = if size > 8192 { 1 } else { 100 };
        args.cq_mod.unwrap_or(default).max(self.post_list).min(self.tx_depth)
    }
}

/// Returns the index of the first global IPv6 address of the port, or else of the first link-local one.
fn ipv6_gid(info: &DeviceInfo) -> Result<usize, Failure> {
    let ipv6 = |index: usize| match info.gids.get(index) {
        Some(IpAddr::V6(address)) => Some((address.is_unicast_link_local(), index)),
        Some(IpAddr::V4(_)) | None => None,
    };
    let best = (0..GidTable::LIMIT).filter_map(ipv6).min();
    best.map(|(_, index)| index).ok_or_else(|| {
        Failure::run(format!(
            "--ipv6: port {} has no IPv6 address; give one, such as --ip fd00::1/64",
            info.port
        ))
    })
}

pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::run(error.to_string())
}

impl Link {
    /// Creates the queue pairs and the memory on `device`.
    ///
    /// # Errors
    /// Returns a failure if a limit of the device is exceeded or memory is missing.
    pub fn new(
        device: Device,
        plan: &Plan,
        queues: Queues,
        args: &QueueArgs,
        is_client: bool,
    ) -> Result<Self, Failure> {
        let sends = plan.sends(is_client);
        let receives = plan.tool.verb == Verb::Send && (!sends || plan.both_ways());
        let limits = device.query().map_err(failed)?.limits;
        let depth = |each: u32| each.saturating_mul(plan.qps).saturating_add(1).min(limits.max_cq_depth);
        let pd = device.allocate_pd().map_err(failed)?;
        let send_cq = device.create_cq(depth(queues.tx_depth)).map_err(failed)?;
        let recv_cq = device.create_cq(if receives { depth(queues.rx_depth) } else { 1 }).map_err(failed)?;
        let bytes = plan
            .memory()
            .ok_or_else(|| Failure::usage("the buffers are too large for this machine; lower -q or -s"))?;
        let memory = MemoryRegion::alloc(&pd, bytes, Access::ALL).map_err(failed)?;
        let shares = receives && args.shared_receives;
        let shared =
            shares.then(|| pd.shared_receive_queue(queues.rx_depth, 2).map_err(failed)).transpose()?;
        let capabilities = Capabilities {
            max_send: queues.tx_depth,
            max_recv: if receives && !shares { queues.rx_depth } else { 1 },
            max_inline: queues.inline_size,
            ..Capabilities::default()
        };
        let qps = (0..plan.qps)
            .map(|_| {
                let builder = pd.queue_pair(&send_cq, &recv_cq).capabilities(capabilities);
                let builder = builder.selective_repeat(!args.go_back_n);
                let builder = shared.iter().fold(builder, QueuePairBuilder::receive_from);
                LinkedQp::build(queues.gid_index.into_iter().fold(builder, QueuePairBuilder::gid_index), plan)
            })
            .collect::<Result<Vec<_>, _>>()?;
        let headers = (plan.connection == Connection::Ud)
            .then(|| MemoryRegion::alloc(&pd, GRH_BYTES as usize, Access::LOCAL_WRITE).map_err(failed))
            .transpose()?;
        let waits = plan.rdma_cm && !is_client;
        let listener = waits.then(|| linked::listen(&device, &qps[0], queues.tcp_port)).transpose()?;
        let half = if plan.both_ways() { bytes / 2 } else { 0 };
        let slot = if plan.both_ways() { bytes / 2 } else { bytes } / qps.len();
        Ok(Self {
            qps,
            listener,
            tcp_port: queues.tcp_port,
            send_cq,
            recv_cq,
            shared,
            memory,
            device,
            remote: RemoteBuffer { address: 0, length: 0, rkey: 0 },
            slot,
            inbound: half,
            receives,
            arrived: 0,
            arrivals: None,
            rx_depth: queues.rx_depth,
            inline_size: queues.inline_size,
            datagrams: Vec::new(),
            addresses: Vec::new(),
            headers,
            pd,
            verb: plan.tool.verb,
            atomic: plan.atomic,
            is_client,
            sends,
            gid_index: queues.gid_index,
        })
    }

    /// Returns the addresses that the other side needs.
    pub fn side(&self) -> Side {
        Side { qps: self.qps.iter().map(LinkedQp::endpoint).collect(), buffer: self.memory.remote() }
    }

    /// Connects every queue pair and posts the receives.
    ///
    /// # Errors
    /// Returns a failure if the peer cannot be reached, or its memory is smaller than this side's.
    pub fn connect(
        &mut self,
        peer: &Side,
        mtu: Option<Mtu>,
        congestion: Option<Congestion>,
        args: &QueueArgs,
    ) -> Result<(), Failure> {
        if peer.buffer.length < self.memory.len() as u64 {
            return Err(Failure::run(
                "the other side's buffer is smaller than ours; run the same ferroce on both sides",
            ));
        }
        self.remote = peer.buffer;
        let options = ConnectOptions::new()
            .ack_timeout(AckTimeout::new(args.qp_timeout))
            .retry_count(args.retry_count)
            .mtu(mtu)
            .max_rd_atomic(args.outs)
            .congestion(congestion)
            .traffic_class(args.traffic_class())
            .hop_limit(args.hop_limit);
        for (qp, endpoint) in std::mem::take(&mut self.qps).into_iter().zip(&peer.qps) {
            let connected = self.connect_one(qp, endpoint, &options, args)?;
            self.qps.push(connected);
        }
        if self.receives {
            let queues = if self.shared.is_some() { 1 } else { self.qps.len() };
            for receive in 0..queues * self.rx_depth as usize {
                self.post_receive(receive % self.qps.len())?;
            }
        }
        Ok(())
    }

    fn connect_one(
        &mut self,
        qp: LinkedQp,
        endpoint: &QpEndpoint,
        options: &ConnectOptions,
        args: &QueueArgs,
    ) -> Result<LinkedQp, Failure> {
        let LinkedQp::Direct(mut qp) = qp else {
            let to = SocketAddr::new(endpoint.ip, self.tcp_port);
            return qp.managed(self.listener.as_ref(), to, &Options::new().connection(*options));
        };
        if self.headers.is_none() {
            qp.connect(endpoint, options).map_err(failed)?;
            return Ok(LinkedQp::Direct(qp));
        }
        qp.open(options.congestion).map_err(failed)?;
        let way = AddressOptions::new().gid_index(self.gid_index).traffic_class(args.traffic_class());
        let address = self.pd.address(endpoint.ip, &way.hop_limit(args.hop_limit)).map_err(failed)?;
        self.datagrams.push(address.to(endpoint.qpn, DEFAULT_QUEUE_KEY));
        self.addresses.push(address);
        Ok(LinkedQp::Direct(qp))
    }

    /// Returns the offset from which queue pair `qp` sends, or at which the peer's READs begin.
    pub fn outbound(&self, qp: usize) -> usize {
        qp * self.slot
    }

    /// Returns the offset at which queue pair `qp` receives, or at which its READs store data.
    pub fn inbound(&self, qp: usize) -> usize {
        self.inbound + qp * self.slot
    }

    /// Returns a request of `size` bytes on queue pair `qp`. The caller sets its id and signalling.
    ///
    /// # Errors
    /// Returns a failure if the message is too long or exceeds the region.
    pub fn request(&self, qp: usize, size: u64) -> Result<SendRequest, Failure> {
        let length =
            u32::try_from(size).map_err(|_| Failure::usage("-s: a message has at most 2 GiB; lower -s"))?;
        let there = self.remote.at(self.inbound(qp) as u64);
        Ok(match self.verb {
            Verb::Write => SendRequest::write(0, self.data(qp, length)?, there),
            Verb::Send => match self.datagrams.get(qp) {
                Some(to) => SendRequest::send_to(0, self.data(qp, length)?, *to),
                None => SendRequest::send(0, self.data(qp, length)?),
            },
            Verb::Read => {
                let into = self.memory.sge(self.inbound(qp), length).map_err(failed)?;
                SendRequest::read(0, into, self.remote.at(self.outbound(qp) as u64))
            }
            Verb::Atomic => {
                let result = self.memory.sge(self.outbound(qp), 8).map_err(failed)?;
                match self.atomic {
                    AtomicType::FetchAndAdd => SendRequest::fetch_add(0, result, there, 1),
                    AtomicType::CmpAndSwap => SendRequest::compare_swap(0, result, there, 0, 1),
                }
            }
        })
    }

    fn data(&self, qp: usize, length: u32) -> Result<Data, Failure> {
        if length == 0 {
            return Ok(Data::empty());
        }
        if length > self.inline_size {
            return Ok(self.memory.sge(self.outbound(qp), length).map_err(failed)?.into());
        }
        let mut bytes = vec![0; length as usize];
        self.memory.read(self.outbound(qp), &mut bytes).map_err(failed)?;
        Ok(Data::inline(&bytes))
    }

    /// Posts a receive into the buffer of queue pair `qp`, to its own queue or the shared one.
    fn post_receive(&mut self, qp: usize) -> Result<(), Failure> {
        let length = u32::try_from(self.slot).unwrap_or(u32::MAX).min(1 << 31);
        let buffer = self.memory.sge(self.inbound(qp), length).map_err(failed)?;
        let request = match &self.headers {
            Some(headers) => {
                RecvRequest::scatter(qp as u64, &[headers.sge(0, GRH_BYTES).map_err(failed)?, buffer])
            }
            None => RecvRequest::new(qp as u64, buffer),
        };
        match &mut self.shared {
            Some(queue) => queue.post_recv(request),
            None => self.qps[qp].post_recv(request),
        }
        .map_err(failed)
    }

    /// Polls the SENDs that have arrived and posts the same number of receives. Returns their number.
    ///
    /// # Errors
    /// Returns a failure if a receive failed.
    pub fn receive(&mut self) -> Result<usize, Failure> {
        if !self.receives {
            return Ok(0);
        }
        let mut batch = [blank(self.qps[0].qpn()); BATCH];
        let count = self.recv_cq.poll(&mut batch).map_err(failed)?;
        for completion in &batch[..count] {
            if completion.status == CompletionStatus::Flushed && self.qps[0].is_managed() {
                // The peer has ended the test and disconnected.
                continue;
            }
            ended(completion)?;
            self.post_receive(completion.id as usize)?;
        }
        self.arrived += count as u64;
        if count > 0 {
            let now = Instant::now();
            let so_far = self.arrivals.get_or_insert(Arrivals { count: 0, first: now, last: now });
            so_far.count += count as u64;
            so_far.last = now;
        }
        Ok(count)
    }

    /// Returns true once per SEND that has arrived. The first may arrive before this side waits for it, because the peer starts as soon as
    /// it has passed the barrier.
    pub fn take_arrival(&mut self) -> bool {
        let there = self.arrived > 0;
        self.arrived -= u64::from(there);
        there
    }

    /// Returns the bandwidth at which SENDs of `size` bytes arrived, from the first to the last.
    pub fn received(&self, size: u64) -> Bandwidth {
        self.arrivals.map_or_else(Bandwidth::default, |arrivals| {
            let nanos = (arrivals.last - arrivals.first).as_nanos();
            Bandwidth::over(size, arrivals.count, u64::try_from(nanos).unwrap_or(u64::MAX))
        })
    }

    /// Polls the core while this side waits for the control connection. Returns true if there was work.
    ///
    /// # Errors
    /// Returns a failure if a receive failed.
    pub fn idle(&mut self) -> Result<bool, Failure> {
        let received = self.receive()?;
        Ok(self.device.progress() || received > 0)
    }

    pub fn is_client(&self) -> bool {
        self.is_client
    }
}

/// Returns a completion for a poll to overwrite.
pub fn blank(qpn: Qpn) -> Completion {
    Completion::new(0, CompletionStatus::Success, CompletionOpcode::Send, qpn)
}

/// Checks the status of a completion.
///
/// # Errors
/// Returns a failure if the status is not success.
pub fn ended(completion: &Completion) -> Result<(), Failure> {
    let remedy = match completion.status {
        CompletionStatus::Success => return Ok(()),
        CompletionStatus::RetryExceeded => {
            "; check that the other side still runs, and the path: `ferroce doctor --port PORT --peer ADDRESS`"
        }
        CompletionStatus::RnrRetryExceeded => "; give the other side a larger -r",
        CompletionStatus::RemoteAccess
        | CompletionStatus::RemoteInvalidRequest
        | CompletionStatus::LocalLength => "; run the same ferroce with the same -s on both sides",
        _ => "",
    };
    Err(Failure::run(format!("QP {}: {}{remedy}", completion.qpn, completion.status)))
}

/// Posts `request`. Polls completions while the queue is full.
///
/// # Errors
/// Returns a failure if the request is refused for another reason, or a completion failed.
pub fn post(link: &mut Link, qp: usize, request: &SendRequest) -> Result<(), Failure> {
    let mut pause = Pause::default();
    loop {
        match link.qps[qp].post_send(request.clone()) {
            Ok(()) => return Ok(()),
            Err(verbs::errors::PostError::QueueFull { .. }) => {
                let worked = link.drain()? > 0;
                pause.after(worked)?;
            }
            Err(refused) => return Err(failed(refused)),
        }
    }
}

impl Link {
    /// Polls send completions and checks their status. Returns their number.
    ///
    /// # Errors
    /// Returns a failure if a request failed.
    pub fn drain(&mut self) -> Result<usize, Failure> {
        let mut batch = [blank(self.qps[0].qpn()); BATCH];
        let count = self.send_cq.poll(&mut batch).map_err(failed)?;
        batch[..count].iter().try_for_each(ended)?;
        Ok(count)
    }
}
