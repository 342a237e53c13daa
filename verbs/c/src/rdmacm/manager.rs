//! The thread that receives messages, and repeats what is not answered.

#[cfg(test)]
mod tests;

use crate::rdmacm::datagram;
use crate::rdmacm::device::{Device, device_of, devices, devices_of};
use crate::rdmacm::errno::{Errno, status};
use crate::rdmacm::id::{Connection, Handle, Id, State};
use crate::rdmacm::process::{PerProcess, Process};
use crate::rdmacm::tables::Tables;
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

/// The first of the ports that programs get when they don't ask for one.
const FIRST_PORT: u16 = 32768;

/// Messages that are handled before the timers: a flood must not keep the thread from them.
const BATCH: usize = 64;

/// The longest time that the end of the process waits for the thread that informs all peers.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

struct Manager {
    tables: Mutex<Tables>,
    /// The numbers of identifiers with something new to repeat or to look for. Locked last: programs' calls report here with an identifier
    /// locked.
    changed: Mutex<Vec<u32>>,
    /// Ends a wait of the thread.
    wake: EventFd,
    /// The process whose thread it is; a forked child has none.
    process: u32,
    exit: Mutex<Exit>,
    exited: Condvar,
}

/// The steps at the end of the process, in which all peers are informed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Exit {
    #[default]
    No,
    Asked,
    Done,
}

static MANAGER: PerProcess<Result<Manager, Errno>> = PerProcess::new();

/// The manager, with its thread.
fn manager() -> Result<&'static Manager, Errno> {
    let devices = devices()?;
    let start = || {
        let wake = EventFd::new(libc::EFD_NONBLOCK)?;
        let body = move || {
            // The thread begins before the cell is filled.
            if let Ok(manager) = MANAGER.cell().wait() {
                manager.run(devices);
            }
        };
        signals::spawn("ferroce-cm", body)?;
        // SAFETY: the function is there as long as the library is.
        unsafe { libc::atexit(at_exit) };
        Ok(Manager::new(wake))
    };
    MANAGER.cell().get_or_init(start).as_ref().map_err(|errno| *errno)
}

/// Connections of a process that ends are ended, as Linux ends them when it closes the process's files. The manager's thread does it:
/// the thread that exits may have lost its thread-local storage.
extern "C" fn at_exit() {
    status(|| {
        let Some(Ok(manager)) = MANAGER.cell().get() else { return Ok(()) };
        if manager.process == std::process::id() {
            manager.give_up_all();
        }
        Ok(())
    });
}

/// An unpredictable number.
pub(crate) fn random() -> Result<u32, Errno> {
    getrandom::u32().map_err(|_| Errno(libc::EIO))
}

/// A port for a caller that named none.
pub(crate) fn free_port() -> Result<u16, Errno> {
    Ok(FIRST_PORT + (random()? % u32::from(u16::MAX - FIRST_PORT)) as u16)
}

/// Takes a service for `id`.
pub(crate) fn bind(id: &Id, claim: &Claim) -> Result<(), Errno> {
    hold(claim, |tables| tables.claim(id, claim))
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

/// Takes a service before all other processes, and then before all other identifiers of this one.
fn hold(claim: &Claim, take: impl FnOnce(&mut Tables) -> Result<(), Errno>) -> Result<(), Errno> {
    let manager = manager()?;
    let places = devices_of(claim)?;
    for (at, device) in places.clone().enumerate() {
        device
            .claim(claim)
            .inspect_err(|_| places.clone().take(at).for_each(|device| device.release(claim)))?;
    }
    take(&mut manager.lock()).inspect_err(|_| release(claim))
}

/// Releases what [`hold`] took before other processes.
fn release(claim: &Claim) {
    devices_of(claim).into_iter().flatten().for_each(|device| device.release(claim));
}

/// Gives `id` a number by which the thread finds it.
pub(crate) fn join(id: &Id, connection: &mut Connection) -> Result<(), Errno> {
    if connection.request_id != 0 {
        return Ok(());
    }
    let device = connection.device()?;
    connection.request_id = manager()?.lock().insert(device, id)?;
    Ok(())
}

/// Wakes the thread for an identifier: what it repeats or looks for has changed.
pub(crate) fn look(request_id: u32) {
    if let Ok(manager) = manager() {
        manager.changed.lock().unwrap_or_else(PoisonError::into_inner).push(request_id);
        manager.wake();
    }
}

/// Wakes the thread: a connection's timers may have changed.
pub(crate) fn wake() {
    if let Ok(manager) = manager() {
        manager.wake();
    }
}

/// Reports nothing to `id` any more, and informs its peer that it is gone. The end of a forked process's copy of an identifier is not sent,
/// unless it was used there: the connection is its parent's.
pub(crate) fn leave(id: &Id) {
    let is_used_here = || match MANAGER.cell().get() {
        Some(Ok(manager)) => manager.lock().has(id) || is_linked(id),
        Some(Err(_)) | None => false,
    };
    if id.process != Process::this() && !is_used_here() {
        return;
    }
    let Ok(manager) = manager() else { return };
    let claims = manager.lock().remove(id);
    for claim in &claims {
        for device in devices_of(claim).into_iter().flatten() {
            // The identifier's own handle, which the caller has.
            let _ = device.machine().unlisten(claim);
        }
        release(claim);
    }
    if id.is_datagram() {
        let mut connection = id.lock();
        if connection.state == State::ServiceRequestReceived {
            // A peer that does not receive it asks again, and learns that there is no such service.
            let _ = datagram::answer(id, &mut connection, ServiceStatus::Rejected, 0, &[]);
        }
        return;
    }
    // Without a connection there is no peer.
    let _ = id.act(|machine, local, device| {
        machine.give_up(local, Instant::now(), device);
        Ok(())
    });
}

/// Returns whether a connection of this process is the identifier's.
fn is_linked(id: &Id) -> bool {
    let program = id.with_link(|link| Ok(link.program.as_ref().map(|handle| handle.0)));
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

    /// Asks the thread to inform all peers, and waits for it. A thread that cannot does not delay the process for long.
    fn give_up_all(&self) {
        let mut exit = self.exit.lock().unwrap_or_else(PoisonError::into_inner);
        *exit = Exit::Asked;
        self.wake();
        drop(self.exited.wait_timeout_while(exit, EXIT_TIMEOUT, |exit| *exit != Exit::Done));
    }

    /// Informs all peers if the process ends.
    fn give_up_if_asked(&self, devices: &[Device]) {
        if *self.exit.lock().unwrap_or_else(PoisonError::into_inner) == Exit::Asked {
            devices.iter().for_each(give_up_all);
            *self.exit.lock().unwrap_or_else(PoisonError::into_inner) = Exit::Done;
            self.exited.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, devices: &[Device]) {
        let mut unresolved: Vec<_> = devices.iter().map(|_| Unresolved::default()).collect();
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let descriptors = devices.iter().map(|device| device.descriptor);
        let mut watched: Vec<_> = descriptors.chain([self.wake.as_raw_fd()]).map(watch).collect();
        loop {
            self.give_up_if_asked(devices);
            for (device, unresolved) in devices.iter().zip(&mut unresolved) {
                for (from, mad) in std::iter::from_fn(|| device.receive()).take(BATCH) {
                    receive(device, &self.tables, unresolved, from, &mad);
                }
                for (from, mad) in unresolved.resolved(|peer| device.finds(peer), Instant::now()) {
                    receive(device, &self.tables, unresolved, from, &mad);
                }
            }
            let connections =
                devices.iter().filter_map(|device| device.machine().run_timers(Instant::now(), device));
            let requests = unresolved.iter().filter_map(Unresolved::next);
            let next = connections.chain(requests).chain(self.repeat()).min();
            let wait =
                next.map_or(-1, |next| next.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
            // SAFETY: the descriptors are open, and the array is as long as said.
            unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, wait) };
            // An empty counter is not an error here.
            let _ = self.wake.take();
        }
    }

    /// Repeats the requests for datagrams that are due, and looks for destinations. Returns when the next is due.
    fn repeat(&self) -> Option<Instant> {
        let changed = std::mem::take(&mut *self.changed.lock().unwrap_or_else(PoisonError::into_inner));
        let due = self.lock().due(Instant::now(), changed);
        for due in due {
            let device = device_of(due.source);
            let Some(mad) = &due.mad else {
                let found = device.and_then(|device| device.finds(due.destination));
                self.lock().take_look(&due, found);
                continue;
            };
            match device.and_then(|device| device.send(due.source, due.destination, mad)) {
                Ok(Sent::Left) => {}
                Ok(_) => self.lock().put_off(&due),
                Err(errno) => self.lock().not_found(&due, errno),
            }
        }
        self.lock().next()
    }
}

/// Informs the peers of all connections of a device that this process ends them.
fn give_up_all(device: &Device) {
    let mut machine = device.machine();
    let programs = machine.links().filter(|(_, link)| link.program.is_some());
    let locals: Vec<_> = programs.map(|(local, _)| local).collect();
    locals.into_iter().for_each(|local| machine.give_up(local, Instant::now(), device));
}

/// Handles a message that a device received.
pub(crate) fn receive(
    device: &Device,
    tables: &Mutex<Tables>,
    unresolved: &mut Unresolved,
    from: IpAddr,
    mad: &Mad,
) {
    let lock = || tables.lock().unwrap_or_else(PoisonError::into_inner);
    match message::kind(mad) {
        // A request for a service that this side could not have is not answered.
        Some(Kind::ServiceRequest) => {
            datagram::on_request(device, &mut lock(), unresolved, from, mad).unwrap_or_default();
        }
        Some(Kind::ServiceReply) => datagram::on_reply(device, &lock(), from, mad),
        _ => device.machine().receive(Instant::now(), from, mad, device),
    }
}
