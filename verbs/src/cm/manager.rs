//! Connection manager of a device: the state machine, queue pair 1, and the thread that receives messages and repeats unanswered ones.
//!
//! It exists while the device has a listener or a connection of this module.

use super::machine::message::{Mad, Sent};
use super::machine::{CmConnection, Environment, Event, Machine, State};
use crate::channel::event_fd;
use crate::device::{Inner, random};
use crate::management::ManagementPort;
use crate::{Device, Error, Qpn};
use datapath::event_fd::EventFd;
use datapath::neighbour::link_local;
use datapath::siblings::Siblings;
use datapath::signals;
use std::collections::VecDeque;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

pub(crate) type Connections = Machine<ManagementPort>;

const BACKLOG: usize = 1024;

/// Maximum number of messages handled before the timers, so that many messages do not delay the timers.
const BATCH: usize = 64;

/// The slot for a device's manager.
#[derive(Default)]
pub(crate) struct ManagerSlot(Mutex<Option<Running>>);

impl std::fmt::Debug for ManagerSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Place")
    }
}

struct Running {
    manager: Arc<Manager>,
    thread: JoinHandle<()>,
    references: usize,
}

pub(crate) struct Manager {
    port: ManagementPort,
    device: Arc<Inner>,
    machine: Mutex<Connections>,
    wake: Arc<EventFd>,
    stop: AtomicBool,
}

/// A reference to a device's manager. Dropping the last one stops the manager.
pub(crate) struct ManagerRef {
    // Dropped before `_stop`, so that the manager no longer exists when its slot is free.
    manager: Arc<Manager>,
    _stop: StopWithLast,
}

impl std::fmt::Debug for ManagerRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("ManagerRef").field(&self.manager.device.info.port).finish()
    }
}

struct StopWithLast(Arc<Inner>);

/// Returns an error in a forked child, which has neither the manager's thread nor its queue pairs. Another thread of the parent may have
/// held a lock.
fn check_process(device: &Inner) -> Result<(), Error> {
    if device.engine.is_inherited() { Ok(device.engine.check()?) } else { Ok(()) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for StopWithLast {
    fn drop(&mut self) {
        if check_process(&self.0).is_err() {
            return;
        }
        let mut place = lock(&self.0.manager.0);
        if let Some(running) = place.as_mut() {
            running.references -= 1;
        }
        if let Some(running) = place.take_if(|running| running.references == 0) {
            running.manager.stop.store(true, Ordering::Release);
            running.manager.wake.signal();
            // Fails if the thread has panicked.
            let _ = running.thread.join();
        }
    }
}

impl ManagerRef {
    /// Returns a reference to the device's manager. Starts the manager if there is none.
    pub(crate) fn new(device: &Arc<Inner>) -> Result<Self, Error> {
        check_process(device)?;
        let mut place = lock(&device.manager.0);
        let running = match place.take() {
            Some(running) => running,
            None => Running::start(device)?,
        };
        let running = place.insert(running);
        running.references += 1;
        Ok(Self { manager: running.manager.clone(), _stop: StopWithLast(device.clone()) })
    }

    pub(crate) fn device(&self) -> &Arc<Inner> {
        &self.manager.device
    }

    fn machine(&self) -> Result<MutexGuard<'_, Connections>, Error> {
        check_process(self.device())?;
        Ok(lock(&self.manager.machine))
    }

    /// Runs `act` on the state machine, and wakes the thread, because the next timer may be due earlier now.
    ///
    /// # Errors
    /// Returns an error in a forked process.
    pub(crate) fn act<R>(
        &self,
        act: impl FnOnce(&mut Connections, Instant, &ManagementPort) -> R,
    ) -> Result<R, Error> {
        let result = act(&mut *self.machine()?, Instant::now(), &self.manager.port);
        self.manager.wake.signal();
        Ok(result)
    }

    /// Calls `ready`, and calls it again if a turn of an inline core made progress.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub(crate) fn poll_ready<R>(
        &self,
        mut ready: impl FnMut(&mut Connections) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        if let Some(result) = ready(&mut *self.machine()?) {
            return Ok(Some(result));
        }
        let engine = &self.manager.device.engine;
        engine.check()?;
        // Runs one turn only, because under steady traffic every turn makes progress.
        Ok(if engine.progress() { ready(&mut *self.machine()?) } else { None })
    }

    /// Waits until `ready` returns a value. `event_fd` is signalled after each change of the connection or listener.
    ///
    /// # Errors
    /// Returns an error if the core has stopped.
    pub(crate) fn wait<R>(
        &self,
        event_fd: &EventFd,
        mut ready: impl FnMut(&mut Connections) -> Option<R>,
    ) -> Result<R, Error> {
        loop {
            if let Some(result) = self.wait_until(event_fd, None, &mut ready)? {
                return Ok(result);
            }
        }
    }

    /// Waits as [`wait`](Self::wait) does, but at most until `until`. Returns `None` after that time.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub(crate) fn wait_until<R>(
        &self,
        event_fd: &EventFd,
        until: Option<Instant>,
        mut ready: impl FnMut(&mut Connections) -> Option<R>,
    ) -> Result<Option<R>, Error> {
        loop {
            if let Some(result) = self.poll_ready(&mut ready)? {
                return Ok(Some(result));
            }
            if until.is_some_and(|until| until <= Instant::now()) {
                return Ok(None);
            }
            if self.sleeps() {
                sleep([event_fd.as_raw_fd()], until);
            } else {
                std::thread::yield_now();
            }
        }
    }

    /// Returns whether the caller may sleep because another thread runs the core. Hands the core over to that thread.
    pub(super) fn sleeps(&self) -> bool {
        let engine = &self.manager.device.engine;
        engine.hand_over();
        !engine.is_inline()
    }
}

impl Running {
    fn start(device: &Arc<Inner>) -> Result<Self, Error> {
        let info = &device.info;
        let mut guid = [0; 8];
        guid.copy_from_slice(&link_local(info.mac).octets()[8..]);
        let manager = Arc::new(Manager {
            port: Device { inner: device.clone() }.open_management()?,
            device: device.clone(),
            machine: Mutex::new(Machine::new(guid, info.mtu.code(), info.limits.max_rd_atomic)),
            wake: event_fd(libc::EFD_NONBLOCK)?,
            stop: AtomicBool::new(false),
        });
        let body = manager.clone();
        let thread = signals::spawn("ferroce-cm", move || body.run());
        let thread = thread.map_err(|error| Error::port(&info.port, error))?;
        Ok(Self { manager, thread, references: 0 })
    }
}

impl Manager {
    fn run(&self) {
        while !self.stop.load(Ordering::Acquire) {
            let Ok(next) = self.turn() else {
                // The core has stopped. Each woken call returns that error.
                return signal_all(&lock(&self.machine));
            };
            sleep([self.port.as_raw_fd(), self.wake.as_raw_fd()], next);
            // The counter may be 0.
            let _ = self.wake.take();
        }
    }

    /// Handles received messages and due timers. Returns when the next timer is due.
    fn turn(&self) -> Result<Option<Instant>, Error> {
        let mut machine = lock(&self.machine);
        machine.mtu = self.device.path_mtu().code();
        for _ in 0..BATCH {
            let Some((from, mad)) = self.port.receive()? else { break };
            machine.receive(Instant::now(), from, &mad, &self.port);
        }
        Ok(machine.run_timers(Instant::now(), &self.port))
    }
}

/// Communication ids of the requests that the program has not accepted.
#[derive(Debug)]
pub struct Backlog {
    pub(super) requests: VecDeque<u32>,
    /// A semaphore that counts the requests.
    event_fd: Arc<EventFd>,
}

impl Backlog {
    pub(super) fn new(event_fd: Arc<EventFd>) -> Self {
        Self { requests: VecDeque::new(), event_fd }
    }

    fn is_full(&self) -> bool {
        self.requests.len() >= BACKLOG
    }

    fn push(&mut self, local: u32) {
        self.requests.push_back(local);
        self.event_fd.signal();
    }

    /// Removes the oldest request, with the descriptor that `event_fd` creates. If `event_fd` fails, the request remains queued.
    pub(super) fn take(
        &mut self,
        event_fd: impl FnOnce() -> Result<Arc<EventFd>, Error>,
    ) -> Option<Result<(u32, Arc<EventFd>), Error>> {
        let local = *self.requests.front()?;
        Some(event_fd().map(|event_fd| {
            // The counter may be 0.
            let _ = self.event_fd.take();
            self.requests.pop_front();
            (local, event_fd)
        }))
    }
}

/// The program's data of one connection.
#[derive(Debug, Default)]
pub struct ConnectionNotifier {
    /// Becomes readable with each change of the state. `None` until the program accepts the peer's request, because queued requests must
    /// not exhaust the process's descriptors.
    pub(super) event_fd: Option<Arc<EventFd>>,
    /// Reason why the peer was not found.
    pub(super) error: Option<Error>,
}

impl Environment for ManagementPort {
    type Error = Error;
    type Connection = ConnectionNotifier;
    type Listener = Backlog;

    const MRA_RESTARTS_TIMEOUT: bool = false;

    fn send(&self, from: IpAddr, to: IpAddr, mad: &Mad) -> Result<Sent, Error> {
        ManagementPort::send(self, from, to, *mad)
    }

    fn poll_resolution(&self, peer: IpAddr) -> Result<bool, Error> {
        ManagementPort::poll_resolution(self, peer)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        self.gids().contains(address)
    }

    fn random(&self) -> Result<u32, Error> {
        random().map(u32::from_ne_bytes)
    }

    fn too_long(&self, length: usize, limit: usize) -> Error {
        let shorter = format!("at most {limit} bytes; send the rest over the connection");
        Error::value("the length of private data", length, shorter)
    }

    fn siblings(&self) -> Option<&Siblings> {
        ManagementPort::siblings(self)
    }

    fn is_full(&self, listener: &Backlog) -> bool {
        listener.is_full()
    }

    fn on_request(
        &self,
        listener: &mut Backlog,
        local: u32,
        connection: &mut CmConnection<ConnectionNotifier>,
    ) -> Result<(), Error> {
        connection.program = Some(ConnectionNotifier::default());
        listener.push(local);
        Ok(())
    }

    fn report(&self, connection: &mut CmConnection<ConnectionNotifier>, event: Event<Error>) {
        if let State::Ended(_) = connection.state
            && let Some(qpn) = connection.qpn.take()
        {
            // The program may have destroyed the queue pair.
            let _ = self.end(Qpn::new(qpn));
        }
        let Some(notifier) = &mut connection.program else { return };
        if let Event::NotFound(error) = event {
            notifier.error = Some(error);
        }
        notifier.event_fd.iter().for_each(|event_fd| event_fd.signal());
    }
}

/// Wakes all waiting calls, since the core has stopped.
fn signal_all(machine: &Connections) {
    let notifiers =
        machine.connections().filter_map(|(_, connection)| connection.program.as_ref()?.event_fd.as_ref());
    notifiers.for_each(|event_fd| event_fd.signal());
    machine.listeners.iter().for_each(|listening| listening.program.event_fd.signal());
}

/// Sleeps until a descriptor is readable or `until` has passed, at most 60 s.
fn sleep<const N: usize>(descriptors: [RawFd; N], until: Option<Instant>) {
    let mut watched = descriptors.map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
    let wait = until.map_or(-1, |until| {
        until.saturating_duration_since(Instant::now()).as_millis().min(60_000) as libc::c_int + 1
    });
    // SAFETY: the array has `N` elements, and poll reports a closed descriptor in `revents`.
    unsafe { libc::poll(watched.as_mut_ptr(), N as libc::nfds_t, wait) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_stays_until_there_is_a_descriptor_for_it() {
        let mut backlog = Backlog::new(event_fd(libc::EFD_NONBLOCK | libc::EFD_SEMAPHORE).unwrap());
        backlog.push(7);
        let none = || Err(Error::Descriptor(std::io::Error::other("none left")));
        assert!(backlog.take(none).unwrap().is_err());
        assert_eq!(backlog.take(|| event_fd(libc::EFD_NONBLOCK)).unwrap().unwrap().0, 7);
        assert!(backlog.take(|| event_fd(libc::EFD_NONBLOCK)).is_none());
    }
}
