//! The poll-mode cores of a port and the rings by which applications reach them.
//!
//! A core owns its endpoint exclusively, and core 0 the port and its neighbours; the module `team` is about ports with several cores.
//! Requests reach a core by a single-producer ring per work queue with a doorbell bit per queue pair, completions leave by a ring per
//! completion queue, and control calls travel by a channel.

mod adaptive;
mod completion_ring;
mod config;
mod control;
mod core;
mod doorbell;
mod doze;
mod events;
mod filling;
mod follow;
mod handle;
mod held;
#[cfg(test)]
mod held_tests;
mod link;
mod management;
mod notify;
mod observe;
mod on_demand;
mod others;
mod qpn_hash;
mod queues;
#[cfg(test)]
mod raw_tests;
mod rings;
mod runner;
mod siblings;
mod start;
mod station;
pub mod team;
#[cfg(all(test, loom))]
mod team_model;
mod team_state;
#[cfg(test)]
mod team_tests;
#[cfg(test)]
mod tests;
mod turn;
mod vlan;
mod wake;
mod work_queue;

pub use completion_ring::CqRing;
pub use config::{CoreConfig, Idle, Progress, ProgressError, ResolveError, StartError, Stopped};
pub use doorbell::{Doorbells, MAX_SLOTS};
pub use events::{AsyncEvent, EventQueue};
pub use handle::Feeders;
pub use management::{MAD_LENGTH, MAD_UDP_SOURCE, Mad};
pub use notify::{LastEvent, Notifier};
pub use observe::Observed;
pub use rings::{QpRings, SrqRings};
pub use station::{CoreCounters, Station};

use crate::event_fd::EventFd;
use crate::fork::Process;
use crate::neighbour::{Asked, Kernel, Unresolved};
use crate::siblings::Siblings;
use roce::CoreIndex;
use roce::wire::Mac;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

/// The time that a caller sleeps before it looks again if a neighbour has answered.
const RESOLVE_POLL: Duration = Duration::from_micros(200);

/// A handle to the cores of a port. Dropping it stops them and waits until the port is free.
///
/// A process that is forked from the one that started the cores inherits none of them: calls fail there, dropping it does nothing, and
/// the parent's cores go on.
pub struct Engine {
    name: String,
    mac: Mac,
    /// Core 0.
    lead: ManuallyDrop<handle::Handle>,
    /// The other cores.
    members: ManuallyDrop<Box<[handle::Handle]>>,
    /// The cores, by bits, whose queues may receive frames of others.
    stray_cores: u32,
    /// The queues of the port.
    queues: u8,
    /// Held while a command is sent to all cores, so that all get such commands in the same order.
    order: Mutex<()>,
    index: CoreIndex,
    /// Whose threads run the cores and watch the link.
    process: Process,
    kernel: Option<Arc<Kernel>>,
    /// The interface's other processes, if the port is on one.
    siblings: ManuallyDrop<Option<Siblings>>,
    interface: Option<u32>,
    subscribers: Arc<events::Subscribers>,
    /// From the first subscriber on.
    link: ManuallyDrop<OnceLock<Option<link::LinkWatch>>>,
}

impl Engine {
    /// Returns true if the core runs in a process from which this one was forked.
    #[must_use]
    pub fn is_inherited(&self) -> bool {
        self.process.is_parent()
    }

    /// The interface's other processes; `None` if the port is not on an interface, or belongs to a process from which this one was
    /// forked.
    #[must_use]
    pub fn siblings(&self) -> Option<&Siblings> {
        self.siblings.as_ref().filter(|_| !self.process.is_parent())
    }

    /// Makes the core wake the readers of `descriptor`, an eventfd, when it ends, for whatever reason: at once if it has ended, or belongs to
    /// a process from which this one was forked.
    #[must_use]
    pub fn last_event(&self, descriptor: Arc<EventFd>) -> Arc<LastEvent> {
        let last = Arc::new(LastEvent::new(descriptor));
        self.announce_end(&last);
        last
    }

    fn announce_end(&self, last: &Arc<LastEvent>) {
        if self.process.is_parent() {
            last.announce();
        } else {
            self.lead.status.announce(last);
        }
    }

    /// Reports what happens from now on to `queue`, and the core's end. The first subscriber has a thread watch the link of the port's Linux
    /// interface, if it has one.
    pub fn subscribe(&self, queue: Arc<EventQueue>) {
        self.announce_end(queue.last());
        if self.process.is_parent() {
            return;
        }
        self.subscribers.add(queue);
        self.link.get_or_init(|| {
            let (name, subscribers) = (self.name.clone(), self.subscribers.clone());
            let watch = self.interface.map(|index| link::LinkWatch::start(name, index, subscribers));
            watch.transpose().unwrap_or_else(|error| {
                tracing::warn!("{}: cannot watch its link: {error}", self.name);
                None
            })
        });
    }

    /// Ends what [`subscribe`](Self::subscribe) began.
    pub fn unsubscribe(&self, queue: &Arc<EventQueue>) {
        if !self.process.is_parent() {
            self.subscribers.remove(queue);
        }
    }

    /// Joins a multicast group at the port's Linux interface: the kernel informs switches and routers, and the NIC lets its frames pass.
    /// The membership ends when the returned value is dropped. There is nothing to join if the port is on no interface.
    ///
    /// # Errors
    /// Returns the kernel's error: ENODEV if the interface is gone.
    pub fn join(&self, group: IpAddr) -> std::io::Result<Option<crate::fork::Own>> {
        self.interface.map(|index| crate::linux::join_group(index, group)).transpose()
    }

    /// Returns true if the port's Linux interface has a carrier, or the port has no such interface.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.interface.is_none_or(|index| crate::linux::is_running(index).unwrap_or(false))
    }

    /// Finds the Ethernet address to which packets for `address` go. Waits for the answer; the datapath does not.
    ///
    /// # Errors
    /// Returns an error if the peer does not answer, there is no route, or the core has stopped.
    pub fn resolve(&self, address: IpAddr) -> Result<Mac, ResolveError> {
        loop {
            match self.look_up(address)? {
                Some(mac) => return Ok(mac),
                None => self.pause()?,
            }
        }
    }

    /// As [`resolve`](Self::resolve), without the wait: `None` while the answer is still to come. Call again then.
    ///
    /// # Errors
    /// As there.
    pub fn look_up(&self, address: IpAddr) -> Result<Option<Mac>, ResolveError> {
        if let Some(mac) = crate::neighbour::group_mac(address) {
            return Ok(Some(mac));
        }
        let asked = match &self.kernel {
            None => self.call(move |station, now| station.neighbours.resolve(now, address))?,
            Some(kernel) => kernel.resolve(address, self.mac),
        };
        match asked {
            Ok(Asked::Known(mac)) => {
                tracing::debug!("{address} is at {mac}");
                Ok(Some(mac))
            }
            Ok(Asked::Asking) => Ok(None),
            Err(unresolved) => Err(self.unresolved(address, unresolved)),
        }
    }

    /// An inline core goes on while its caller waits.
    fn pause(&self) -> Result<(), Stopped> {
        self.check()?;
        if !self.lead.turn() {
            std::thread::sleep(RESOLVE_POLL);
        }
        Ok(())
    }

    fn unresolved(&self, address: IpAddr, unresolved: Unresolved) -> ResolveError {
        let port = self.name.clone();
        match unresolved {
            Unresolved::NoAnswer { asked, tries } => {
                let protocol = if asked.is_ipv4() { "ARP" } else { "neighbour discovery" };
                ResolveError::NoAnswer { address: asked, protocol, port, tries }
            }
            Unresolved::NoRoute(reason) => ResolveError::NoRoute { address, port, reason },
            Unresolved::Exhausted { errno } => ResolveError::Exhausted { address, port, errno },
            Unresolved::TableFull { limit } => ResolveError::Busy { port, limit },
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // A child has the memory of these, and nothing to stop or to wait for.
        if self.process.is_parent() {
            return;
        }
        // The others first: their buffers are the port's.
        self.members.iter_mut().for_each(handle::Handle::stop);
        self.lead.stop();
        // SAFETY: each is dropped here alone, and nothing uses it after this.
        unsafe {
            ManuallyDrop::drop(&mut self.members);
            ManuallyDrop::drop(&mut self.lead);
            ManuallyDrop::drop(&mut self.link);
            ManuallyDrop::drop(&mut self.siblings);
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine").field("port", &self.name).finish_non_exhaustive()
    }
}
