//! Starts the cores of a port.

use super::attributes::Attributes;
use super::config::{CoreConfig, Progress, StartError};
use super::control::Commands;
use super::core::Core;
use super::core_group::{CoreGroup, PortAccess};
use super::core_state::CoreState;
use super::delayed_ack::DelayedAck;
use super::events::Subscribers;
use super::handle::Handle;
use super::interface_changes::InterfaceChanges;
use super::interface_watch::InterfaceWatch;
use super::other_cores::OtherCores;
use super::port_flows::PortFlows;
use super::runner::{CoreStatus, Runner};
use super::{Engine, control, doorbell, siblings};
use crate::clock::Clock;
use crate::event_fd::EventFd;
use crate::fork::Process;
use crate::io::PacketIo;
use crate::neighbour::{GidTable, Kernel, Neighbours};
use crate::siblings::{JoinError, Siblings};
use crate::steering::Steering;
use roce::{CoreIndex, Endpoint, EndpointConfig};
use std::io;
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex};

struct CoreInit {
    state: CoreState,
    inbox: control::Inbox,
    commands: Commands,
    /// The eventfd that wakes the core.
    event_fd: Option<EventFd>,
}

impl Engine {
    /// Starts the cores of `port`.
    ///
    /// # Safety
    /// The caller must keep the memory of each region that it registers by [`call_all`](Self::call_all) valid for reads and writes. It must
    /// do so until the region is deregistered from all cores, or this engine is dropped or has stopped.
    ///
    /// # Errors
    /// Returns an error if there are too many cores or queue pairs, or too few CPUs. Returns an error if a thread cannot be started or
    /// pinned, or the interface's neighbours cannot be read.
    pub unsafe fn start<P: PacketIo + 'static>(port: P, config: &CoreConfig) -> Result<Self, StartError> {
        check(config)?;
        let interface = config.interface.filter(|_| config.vlan.is_none());
        let numbers = config.endpoint.numbers;
        let kernel = interface.map(|index| match config.peer_mac {
            Some(peer_mac) => Kernel::of_sockets(index, numbers, peer_mac),
            None => Kernel::open(index, numbers),
        });
        let kernel = kernel.transpose();
        let kernel = kernel.map_err(StartError::Netlink)?;
        let kernel = kernel.map(Arc::new);
        kernel.iter().for_each(|kernel| kernel.drop_ours());
        let mut siblings = siblings::join(config)?;
        let mut endpoint = config.endpoint;
        endpoint.process = siblings.as_ref().map_or(endpoint.process, Siblings::slot);
        let event_fd = siblings.as_ref().map(Siblings::event_fd).transpose();
        let event_fd = event_fd.map_err(JoinError::from)?;
        let subscribers = Arc::new(Subscribers::default());
        let member_rings = siblings.as_ref().map(|siblings| Box::new(siblings.member_rings()));
        let members = siblings.as_ref().map(|siblings| Arc::new(siblings.member_flows()));
        let flows = PortFlows::shared(config.cores, members.clone());
        let mut inits: Vec<_> = (0..config.cores)
            .map(|core| {
                let neighbours = neighbours(core, kernel.is_some(), config);
                let endpoint = Endpoint::of_core(endpoint, CoreIndex::new(core, config.cores));
                // SAFETY: the caller of this function keeps registered memory valid.
                let mut state = unsafe { CoreState::new(endpoint, neighbours, config, subscribers.clone()) };
                state.flows = flows.clone();
                let (commands, inbox) = control::channel();
                CoreInit { state, inbox, commands, event_fd: None }
            })
            .collect();
        if let Some(main) = inits.first_mut() {
            (main.state.member_rings, main.event_fd) = (member_rings, event_fd);
        }
        let accesses = port_accesses(port, config, &endpoint, &mut inits)?;
        let misdirecting_cores = (0..)
            .zip(&accesses)
            .filter(|(_, access)| access.may_misdirect())
            .fold(0, |cores, (core, _)| cores | 1 << core);
        let queues = 1 + accesses.iter().filter(|access| access.has_own_queue()).count() as u8;
        let (main, workers) = start_all(accesses, inits, config)?;
        if let Some(siblings) = &mut siblings {
            let watched = siblings::watch(siblings, config, &main.commands, (kernel.clone(), members));
            watched.map_err(JoinError::from)?;
        }
        let gids = GidTable::new(config.mac, config.addresses.iter().map(|address| address.ip));
        let attributes = Arc::new(Attributes::new(gids));
        let states = (attributes.clone(), subscribers.clone());
        let changes = changes(config, siblings.as_ref(), main.commands.clone(), kernel.clone(), states)?;
        let watch = siblings.as_ref().and_then(|_| watch_interface(config, changes.clone()));
        Ok(Self {
            name: config.name.clone(),
            mac: config.mac,
            main: ManuallyDrop::new(main),
            workers: ManuallyDrop::new(workers),
            misdirecting_cores,
            queues,
            order: Mutex::new(()),
            index: CoreIndex::new(0, config.cores),
            process: Process::this(),
            kernel,
            siblings: ManuallyDrop::new(siblings),
            interface: config.interface,
            subscribers,
            attributes,
            changes,
            watch: ManuallyDrop::new(watch),
        })
    }
}

/// Returns the state of the port's interface, to which its changes are applied.
fn changes(
    config: &CoreConfig,
    siblings: Option<&Siblings>,
    main: Commands,
    kernel: Option<Arc<Kernel>>,
    (attributes, subscribers): (Arc<Attributes>, Arc<Subscribers>),
) -> Result<Arc<Mutex<InterfaceChanges>>, StartError> {
    let event_fd = siblings.map(Siblings::event_fd).transpose().map_err(JoinError::from)?;
    let changes = InterfaceChanges::new(config, attributes, subscribers, kernel, (main, event_fd));
    Ok(Arc::new(Mutex::new(changes)))
}

/// Starts following the port's Linux interface. If that fails, returns `None`, and the port keeps its current attributes.
fn watch_interface(config: &CoreConfig, changes: Arc<Mutex<InterfaceChanges>>) -> Option<InterfaceWatch> {
    let watch = InterfaceWatch::start(config.interface?, changes);
    watch.inspect_err(|error| tracing::warn!("{}: cannot watch its interface: {error}", config.name)).ok()
}

/// Creates the neighbour table of a core. Only that of core 0 resolves addresses and answers for them.
fn neighbours(core: u8, has_kernel: bool, config: &CoreConfig) -> Neighbours {
    match (core, has_kernel) {
        (0, false) => Neighbours::standalone(config.mac, &config.addresses, config.gateway),
        (0, true) => Neighbours::with_kernel(config.mac, &config.addresses).with_peer_mac(config.peer_mac),
        _ => Neighbours::with_kernel(config.mac, &[]),
    }
}

impl Progress {
    /// Checks that this process may use a CPU for each of `cores` dedicated cores.
    ///
    /// # Errors
    /// Returns [`StartError::Cpu`] or [`StartError::CoresOfCpus`] if it may not.
    pub fn check_cpus(self, cores: u8) -> Result<(), StartError> {
        let Self::Dedicated { core } = self else { return Ok(()) };
        let allowed = crate::machine::allowed_cores();
        let first = match core {
            None => 0,
            Some(core) => match allowed.iter().position(|&cpu| cpu == core) {
                Some(first) => first,
                None => return Err(StartError::Cpu { core, allowed }),
            },
        };
        let cpus = allowed.len() - first;
        if cores > 1 && usize::from(cores) > cpus {
            let from = core.map_or_else(String::new, |core| format!(" from CPU {core} on"));
            return Err(StartError::CoresOfCpus { given: cores, cpus, from });
        }
        Ok(())
    }
}

fn check(config: &CoreConfig) -> Result<(), StartError> {
    let given = config.cores;
    if !(1..=CoreIndex::MAX).contains(&given) {
        return Err(StartError::Cores { given, limit: CoreIndex::MAX });
    }
    config.progress.check_cpus(given)?;
    let limit = (CoreIndex::new(0, given).max_qps() as usize * usize::from(given)).min(doorbell::MAX_SLOTS);
    if config.endpoint.max_qps as usize > limit {
        return Err(StartError::TooManyQps { given: config.endpoint.max_qps, limit, cores: given });
    }
    Ok(())
}

/// Returns the access of each core to the port. Creates the rings between several cores, and the eventfd of each.
fn port_accesses<P: PacketIo>(
    port: P,
    config: &CoreConfig,
    endpoint: &EndpointConfig,
    inits: &mut [CoreInit],
) -> Result<Vec<PortAccess<P>>, StartError> {
    if let [only] = inits {
        only.state.delayed_ack = DelayedAck::new(config.delays_acks && port.sends_by_system_calls());
        return Ok(vec![PortAccess::Single(port)]);
    }
    let event_fds =
        inits.iter_mut().map(event_fd).collect::<io::Result<Vec<_>>>().map_err(StartError::Thread)?;
    let group = Arc::new(CoreGroup::new(event_fds));
    let commands: Vec<_> = inits.iter().map(|init| init.commands.clone()).collect();
    for (own, init) in inits.iter_mut().enumerate() {
        init.state.other_cores = Some(Box::new(OtherCores::new(own, commands.clone(), group.clone())));
    }
    let steering = Steering {
        mac: config.mac,
        process: endpoint.process,
        core: CoreIndex::new(0, config.cores),
        cores: config.cores,
        numbers: endpoint.numbers,
    };
    PortAccess::of_all(port, &group, steering).map_err(StartError::Queues)
}

/// Returns a clone of the eventfd that wakes the core; creates it if there is none.
fn event_fd(init: &mut CoreInit) -> io::Result<EventFd> {
    let event_fd = init.event_fd.take().map_or_else(|| EventFd::new(libc::EFD_NONBLOCK), Ok)?;
    init.event_fd.insert(event_fd).try_clone()
}

fn start_all<P: PacketIo + 'static>(
    accesses: Vec<PortAccess<P>>,
    inits: Vec<CoreInit>,
    config: &CoreConfig,
) -> Result<(Handle, Box<[Handle]>), StartError> {
    let mut started: Vec<Handle> = Vec::new();
    for (index, (access, init)) in accesses.into_iter().zip(inits).enumerate() {
        let CoreInit { state, inbox, commands, event_fd } = init;
        let core = Core::new(access, Clock::new(), config.mac, state, inbox);
        let status = Arc::new(CoreStatus::default());
        match Runner::start(core, config, index, &status, event_fd) {
            Ok(runner) => started.push(Handle { commands, runner, status }),
            Err(error) => {
                started.iter_mut().rev().for_each(Handle::stop);
                return Err(error);
            }
        }
    }
    let workers = started.split_off(1).into_boxed_slice();
    Ok((started.remove(0), workers))
}
