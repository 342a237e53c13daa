//! Starts the cores of a port.

use super::attributes::Attributes;
use super::config::{CoreConfig, Progress, StartError};
use super::control::Commands;
use super::core::Core;
use super::events::Subscribers;
use super::handle::Handle;
use super::interface_changes::InterfaceChanges;
use super::interface_watch::InterfaceWatch;
use super::others::Others;
use super::runner::{Runner, Status};
use super::station::Station;
use super::team::{Team, Way};
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

struct Begin {
    station: Station,
    inbox: control::Inbox,
    commands: Commands,
    /// The eventfd that ends a sleep of the core.
    bell: Option<EventFd>,
}

impl Engine {
    /// Starts the cores of `port`.
    ///
    /// # Safety
    /// The caller must keep the memory of each region that it registers by [`call_all`](Self::call_all) valid for reads and writes until
    /// the region is deregistered from all cores, or this engine is dropped or has stopped.
    ///
    /// # Errors
    /// Returns an error if there are too many cores or queue pairs, too few CPUs, a thread cannot be started or pinned, or the interface's
    /// neighbours cannot be read.
    pub unsafe fn start<P: PacketIo + 'static>(port: P, config: &CoreConfig) -> Result<Self, StartError> {
        check(config)?;
        let interface = config.interface.filter(|_| config.vlan.is_none());
        let numbers = config.endpoint.numbers;
        let kernel = interface.map(|index| match config.peers {
            Some(peers) => Kernel::of_sockets(index, numbers, peers),
            None => Kernel::open(index, numbers),
        });
        let kernel = kernel.transpose();
        let kernel = kernel.map_err(StartError::Netlink)?;
        let kernel = kernel.map(Arc::new);
        kernel.iter().for_each(|kernel| kernel.drop_ours());
        let mut siblings = siblings::join(config)?;
        let mut endpoint = config.endpoint;
        endpoint.process = siblings.as_ref().map_or(endpoint.process, Siblings::slot);
        let bell = siblings.as_ref().map(Siblings::bell).transpose();
        let bell = bell.map_err(JoinError::from)?;
        let subscribers = Arc::new(Subscribers::default());
        let lanes = siblings.as_ref().map(|siblings| Box::new(siblings.lanes()));
        let mut begins: Vec<_> = (0..config.cores)
            .map(|core| {
                let neighbours = neighbours(core, kernel.is_some(), config);
                let endpoint = Endpoint::of_core(endpoint, CoreIndex::new(core, config.cores));
                // SAFETY: the caller of this function keeps registered memory valid.
                let station = unsafe { Station::new(endpoint, neighbours, config, subscribers.clone()) };
                let (commands, inbox) = control::channel();
                Begin { station, inbox, commands, bell: None }
            })
            .collect();
        if let Some(lead) = begins.first_mut() {
            (lead.station.lanes, lead.bell) = (lanes, bell);
        }
        let ways = match config.cores {
            1 => vec![Way::Alone(port)],
            _ => ways(port, config, &endpoint, &mut begins)?,
        };
        let stray_cores = (0..)
            .zip(&ways)
            .filter(|(_, way)| way.strays_come())
            .fold(0, |cores, (core, _)| cores | 1 << core);
        let queues = 1 + ways.iter().filter(|way| way.has_own_queue()).count() as u8;
        let (lead, members) = start_all(ways, begins, config)?;
        if let Some(siblings) = &mut siblings {
            let watched = siblings::watch(siblings, config, &lead.commands, kernel.clone());
            watched.map_err(JoinError::from)?;
        }
        let gids = GidTable::new(config.mac, config.addresses.iter().map(|address| address.ip));
        let attributes = Arc::new(Attributes::new(gids));
        let states = (attributes.clone(), subscribers.clone());
        let watch = siblings.as_ref().and_then(|siblings| {
            watch_interface(config, siblings, lead.commands.clone(), kernel.clone(), states)
        });
        Ok(Self {
            name: config.name.clone(),
            mac: config.mac,
            lead: ManuallyDrop::new(lead),
            members: ManuallyDrop::new(members),
            stray_cores,
            queues,
            order: Mutex::new(()),
            index: CoreIndex::new(0, config.cores),
            process: Process::this(),
            kernel,
            siblings: ManuallyDrop::new(siblings),
            interface: config.interface,
            subscribers,
            attributes,
            watch: ManuallyDrop::new(watch),
        })
    }
}

/// Makes the port follow its Linux interface. Without that, which is `None`, the port works with the attributes that it has now.
fn watch_interface(
    config: &CoreConfig,
    siblings: &Siblings,
    lead: Commands,
    kernel: Option<Arc<Kernel>>,
    (attributes, subscribers): (Arc<Attributes>, Arc<Subscribers>),
) -> Option<InterfaceWatch> {
    let index = config.interface?;
    let changes = |bell| InterfaceChanges::new(index, config, attributes, subscribers, kernel, (lead, bell));
    let watch = siblings.bell().map(changes).and_then(InterfaceWatch::start);
    watch.inspect_err(|error| tracing::warn!("{}: cannot watch its interface: {error}", config.name)).ok()
}

/// Creates the neighbour table of a core. Only core 0's resolves and answers for addresses.
fn neighbours(core: u8, has_kernel: bool, config: &CoreConfig) -> Neighbours {
    match (core, has_kernel) {
        (0, false) => Neighbours::own(config.mac, &config.addresses, config.gateway),
        (0, true) => Neighbours::kernels(config.mac, &config.addresses).standing_in(config.peers),
        _ => Neighbours::kernels(config.mac, &[]),
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

/// Creates the rings between the cores, and the eventfd of each core.
fn ways<P: PacketIo>(
    port: P,
    config: &CoreConfig,
    endpoint: &EndpointConfig,
    begins: &mut [Begin],
) -> Result<Vec<Way<P>>, StartError> {
    let bells = begins.iter_mut().map(bell).collect::<io::Result<Vec<_>>>().map_err(StartError::Thread)?;
    let team = Arc::new(Team::new(bells));
    let commands: Vec<_> = begins.iter().map(|begin| begin.commands.clone()).collect();
    for (own, begin) in begins.iter_mut().enumerate() {
        begin.station.others = Some(Box::new(Others::new(own, commands.clone(), team.clone())));
    }
    let steering = Steering {
        mac: config.mac,
        process: endpoint.process,
        core: CoreIndex::new(0, config.cores),
        cores: config.cores,
        numbers: endpoint.numbers,
    };
    Way::of_all(port, &team, steering).map_err(StartError::Queues)
}

/// Returns a clone of the eventfd that ends a sleep of the core; creates it if there is none.
fn bell(begin: &mut Begin) -> io::Result<EventFd> {
    let bell = begin.bell.take().map_or_else(|| EventFd::new(libc::EFD_NONBLOCK), Ok)?;
    begin.bell.insert(bell).try_clone()
}

fn start_all<P: PacketIo + 'static>(
    ways: Vec<Way<P>>,
    begins: Vec<Begin>,
    config: &CoreConfig,
) -> Result<(Handle, Box<[Handle]>), StartError> {
    let mut started: Vec<Handle> = Vec::new();
    for (place, (way, begin)) in ways.into_iter().zip(begins).enumerate() {
        let Begin { station, inbox, commands, bell } = begin;
        let core = Core::new(way, Clock::new(), config.mac, station, inbox);
        let status = Arc::new(Status::default());
        match Runner::start(core, config, place, &status, bell) {
            Ok(runner) => started.push(Handle { commands, runner, status }),
            Err(error) => {
                started.iter_mut().rev().for_each(Handle::stop);
                return Err(error);
            }
        }
    }
    let members = started.split_off(1).into_boxed_slice();
    Ok((started.remove(0), members))
}
