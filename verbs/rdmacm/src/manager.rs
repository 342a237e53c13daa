//! The thread that takes messages in, and repeats what is not answered.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::admit;
use crate::connect::PATIENCE;
use crate::datagram;
use crate::device::{Device, device_of, devices};
use crate::errno::{Errno, INVALID, last, status};
use crate::events::{Parameters, Waiting};
use crate::id::{Connection, Id, State};
use crate::message::{self, Kind, Mad, PeerMessage, Reason, Sent};
use crate::process::{PerProcess, Process};
use crate::service::ServiceStatus;
use crate::siblings::Held;
use crate::strangers::Strangers;
use crate::tables::{Place, Tables};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The first of the ports that programs get when they don't ask for one.
const FIRST_PORT: u16 = 32768;

/// Messages that are taken in before due ones are looked at: a flood must not prevent that.
const BATCH: usize = 64;

/// The longest time that the end of the process waits for the thread that informs all peers.
const PARTING: Duration = Duration::from_secs(1);

/// Twice a packet's longest way, as Linux takes it for Ethernet (4.096 µs × 2¹⁷).
const TIME_WAIT: Duration = Duration::from_millis(1074);

struct Manager {
    tables: Mutex<Tables>,
    /// The communication ids of connections with something new to send, repeat or wait for. Locked last: programs' calls report
    /// here with a connection locked.
    changed: Mutex<Vec<u32>>,
    /// Ends a wait of the thread.
    wake: OwnedFd,
    /// The process whose thread it is; a forked child has none.
    process: u32,
    parting: Mutex<Parting>,
    parted: Condvar,
}

/// The steps at the end of the process, in which all peers are informed.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Parting {
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
        // SAFETY: eventfd takes plain numbers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(last());
        }
        // SAFETY: a fresh descriptor with no other owner.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let body = move || {
            // The thread begins before the cell is filled.
            if let Ok(manager) = MANAGER.cell().wait() {
                manager.run(devices);
            }
        };
        let thread = std::thread::Builder::new().name("ferroce-cm".into());
        let spawned = with_signals_blocked(|| thread.spawn(body));
        spawned.map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
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
            manager.part();
        }
        Ok(())
    });
}

/// Runs `f` with all signals blocked but those of faults, which the thread that it starts inherits. Signals are the program's: its
/// threads take them.
fn with_signals_blocked<T>(f: impl FnOnce() -> T) -> T {
    // SAFETY: both sets are filled before they are used, and only this thread's mask changes.
    unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        for fault in [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS] {
            libc::sigdelset(&mut all, fault);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        let result = f();
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// An unpredictable number.
pub(crate) fn random() -> Result<u32, Errno> {
    getrandom::u32().map_err(|_| Errno(libc::EIO))
}

/// A port for a caller that named none.
pub(crate) fn free_port() -> Result<u16, Errno> {
    Ok(FIRST_PORT + (random()? % u32::from(u16::MAX - FIRST_PORT)) as u16)
}

/// Takes a service at a place for `id`.
pub(crate) fn take(id: &Id, service: u64, place: Place) -> Result<(), Errno> {
    hold(&place.held(service, false), |tables| tables.take(id, service, place))
}

/// Directs requests for a service at a place to `id`.
pub(crate) fn listen(id: &Id, service: u64, place: Place) -> Result<(), Errno> {
    hold(&place.held(service, true), |tables| tables.listen(id, service, place))
}

/// Takes a service before all other processes, and then before all other identifiers of this one.
fn hold(held: &Held, take: impl FnOnce(&mut Tables) -> Result<(), Errno>) -> Result<(), Errno> {
    let manager = manager()?;
    let places = held.devices()?;
    for (at, device) in places.clone().enumerate() {
        device
            .claim(held)
            .inspect_err(|_| places.clone().take(at).for_each(|device| device.release(held)))?;
    }
    take(&mut manager.lock()).inspect_err(|_| release(held))
}

/// Releases what [`hold`] took before other processes.
fn release(held: &Held) {
    held.devices().into_iter().flatten().for_each(|device| device.release(held));
}

/// Gives `id` a communication id, and has its messages repeated.
pub(crate) fn join(id: &Id, connection: &mut Connection) -> Result<(), Errno> {
    if connection.local != 0 {
        return Ok(());
    }
    let device = connection.device()?;
    connection.local = manager()?.lock().insert(device, id)?;
    Ok(())
}

/// Wakes the manager's thread for a connection: what it repeats or waits for has changed.
pub(crate) fn look(local: u32) {
    if let Ok(manager) = manager() {
        manager.changed.lock().unwrap_or_else(PoisonError::into_inner).push(local);
        manager.wake();
    }
}

/// Reports nothing to `id` any more, and informs its peer that it is gone. The end of a forked process's copy of an identifier is not sent,
/// unless it was used there: the connection is its parent's.
pub(crate) fn leave(id: &Id) {
    let is_used_here = || match MANAGER.cell().get() {
        Some(Ok(manager)) => manager.lock().has(id),
        Some(Err(_)) | None => false,
    };
    if id.process != Process::this() && !is_used_here() {
        return;
    }
    let Ok(manager) = manager() else { return };
    let held = manager.lock().remove(id);
    held.iter().for_each(release);
    let mut connection = id.lock();
    if id.is_datagram() {
        if connection.state == State::RequestCame {
            // A peer that does not receive it asks again, and learns that there is no such service.
            let _ = datagram::answer(id, &mut connection, ServiceStatus::Rejected, 0, &[]);
        }
        return;
    }
    connection.part();
}

impl Connection {
    /// The device of its own address.
    pub(crate) fn device(&self) -> Result<&'static Device, Errno> {
        device_of(self.source.ok_or(INVALID)?.ip())
    }

    /// Informs the peer that this side gives the connection up, if the peer waits for this side.
    pub(crate) fn part(&self) {
        let Ok(device) = self.device() else { return };
        device.forget(self.local);
        let Self { transaction, local, remote, .. } = *self;
        let reject = |reason| message::reject(transaction, local, remote, reason, device.guid);
        let farewell = match self.state {
            State::RequestSent => reject(Reason::Timeout),
            State::RequestCame => reject(Reason::Consumer),
            State::Established | State::ReplySent | State::ReplyCame => self.disconnect_request(),
            _ => return,
        };
        if let Ok((source, destination)) = self.addresses() {
            // A peer that does not receive it finds out by itself.
            let _ = device.send(source, destination, &farewell);
        }
    }
}

impl Manager {
    fn new(wake: OwnedFd) -> Self {
        Self {
            tables: Mutex::default(),
            changed: Mutex::default(),
            wake,
            process: std::process::id(),
            parting: Mutex::default(),
            parted: Condvar::new(),
        }
    }

    fn wake(&self) {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of an array.
        unsafe { libc::write(self.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Asks the thread to notify all peers, and waits for it. A thread that cannot does not delay the process for long.
    fn part(&self) {
        let mut parting = self.parting.lock().unwrap_or_else(PoisonError::into_inner);
        *parting = Parting::Asked;
        self.wake();
        drop(self.parted.wait_timeout_while(parting, PARTING, |parting| *parting != Parting::Done));
    }

    /// Informs all peers if the process ends.
    fn part_if_asked(&self) {
        if *self.parting.lock().unwrap_or_else(PoisonError::into_inner) == Parting::Asked {
            self.lock().part();
            *self.parting.lock().unwrap_or_else(PoisonError::into_inner) = Parting::Done;
            self.parted.notify_all();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, devices: &[Device]) {
        let mut strangers: Vec<_> = devices.iter().map(|_| Strangers::default()).collect();
        let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let descriptors = devices.iter().map(|device| device.descriptor);
        let mut watched: Vec<_> = descriptors.chain([self.wake.as_raw_fd()]).map(watch).collect();
        loop {
            self.part_if_asked();
            for (device, strangers) in devices.iter().zip(&mut strangers) {
                for (from, mad) in std::iter::from_fn(|| device.receive()).take(BATCH) {
                    take_in(device, &mut self.lock(), strangers, from, &mad);
                }
                for (from, mad) in strangers.look(|peer| device.finds(peer), Instant::now()) {
                    take_in(device, &mut self.lock(), strangers, from, &mad);
                }
            }
            let next = strangers.iter().filter_map(Strangers::next).chain(self.repeat()).min();
            let wait =
                next.map_or(-1, |next| next.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
            let mut count = [0_u8; 8];
            // SAFETY: the descriptors are open, and the arrays are as long as said.
            unsafe {
                libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, wait);
                libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len());
            }
        }
    }

    /// Repeats the messages that are due, and looks for destinations. Returns when the next is due.
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
                Ok(Sent::Asking) => self.lock().put_off(&due),
                Err(errno) => self.lock().not_found(&due, errno),
            }
        }
        self.lock().next()
    }
}

/// The peer doesn't answer.
pub(crate) fn give_up(id: &Id, connection: &mut Connection) {
    connection.pending = None;
    let (kind, status) = match connection.state {
        State::RequestSent | State::ReplySent => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        _ => return end(id, connection),
    };
    connection.state = State::Closed;
    id.tell(kind, status);
}

/// The connection has ended, and rests before its identifiers may mean another (IBA 12.9.8.4).
fn end(id: &Id, connection: &mut Connection) {
    close(connection);
    connection.time_wait = Some(Instant::now() + TIME_WAIT);
    id.tell(RDMA_CM_EVENT_DISCONNECTED, 0);
    look(connection.local);
}

/// Nothing is repeated for the connection any more. Its queue pair goes on until the program ends it, as on Linux: a Linux peer may send its
/// request to disconnect before its last ACK.
fn close(connection: &mut Connection) {
    connection.pending = None;
    connection.state = State::Closed;
    if let Ok(device) = connection.device() {
        device.forget(connection.local);
    }
}

pub(crate) fn take_in(
    device: &Device,
    tables: &mut Tables,
    strangers: &mut Strangers,
    from: IpAddr,
    mad: &Mad,
) {
    let (sender, receiver) = message::ids(mad);
    let Some(kind) = message::kind(mad) else { return };
    match kind {
        // A request for a connection that this side could not have is not answered.
        Kind::Request => {
            return admit::on_request(device, tables, strangers, from, mad).unwrap_or_default();
        }
        Kind::ServiceRequest => {
            return datagram::on_request(device, tables, strangers, from, mad).unwrap_or_default();
        }
        Kind::ServiceReply => return datagram::on_reply(device, tables, from, mad),
        _ => {}
    }
    let Some(id) = addressee(tables, from, mad).filter(|id| !id.is_datagram()) else {
        if kind == Kind::DisconnectRequest && device.answers_to(receiver) {
            let reply = message::message(Kind::DisconnectReply, message::transaction(mad), receiver, sender);
            answer(device, from, &reply);
        }
        return;
    };
    let mut connection = id.lock();
    let Some(message) = connection.key().and_then(|key| key.admit(from, mad)) else { return };
    act_on(device, id, &mut connection, &message);
}

/// Takes in a message of the peer of a connection.
fn act_on(device: &Device, id: &Id, connection: &mut Connection, message: &PeerMessage<'_>) {
    // If an answer is lost, the peer's message comes again.
    let answer = |kind, transaction, connection: &Connection| {
        let Ok((source, destination)) = connection.addresses() else { return };
        let mad = message::message(kind, transaction, connection.local, message.sender());
        let _ = device.send(source, destination, &mad);
    };
    match (message.kind(), connection.state) {
        (Kind::Reply, State::RequestSent) => {
            connection.remote = message.sender();
            connection.theirs = message::read_reply(message.mad(), connection.ours.xrc);
            connection.pending = None;
            connection.state = State::ReplyCame;
            device.remember(connection);
            tell(id, connection, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, message.private_data());
        }
        (Kind::Receipt, State::RequestSent) => wait(connection, message, Kind::Request),
        (Kind::Receipt, State::ReplySent) => wait(connection, message, Kind::Reply),
        (Kind::Reply, State::Established) => {
            answer(Kind::ReadyToUse, connection.transaction, connection);
        }
        (Kind::ReadyToUse, State::ReplySent) => {
            connection.pending = None;
            connection.state = State::Established;
            tell(id, connection, RDMA_CM_EVENT_ESTABLISHED, 0, message.private_data());
        }
        (Kind::Reject, State::DisconnectSent) => end(id, connection),
        (
            Kind::Reject,
            State::RequestSent
            | State::RequestCame
            | State::ReplySent
            | State::ReplyCame
            | State::Established,
        ) => on_reject(id, connection, message),
        (Kind::DisconnectRequest, state) => {
            answer(Kind::DisconnectReply, message.transaction(), connection);
            if matches!(
                state,
                State::Established | State::ReplySent | State::ReplyCame | State::DisconnectSent
            ) {
                end(id, connection);
            }
        }
        (Kind::DisconnectReply, State::DisconnectSent) => end(id, connection),
        // Repeated, or out of its order: answered before, or never.
        _ => {}
    }
}

/// Repeats the message `kind` later: the peer has received it, and its program takes its time. As on Linux, the patience for an answer begins
/// then.
fn wait(connection: &mut Connection, receipt: &PeerMessage<'_>, kind: Kind) {
    if let Some(pending) = &mut connection.pending
        && let Some(time) = message::read_receipt(receipt.mad(), kind)
    {
        let now = Instant::now();
        pending.until = now + time + PATIENCE;
        pending.wait(now, time);
    }
}

/// The peer rejects the connection, as Linux also does after its program has accepted: a peer that waited in vain for this side's RTU.
fn on_reject(id: &Id, connection: &mut Connection, message: &PeerMessage<'_>) {
    let reason = message::read_reject(message.mad());
    let now = Instant::now();
    let asks_again = match connection.state {
        State::RequestSent if reason == Reason::InvalidService as u16 => connection.asks_again(now),
        State::RequestSent if reason == Reason::InvalidMtu as u16 => connection.asks_for_less(now),
        _ => false,
    };
    if asks_again {
        return look(connection.local);
    }
    close(connection);
    // As rdma-core does for this event alone.
    if let (Ok(device), Some(qpn)) = (connection.device(), connection.queue_pair.take()) {
        device.end(qpn);
    }
    tell(id, connection, RDMA_CM_EVENT_REJECTED, reason.into(), message.private_data());
}

/// Returns the identifier that a message is for.
fn addressee<'a>(tables: &'a Tables, from: IpAddr, mad: &Mad) -> Option<&'a Id> {
    match (message::kind(mad), message::ids(mad)) {
        // A peer that waits no longer for an answer never learned our communication id.
        (Some(Kind::Reject), (sender, 0)) => tables.find_asked((from, sender, false)),
        (_, (_, receiver)) => tables.find(receiver),
    }
}

/// Answers a peer that no connection knows: from the address that is nearest to it.
pub(crate) fn answer(device: &Device, to: IpAddr, mad: &Mad) {
    if let Ok(from) = device.address_towards(to) {
        // If it is lost, the peer asks again.
        let _ = device.send(from, to, mad);
    }
}

fn tell(id: &Id, connection: &Connection, kind: rdma_cm_event_type, status: i32, private: &[u8]) {
    id.tell_more(Waiting {
        id: id.abi().cast(),
        listener: std::ptr::null_mut(),
        kind,
        status,
        parameters: Parameters::Connection(parameters(connection)),
        private: private.to_vec(),
    });
}

/// Returns the parameters of the peer, as the program reads them: the requests that the peer begins are those that this side answers, and
/// the other way round.
pub(crate) fn parameters(connection: &Connection) -> rdma_conn_param {
    rdma_conn_param {
        responder_resources: connection.theirs.initiator_depth,
        initiator_depth: connection.theirs.responder_resources,
        retry_count: connection.retry_count,
        rnr_retry_count: connection.theirs.rnr_retry,
        srq: connection.theirs.srq.into(),
        qp_num: connection.theirs.qpn,
        ..Default::default()
    }
}
