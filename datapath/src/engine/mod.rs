//! The poll-mode core and the rings by which applications reach it.
//!
//! A core owns its port, its endpoint and its neighbours exclusively. Requests reach it by a single-producer ring per
//! work queue with a doorbell bit per queue pair, completions leave by a ring per completion queue, and control calls
//! travel by a channel.

mod adaptive;
mod completion_ring;
mod config;
mod control;
mod core;
mod doorbell;
mod events;
mod filling;
mod follow;
mod link;
mod management;
mod notify;
mod observe;
mod on_demand;
mod qpn_hash;
mod queues;
mod rings;
mod runner;
mod siblings;
mod station;
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
pub use management::{MAD_LENGTH, MAD_UDP_SOURCE, Mad};
pub use notify::{LastEvent, Notifier};
pub use observe::Observed;
pub use rings::{QpRings, SrqRings};
pub use station::{CoreCounters, Station};

use crate::clock::Clock;
use crate::event_fd::EventFd;
use crate::fork::Process;
use crate::io::PacketIo;
use crate::neighbour::{Asked, Kernel, Neighbours, Unresolved};
use crate::siblings::Siblings;
use crossbeam::channel::{Receiver, TryRecvError, bounded};
use roce::Endpoint;
use roce::wire::Mac;
use std::mem::ManuallyDrop;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// How long a caller sleeps between two looks at whether a neighbour has answered.
const RESOLVE_POLL: Duration = Duration::from_micros(200);

/// A handle to a core. Dropping it stops the core and waits until its port is free.
///
/// A process that is forked from the one that started the core inherits none of it: calls fail there, dropping it does nothing, and
/// the parent's core goes on.
pub struct Engine {
    name: String,
    mac: Mac,
    commands: control::Commands,
    /// Whose threads run the core and watch the link.
    process: Process,
    runner: ManuallyDrop<runner::Runner>,
    status: Arc<runner::Status>,
    kernel: Option<Arc<Kernel>>,
    /// The interface's other processes, where the port is on one.
    siblings: ManuallyDrop<Option<Siblings>>,
    interface: Option<u32>,
    subscribers: Arc<events::Subscribers>,
    /// From the first subscriber on.
    link: ManuallyDrop<OnceLock<Option<link::LinkWatch>>>,
}

impl Engine {
    /// Starts a core on `port`.
    ///
    /// # Safety
    /// Whoever registers a region by [`call`](Self::call) keeps its memory valid for reads and writes until the region
    /// is deregistered, or this engine is dropped or has stopped.
    ///
    /// # Errors
    /// Returns an error if the thread cannot be started or pinned, or the interface's neighbours cannot be read.
    pub unsafe fn start<P: PacketIo + 'static>(port: P, config: &CoreConfig) -> Result<Self, StartError> {
        let max_qps = config.endpoint.max_qps as usize;
        if max_qps > doorbell::MAX_SLOTS {
            return Err(StartError::TooManyQps {
                given: config.endpoint.max_qps,
                limit: doorbell::MAX_SLOTS,
            });
        }
        let interface = config.interface.filter(|_| config.vlan.is_none());
        let kernel = interface.map(|index| Kernel::open(index, config.endpoint.numbers)).transpose();
        let kernel = kernel.map_err(|error| StartError::Netlink { port: config.name.clone(), error })?;
        let kernel = kernel.map(|kernel| Arc::new(kernel.without_ours()));
        let mut siblings = siblings::join(config)?;
        let mut endpoint = config.endpoint;
        endpoint.core = siblings.as_ref().map_or(endpoint.core, Siblings::slot);
        let neighbours = match kernel {
            Some(_) => Neighbours::kernels(config.mac, &config.addresses),
            None => Neighbours::own(config.mac, &config.addresses, config.gateway),
        };
        let (commands, inbox) = control::channel();
        let subscribers = Arc::new(events::Subscribers::default());
        // SAFETY: passed on to the caller.
        let mut station =
            unsafe { Station::new(Endpoint::new(endpoint), neighbours, config, subscribers.clone()) };
        station.lanes = siblings.as_ref().map(|siblings| Box::new(siblings.lanes()));
        let core = core::Core::new(port, Clock::new(), config.mac, station, inbox);
        let status = Arc::new(runner::Status::default());
        let bell = siblings.as_ref().map(Siblings::bell).transpose();
        let bell = bell.map_err(|error| siblings::failed(config, error.into()))?;
        let runner = runner::Runner::start(core, config, &status, bell)?;
        if let Some(siblings) = &mut siblings {
            let watched = siblings::watch(siblings, config, &commands, kernel.clone());
            watched.map_err(|error| siblings::failed(config, error.into()))?;
        }
        Ok(Self {
            name: config.name.clone(),
            mac: config.mac,
            commands,
            process: Process::this(),
            runner: ManuallyDrop::new(runner),
            status,
            kernel,
            siblings: ManuallyDrop::new(siblings),
            interface: config.interface,
            subscribers,
            link: ManuallyDrop::default(),
        })
    }

    /// Makes the core run `control` between two turns, and waits for its result.
    ///
    /// # Errors
    /// Returns an error if the core has stopped, or belongs to a process from which this one was forked.
    pub fn call<R: Send + 'static>(
        &self,
        control: impl FnOnce(&mut Station, cc::Instant) -> R + Send + 'static,
    ) -> Result<R, Stopped> {
        self.check_process()?;
        let (reply, answer) = bounded(1);
        let command: control::Command = Box::new(move |station, now| {
            // A caller that no longer waits has no use for the answer.
            let _ = reply.send(control(station, now));
        });
        if !self.commands.send(command) {
            return Err(self.stopped());
        }
        self.wait(&answer)
    }

    /// Looks for the answer again and again, and runs the core meanwhile if that is the caller's to do. A blocking receive would
    /// need the caller's thread-local storage, which is gone while its thread or the process ends.
    fn wait<R>(&self, answer: &Receiver<R>) -> Result<R, Stopped> {
        loop {
            match answer.try_recv() {
                Ok(answer) => return Ok(answer),
                Err(TryRecvError::Disconnected) => return Err(self.stopped()),
                Err(TryRecvError::Empty) if self.runner.turn(&self.status) => {}
                Err(TryRecvError::Empty) => std::thread::yield_now(),
            }
        }
    }

    /// Whether the core runs in a process from which this one was forked.
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
            self.status.announce(last);
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

    /// Joins a multicast group at the port's Linux interface: the kernel tells switches and routers, and the NIC lets its frames pass.
    /// The membership ends when what this returns is dropped. There is nothing to join if the port is on no interface.
    ///
    /// # Errors
    /// Returns the kernel's error: ENODEV if the interface is gone.
    pub fn join(&self, group: IpAddr) -> std::io::Result<Option<crate::fork::Own>> {
        self.interface.map(|index| crate::linux::join_group(index, group)).transpose()
    }

    /// Whether the port's Linux interface has a carrier; true if it has none.
    #[must_use]
    pub fn link_is_up(&self) -> bool {
        self.interface.is_none_or(|index| crate::linux::is_running(index).unwrap_or(false))
    }

    /// Runs one turn of an inline or adaptive core for a polling caller. Returns whether there was work. Does nothing
    /// if a separate thread runs the core, or another caller runs a turn.
    #[inline(always)]
    pub fn progress(&self) -> bool {
        !self.process.is_parent() && self.runner.poll(&self.status)
    }

    /// After a doorbell: an adaptive core whose thread sleeps takes the posts at once. Others see them by themselves.
    #[inline]
    pub fn posted(&self) {
        if let Some(adaptive) = self.adaptive() {
            adaptive.posted(&self.status);
        }
    }

    /// After a single post: an inline core runs a turn, since the caller may have posted its last request and never poll again.
    #[inline]
    pub fn attend(&self) {
        if self.is_inline() {
            self.progress();
        }
    }

    /// Whether only callers run the core: with inline progress, nothing happens while no thread polls.
    #[must_use]
    pub fn is_inline(&self) -> bool {
        matches!(&*self.runner, runner::Runner::Inline(_))
    }

    /// The caller will wait without polling: an adaptive core's thread takes over at once.
    pub fn hand_over(&self) {
        if let Some(adaptive) = self.adaptive() {
            adaptive.hand_over();
        }
    }

    #[inline]
    fn adaptive(&self) -> Option<&adaptive::Adaptive> {
        match &*self.runner {
            runner::Runner::Adaptive(adaptive) if !self.process.is_parent() => Some(adaptive),
            _ => None,
        }
    }

    /// Why the core has stopped, if it has.
    ///
    /// # Errors
    /// Returns `Stopped`, with the reason, if the core has stopped.
    #[inline]
    pub fn check(&self) -> Result<(), Stopped> {
        if self.process.is_parent() || self.status.stopped() {
            self.check_process()?;
            return Err(self.stopped());
        }
        Ok(())
    }

    /// In a child, no thread runs the core, and its locks stay as they were.
    #[cold]
    fn check_process(&self) -> Result<(), Stopped> {
        if self.process.is_parent() {
            let reason = "it runs in the process that this one was forked from; open devices after the fork";
            return Err(Stopped { port: self.name.clone(), reason: reason.into() });
        }
        Ok(())
    }

    /// Waits until the core has released everything, so that the caller may free registered memory after this error.
    #[cold]
    fn stopped(&self) -> Stopped {
        while !self.status.stopped() {
            std::thread::yield_now();
        }
        Stopped { port: self.name.clone(), reason: self.status.reason() }
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
            Ok(Asked::Known(mac)) => Ok(Some(mac)),
            Ok(Asked::Asking) => Ok(None),
            Err(unresolved) => Err(self.unresolved(address, unresolved)),
        }
    }

    /// An inline core goes on while its caller waits.
    fn pause(&self) -> Result<(), Stopped> {
        self.check()?;
        if !self.runner.turn(&self.status) {
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
        self.runner.stop(&self.status);
        // SAFETY: each is dropped here alone, and nothing uses it after this.
        unsafe {
            ManuallyDrop::drop(&mut self.runner);
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
