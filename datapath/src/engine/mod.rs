//! The poll-mode cores of a port, and the rings between cores and applications.
//!
//! A core owns its endpoint exclusively, and core 0 also owns the port and its neighbours; for ports with several cores see the module
//! `core_group`. Requests reach a core through a single-producer ring for each work queue and a doorbell bit for each queue pair.
//! Completions reach the application through a ring for each completion queue. Control calls use a channel.

mod adaptive;
mod attributes;
mod burst_builder;
mod completion_ring;
mod config;
mod control;
mod core;
pub mod core_group;
#[cfg(all(test, loom))]
mod core_group_model;
#[cfg(test)]
mod core_group_tests;
mod core_state;
mod delayed_ack;
#[cfg(test)]
mod delayed_ack_tests;
mod doorbell;
mod ending;
mod events;
mod fault;
mod group_state;
mod guard;
mod handle;
mod interface_changes;
mod interface_watch;
mod management;
mod notify;
mod observe;
mod on_demand;
mod other_cores;
mod peer_moves;
mod pending_frames;
#[cfg(test)]
mod pending_frames_tests;
mod port_flows;
#[cfg(test)]
mod port_flows_tests;
mod qpn_hash;
mod queues;
#[cfg(test)]
mod raw_tests;
#[cfg(test)]
mod relay_tests;
mod rings;
mod runner;
mod siblings;
mod sleep_state;
mod start;
#[cfg(test)]
mod tests;
mod turn;
mod vlan;
mod wake;
mod work_queue;

pub use completion_ring::CqRing;
pub use config::{CoreConfig, Idle, Progress, ProgressError, ResolveError, StartError, Stopped};
pub use core_state::{CoreCounters, CoreState};
pub use doorbell::{Doorbells, MAX_SLOTS};
pub use events::{AsyncEvent, EventQueue};
pub use fault::{PortFault, PortFaultError};
pub use guard::guard;
pub use handle::CoreSet;
pub use management::{MAD_LENGTH, MAD_UDP_SOURCE, Mad};
pub use notify::{EndEvent, Notifier};
pub use observe::Observed;
pub use rings::{QpRings, SrqRings};

use crate::event_fd::EventFd;
use crate::fork::Process;
use crate::neighbour::{GidTable, Kernel, Resolution, Unresolved};
use crate::path_mtu::path_mtu;
use crate::siblings::Siblings;
use roce::CoreIndex;
use roce::wire::{Mac, Mtu};
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two checks whether a neighbour has answered.
const RESOLVE_POLL: Duration = Duration::from_micros(200);

/// A handle to the cores of a port. Dropping it stops them and waits until the port is free.
///
/// A forked child does not inherit the cores. There, calls fail and dropping the handle does nothing. The cores of the parent continue.
pub struct Engine {
    name: String,
    mac: Mac,
    main: ManuallyDrop<handle::Handle>,
    workers: ManuallyDrop<Box<[handle::Handle]>>,
    /// A bit for each core whose queue may receive frames of other cores.
    misdirecting_cores: u32,
    queues: u8,
    /// Locked while a command is sent to all cores, so that all receive such commands in the same order.
    order: Mutex<()>,
    index: CoreIndex,
    /// The process whose threads run the cores and watch the interface.
    process: Process,
    kernel: Option<Arc<Kernel>>,
    /// The other processes on the interface, if the port is on one.
    siblings: ManuallyDrop<Option<Siblings>>,
    interface: Option<u32>,
    subscribers: Arc<events::Subscribers>,
    attributes: Arc<attributes::Attributes>,
    changes: Arc<Mutex<interface_changes::InterfaceChanges>>,
    watch: ManuallyDrop<Option<interface_watch::InterfaceWatch>>,
}

impl Engine {
    /// Returns true if the cores run in a process from which this one was forked.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.is_parent()
    }

    /// Returns the other processes on the interface; `None` if the port is not on an interface, or the cores run in a process from which
    /// this one was forked.
    #[must_use]
    pub fn siblings(&self) -> Option<&Siblings> {
        self.siblings.as_ref().filter(|_| !self.process.is_parent())
    }

    /// Makes the core signal `descriptor`, an eventfd, when it ends for any reason. Signals it at once if the core has ended, or runs in a
    /// process from which this one was forked.
    #[must_use]
    pub fn end_event(&self, descriptor: Arc<EventFd>) -> Arc<EndEvent> {
        let end = Arc::new(EndEvent::new(descriptor));
        self.announce_end(&end);
        end
    }

    fn announce_end(&self, end: &Arc<EndEvent>) {
        if self.process.is_parent() {
            end.announce();
        } else {
            self.main.status.announce(end);
        }
    }

    /// Adds future events, and the end of the core, to `queue`.
    pub fn subscribe(&self, queue: Arc<EventQueue>) {
        self.announce_end(queue.end_event());
        if !self.process.is_parent() {
            self.subscribers.add(queue);
        }
    }

    /// Undoes [`subscribe`](Self::subscribe).
    pub fn unsubscribe(&self, queue: &Arc<EventQueue>) {
        if !self.process.is_parent() {
            self.subscribers.remove(queue);
        }
    }

    /// Joins a multicast group on the port's Linux interface: the kernel informs switches and routers, and the NIC accepts its frames.
    /// Dropping the returned value ends the membership. Returns `None` if the port has no interface.
    ///
    /// # Errors
    /// Returns the kernel's error: ENODEV if the interface is gone.
    pub fn join(&self, group: IpAddr) -> std::io::Result<Option<crate::fork::CloseOnFork>> {
        self.interface.map(|index| crate::linux::join_group(index, group)).transpose()
    }

    /// Returns the port's GID table, which follows the addresses of its Linux interface. The table is empty in a process that was forked
    /// from the engine's.
    #[must_use]
    pub fn gids(&self) -> GidTable {
        // Another thread may have held the lock at the fork.
        if self.process.is_parent() { GidTable::default() } else { self.attributes.gids().clone() }
    }

    /// Returns the largest path MTU that the port's Linux interface carries now; `None` if the port has no interface. The port's own limit
    /// may be smaller.
    #[must_use]
    pub fn path_mtu(&self) -> Option<Mtu> {
        self.attributes.ip_mtu().map(path_mtu)
    }

    /// Returns the index of the port's Linux interface.
    #[must_use]
    pub fn interface(&self) -> Option<u32> {
        self.interface
    }

    /// Returns true if no [fault](PortFault) holds the port down, and its Linux interface has a carrier or it has no such interface.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        let has_carrier = |index| crate::linux::interface_at(index).is_ok_and(|it| it.running);
        !self.attributes.is_held_down() && self.interface.is_none_or(has_carrier)
    }

    /// Injects `fault`. When this function returns, the cores have applied it and its events are queued.
    ///
    /// # Errors
    /// Returns an error if the port has no such GID, or its core has ended before.
    pub fn inject(&self, fault: PortFault) -> Result<(), PortFaultError> {
        self.check()?;
        let changes = || self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match fault {
            PortFault::PortDown | PortFault::PortUp => {
                let is_down = fault == PortFault::PortDown;
                // Locked for both steps, so that the cores and the port's state agree if several observers inject at once.
                let mut changes = changes();
                self.call_all(move |state, _| state.is_unplugged = is_down)?;
                changes.hold_down(is_down);
            }
            PortFault::GidRemove(index) => {
                changes().remove_gid(index)?;
                // Returns after core 0 has run the commands of the removal.
                self.call(|_, _| ())?;
            }
            PortFault::DeviceFatal => {
                // Returns an error after all cores have ended.
                let _ = self.call(|_, _| -> () {
                    ending::end_core("ended by an injected fault; open the device again".into())
                });
            }
        }
        Ok(())
    }

    /// Returns the Ethernet address to which packets for `address` are sent. Waits for the answer, without blocking the datapath.
    ///
    /// # Errors
    /// Returns an error if the address does not resolve, there is no route, or the core has stopped.
    pub fn resolve(&self, address: IpAddr) -> Result<Mac, ResolveError> {
        loop {
            match self.look_up(address)? {
                Some(mac) => return Ok(mac),
                None => self.pause()?,
            }
        }
    }

    /// Returns the Ethernet address to which packets for `address` are sent, or `None` while no answer has arrived. The caller then calls
    /// again.
    ///
    /// # Errors
    /// As [`resolve`](Self::resolve).
    pub fn look_up(&self, address: IpAddr) -> Result<Option<Mac>, ResolveError> {
        if let Some(mac) = crate::neighbour::group_mac(address) {
            return Ok(Some(mac));
        }
        let resolution = match &self.kernel {
            None => self.call(move |core_state, now| core_state.neighbours.resolve(now, address))?,
            Some(kernel) => kernel.resolve(address, self.mac),
        };
        match resolution {
            Ok(Resolution::Resolved(mac)) => {
                tracing::debug!("{address} is at {mac}");
                self.meet_processes_at(mac);
                Ok(Some(mac))
            }
            Ok(Resolution::Pending) => Ok(None),
            Err(unresolved) => Err(self.unresolved(address, unresolved)),
        }
    }

    /// Registers processes that have joined the interface with the core, if `mac` is the address that they share with this process. The
    /// core drops frames to a process that it has not registered. The thread that watches the processes may be late.
    fn meet_processes_at(&self, mac: Mac) {
        if let Some(siblings) = self.siblings().filter(|_| mac == self.mac) {
            siblings.meet();
        }
    }

    /// Pauses before the next check: runs a turn if callers run the cores, and sleeps otherwise.
    fn pause(&self) -> Result<(), Stopped> {
        self.check()?;
        if !self.main.turn() {
            std::thread::sleep(RESOLVE_POLL);
        }
        Ok(())
    }

    fn unresolved(&self, address: IpAddr, unresolved: Unresolved) -> ResolveError {
        let port = self.name.clone();
        match unresolved {
            Unresolved::NoAnswer { hop, tries } => {
                let protocol = if hop.is_ipv4() { "ARP" } else { "neighbour discovery" };
                ResolveError::NoAnswer { address: hop, protocol, port, tries }
            }
            Unresolved::NoRoute(reason) => ResolveError::NoRoute { address, port, reason },
            Unresolved::Exhausted { errno } => ResolveError::Exhausted { address, port, errno },
            Unresolved::TableFull { limit } => ResolveError::Busy { port, limit },
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A child has copies of these, and nothing to stop.
        if self.process.is_parent() {
            return;
        }
        // Worker cores first: their buffers belong to the port, which core 0 owns.
        self.workers.iter_mut().for_each(handle::Handle::stop);
        self.main.stop();
        // SAFETY: each is dropped only here, and nothing uses it afterwards.
        unsafe {
            ManuallyDrop::drop(&mut self.workers);
            ManuallyDrop::drop(&mut self.main);
            ManuallyDrop::drop(&mut self.watch);
            ManuallyDrop::drop(&mut self.siblings);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("port", &self.name).finish_non_exhaustive()
    }
}
