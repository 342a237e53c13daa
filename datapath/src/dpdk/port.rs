//! A port that DPDK drives, or that uses a packet socket or UDP sockets with DPDK's buffers.

use super::descriptor;
use super::device::{self, Device, device_info, link_is_up};
use super::eal::{self, Eal};
use super::hash::Hash;
use super::mbuf::Mbuf;
use super::memif::{Connection, Relay};
use super::packet;
use super::packet_ring::TransmitRing;
use super::pool::Pool;
use super::port_info::{PortConfig, PortInfo};
use super::prepare::{PortError, Prepared, max_frame, prepare, relay_failed};
use super::setup::{Setup, room};
use super::udp;
use super::vhost;
use super::xdp::{self, Attachment};
use crate::io::{BURST, Burst, Caps, PacketIo, PortCounters, QueueError, WakeDescriptor};
use crate::linux;
use crate::linux::packet::PacketSocket;
use crate::linux::udp::UdpSockets;
use crate::port_spec::PortSpec;
use crate::steering::Steering;
use crate::{fork, signals};
use dpdk_sys as dpdk;
use roce::wire::Mac;
use std::net::IpAddr;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;

/// An open port with one receive queue, one transmit queue and a pool of buffers. The queue of each other core is another value of this
/// type. On a PCI NIC it uses the same device; on a Linux interface and on `null` it has its own device.
///
/// If the port shares a Linux interface, the kernel also receives its packets, and would answer them with port-unreachable. The caller must
/// then keep UDP port 4791 open, as [`neighbour`](crate::neighbour) does with the kernel's table.
pub struct Port {
    /// DPDK's port number; `u16::MAX` for sockets.
    id: u16,
    queue: u16,
    eal: Eal,
    spec: PortSpec,
    config: PortConfig,
    link: Link,
    info: PortInfo,
    /// Whether the port receives what it sends.
    loops_back: bool,
    counters: PortCounters,
    /// The packet socket or AF_XDP socket of the port, and the ring from which an AF_PACKET port sends.
    socket: Option<RawFd>,
    ring: Option<TransmitRing>,
    /// Allocated buffers. Dropped before the pool.
    stock: Burst<Mbuf>,
    pool: Arc<Pool>,
    /// `None` for sockets.
    device: Option<Arc<Device>>,
    _xdp: Option<Attachment>,
}

enum Link {
    Device,
    /// Driven by DPDK's memif driver. The relay forwards control messages between the driver and its peer.
    Memif(Relay),
    Packet(Box<PacketSocket>),
    Udp(Box<UdpSockets>),
}

impl Port {
    /// Opens the port that `spec` describes.
    ///
    /// # Errors
    /// Returns a [`PortError`], which contains the remedy, if the port cannot be opened.
    pub fn open(eal: Eal, spec: &PortSpec, config: &PortConfig) -> Result<Self, PortError> {
        let mut port = Self::open_resolved(eal, &spec.clone().resolve(), config)?;
        port.info.name = spec.to_string();
        Ok(port)
    }

    fn open_resolved(eal: Eal, spec: &PortSpec, config: &PortConfig) -> Result<Self, PortError> {
        let in_parent = || PortError::Forked { port: spec.to_string() };
        if eal::is_forked() && !spec.opens_in_children() {
            return Err(in_parent());
        }
        match spec {
            PortSpec::Packet(_) => {
                let (info, socket) = packet::open(spec, config)?;
                let descriptor = socket.descriptor();
                return Self::of_sockets(eal, spec, config, info, descriptor, Link::Packet(Box::new(socket)));
            }
            PortSpec::Udp(_) => {
                let (info, sockets) = udp::open(spec, config)?;
                let descriptor = sockets.descriptor();
                return Self::of_sockets(eal, spec, config, info, descriptor, Link::Udp(Box::new(sockets)));
            }
            _ => {}
        }
        let setup = device::one_at_a_time().ok_or_else(in_parent)?;
        // Drivers start threads, which must not handle the program's signals.
        let make = || signals::blocked(|| Self::make(eal, spec, config));
        let (mut port, started) = descriptor::closed_on_exec(make)?;
        // Released first, because dropping a port that did not start acquires this lock again.
        drop(setup);
        port.info.mac = started?;
        Ok(port)
    }

    /// Creates the port. The second result is its Ethernet address, or the reason why it did not start.
    fn make(
        eal: Eal,
        spec: &PortSpec,
        config: &PortConfig,
    ) -> Result<(Self, Result<Mac, PortError>), PortError> {
        let prepared = prepare(spec, config)?;
        let relay = relay(spec)?;
        let max_frame = max_frame(prepared.mtu);
        let xdp = Attachment::new(spec, config, prepared.interface.as_ref())?;
        let driver_buffers = if xdp.is_some() { xdp::DRIVER_BUFFERS } else { 0 };
        let pool =
            Arc::new(Pool::new(eal, config.buffers + driver_buffers, room(spec, max_frame), xdp.is_some())?);
        let connection = match &relay {
            Some(relay) => Some(relay.driver_side()),
            None => vhost::driver_side(spec)?,
        };
        let setup = Setup { spec, config, prepared: &prepared, connection, xdp: xdp.as_ref(), max_frame };
        let before = setup.sockets();
        let id = setup.probe()?;
        let info = setup.info(id);
        let socket = setup.new_socket(&before);
        let mut port = Self {
            id,
            queue: 0,
            eal,
            spec: spec.clone(),
            config: config.clone(),
            link: relay.map_or(Link::Device, Link::Memif),
            device: Some(Arc::new(Device::new(id, &info.driver, pool.clone()))),
            info,
            loops_back: matches!(spec, PortSpec::Ring { end: None, .. }),
            counters: PortCounters::default(),
            socket,
            ring: socket.and_then(|socket| setup.transmit_ring(socket)),
            stock: Burst::new(),
            pool,
            _xdp: None,
        };
        let started = setup.start(id, &[&port.pool], None).and_then(|()| setup.addresses(id));
        port.socket = port.socket.or_else(|| setup.new_socket(&before));
        let started = started.and_then(|mac| {
            let run = if let Link::Memif(relay) = &mut port.link { relay.start(id) } else { Ok(()) };
            run.map(|()| mac).map_err(|e| relay_failed(spec, &e))
        });
        if let (Some(_), Some(socket)) = (&xdp, port.socket) {
            port.info.driver = format!("{} ({})", port.info.driver, xdp::mode(socket));
        }
        port._xdp = xdp;
        Ok((port, started))
    }

    /// Creates the port on the socket or sockets of an interface. It uses only buffers of DPDK.
    fn of_sockets(
        eal: Eal,
        spec: &PortSpec,
        config: &PortConfig,
        info: PortInfo,
        descriptor: RawFd,
        link: Link,
    ) -> Result<Self, PortError> {
        let pool = Pool::new(eal, config.buffers, room(spec, info.max_frame), false)?;
        Ok(Self {
            id: u16::MAX,
            queue: 0,
            eal,
            spec: spec.clone(),
            config: config.clone(),
            info,
            loops_back: false,
            counters: PortCounters::default(),
            socket: Some(descriptor),
            link,
            ring: None,
            stock: Burst::new(),
            pool: Arc::new(pool),
            device: None,
            _xdp: None,
        })
    }

    /// Returns the port's properties.
    #[must_use]
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns true if the link is up. A memif's is up while a peer is connected.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        match (&self.device, &self.info.linux_interface) {
            (None, Some(interface)) => linux::interface_at(interface.index).is_ok_and(|it| it.running),
            _ => link_is_up(self.id),
        }
    }

    /// Returns the number of buffers of the pool that drivers, queues or the application use.
    #[must_use]
    pub fn buffers_in_use(&self) -> u32 {
        self.pool.in_use() - self.stock.len() as u32
    }

    /// Opens the queue of worker core `core`: another device on the same interface, whose socket receives only that core's frames.
    fn open_queue(&self, steering: &Steering, core: u8) -> Result<Self, QueueError> {
        let config = self.config.of_queue(&self.spec, steering.cores);
        let mut queue = Self::open(self.eal, &self.spec, &config)?;
        if self.socket.is_some() {
            let socket = queue.socket.ok_or("its packet socket is not found")?;
            steering.attach(&socket, core, self.max_bytes_of_others())?;
        }
        // A large datagram arrives at the core that its first frame is for.
        if let Link::Packet(_) = queue.link {
            queue.queue = core.into();
        }
        // Drops frames that the socket received before the filter was attached.
        let mut early = Burst::new();
        for _ in 0..=usize::from(config.ring_slots) / BURST {
            queue.receive(&mut early);
            early.clear();
        }
        Ok(queue)
    }

    /// Returns the limit on the bytes that the packet socket receives of a frame other than UDP.
    fn max_bytes_of_others(&self) -> u32 {
        match self.link {
            // Without a limit, the sockets would receive the kernel's TCP segments of up to 64 KiB.
            Link::Packet(_) => self.info.max_frame as u32,
            Link::Device | Link::Memif(_) | Link::Udp(_) => u32::MAX,
        }
    }

    /// Opens a queue of the device for each core, if the NIC's hash can distribute frames by source port. Otherwise returns no queues.
    fn share_device(&self, steering: &Steering) -> Result<Vec<Self>, QueueError> {
        let (id, Some(device)) = (self.id, &self.device) else { return Ok(Vec::new()) };
        let hash = match Hash::new(&device_info(id), steering) {
            Ok(hash) => hash,
            Err(why) => {
                tracing::info!("{}: core 0 receives and sends for all cores: {why}", self.spec);
                return Ok(Vec::new());
            }
        };
        let config = self.config.of_queue(&self.spec, steering.cores);
        let queue = |queue| {
            let pool = Pool::new(self.eal, config.buffers, room(&self.spec, self.info.max_frame), false)?;
            Ok(Self {
                id,
                queue,
                eal: self.eal,
                spec: self.spec.clone(),
                config: config.clone(),
                link: Link::Device,
                info: self.info.clone(),
                loops_back: false,
                counters: PortCounters::default(),
                socket: None,
                ring: None,
                stock: Burst::new(),
                pool: Arc::new(pool),
                device: Some(device.clone()),
                _xdp: None,
            })
        };
        let queues = (1..steering.cores.into()).map(queue).collect::<Result<Vec<_>, PortError>>()?;
        let pools: Vec<_> = std::iter::once(self).chain(&queues).map(|queue| &*queue.pool).collect();
        let prepared = Prepared { mtu: self.info.ip_mtu, interface: None };
        let _one_at_a_time = device::one_at_a_time();
        // SAFETY: the port exists, and no core has begun to use it.
        unsafe { dpdk::rte_eth_dev_stop(id) };
        queues.iter().for_each(|queue| device.keep(queue.pool.clone()));
        let setup = Setup {
            spec: &self.spec,
            config: &config,
            prepared: &prepared,
            connection: None,
            xdp: None,
            max_frame: self.info.max_frame,
        };
        descriptor::closed_on_exec(|| signals::blocked(|| setup.start(id, &pools, Some(&hash))))?;
        Ok(queues)
    }

    #[cold]
    fn drop_chained_or_shared(&mut self, from: &mut Burst<Mbuf>) {
        let before = from.len();
        from.retain(|frame| frame.is_plain());
        self.counters.odd_buffer += (before - from.len()) as u64;
    }

    /// Drops frames of invalid length, because a driver would stop at them.
    #[cold]
    fn drop_bad_lengths(&mut self, from: &mut Burst<Mbuf>) {
        let before = from.len();
        let most = self.info.max_frame;
        from.retain(|frame| (1..=most).contains(&frame.len()));
        self.counters.bad_length += (before - from.len()) as u64;
    }

    /// As [`poll_receive`](PacketIo::poll_receive), for a port that is not only a DPDK device.
    #[inline(never)]
    fn poll_receive_other(&mut self, into: &mut Burst<Mbuf>) -> bool {
        match &mut self.link {
            Link::Packet(socket) if socket.has_in_place() => return true,
            Link::Packet(_) => {}
            Link::Udp(sockets) => return sockets.fill() || !into.is_empty(),
            Link::Device | Link::Memif(_) => self.receive_burst(into),
        }
        !into.is_empty()
    }

    /// Appends the frames that DPDK's driver has received.
    #[inline(always)]
    fn receive_burst(&mut self, into: &mut Burst<Mbuf>) {
        let had = into.len();
        let room = BURST - had;
        let (id, queue, free) = (self.id, self.queue, into.as_mut_ptr());
        let burst = || {
            // SAFETY: the port is started and only we have this receive queue, ours by `&mut self`; an `Mbuf` is a
            // transparent pointer, and `room` slots are free from `had` on.
            unsafe { dpdk::ferroce_rx_burst(id, queue, free.add(had).cast(), room as u16) }
        };
        let received = match &mut self.link {
            Link::Device => burst(),
            Link::Memif(relay) => relay.gate().run(burst),
            Link::Packet(_) | Link::Udp(_) => return,
        };
        if received > 0 {
            // SAFETY: the driver wrote `received` ≤ `room` buffers there and gave them away.
            unsafe { into.set_len(had + usize::from(received)) };
            if into[had..].iter().any(|frame| !frame.is_plain()) {
                self.drop_chained_or_shared(into);
            }
        }
    }
}

impl PacketIo for Port {
    type Buf = Mbuf;

    fn open_queues(&mut self, steering: &Steering) -> Result<Vec<Self>, QueueError> {
        match (&self.spec, &self.socket) {
            (PortSpec::Null, _) | (PortSpec::AfPacket(_) | PortSpec::Packet(_), Some(_)) => {}
            (PortSpec::Pci(_), _) => return self.share_device(steering),
            _ => return Ok(Vec::new()),
        }
        let queues: Result<_, _> = (1..steering.cores).map(|core| self.open_queue(steering, core)).collect();
        let queues = queues?;
        if let Some(socket) = &self.socket {
            steering.attach(socket, 0, self.max_bytes_of_others())?;
        }
        Ok(queues)
    }

    fn misdirects(&self) -> bool {
        self.queue > 0
    }

    fn attach(&mut self) {
        // Works without a DPDK lcore id too, but slower.
        self.eal.register_thread();
    }

    fn receive(&mut self, into: &mut Burst<Mbuf>) {
        match &mut self.link {
            Link::Packet(socket) => socket.receive(into, || from_stock(&mut self.stock, &self.pool)),
            Link::Udp(sockets) => sockets.receive(into, || from_stock(&mut self.stock, &self.pool)),
            Link::Device | Link::Memif(_) => self.receive_burst(into),
        }
    }

    /// An idle turn does little else, so this makes one comparison for the most common kind of link.
    fn poll_receive(&mut self, into: &mut Burst<Mbuf>) -> bool {
        if !matches!(self.link, Link::Device) {
            return self.poll_receive_other(into);
        }
        self.receive_burst(into);
        !into.is_empty()
    }

    #[inline]
    fn has_in_place(&self) -> bool {
        match &self.link {
            Link::Packet(socket) => socket.has_in_place(),
            Link::Udp(sockets) => sockets.has_in_place(),
            Link::Device | Link::Memif(_) => false,
        }
    }

    fn receive_in_place(&mut self, others: &mut Burst<Mbuf>, take: impl FnMut(&[u8]) -> bool) {
        let (stock, pool) = (&mut self.stock, &self.pool);
        match &mut self.link {
            Link::Packet(socket) => socket.receive_in_place(others, || from_stock(stock, pool), take),
            Link::Udp(sockets) => sockets.receive_in_place(others, || from_stock(stock, pool), take),
            Link::Device | Link::Memif(_) => {}
        }
    }

    fn alloc(&mut self) -> Option<Mbuf> {
        from_stock(&mut self.stock, &self.pool)
    }

    fn transmit(&mut self, from: &mut Burst<Mbuf>) {
        if from.iter().any(|frame| frame.is_empty() || frame.len() > self.info.max_frame) {
            self.drop_bad_lengths(from);
        }
        let waiting = from.len();
        let all = self.ring.as_ref().map_or(waiting, |ring| ring.room(waiting));
        if all == 0 {
            if let Some(ring) = self.ring.as_ref().filter(|_| waiting > 0) {
                ring.kick();
            }
            return;
        }
        let (id, queue, first) = (self.id, self.queue, from.as_mut_ptr());
        let burst = || {
            // SAFETY: the port is started, and `&mut self` makes this the only user of the transmit queue. The first `all` elements are
            // mbufs. Those that the driver takes leave the array below, before anything else uses it.
            unsafe { dpdk::ferroce_tx_burst(id, queue, first.cast(), all as u16) }
        };
        let sent = usize::from(match &mut self.link {
            Link::Device => burst(),
            Link::Memif(relay) => relay.gate().run(burst),
            Link::Packet(socket) => return socket.transmit(from),
            Link::Udp(sockets) => return sockets.transmit(from),
        });
        // SAFETY: the driver owns the first `sent` buffers now, at most `all`. The others move to the front and remain ours.
        unsafe {
            from.set_len(0);
            let start = from.as_mut_ptr();
            ptr::copy(start.add(sent), start, waiting - sent);
            from.set_len(waiting - sent);
        }
        if let Some(ring) = &mut self.ring {
            ring.took(sent);
        }
    }

    fn sends_by_system_calls(&self) -> bool {
        matches!(self.link, Link::Packet(_) | Link::Udp(_))
    }

    fn suspect(&mut self, peer: IpAddr) {
        if let Link::Packet(socket) = &mut self.link {
            socket.suspect(peer);
        }
    }

    fn caps(&self) -> Caps {
        Caps { max_frame: self.info.max_frame, speed_mbps: self.info.speed_mbps }
    }

    fn counters(&mut self) -> PortCounters {
        let mut counters = self.counters;
        match &mut self.link {
            Link::Packet(socket) => counters.add(&socket.counters()),
            Link::Udp(sockets) => counters.add(&sockets.counters()),
            Link::Device | Link::Memif(_) => {}
        }
        counters
    }

    fn loops_back(&self) -> bool {
        self.loops_back
    }

    fn listen(&mut self, on: bool) {
        if let Link::Memif(relay) = &self.link {
            relay.interrupt().listen(on);
        }
    }

    fn descriptor(&self) -> Option<WakeDescriptor> {
        match (&self.link, self.socket) {
            (_, Some(socket)) => Some(WakeDescriptor::Reliable(socket)),
            (Link::Memif(relay), None) => relay.interrupt().descriptor().map(WakeDescriptor::Racy),
            _ => None,
        }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        self.socket.into_iter().for_each(fork::keep_on_fork);
        // Stops the relay before the device is closed, so that the driver does not clean up after its peer during the close.
        self.link = Link::Device;
    }
}

/// Removes a buffer from the stock, refilling the stock from the pool if it is empty.
#[inline]
fn from_stock(stock: &mut Burst<Mbuf>, pool: &Pool) -> Option<Mbuf> {
    if stock.is_empty() {
        pool.alloc_burst(stock);
    }
    stock.pop()
}

fn relay(spec: &PortSpec) -> Result<Option<Relay>, PortError> {
    let PortSpec::Memif { socket, role, .. } = spec else { return Ok(None) };
    let connection = Connection::at(socket, *role)?;
    Relay::new(connection).map(Some).map_err(|e| relay_failed(spec, &e))
}
