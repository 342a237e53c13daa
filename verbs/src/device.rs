//! A device: a port, its addresses, and the engine that runs it.

use crate::{CompletionQueue, CongestionRule, DeviceConfig, Error, ProtectionDomain};
use crate::{cm, gid, observe};
use cc::Rate;
use datapath::dpdk::{Eal, EalConfig, Port, PortConfig};
use datapath::engine::{CoreConfig, CoreCounters, Engine};
use datapath::io::PacketIo;
use datapath::neighbour::{Address, Kernel, link_local};
use datapath::port_spec::PortSpec;
use datapath::siblings::Siblings;
use roce::qp::Capabilities;
use roce::wire::{MAX_OVERHEAD, Mac, Mtu, Path, Vlan};
use roce::{Counters, EndpointConfig};
use std::net::IpAddr;
use std::sync::Arc;

/// What a device holds: so many queue pairs, all else by limits of its own.
const fn limits(queue_pairs: u32) -> DeviceLimits {
    DeviceLimits {
        max_qps: queue_pairs,
        max_cqs: queue_pairs,
        max_regions: 65_536,
        max_cq_depth: 1 << 20,
        max_requests: Capabilities::MOST.max_send,
        max_sge: Capabilities::MOST.max_send_sge,
        max_inline: Capabilities::MOST.max_inline,
        max_rd_atomic: 16,
    }
}

/// An open port with its poll-mode core. Clones are the same device; it closes when the last object made from
/// it is gone.
#[derive(Clone, Debug)]
pub struct Device {
    pub(crate) inner: Arc<Inner>,
}

/// What every object of a device keeps alive.
#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) info: DeviceInfo,
    pub(crate) rules: Vec<CongestionRule>,
    /// What its link carries, as configured or as the port says.
    pub(crate) line_rate: Option<Rate>,
    pub(crate) manager: cm::Place,
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The port's name.
    pub port: String,
    /// What drives it, such as `net_af_packet`.
    pub driver: String,
    /// Its Ethernet address.
    pub mac: Mac,
    /// The VLAN whose frames it sends and takes, if any.
    pub vlan: Option<Vlan>,
    /// Its addresses; a GID index counts these. As Linux has them: the link-local address that its MAC makes, other link-local
    /// ones, IPv4, then other IPv6.
    pub gids: Vec<IpAddr>,
    /// The largest path MTU that its frames carry.
    pub mtu: Mtu,
    /// Link speed in Mb/s, where the port knows one.
    pub speed_mbps: Option<u32>,
    /// How many of what it makes.
    pub limits: DeviceLimits,
}

/// How many objects a device makes, and how large.
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
    /// Bytes inline in one request.
    pub max_inline: u32,
    /// READs and atomics outstanding at one responder.
    pub max_rd_atomic: u8,
}

/// What a program says of a port that it brings itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPort {
    /// For messages.
    pub name: String,
    /// The address to send from, and to take frames for.
    pub mac: Mac,
}

/// What is known of any port before its core starts.
struct PortFacts {
    name: String,
    driver: String,
    mac: Mac,
    mtu: Mtu,
    interface: Option<u32>,
}

impl DeviceInfo {
    /// The headers of packets from an address of ours to another port, in the port's VLAN with the priority that the
    /// traffic class names (its first three bits). `source` and `destination` are of one family.
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
        observe::withdraw();
    }
}

impl Inner {
    /// One of the device's addresses; without an index the preferred.
    pub(crate) fn gid(&self, index: Option<usize>) -> Result<IpAddr, Error> {
        let (gids, preferred) = (&self.info.gids, || self.info.preferred_gid());
        let (index, count) = (index.unwrap_or_else(preferred), gids.len());
        gids.get(index).copied().ok_or(Error::GidIndex { index, count })
    }
}

impl Device {
    /// Opens the port that `config` names and starts its core.
    ///
    /// # Errors
    /// Returns an error if the port can't be opened, or the configuration does not fit it.
    pub fn open(config: &DeviceConfig) -> Result<Self, Error> {
        let name = config.port.clone().ok_or(crate::ConfigError::NoPort)?;
        let failed = |reason: String| Error::port(&name, reason);
        let spec: PortSpec = name.parse().map_err(|error| failed(format!("{error}")))?;
        // Before what a port needs fails for reasons that say less.
        if let PortSpec::Interface(interface) = &spec
            && let Ok(interface) = datapath::linux::interface(interface)
        {
            Siblings::check_user(interface.index).map_err(|error| failed(error.to_string()))?;
        }
        let pci = if let PortSpec::Pci(address) = &spec { vec![address.clone()] } else { Vec::new() };
        let eal = Eal::start(&EalConfig {
            pci,
            shared: spec.shares_memory(),
            ..EalConfig::for_buffers(config.buffers)
        });
        let eal = eal.map_err(|error| failed(error.to_string()))?;
        let port_config = PortConfig { buffers: config.buffers, ..PortConfig::default() };
        let port = Port::open(eal, &spec, &port_config).map_err(|error| failed(error.to_string()))?;
        let info = port.info();
        let facts = PortFacts {
            name: name.clone(),
            driver: info.driver.clone(),
            mac: info.mac,
            mtu: info.mtu,
            interface: info.linux_interface.as_ref().map(|interface| interface.index),
        };
        Self::start(port, facts, config)
    }

    /// Starts a core on a port that the program brings, such as one end of [`pair`](crate::pair). What `config` says of
    /// a port's name and buffers is not used.
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
        let mtu = Mtu::ALL.into_iter().rfind(fits).ok_or_else(|| Error::Port {
            port: own.name.clone(),
            reason: format!(
                "frames of {max_frame} bytes are too short for a packet: at least {} bytes are needed",
                256 + MAX_OVERHEAD
            ),
        })?;
        let facts =
            PortFacts { name: own.name, driver: "in process".into(), mac: own.mac, mtu, interface: None };
        Self::start(port, facts, config)
    }

    fn start<P: PacketIo + 'static>(port: P, facts: PortFacts, config: &DeviceConfig) -> Result<Self, Error> {
        crate::log::start_if_asked_for();
        let mtu = config.mtu.unwrap_or(facts.mtu);
        if mtu > facts.mtu {
            return Err(Error::Mtu { given: mtu.bytes(), limit: facts.mtu.bytes(), port: facts.name });
        }
        let addresses = addresses(&facts, config)?;
        let gids = gid::table(facts.mac, addresses.iter().map(|address| address.ip));
        let speed_mbps = port.caps().speed_mbps;
        let limits = limits(config.queue_pairs);
        let core = CoreConfig {
            name: facts.name.clone(),
            mac: facts.mac,
            vlan: config.vlan,
            interface: facts.interface,
            addresses,
            gateway: config.gateway,
            progress: config.who_runs(),
            idle: config.idle,
            endpoint: EndpointConfig {
                max_qps: limits.max_qps,
                max_cqs: limits.max_cqs,
                max_regions: limits.max_regions,
                seed: random()?,
                core: 0,
                numbers: config.numbers,
            },
        };
        // SAFETY: regions are registered by `MemoryRegion` alone. It frees memory of its own only after the core let go of
        // it, and has its caller promise the same for foreign memory.
        let engine = unsafe { Engine::start(port, &core) };
        let engine = engine.map_err(|error| Error::port(&facts.name, error.to_string()))?;
        if let Some(rate) = config.link_rate {
            engine.call(move |station, _| station.endpoint.set_link_rate(Some(rate)))?;
        }
        let info = DeviceInfo {
            port: facts.name,
            driver: facts.driver,
            mac: facts.mac,
            vlan: config.vlan,
            gids,
            mtu,
            speed_mbps,
            limits,
        };
        let line_rate = config.link_rate.or(speed_mbps.map(|mbps| Rate::from_mbps(mbps.into())));
        let manager = cm::Place::default();
        let inner = Arc::new(Inner { engine, info, rules: config.rules.clone(), line_rate, manager });
        observe::publish(&inner);
        Ok(Self { inner })
    }

    /// Returns what the device was when it was opened, whether its core still runs or not: a forked process may ask.
    #[must_use]
    pub fn opened(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// Whether the device belongs to a process from which this one was forked: it can be closed here, and no more.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.inner.engine.is_inherited()
    }

    /// What the device is.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn query(&self) -> Result<DeviceInfo, Error> {
        self.inner.engine.check()?;
        Ok(self.inner.info.clone())
    }

    /// What was counted since it was opened, by reason for what was dropped.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn counters(&self) -> Result<Counters, Error> {
        Ok(self.inner.engine.call(|station, _| station.endpoint.counters().clone())?)
    }

    /// What the core counted beside packets of queue pairs.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn core_counters(&self) -> Result<CoreCounters, Error> {
        Ok(self.inner.engine.call(|station, _| station.counters)?)
    }

    /// Whether the port's link is up now; always, where no Linux interface tells.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.inner.engine.link_is_up()
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub fn allocate_pd(&self) -> Result<ProtectionDomain, Error> {
        let pd = self.inner.engine.call(|station, _| station.endpoint.create_pd())?;
        Ok(ProtectionDomain { device: self.inner.clone(), pd })
    }

    /// Makes a completion queue that holds `depth` completions not yet polled, 1 to
    /// [`max_cq_depth`](DeviceLimits::max_cq_depth).
    ///
    /// # Errors
    /// Returns an error if a limit is passed or the core has stopped.
    pub fn create_cq(&self, depth: u32) -> Result<CompletionQueue, Error> {
        CompletionQueue::new(self.inner.clone(), depth)
    }

    /// Names a neighbour's Ethernet address for good, so that nobody is asked for it.
    ///
    /// # Errors
    /// Returns an error if there are more than 1024, or the core has stopped.
    pub fn set_neighbour(&self, ip: IpAddr, mac: Mac) -> Result<(), Error> {
        let set = self.inner.engine.call(move |station, _| station.neighbours.set(ip, mac))?;
        set.map_err(|error| Error::port(&self.inner.info.port, error.to_string()))
    }

    /// Runs one turn of an [`Inline`](crate::Progress::Inline) core, for a program that waits for something else
    /// than completions. Does nothing with a dedicated core, or while another thread runs the turn. Gives whether the
    /// turn moved anything, so that whoever waits knows when to yield.
    pub fn progress(&self) -> bool {
        self.inner.engine.progress()
    }
}

/// The device's addresses: those configured, else the interface's; where the kernel keeps none for the port, also one made
/// from the MAC.
fn addresses(facts: &PortFacts, config: &DeviceConfig) -> Result<Vec<Address>, Error> {
    let configured: Vec<Address> = config.addresses.iter().copied().map(Into::into).collect();
    let Some(interface) = facts.interface.filter(|_| config.vlan.is_none()) else {
        let from_mac = Address { ip: link_local(facts.mac).into(), prefix: 64 };
        return Ok([vec![from_mac], configured].concat());
    };
    let failed = |error: std::io::Error| Error::port(&facts.name, error.to_string());
    let present =
        Kernel::open(interface, config.numbers).and_then(|kernel| kernel.addresses()).map_err(failed)?;
    if let Some(missing) = configured.iter().find(|ours| !present.iter().any(|there| there.ip == ours.ip)) {
        return Err(Error::Port {
            port: facts.name.clone(),
            reason: format!(
                "address {} is not on the interface; ip address add {missing} dev {}",
                missing.ip, facts.name
            ),
        });
    }
    match (configured.is_empty(), present.is_empty()) {
        (true, true) => Err(Error::NoAddress { port: facts.name.clone() }),
        (true, false) => Ok(present),
        (false, _) => Ok(configured),
    }
}

/// Unpredictable bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Error> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| Error::Random(error.to_string()))?;
    Ok(bytes)
}
