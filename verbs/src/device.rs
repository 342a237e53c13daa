//! A device: a port, its addresses, and the engine that runs it.

use crate::congestion::CongestionRule;
use crate::cores::Loads;
use crate::fault::{self, Fault, PortFault, PortFaultError, Verb};
use crate::{CompletionQueue, DeviceConfig, Error, ProtectionDomain};
use crate::{cm, device_names, observe};
use cc::Rate;
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::engine::{CoreConfig, CoreCounters, Engine};
use datapath::io::PacketIo;
use datapath::neighbour::{Address, GidTable, addresses_of, link_local};
use datapath::port_spec::PortSpec;
use datapath::siblings::{Delivery, JoinError, Siblings};
use roce::qp::{Capabilities, FeedbackKey};
use roce::wire::{MAX_OVERHEAD, Mac, Mtu, Path, Vlan};
use roce::{Counters, EndpointConfig};
use std::net::IpAddr;
use std::sync::Arc;

fn endpoint_config(limits: &DeviceLimits, config: &DeviceConfig) -> Result<EndpointConfig, Error> {
    Ok(EndpointConfig {
        max_qps: limits.max_qps,
        max_cqs: limits.max_cqs,
        max_regions: limits.max_regions,
        seed: random()?,
        process: 0,
        numbers: config.numbers,
    })
}

/// Returns the limits of a device. Only the number of queue pairs is configurable.
const fn limits(queue_pairs: u32) -> DeviceLimits {
    DeviceLimits {
        max_qps: queue_pairs,
        max_cqs: queue_pairs,
        max_regions: 65_536,
        max_cq_depth: 1 << 20,
        max_requests: Capabilities::MAX.max_send,
        max_sge: Capabilities::MAX.max_send_sge,
        max_inline: Capabilities::MAX.max_inline,
        max_rd_atomic: 16,
    }
}

/// An open port with its poll-mode cores. Clones share the device. It closes when the last object created from it is
/// dropped.
///
/// ```
/// # use ferroce_verbs::{Device, DeviceConfig, Error};
/// # fn open() -> Result<(), Error> {
/// let device = Device::open(&DeviceConfig::from_env()?)?;
/// let info = device.query()?;
/// println!("{}: path MTU {}, addresses {:?}", info.port, info.mtu.bytes(), info.gids);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

/// The state that every object of a device keeps alive.
#[derive(Debug)]
pub(crate) struct Inner {
    /// Whether the port is on UDP sockets.
    pub(crate) is_udp: bool,
    pub(crate) engine: Engine,
    pub(crate) info: DeviceInfo,
    pub(crate) loads: Loads,
    pub(crate) rules: Vec<CongestionRule>,
    pub(crate) selective_repeat: bool,
    pub(crate) feedback_key: Option<FeedbackKey>,
    /// Rate of the port's link, as configured or as the port reports it.
    pub(crate) line_rate: Option<Rate>,
    pub(crate) manager: cm::ManagerSlot,
}

/// Properties of a device.
///
/// ```
/// # use ferroce_verbs::{Device, Error};
/// fn addresses(device: &Device) -> Result<Vec<std::net::IpAddr>, Error> {
///     Ok(device.query()?.gids.addresses().collect())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The port's name.
    pub port: String,
    /// Its driver, such as `net_af_packet`.
    pub driver: String,
    /// The port's Ethernet address.
    pub mac: Mac,
    /// The VLAN of the frames that the port sends and receives, if any.
    pub vlan: Option<Vlan>,
    /// The port's addresses by GID index. They follow those of its Linux interface.
    pub gids: GidTable,
    /// The largest path MTU that the port's frames carry. It follows the MTU of the Linux interface, but never exceeds the value at
    /// opening.
    pub mtu: Mtu,
    /// Bytes of the longest frame of [raw packets](crate::raw), Ethernet header and a VLAN tag included, FCS excluded. `None` if the port
    /// supports no raw packets: AF_XDP and UDP sockets receive only RoCEv2 packets.
    pub longest_frame: Option<u32>,
    /// Index of the port's Linux interface, if it has one. The index is the same after the interface is renamed.
    pub interface: Option<u32>,
    /// Link speed in Mb/s, if the port reports it.
    pub speed_mbps: Option<u32>,
    /// The NUMA node of the NIC, if the system reports it.
    pub numa_node: Option<u8>,
    /// The number of cores.
    pub cores: u8,
    /// The number of receive queues: one for each core if the port can steer frames, else one.
    pub queues: u8,
    /// Limits on the objects that the device can create.
    pub limits: DeviceLimits,
}

/// Limits on the number and size of the objects that a device can create.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeviceLimits {
    /// Queue pairs and shared receive queues together ([`DeviceConfig::queue_pairs`]).
    pub max_qps: u32,
    pub max_cqs: u32,
    pub max_regions: u32,
    /// Completions of one completion queue.
    pub max_cq_depth: u32,
    /// Outstanding requests of one send or receive queue.
    pub max_requests: u32,
    /// Buffers of one request.
    pub max_sge: u32,
    /// Inline bytes of one request.
    pub max_inline: u32,
    /// READs and atomics outstanding at one responder.
    pub max_rd_atomic: u8,
}

/// Properties of a port that the program provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// The name in messages.
    pub name: String,
    /// The Ethernet address that it sends from and receives frames for.
    pub mac: Mac,
}

/// Properties of any port before its core starts.
struct PortFacts {
    name: String,
    driver: String,
    mac: Mac,
    mtu: Mtu,
    longest_frame: Option<u32>,
    numa_node: Option<u8>,
    interface: Option<u32>,
    /// Stand-in Ethernet address of all peers, on UDP sockets.
    peer_mac: Option<Mac>,
}

impl DeviceInfo {
    /// Returns [the default GID index](GidTable::preferred).
    #[must_use]
    pub fn preferred_gid(&self) -> usize {
        self.gids.preferred()
    }

    /// Returns [the default GID index for `peer`](GidTable::towards).
    #[must_use]
    pub fn gid_towards(&self, peer: IpAddr) -> usize {
        self.gids.towards(peer)
    }

    /// Returns the headers of packets from a local address to another port. In a VLAN, the priority is the first
    /// three bits of the traffic class. `source` and `destination` must have the same family.
    #[must_use]
    pub fn path(&self, source: IpAddr, destination: IpAddr, traffic_class: u8) -> Path {
        Path {
            vlan: self.vlan.map(|vlan| vlan.with_priority(traffic_class >> 5)),
            traffic_class,
            ..Path::new((self.mac, source), (Mac::default(), destination))
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.engine.is_inherited() {
            tracing::info!("{}: closed", self.info.port);
        }
        observe::withdraw();
    }
}

impl Inner {
    /// Returns the current properties of the device. Its Linux interface may have changed since the device was opened.
    pub(crate) fn current(&self) -> DeviceInfo {
        DeviceInfo { gids: self.engine.gids(), mtu: self.path_mtu(), ..self.info.clone() }
    }

    /// Returns the current path MTU: that of the interface, limited by its value at opening, which determined the size of the port's
    /// buffers.
    pub(crate) fn path_mtu(&self) -> Mtu {
        self.engine.path_mtu().map_or(self.info.mtu, |now| now.min(self.info.mtu))
    }

    /// Injects a fault into the port.
    pub(crate) fn inject(&self, fault: PortFault) -> Result<(), PortFaultError> {
        tracing::warn!("{}: fault injected: {}", self.info.port, Fault::Port(fault));
        self.engine.inject(fault)
    }

    /// Returns one of the device's addresses, by default the preferred one.
    pub(crate) fn gid(&self, index: Option<usize>) -> Result<IpAddr, Error> {
        let gids = self.engine.gids();
        gid_at(&gids, index.unwrap_or_else(|| gids.preferred()))
    }
}

impl Device {
    /// Opens the port that `config` names and starts its core.
    ///
    /// ```no_run
    /// use ferroce_verbs::{Device, DeviceConfig};
    ///
    /// // The port that FERROCE_PORT or ferroce.toml names, or one that the program names.
    /// let device = Device::open(&DeviceConfig::from_env()?)?;
    /// let other = Device::open(&DeviceConfig::on("eth1").address("10.0.0.1/24".parse()?))?;
    /// # Ok::<_, Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if the port cannot be opened, the configuration does not fit it, or a device of the kernel has the name that it
    /// sets.
    pub fn open(config: &DeviceConfig) -> Result<Self, Error> {
        fault::check_call::<Error>(Verb::OpenDevice)?;
        let name = config.port.clone().ok_or(crate::errors::ConfigError::NoPort)?;
        device_names::check_name(std::path::Path::new(device_names::CLASS), config)?;
        let spec: PortSpec = name.parse().map_err(|error| Error::port(&name, error))?;
        let spec = spec.resolve();
        // Comes first, because the later steps would fail with less specific errors.
        check_sharing(&spec).map_err(|error| Error::port(&name, error))?;
        if let (PortSpec::Udp(interface), Some(vlan)) = (&spec, config.vlan) {
            let reason = format!(
                "the kernel writes its tags; open the VLAN's interface, such as udp:{interface}.{}",
                vlan.id()
            );
            return Err(Error::port(&name, reason));
        }
        let port_config = PortConfig {
            buffers: config.buffers,
            numbers: config.numbers,
            vlan: config.vlan.map(|vlan| vlan.id()),
            ..PortConfig::default()
        };
        let pci = if let PortSpec::Pci(address) = &spec { vec![address.clone()] } else { Vec::new() };
        let eal = Eal::start(&EalConfig {
            pci,
            shared: spec.shares_memory(),
            ..EalConfig::for_buffers(port_config.all_buffers(&spec, config.cores))
        });
        let eal = eal.map_err(|error| Error::port(&name, error))?;
        let port = Port::open(eal, &spec, &port_config).map_err(|error| Error::port(&name, error))?;
        let info = port.info();
        let facts = PortFacts {
            name: name.clone(),
            driver: info.driver.clone(),
            mac: info.mac,
            mtu: info.mtu,
            longest_frame: (!matches!(spec, PortSpec::Xdp(_) | PortSpec::Udp(_)))
                .then_some(info.max_frame as u32),
            peer_mac: info.peer_mac,
            numa_node: info.numa_node,
            interface: info.linux_interface.as_ref().map(|interface| interface.index),
        };
        Self::start(port, facts, config)
    }

    /// Starts a core on a port that the program provides, such as one end of [`pair`](crate::port::pair). The port name and buffers in
    /// `config` are ignored.
    ///
    /// # Errors
    /// Returns an error if the configuration does not fit the port.
    pub fn open_on<P: PacketIo + 'static>(
        port: P,
        own: OwnPort,
        config: &DeviceConfig,
    ) -> Result<Self, Error> {
        let max_frame = port.caps().max_frame;
        let fits = |mtu: &Mtu| mtu.bytes() as usize + MAX_OVERHEAD <= max_frame;
        let mtu = Mtu::ALL.into_iter().rfind(fits).ok_or_else(|| {
            let least = 256 + MAX_OVERHEAD;
            let reason = format!(
                "frames of {max_frame} bytes are too short for a packet: at least {least} bytes are needed"
            );
            Error::port(&own.name, reason)
        })?;
        let longest_frame = Some(max_frame as u32);
        let (name, driver, mac, interface) = (own.name, "in process".into(), own.mac, None);
        let facts =
            PortFacts { name, driver, mac, mtu, longest_frame, numa_node: None, interface, peer_mac: None };
        Self::start(port, facts, config)
    }

    fn start<P: PacketIo + 'static>(port: P, facts: PortFacts, config: &DeviceConfig) -> Result<Self, Error> {
        crate::log::start_if_asked_for();
        let mtu = config.mtu.unwrap_or(facts.mtu);
        if mtu > facts.mtu {
            return Err(Error::Mtu { given: mtu.bytes(), limit: facts.mtu.bytes(), port: facts.name });
        }
        let addresses = addresses(&facts.name, facts.mac, facts.interface, config)?;
        let speed_mbps = port.caps().speed_mbps;
        let limits = limits(config.queue_pairs);
        let core = CoreConfig {
            name: facts.name.clone(),
            mac: facts.mac,
            vlan: config.vlan,
            interface: facts.interface,
            peer_mac: facts.peer_mac,
            addresses,
            addresses_chosen: !config.addresses.is_empty(),
            gateway: config.gateway,
            progress: config.who_runs(),
            delays_acks: config.polls_always || config.who_runs() == crate::Progress::Adaptive,
            cores: config.cores,
            idle: config.idle,
            endpoint: endpoint_config(&limits, config)?,
        };
        // SAFETY: only `MemoryRegion` registers regions. It frees its own memory only after every core has deregistered it. The contract of
        // `register_raw` requires its caller to keep foreign memory valid until the region is dropped.
        let engine = unsafe { Engine::start(port, &core) };
        let engine = engine.map_err(|error| Error::port(&facts.name, error))?;
        let early_memory = usize::try_from(config.early_memory).unwrap_or(usize::MAX);
        engine.call_all(move |state, _| state.endpoint.set_early_budget(early_memory))?;
        if let Some(rate) = config.link_rate {
            // Each core sends at its share, so that all together send at the link's rate.
            let share = Rate::from_bps(rate.as_bps() / u64::from(config.cores));
            engine.call_all(move |state, _| state.endpoint.set_link_rate(Some(share)))?;
        }
        let info = DeviceInfo {
            port: facts.name,
            driver: facts.driver,
            mac: facts.mac,
            vlan: config.vlan,
            gids: engine.gids(),
            mtu,
            longest_frame: facts.longest_frame,
            interface: facts.interface,
            speed_mbps,
            numa_node: facts.numa_node,
            cores: config.cores,
            queues: engine.queues(),
            limits,
        };
        let line_rate = config.link_rate.or(speed_mbps.map(|mbps| Rate::from_mbps(mbps.into())));
        let manager = cm::ManagerSlot::default();
        let loads = Loads::new(config.cores, limits.max_qps);
        let (rules, selective_repeat) = (config.rules.clone(), config.selective_repeat);
        let feedback_key = config.feedback_key.as_ref().map(|key| key.key);
        let is_udp = facts.peer_mac.is_some();
        let inner =
            Inner { is_udp, engine, info, loads, rules, selective_repeat, feedback_key, line_rate, manager };
        let inner = Arc::new(inner);
        let DeviceInfo { port, driver, mac, mtu, cores, gids, .. } = &inner.info;
        tracing::info!(
            "{port}: opened by {driver}: {mac}, {:?}, path MTU {}, {cores} cores",
            gids.addresses().collect::<Vec<_>>(),
            mtu.bytes()
        );
        config.faults.iter().try_for_each(|fault| inner.inject(*fault))?;
        observe::publish(&inner);
        Ok(Self { inner })
    }

    /// Returns the properties that the device had when it was opened. Works after the core has stopped, and in a
    /// forked process.
    #[must_use]
    pub fn opened(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Returns whether this process inherited the device by a fork. It can only close such a device.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.inner.engine.is_inherited()
    }

    /// Returns the device's properties.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn query(&self) -> Result<DeviceInfo, Error> {
        self.inner.engine.check()?;
        Ok(self.inner.current())
    }

    /// Returns the counters since the device was opened, with drops by reason.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn counters(&self) -> Result<Counters, Error> {
        let mut sum = Counters::default();
        let counters = self.inner.engine.call_all(|state, _| state.endpoint.counters().clone())?;
        counters.iter().for_each(|counters| sum.add(counters));
        Ok(sum)
    }

    /// Returns the counters of the cores for everything except packets of queue pairs, summed over the cores.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn core_counters(&self) -> Result<CoreCounters, Error> {
        let mut sum = CoreCounters::default();
        let counters = self.inner.engine.call_all(|state, _| state.counters)?;
        counters.iter().for_each(|counters| sum.add(counters));
        Ok(sum)
    }

    /// Returns whether the port's link is up. Ports without a Linux interface always report `true`.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.inner.engine.link_is_up()
    }

    /// Injects a fault into this device's port. When this function returns, the fault has taken effect, and its events are queued. For
    /// calls that fail see [`observe::inject`].
    ///
    /// # Errors
    /// Returns an error if the port has no such GID, or the core has stopped before.
    pub fn inject(&self, fault: PortFault) -> Result<(), Error> {
        Ok(self.inner.inject(fault)?)
    }

    /// Creates a protection domain.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn allocate_pd(&self) -> Result<ProtectionDomain, Error> {
        fault::check_call::<Error>(Verb::AllocPd)?;
        let pd = self.inner.on_all(|state, _| state.endpoint.create_pd())?;
        Ok(ProtectionDomain { device: self.inner.clone(), pd })
    }

    /// Creates a completion queue for `depth` unpolled completions, 1 to
    /// [`max_cq_depth`](DeviceLimits::max_cq_depth).
    ///
    /// # Errors
    /// Returns an error if a limit is exceeded or the core has stopped.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, Error> {
        fault::check_call::<Error>(Verb::CreateCq)?;
        CompletionQueue::new(self.inner.clone(), depth)
    }

    /// Adds a permanent neighbour entry, so that the device sends no ARP or ND request for this address.
    ///
    /// # Errors
    /// Returns an error if there are more than 1024 entries or the core has stopped.
    pub fn set_neighbour(&self, ip: IpAddr, mac: Mac) -> Result<(), Error> {
        let set = self.inner.engine.call(move |state, _| state.neighbours.set(ip, mac))?;
        set.map_err(|error| Error::port(&self.inner.info.port, error))
    }

    /// Runs one turn of an [`Inline`](crate::Progress::Inline) core, for a program that waits for something other than completions. Does
    /// nothing with a dedicated core, or while another thread runs a turn. Returns whether the turn did any work. If it did none, the
    /// caller may yield.
    pub fn progress(&self) -> bool {
        self.inner.engine.progress()
    }
}

/// Checks that no process of another user has the port's interface, and that no process shares it with the other kind of frame delivery.
fn check_sharing(spec: &PortSpec) -> Result<(), JoinError> {
    let delivery = if matches!(spec, PortSpec::Udp(_)) { Delivery::ToOne } else { Delivery::ToAll };
    match spec.shared_interface().map(datapath::linux::interface) {
        Some(Ok(interface)) => Siblings::check_user(interface.index, delivery),
        Some(Err(_)) | None => Ok(()),
    }
}

pub(crate) fn gid_at(gids: &GidTable, index: usize) -> Result<IpAddr, Error> {
    gids.get(index)
        .ok_or_else(|| Error::GidIndex { index, present: gids.entries().map(|(index, _)| index).collect() })
}

/// Returns the device's addresses: those configured, else the interface's. A port without an interface, or in a VLAN, also has an address
/// derived from its MAC.
pub(crate) fn addresses(
    port: &str,
    mac: Mac,
    interface: Option<u32>,
    config: &DeviceConfig,
) -> Result<Vec<Address>, Error> {
    let configured: Vec<Address> = config.addresses.iter().copied().map(Into::into).collect();
    let Some(interface) = interface.filter(|_| config.vlan.is_none()) else {
        let from_mac = Address { ip: link_local(mac).into(), prefix: 64 };
        return Ok([vec![from_mac], configured].concat());
    };
    let failed = |error: std::io::Error| Error::port(port, error);
    let present = addresses_of(interface).map_err(failed)?;
    if let Some(missing) = configured.iter().find(|ours| !present.iter().any(|there| there.ip == ours.ip)) {
        let reason = format!(
            "address {} is not on the interface; `ip address add {missing} dev {}`",
            missing.ip,
            port.rsplit(':').next().unwrap_or(port)
        );
        return Err(Error::port(port, reason));
    }
    match (configured.is_empty(), present.is_empty()) {
        (true, true) => Err(Error::NoAddress { port: port.into() }),
        (true, false) => Ok(present),
        (false, _) => Ok(configured),
    }
}

/// Returns unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
    Ok(bytes)
}
