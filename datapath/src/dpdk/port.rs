//! A port that DPDK drives.

use super::descriptor;
use super::devargs::{devargs, memif_buffer, packet_ring, slot_size};
use super::eal::{self, Eal};
use super::log;
use super::mbuf::Mbuf;
use super::memif::{Meeting, Relay};
use super::packet_ring::TransmitRing;
use super::pool::Pool;
use super::port_info::{LinuxInterface, PortConfig, PortCounters, PortInfo};
use super::prepare::{PortError, Prepared, max_frame, path_mtu, prepare, relay_failed};
use super::xdp::{self, Attachment};
use super::{unprivileged, vhost};
use crate::io::{BURST, Bell, Burst, Caps, PacketIo, QueueError};
use crate::port_spec::{PortSpec, RingEnd, SocketRole};
use crate::steering::Steering;
use crate::{fork, signals};
use dpdk_sys as dpdk;
use roce::wire::Mac;
use std::ffi::{CStr, CString, c_int};
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

/// Ports are opened and closed one at a time: their errors come from one log.
static SETUP: Mutex<()> = Mutex::new(());

const ANY_SOCKET: c_int = -1;
const QUEUE: u16 = 0;
/// The fewest buffers of a core's queue. The drivers of such ports keep none.
const LEAST_BUFFERS: u32 = 1024;

/// An open port with one receive and one transmit queue, and its own pool of buffers. On a Linux interface and on `null`, a queue of another
/// core is another port like this.
///
/// If it shares a Linux interface, the kernel sees its packets too and would answer them with port-unreachable. The caller must then keep
/// UDP 4791 open, as [`neighbour`](crate::neighbour) does with the kernel's table.
pub struct Port {
    id: u16,
    eal: Eal,
    spec: PortSpec,
    config: PortConfig,
    /// A memif's messenger.
    relay: Option<Relay>,
    info: PortInfo,
    /// It receives what it sends.
    loops: bool,
    counters: PortCounters,
    /// The packet socket under it, and the ring by which it sends.
    socket: Option<RawFd>,
    ring: Option<TransmitRing>,
    /// To send from; they go back to the pool before it goes.
    stock: Burst<Mbuf>,
    pool: Pool,
    _xdp: Option<Attachment>,
}

impl Port {
    /// Opens the port that `spec` names.
    ///
    /// # Errors
    /// Returns a [`PortError`], with the remedy, if something is missing or does not fit.
    pub fn open(eal: Eal, spec: &PortSpec, config: &PortConfig) -> Result<Self, PortError> {
        let in_parent = || PortError::Forked { port: spec.to_string() };
        if eal::is_forked() && !spec.opens_in_children() {
            return Err(in_parent());
        }
        let setup = fork::lock(&SETUP).ok_or_else(in_parent)?;
        // Drivers start threads too.
        let make = || signals::blocked(|| Self::make(eal, spec, config));
        let (mut port, started) = descriptor::closed_on_exec(make)?;
        // If the port did not start, dropping it takes this lock again.
        drop(setup);
        port.info.mac = started?;
        Ok(port)
    }

    /// The port, and its address once it runs.
    fn make(
        eal: Eal,
        spec: &PortSpec,
        config: &PortConfig,
    ) -> Result<(Self, Result<Mac, PortError>), PortError> {
        let prepared = prepare(spec, config)?;
        let relay = relay(spec)?;
        let max_frame = max_frame(prepared.mtu);
        let xdp = Attachment::new(spec, config, prepared.interface.as_ref())?;
        let held = if xdp.is_some() { xdp::HELD } else { 0 };
        let pool = Pool::new(eal, config.buffers + held, room(spec, max_frame), xdp.is_some())?;
        let meeting = match &relay {
            Some(relay) => Some(relay.driver_side()),
            None => vhost::driver_side(spec)?,
        };
        let setup = Setup { spec, config, prepared: &prepared, meeting, xdp: xdp.as_ref(), max_frame };
        let before = setup.sockets();
        let id = setup.probe()?;
        let info = setup.info(id);
        let socket = setup.new_socket(&before);
        let mut port = Self {
            id,
            eal,
            spec: spec.clone(),
            config: config.clone(),
            relay,
            info,
            loops: matches!(spec, PortSpec::Ring { end: None, .. }),
            counters: PortCounters::default(),
            socket,
            ring: socket.and_then(|socket| setup.transmit_ring(socket)),
            stock: Burst::new(),
            pool,
            _xdp: None,
        };
        let started = setup.start(id, &port.pool).and_then(|()| setup.addresses(id));
        port.socket = port.socket.or_else(|| setup.new_socket(&before));
        let started = started.and_then(|mac| {
            let run = port.relay.as_mut().map_or(Ok(()), |relay| relay.start(id));
            run.map(|()| mac).map_err(|e| relay_failed(spec, &e))
        });
        if let (Some(_), Some(socket)) = (&xdp, port.socket) {
            port.info.driver = format!("{} ({})", port.info.driver, xdp::mode(socket));
        }
        port._xdp = xdp;
        Ok((port, started))
    }

    /// Returns the port's properties.
    #[must_use]
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// Returns the counts of what the port itself dropped.
    #[must_use]
    pub fn counters(&self) -> PortCounters {
        self.counters
    }

    /// Returns true if the other side is there. A memif's is once it has connected.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        link_is_up(self.id)
    }

    /// Buffers of the port's pool that are in use: by drivers, queues or the application.
    #[must_use]
    pub fn buffers_in_use(&self) -> u32 {
        self.pool.in_use() - self.stock.len() as u32
    }

    /// Opens the queue of core `core` from 1 on: another device on the same interface, whose socket receives that core's frames alone.
    fn open_queue(&self, steering: &Steering, core: u8) -> Result<Self, QueueError> {
        let buffers = (self.config.buffers / u32::from(steering.cores)).max(LEAST_BUFFERS);
        let config = PortConfig { buffers, ..self.config.clone() };
        let mut queue = Self::open(self.eal, &self.spec, &config)?;
        if self.socket.is_some() {
            let socket = queue.socket.ok_or("its packet socket is not found")?;
            steering.attach(&socket, core)?;
        }
        // What came before the filter.
        let mut early = Burst::new();
        for _ in 0..=usize::from(config.ring_slots) / BURST {
            queue.receive(&mut early);
            early.clear();
        }
        Ok(queue)
    }

    #[cold]
    fn drop_odd_buffers(&mut self, from: &mut Burst<Mbuf>) {
        let before = from.len();
        from.retain(|frame| frame.is_plain());
        self.counters.odd_buffer += (before - from.len()) as u64;
    }

    /// Drops what no driver would send, so that the rest of the burst gets past it.
    #[cold]
    fn drop_bad_lengths(&mut self, from: &mut Burst<Mbuf>) {
        let before = from.len();
        let most = self.info.max_frame;
        from.retain(|frame| (1..=most).contains(&frame.len()));
        self.counters.bad_length += (before - from.len()) as u64;
    }
}

impl PacketIo for Port {
    type Buf = Mbuf;

    fn open_queues(&mut self, steering: &Steering) -> Result<Vec<Self>, QueueError> {
        match (&self.spec, &self.socket) {
            (PortSpec::Null, _) | (PortSpec::Interface(_), Some(_)) => {}
            _ => return Ok(Vec::new()),
        }
        let queues: Result<_, _> = (1..steering.cores).map(|core| self.open_queue(steering, core)).collect();
        let queues = queues?;
        if let Some(socket) = &self.socket {
            steering.attach(socket, 0)?;
        }
        Ok(queues)
    }

    fn attach(&mut self) {
        // Without a place among DPDK's threads it works too, slower.
        self.eal.register_thread();
    }

    fn receive(&mut self, into: &mut Burst<Mbuf>) {
        let had = into.len();
        let room = BURST - had;
        let (id, free) = (self.id, into.as_mut_ptr());
        let burst = || {
            // SAFETY: the port is started and this is its only receive queue, ours by `&mut self`; an `Mbuf` is a
            // transparent pointer, and `room` slots are free from `had` on.
            unsafe { dpdk::ferroce_rx_burst(id, QUEUE, free.add(had).cast(), room as u16) }
        };
        let came = self.relay.as_ref().map_or_else(burst, |relay| relay.gate().pass(burst));
        if came > 0 {
            // SAFETY: the driver wrote `came` ≤ `room` buffers there and gave them away.
            unsafe { into.set_len(had + usize::from(came)) };
            if into[had..].iter().any(|frame| !frame.is_plain()) {
                self.drop_odd_buffers(into);
            }
        }
    }

    fn alloc(&mut self) -> Option<Mbuf> {
        if self.stock.is_empty() {
            self.pool.alloc_burst(&mut self.stock);
        }
        self.stock.pop()
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
        let (id, first) = (self.id, from.as_mut_ptr());
        let burst = || {
            // SAFETY: the port is started and this is its only transmit queue, ours by `&mut self`; the first `all` slots contain mbufs.
            // The length is set right below, before any look at the array.
            unsafe { dpdk::ferroce_tx_burst(id, QUEUE, first.cast(), all as u16) }
        };
        let sent = usize::from(self.relay.as_ref().map_or_else(burst, |relay| relay.gate().pass(burst)));
        // SAFETY: the driver owns the first `sent` ≤ `all` buffers now; the others move to the front and are ours.
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

    fn caps(&self) -> Caps {
        Caps { max_frame: self.info.max_frame, speed_mbps: self.info.speed_mbps }
    }

    fn loops(&self) -> bool {
        self.loops
    }

    fn listen(&mut self, on: bool) {
        if let Some(relay) = &self.relay {
            relay.bell().listen(on);
        }
    }

    fn descriptor(&self) -> Option<Bell> {
        let rings = || self.relay.as_ref()?.bell().descriptor().map(Bell::Soon);
        self.socket.map(Bell::Now).or_else(rings)
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let _one_at_a_time = SETUP.lock().unwrap_or_else(PoisonError::into_inner);
        self.socket.into_iter().for_each(fork::keep);
        // First, so that the driver doesn't clear up after its peer while it is closed.
        self.relay = None;
        let id = self.id;
        if self.info.driver == "net_memif" {
            // The peer may be leaving too: memif's handler on the interrupt thread must not meet a device half closed.
            eal::on_interrupt_thread(move || close(id));
        } else {
            close(id);
        }
    }
}

/// Stops a device and takes it out of DPDK.
fn close(id: u16) {
    let device = device_info(id).device;
    // SAFETY: the port exists until it is closed here, and nothing uses its queues: its owner is being dropped.
    unsafe {
        dpdk::rte_eth_dev_stop(id);
        dpdk::rte_eth_dev_close(id);
    }
    if !device.is_null() {
        // SAFETY: the device outlives its port, and has no other one.
        unsafe { dpdk::rte_dev_remove(device) };
    }
}

/// Returns the size of a buffer on a port of this kind, for frames of `max_frame`.
fn room(spec: &PortSpec, max_frame: usize) -> usize {
    match spec {
        // The driver refuses buffers smaller than a ring's slot.
        PortSpec::Interface(_) => slot_size(max_frame),
        PortSpec::Xdp(_) => xdp::HEADROOM + max_frame,
        // NICs know their buffers' size in steps: of powers of 2 the oldest ones, of KiB others. They scatter a longer frame.
        PortSpec::Pci(_) => max_frame.next_power_of_two().max(2048),
        _ => memif_buffer(max_frame).max(2048),
    }
}

fn device_info(id: u16) -> dpdk::rte_eth_dev_info {
    let mut info = MaybeUninit::zeroed();
    // SAFETY: `info` has room for the structure, and all-zero bytes are a legal one if the call fails.
    unsafe {
        dpdk::rte_eth_dev_info_get(id, info.as_mut_ptr());
        info.assume_init()
    }
}

/// One port's way from a name to a running device.
struct Setup<'a> {
    spec: &'a PortSpec,
    config: &'a PortConfig,
    prepared: &'a Prepared,
    meeting: Option<(SocketRole, String)>,
    xdp: Option<&'a Attachment>,
    max_frame: usize,
}

impl Setup<'_> {
    fn failed(&self, step: &'static str, errno: c_int, said: String) -> PortError {
        let said = if said.is_empty() { "DPDK says no more".into() } else { said };
        PortError::Driver { port: self.spec.to_string(), step, errno: eal::words(errno), said }
    }

    /// Runs one of DPDK's calls and turns a negative result into an error.
    fn call(&self, step: &'static str, f: impl FnOnce() -> c_int) -> Result<(), PortError> {
        let (result, said) = log::complaints_of(f);
        if result < 0 { Err(self.failed(step, result, said)) } else { Ok(()) }
    }

    fn text(&self, text: String) -> Result<CString, PortError> {
        CString::new(text).map_err(|_| self.failed("its name", libc::EINVAL, "it contains a NUL".into()))
    }

    /// Sockets like the port's own that are open now.
    fn sockets(&self) -> Vec<RawFd> {
        match (self.spec, &self.prepared.interface) {
            (PortSpec::Xdp(_), _) => descriptor::xdp_sockets(),
            (PortSpec::Interface(_), Some(interface)) => descriptor::packet_sockets(interface.index),
            _ => Vec::new(),
        }
    }

    fn new_socket(&self, before: &[RawFd]) -> Option<RawFd> {
        let socket = self.sockets().into_iter().find(|fd| !before.contains(fd))?;
        self.own(socket);
        Some(socket)
    }

    /// Makes forked children close the port's packet socket, and receives for all addresses if the configuration
    /// says so.
    fn own(&self, socket: RawFd) {
        descriptor::keep_to_this_process(socket);
        let is_packet = matches!(self.spec, PortSpec::Interface(_));
        let interface = self.prepared.interface.as_ref().filter(|_| self.config.promiscuous && is_packet);
        if let Some(interface) = interface
            && let Err(error) = unprivileged::take_all_addresses(socket, interface.index)
        {
            tracing::warn!("{}: cannot receive frames for other addresses: {error}", self.spec);
        }
    }

    fn transmit_ring(&self, socket: RawFd) -> Option<TransmitRing> {
        let (slot, slots) = packet_ring(self.max_frame, self.config);
        // SAFETY: the driver has just created this ring on request; the port closes it only when it is dropped.
        unsafe { TransmitRing::of(socket, slot, slots) }
    }

    /// Makes the device, and returns its port number.
    fn probe(&self) -> Result<u16, PortError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let (driver, mut arguments) = devargs(self.spec, self.meeting.as_ref(), self.max_frame, self.config);
        self.xdp.into_iter().for_each(|xdp| arguments += &xdp.arguments());
        let device = match self.spec {
            PortSpec::Ring { name, end } => return self.ring(name, *end),
            PortSpec::Pci(_) | PortSpec::Eal(_) => driver,
            // A memif's and a tap's driver read no more than a number there.
            PortSpec::Interface(_) => {
                format!("{driver}{}_{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
            }
            _ => format!("{driver}{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        };
        let whole = if arguments.is_empty() { device.clone() } else { format!("{device},{arguments}") };
        let (device, whole) = (self.text(device)?, self.text(whole)?);
        let mut id = 0;
        // SAFETY: the EAL runs and both are NUL-terminated texts that outlive the calls.
        let found = || unsafe { dpdk::rte_eth_dev_get_port_by_name(device.as_ptr(), &mut id) };
        // SAFETY: as above.
        let make = || unsafe { dpdk::rte_dev_probe(whole.as_ptr()) };
        self.call("making the device", || match self.spec {
            PortSpec::Interface(_) => unprivileged::without_interface_changes(make).unwrap_or(-libc::EAGAIN),
            _ => make(),
        })?;
        self.call("finding the device's port", found)?;
        Ok(id)
    }

    fn ring(&self, name: &str, end: Option<RingEnd>) -> Result<u16, PortError> {
        let (receive, send) = match end {
            None => ("l", "l"),
            Some(RingEnd::A) => ("b", "a"),
            Some(RingEnd::B) => ("a", "b"),
        };
        let mut rx = [self.ring_of(name, receive)?];
        let mut tx = [self.ring_of(name, send)?];
        let end = end.map_or("", |end| if end == RingEnd::A { "_a" } else { "_b" });
        let device = self.text(format!("{name}{end}"))?;
        let mut id = 0;
        self.call("making the rings' port (is it open already?)", || {
            // SAFETY: one ring each, alive for the process; the name is a NUL-terminated text.
            id = unsafe {
                dpdk::rte_eth_from_rings(device.as_ptr(), rx.as_mut_ptr(), 1, tx.as_mut_ptr(), 1, 0)
            };
            if id < 0 { -libc::EEXIST } else { 0 }
        })?;
        Ok(id as u16)
    }

    /// The ring by that name; both ends of a pair look for it. It stays for the process's life.
    fn ring_of(&self, name: &str, towards: &str) -> Result<*mut dpdk::rte_ring, PortError> {
        let text = self.text(format!("fr_{name}_{towards}"))?;
        let slots = u32::from(self.config.ring_slots.clamp(64, 1 << 14)).next_power_of_two();
        let one_each_side = dpdk::RING_F_SP_ENQ | dpdk::RING_F_SC_DEQ;
        // SAFETY: the EAL runs and the name is a NUL-terminated text.
        let ring = unsafe {
            let known = dpdk::rte_ring_lookup(text.as_ptr());
            if known.is_null() {
                dpdk::rte_ring_create(text.as_ptr(), slots, ANY_SOCKET, one_each_side)
            } else {
                known
            }
        };
        if ring.is_null() {
            Err(self.failed("making its ring", libc::ENOMEM, eal::errno()))
        } else {
            Ok(ring)
        }
    }

    /// Sets up one queue in each direction and the MTU if the driver supports it, and starts the port.
    fn start(&self, id: u16, pool: &Pool) -> Result<(), PortError> {
        // SAFETY: all-zero bytes are the default configuration: no offloads, no RSS.
        let mut configuration: dpdk::rte_eth_conf = unsafe { std::mem::zeroed() };
        let device = device_info(id);
        let mtu = self.prepared.mtu;
        configuration.rxmode.mtu = match self.spec {
            PortSpec::Pci(_) | PortSpec::Eal(_) | PortSpec::Virtio { .. } => {
                mtu.clamp(device.min_mtu, device.max_mtu.max(device.min_mtu)).into()
            }
            _ => 0,
        };
        // SAFETY: the port exists, and the configuration outlives the call.
        self.call("configuring it", || unsafe { dpdk::rte_eth_dev_configure(id, 1, 1, &configuration) })?;
        let (mut receive, mut send) = match self.spec {
            // The driver keeps as many buffers as descriptors, and fills one frame at a time.
            PortSpec::Tap(_) => (2, self.config.ring_slots),
            _ => (self.config.ring_slots, self.config.ring_slots),
        };
        self.call("sizing its queues", || {
            // SAFETY: the port exists, and both numbers outlive the call.
            unsafe { dpdk::rte_eth_dev_adjust_nb_rx_tx_desc(id, &mut receive, &mut send) }
        })?;
        self.call("setting up its receive queue", || {
            // SAFETY: the port is configured with this queue; no configuration means the driver's; the pool outlives
            // the port, whose field it is.
            unsafe {
                dpdk::rte_eth_rx_queue_setup(id, QUEUE, receive, ANY_SOCKET as u32, ptr::null(), pool.raw())
            }
        })?;
        self.call("setting up its transmit queue", || {
            // SAFETY: as for the receive queue.
            unsafe { dpdk::rte_eth_tx_queue_setup(id, QUEUE, send, ANY_SOCKET as u32, ptr::null()) }
        })?;
        if matches!(self.spec, PortSpec::Tap(_)) {
            // SAFETY: the port is configured.
            self.call("setting its MTU", || unsafe { dpdk::rte_eth_dev_set_mtu(id, mtu) })?;
        }
        // SAFETY: the port is configured and its queues are set up.
        let start = || unsafe { dpdk::rte_eth_dev_start(id) };
        self.call("starting it", || match self.spec {
            PortSpec::Interface(_) | PortSpec::Xdp(_) => {
                unprivileged::without_interface_changes(start).unwrap_or(-libc::EAGAIN)
            }
            _ => start(),
        })?;
        // For a Linux interface, the packet socket itself is set.
        if self.config.promiscuous && !matches!(self.spec, PortSpec::Interface(_)) {
            // SAFETY: the port is started. Drivers without an address filter answer ENOTSUP: they take all frames.
            unsafe { dpdk::rte_eth_promiscuous_enable(id) };
        }
        Ok(())
    }

    fn info(&self, id: u16) -> PortInfo {
        let device = device_info(id);
        let driver = if device.driver_name.is_null() {
            "unknown".to_owned()
        } else {
            // SAFETY: a driver's name is a NUL-terminated text of the driver, loaded for ever.
            unsafe { CStr::from_ptr(device.driver_name) }.to_string_lossy().into_owned()
        };
        let interface = self.prepared.interface.as_ref();
        PortInfo {
            name: self.spec.to_string(),
            driver,
            mac: Mac::default(),
            mtu: path_mtu(self.prepared.mtu),
            ip_mtu: self.prepared.mtu,
            max_frame: self.max_frame,
            speed_mbps: interface.and_then(|interface| interface.speed_mbps).or_else(|| self.speed(id)),
            linux_interface: interface.map(|i| LinuxInterface { index: i.index, name: i.name.clone() }),
        }
    }

    /// Only hardware has a speed; software drivers report a constant.
    fn speed(&self, id: u16) -> Option<u32> {
        let speed = match self.spec {
            PortSpec::Pci(_) => link(id).link_speed,
            _ => 0,
        };
        (speed != 0 && speed != u32::MAX).then_some(speed)
    }

    /// The port's Ethernet address. On a tap the kernel's side gets another one: on a bridge, frames to the kernel's
    /// address would end in the bridge's host instead of here.
    fn addresses(&self, id: u16) -> Result<Mac, PortError> {
        let mut address = dpdk::rte_ether_addr::default();
        // SAFETY: the port exists and `address` has room.
        self.call("reading its address", || unsafe { dpdk::rte_eth_macaddr_get(id, &mut address) })?;
        let mut mac = Mac(address.addr_bytes);
        if let PortSpec::Ring { end: Some(RingEnd::B), .. } = self.spec {
            // The driver assigns the same address to all rings, and a frame to one's own address never leaves.
            mac.0[5] ^= 1;
        }
        if let PortSpec::Tap(name) = self.spec {
            let mut kernel = mac;
            kernel.0[5] ^= 0x80;
            crate::linux::set_mac(name, kernel).map_err(|e| PortError::Interface {
                name: name.clone(),
                why: format!("cannot set the address of the kernel's side: {e}"),
                remedy: "run as root".into(),
            })?;
        }
        Ok(mac)
    }
}

/// A memif's way to its peer.
fn relay(spec: &PortSpec) -> Result<Option<Relay>, PortError> {
    let PortSpec::Memif { socket, role, .. } = spec else { return Ok(None) };
    let meeting = Meeting::at(socket, *role)?;
    Relay::new(meeting).map(Some).map_err(|e| relay_failed(spec, &e))
}

pub(super) fn link_is_up(id: u16) -> bool {
    link(id).link_status() == dpdk::RTE_ETH_LINK_UP as u16
}

fn link(id: u16) -> dpdk::rte_eth_link {
    // SAFETY: all-zero bytes are a link that is down, and `link` has room for the structure.
    unsafe {
        let mut link: dpdk::rte_eth_link = std::mem::zeroed();
        dpdk::rte_eth_link_get_nowait(id, &mut link);
        link
    }
}
