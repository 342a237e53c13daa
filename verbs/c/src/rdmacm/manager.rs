//! The thread that receives messages, and repeats unanswered ones.

#[cfg(test)]
mod tests;

use crate::abi::RDMA_CM_EVENT_DEVICE_REMOVAL;
use crate::rdmacm::datagram;
use crate::rdmacm::device::{Device, devices, devices_of};
use crate::rdmacm::errno::{Errno, status};
use crate::rdmacm::id::{Connection, Handle, Id, State};
use crate::rdmacm::process::{PerProcess, Process};
use crate::rdmacm::tables::{Claimed, Tables};
use datapath::event_fd::EventFd;
use datapath::siblings::Claim;
use datapath::signals;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use verbs::cm::machine::message::service::ServiceStatus;
use verbs::cm::machine::message::{self, Kind, Mad, Sent};
use verbs::cm::machine::unresolved::Unresolved;

/// First port for programs that do not choose one.
const FIRST_PORT: u16 = 32768;

/// Maximum number of messages handled before the timers, so that many messages do not delay the timers.
const BATCH: usize = 64;

/// Longest time for which exit(3) waits until the thread has ended all connections.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

struct Manager {
    tables: Mutex<Tables>,
    /// Keys of the identifiers whose request or query has changed. Locked last, because calls of programs add keys while they have locked
    /// an identifier.
    changed: Mutex<Vec<u32>>,
    wake: EventFd,
    /// The process with the thread. A forked child has no thread.
    process: u32,
    exit: Mutex<Exit>,
    exited: Condvar,
}

/// The steps of ending all connections when the process exits.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Exit {
    #[default]
    No,
    Requested,
    Done,
}

static MANAGER: PerProcess<Result<Manager, Errno>> = PerProcess::new();

/// Returns the manager. Starts its thread if it is not running.
fn manager() -> Result<&'static Manager, Errno> {
    let devices = devices()?;
    let start = || {
        let wake = EventFd::new(libc::EFD_NONBLOCK)?;
        let body = move || {
            // The thread may run before the cell is initialized.
            if let Ok(manager) = MANAGER.cell().wait() {
                manager.run(devices);
            }
        };
        signals::spawn("ferroce-cm", body)?;
        // SAFETY: the function exists as long as the library does.
        unsafe { libc::atexit(at_exit) };
        Ok(Manager::new(wake))
    };
    MANAGER.cell().get_or_init(start).as_ref().map_err(|errno| *errno)
}

/// Ends the connections of a process that exits, as Linux does when it closes the process's files. The manager's thread ends them, because
/// the thread that exits may have lost its thread-local storage.
extern "C" fn at_exit() {
    status(|| {
        let Some(Ok(manager)) = MANAGER.cell().get() else { return Ok(()) };
        if manager.process == std::process::id() {
            manager.abandon_all();
        }
        Ok(())
    });
}

pub(crate) fn random() -> Result<u32, Errno> {
    getrandom::u32().map_err(|_| Errno(libc::EIO))
}

/// Returns a random port from 32768.
pub(crate) fn free_port() -> Result<u16, Errno> {
    Ok(FIRST_PORT + (random()? % u32::from(u16::MAX - FIRST_PORT)) as u16)
}

pub(crate) fn bind(id: &Id, claim: &Claim) -> Result<(), Errno> {
    claim_everywhere(claim, |tables, device| tables.claim(id, claim, device))
}

/// Directs requests for a service to `id`.
pub(crate) fn listen(id: &Id, claim: &Claim) -> Result<(), Errno> {
    bind(id, claim)?;
    if !id.is_datagram() {
        for device in devices_of(claim)? {
            device.machine().listen(*claim, id.is_target(), Handle(id.abi().cast()));
        }
    }
    Ok(())
}

/// Claims a service among all processes of the interface, and then among the identifiers of this one.
fn claim_everywhere(
    claim: &Claim,
    take: impl FnOnce(&mut Tables, Option<&'static Device>) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let manager = manager()?;
    let places = devices_of(claim)?;
    for (at, device) in places.clone().enumerate() {
        device
            .claim(claim)
            .inspect_err(|_| places.clone().take(at).for_each(|device| device.release(claim)))?;
    }
    let device = places.clone().next().filter(|_| !claim.at.is_unspecified());
    take(&mut manager.lock(), device).inspect_err(|_| places.for_each(|device| device.release(claim)))
}

/// Registers `id` with a key by which the thread finds it.
pub(crate) fn join(id: &Id, connection: &mut Connection) -> Result<(), Errno> {
    if connection.request_id != 0 {
        return Ok(());
    }
    let device = connection.device()?;
    connection.request_id = manager()?.lock().insert(device, id)?;
    Ok(())
}

/// Wakes the thread for an identifier whose request or query has changed.
pub(crate) fn schedule(request_id: u32) {
    if let Ok(manager) = manager() {
        manager.changed.lock().unwrap_or_else(PoisonError::into_inner).push(request_id);
        manager.wake();
    }
}

/// Wakes the thread, because a connection's timers may have changed.
pub(crate) fn wake() {
    if let Ok(manager) = manager() {
        manager.wake();
    }
}

/// Stops reporting to `id`, and ends its connection. Sends no message for an identifier that a forked child has inherited, unless the child
/// has used it: the connection is its parent's.
pub(crate) fn leave(id: &Id) {
    let is_used_here = || match MANAGER.cell().get() {
        Some(Ok(manager)) => manager.lock().has(id) || has_connection(id),
        Some(Err(_)) | None => false,
    };
    if id.process != Process::this() && !is_used_here() {
        return;
    }
    let Ok(manager) = manager() else { return };
    let claims = manager.lock().remove(id);
    for Claimed { claim, device, .. } in &claims {
        let all = devices().ok().filter(|_| device.is_none());
        for device in all.into_iter().flatten().chain(*device) {
            // The machine returns the identifier's own handle, which the caller already has.
            let _ = device.machine().unlisten(claim);
            device.release(claim);
        }
    }
    if id.is_datagram() {
        let mut connection = id.lock();
        if connection.state == State::ServiceRequestReceived {
            // A peer that does not receive the answer repeats its request, which is then refused.
            let _ = datagram::answer(id, &mut connection, ServiceStatus::Rejected, 0, &[]);
        }
        return;
    }
    // Fails if there is no connection, and then there is no peer.
    let _ = id.act(|machine, local, device| {
        machine.abandon(local, Instant::now(), device);
        Ok(())
    });
}

/// Returns whether the identifier has a connection of this process.
fn has_connection(id: &Id) -> bool {
    let program =
        id.with_cm_connection(|cm_connection| Ok(cm_connection.program.as_ref().map(|handle| handle.0)));
    program.is_ok_and(|program| program.is_some_and(|program| std::ptr::eq(program, id)))
}

impl Manager {
    fn new(wake: EventFd) -> Self {
        Self {
            tables: Mutex::default(),
            changed: Mutex::default(),
            wake,
            process: std::process::id(),
            exit: Mutex::default(),
            exited: Condvar::new(),
        }
    }

    fn wake(&self) {
        self.wake.signal();
    }

    /// Requests the end of all connections from the thread, and waits for at most [`EXIT_TIMEOUT`].
    fn abandon_all(&self) {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        *exit = Exit::Requested;
        self.wake();
        drop(self.exited.wait_timeout_while(exit, EXIT_TIMEOUT, |exit| *exit != Exit::Done));
    }

    /// Ends all connections if the process is exiting.
    fn abandon_all_if_requested(&self, devices: &[Device]) {
        if *self.exit.lock().unwrap_or_else(PoisonError::into_inner) == Exit::Requested {
            devices.iter().for_each(abandon_all);
            *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Exit::Done;
            self.exited.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, devices: &[Device]) {
        let mut unresolved: Vec<_> = devices.iter().map(|_| Unresolved::default()).collect();
        let mut working: Vec<_> = devices.iter().collect();
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let descriptors = devices.iter().map(|device| device.descriptor);
        let mut watched: Vec<_> = descriptors.chain([self.wake.as_raw_fd()]).map(watch).collect();
        loop {
            self.abandon_all_if_requested(devices);
            for (device, unresolved) in devices.iter().zip(&mut unresolved) {
                for (from, mad) in std::iter::from_fn(|| device.receive()).take(BATCH) {
                    receive(device, &self.tables, unresolved, from, &mad);
                }
                for (from, mad) in unresolved.resolved(|peer| device.poll_resolution(peer), Instant::now()) {
                    receive(device, &self.tables, unresolved, from, &mad);
                }
            }
            // After `receive`, which returns no datagrams once the device has stopped.
            working
                .extract_if(.., |device| device.management.has_ended())
                .for_each(|device| self.remove(device));
            let connections =
                devices.iter().filter_map(|device| device.machine().run_timers(Instant::now(), device));
            let requests = unresolved.iter().filter_map(Unresolved::next);
            let next = connections.chain(requests).chain(self.repeat()).min();
            let wait =
                next.map_or(-1, |next| next.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
            // SAFETY: the descriptors are open, and the array has `watched.len()` elements.
            unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, wait) };
            // The counter may be 0.
            let _ = self.wake.take();
        }
    }

    /// Reports the end of a device to all its identifiers, as Linux does (`cma_process_remove`).
    fn remove(&self, device: &Device) {
        let reported = self.lock().remove_device(device);
        for (_, cm_connection) in device.machine().connections() {
            if let Some(Handle(id)) = cm_connection.program
                && !reported.contains(&id)
            {
                // SAFETY: an identifier with a connection is alive while the machine is locked.
                unsafe { &*id }.report(RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
            }
        }
    }

    /// Repeats the datagram requests that are due, and checks whether destinations are resolved. Returns when the next action is due.
    fn repeat(&self) -> Option<Instant> {
        let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        let due = self.lock().due(Instant::now(), changed);
        for due in due {
            let device = due.device;
            let Some(mad) = &due.mad else {
                let found = device.and_then(|device| device.poll_resolution(due.destination));
                self.lock().on_check(&due, found);
                continue;
            };
            match device.and_then(|device| device.send(due.source, due.destination, mad)) {
                Ok(Sent::Done) => {}
                Ok(_) => self.lock().postpone(&due),
                Err(errno) => self.lock().not_found(&due, errno),
            }
        }
        self.lock().next()
    }
}

/// Ends the connections of a device that programs have.
fn abandon_all(device: &Device) {
    let mut machine = device.machine();
    let programs = machine.connections().filter(|(_, cm_connection)| cm_connection.program.is_some());
    let locals: Vec<_> = programs.map(|(local, _)| local).collect();
    locals.into_iter().for_each(|local| machine.abandon(local, Instant::now(), device));
}

pub(crate) fn receive(
    device: &Device,
    tables: &Mutex<Tables>,
    unresolved: &mut Unresolved,
    from: IpAddr,
    mad: &Mad,
) {
    let lock = || tables.lock().unwrap_or_else(PoisonError::into_inner);
    match message::kind(mad) {
        // A request for a service that this side cannot provide is not answered.
        Some(Kind::ServiceRequest) => {
            datagram::on_request(device, &mut lock(), unresolved, from, mad).unwrap_or_default();
        }
        Some(Kind::ServiceReply) => datagram::on_reply(device, &lock(), from, mad),
        _ => {
            let mut machine = device.machine();
            machine.mtu = device.mtu();
            machine.receive(Instant::now(), from, mad, device);
        }
    }
}
