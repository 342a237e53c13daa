//! The thread that takes messages in, and repeats what is not answered.

use crate::abi::*;
use crate::address;
use crate::admit;
use crate::datagram;
use crate::device::{Device, Sent, device};
use crate::errno::{Errno, last};
use crate::events::{Parameters, Waiting};
use crate::id::{Connection, Id, State};
use crate::message::{self, Kind, Mad, Reason, ServiceStatus};
use crate::strangers::Strangers;
use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Connections at a time, those that peers ask for included.
const MAX_CONNECTIONS: usize = 4096;
/// The first of the ports that programs get when they don't ask for one.
const FIRST_PORT: u16 = 32768;

/// Messages that are taken in before what is due is looked at: a flood must not keep us from it.
const BATCH: usize = 64;

/// Twice a packet's longest way, as Linux takes it for Ethernet (4.096 µs × 2¹⁷).
const TIME_WAIT: Duration = Duration::from_millis(1074);

/// Who is called by which communication id, and who listens to which service.
#[derive(Default)]
pub(crate) struct Tables {
    ids: HashMap<u32, *mut Id>,
    listeners: HashMap<u64, *mut Id>,
    /// Which service at which address of ours a program has taken.
    bound: Vec<(u64, IpAddr, *mut Id)>,
}

// SAFETY: an identifier leaves the tables before it is destroyed, and is used with the tables locked.
unsafe impl Send for Tables {}

struct Manager {
    tables: Mutex<Tables>,
    /// Ends a wait of the thread.
    wake: OwnedFd,
}

static MANAGER: OnceLock<Result<Manager, Errno>> = OnceLock::new();

/// The manager, with its thread.
fn manager() -> Result<&'static Manager, Errno> {
    let device = device()?;
    let start = || {
        // SAFETY: eventfd takes plain numbers.
        let wake = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if wake < 0 {
            return Err(last());
        }
        // SAFETY: a fresh descriptor that nobody else owns.
        let wake = unsafe { OwnedFd::from_raw_fd(wake) };
        let body = move || {
            block_signals();
            // The thread begins before the cell is filled.
            if let Ok(manager) = MANAGER.wait() {
                manager.run(device);
            }
        };
        let thread = std::thread::Builder::new().name("ferroce-cm".into());
        thread.spawn(body).map_err(|error| Errno(error.raw_os_error().unwrap_or(libc::EAGAIN)))?;
        Ok(Manager { tables: Mutex::new(Tables::default()), wake })
    };
    MANAGER.get_or_init(start).as_ref().map_err(|errno| *errno)
}

/// Signals are the program's: its threads take them.
fn block_signals() {
    // SAFETY: the set is filled before it is used, and only this thread's mask changes.
    unsafe {
        let mut all = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}

/// An unpredictable number.
pub(crate) fn random() -> Result<u32, Errno> {
    getrandom::u32().map_err(|_| Errno(libc::EIO))
}

/// A port for who asked for none.
pub(crate) fn free_port() -> Result<u16, Errno> {
    Ok(FIRST_PORT + (random()? % u32::from(u16::MAX - FIRST_PORT)) as u16)
}

/// Takes a service at an address of ours for `id`; the unspecified address stands for all.
pub(crate) fn take(id: &Id, service: u64, at: IpAddr, shared: bool) -> Result<(), Errno> {
    let mut tables = manager()?.lock();
    let meets = |other: &IpAddr| *other == at || other.is_unspecified() || at.is_unspecified();
    if !shared && tables.bound.iter().any(|(taken, ip, _)| *taken == service && meets(ip)) {
        return Err(Errno(libc::EADDRINUSE));
    }
    tables.bound.push((service, at, id.abi().cast()));
    Ok(())
}

/// Has `id` be told of requests for a service.
pub(crate) fn listen(id: &Id, service: u64) -> Result<(), Errno> {
    manager()?.lock().listen(id, service)
}

/// Gives `id` a communication id, and has its messages repeated.
pub(crate) fn join(id: &Id, connection: &mut Connection) -> Result<(), Errno> {
    if connection.local != 0 {
        return Ok(());
    }
    let mut tables = manager()?.lock();
    connection.local = tables.insert(id.abi().cast())?;
    Ok(())
}

/// The thread looks at what is pending.
pub(crate) fn look() {
    if let Ok(manager) = manager() {
        let one = 1_u64.to_ne_bytes();
        // SAFETY: eight bytes of an array.
        unsafe { libc::write(manager.wake.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }
}

/// Nothing is told to `id` any more, and its peer is told that it is gone.
pub(crate) fn leave(id: &Id) {
    let Ok(manager) = manager() else { return };
    let mut tables = manager.lock();
    let pointer: *mut Id = id.abi().cast();
    tables.listeners.retain(|_, listener| *listener != pointer);
    tables.ids.retain(|_, other| *other != pointer);
    tables.bound.retain(|(_, _, other)| *other != pointer);
    drop(tables);
    let mut connection = id.lock();
    if id.is_datagram() {
        if connection.state == State::RequestCame {
            // A peer that doesn't hear it asks again, and is answered that there is no such service.
            let _ = datagram::answer(id, &mut connection, ServiceStatus::Rejected, 0, &[]);
        }
        return;
    }
    let farewell = match connection.state {
        State::RequestCame => {
            let mut mad =
                message::message(Kind::Reject, connection.transaction, connection.local, connection.remote);
            message::write_reject(&mut mad, Reason::Consumer);
            mad
        }
        State::Established | State::ReplySent | State::ReplyCame => connection.disconnect_request(),
        _ => return,
    };
    if let (Ok(device), Ok((source, destination))) = (device(), connection.addresses()) {
        // A peer that doesn't hear it finds out by itself.
        let _ = device.send(source, destination, &farewell);
    }
}

/// A message that is to be sent again.
struct Due {
    /// Whose.
    local: u32,
    source: IpAddr,
    destination: IpAddr,
    mad: Mad,
}

impl Tables {
    /// Its receiver is looked for; gives when it is tried next.
    fn put_off(&self, due: &Due) -> Option<Instant> {
        let mut connection = self.find(due.local)?.lock();
        let pending = connection.pending.as_mut().filter(|pending| pending.mad == due.mad)?;
        pending.left += 1;
        pending.put_off(Instant::now());
        Some(pending.next)
    }

    /// Nobody is at the address that a request went to. What else is sent is sent again: the peer was there before.
    fn not_found(&self, due: &Due, errno: Errno) -> Option<Instant> {
        let id = self.find(due.local)?;
        let mut connection = id.lock_in(State::RequestSent).ok()?;
        connection.pending.as_ref().filter(|pending| pending.mad == due.mad)?;
        connection.pending = None;
        connection.state = State::Closed;
        id.tell(RDMA_CM_EVENT_UNREACHABLE, -errno.0);
        None
    }

    pub(crate) fn listen(&mut self, id: &Id, service: u64) -> Result<(), Errno> {
        if self.listeners.contains_key(&service) {
            return Err(Errno(libc::EADDRINUSE));
        }
        self.listeners.insert(service, id.abi().cast());
        Ok(())
    }

    pub(crate) fn insert(&mut self, id: *mut Id) -> Result<u32, Errno> {
        if self.ids.len() >= MAX_CONNECTIONS {
            return Err(Errno(libc::ENOMEM));
        }
        loop {
            let local = random()?;
            if local != 0 && !self.ids.contains_key(&local) {
                self.ids.insert(local, id);
                return Ok(local);
            }
        }
    }

    pub(crate) fn find(&self, local: u32) -> Option<&Id> {
        // SAFETY: an identifier in the tables is alive while they are locked.
        self.ids.get(&local).map(|id| unsafe { &**id })
    }

    /// What a peer's request made before.
    pub(crate) fn find_peer(&self, from: IpAddr, remote: u32, datagram: bool) -> Option<&Id> {
        self.ids.keys().filter_map(|local| self.find(*local)).find(|id| {
            let connection = id.lock();
            let asked = connection.remote == remote && id.is_datagram() == datagram;
            asked && connection.destination.is_some_and(|peer| peer.ip() == from)
        })
    }

    /// Who listens to a service at an address of ours, for connections or for datagrams.
    pub(crate) fn listener(&self, service: u64, at: IpAddr, datagram: bool) -> Option<*mut Id> {
        let listener = *self.listeners.get(&service)?;
        // SAFETY: a listener in the tables is alive while they are locked.
        let heard = unsafe { &*listener };
        let bound = heard.lock().source.map(|source| source.ip()).filter(|ip| !ip.is_unspecified());
        let here = bound.is_none_or(|bound| address::gid(bound) == address::gid(at));
        (here && heard.is_datagram() == datagram).then_some(listener)
    }
}

impl Manager {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self, device: &Device) {
        let mut strangers = Strangers::default();
        loop {
            for (from, mad) in std::iter::from_fn(|| device.receive()).take(BATCH) {
                take_in(device, &mut self.lock(), &mut strangers, from, &mad);
            }
            for (from, mad) in strangers.look(device, Instant::now()) {
                take_in(device, &mut self.lock(), &mut strangers, from, &mad);
            }
            let next = [self.repeat(device), strangers.next()].into_iter().flatten().min();
            let wait =
                next.map_or(-1, |next| next.saturating_duration_since(Instant::now()).as_millis() as i32 + 1);
            let watch = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
            let mut watched = [watch(device.descriptor), watch(self.wake.as_raw_fd())];
            let mut count = [0_u8; 8];
            // SAFETY: both descriptors are open, and the arrays are as long as said.
            unsafe {
                libc::poll(watched.as_mut_ptr(), 2, wait);
                libc::read(self.wake.as_raw_fd(), count.as_mut_ptr().cast(), count.len());
            }
        }
    }

    /// Sends again what is due; gives when the next is.
    fn repeat(&self, device: &Device) -> Option<Instant> {
        let (due, next) = self.due();
        let put_off = |due: Due| match device.send(due.source, due.destination, &due.mad) {
            Ok(Sent::Left) => None,
            Ok(Sent::Asking) => self.lock().put_off(&due),
            Err(errno) => self.lock().not_found(&due, errno),
        };
        due.into_iter().filter_map(put_off).chain(next).min()
    }

    /// What is to be sent again now, and when there is more.
    fn due(&self) -> (Vec<Due>, Option<Instant>) {
        let tables = self.lock();
        let now = Instant::now();
        let (mut due, mut first) = (Vec::new(), None);
        let mut sooner = |next| first = Some(first.map_or(next, |first: Instant| first.min(next)));
        for local in tables.ids.keys() {
            let Some(id) = tables.find(*local) else { continue };
            let mut connection = id.lock();
            match connection.time_wait {
                Some(until) if until <= now => {
                    connection.time_wait = None;
                    id.tell(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
                }
                Some(until) => sooner(until),
                None => {}
            }
            let Ok((source, destination)) = connection.addresses() else { continue };
            let Some(pending) = &mut connection.pending else { continue };
            if pending.next <= now {
                if pending.left == 0 {
                    give_up(id, &mut connection);
                    continue;
                }
                pending.left -= 1;
                pending.next = now + pending.interval;
                due.push(Due { local: *local, source, destination, mad: pending.mad });
            }
            sooner(pending.next);
        }
        (due, first)
    }
}

/// The peer doesn't answer.
fn give_up(id: &Id, connection: &mut Connection) {
    connection.pending = None;
    let (kind, status) = match connection.state {
        State::RequestSent => (RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT),
        State::ReplySent => (RDMA_CM_EVENT_CONNECT_ERROR, -libc::ETIMEDOUT),
        _ => return end(id, connection),
    };
    connection.state = State::Closed;
    id.tell(kind, status);
}

/// The connection has ended, and rests before its identifiers may mean another (IBA 12.9.8.4).
fn end(id: &Id, connection: &mut Connection) {
    connection.pending = None;
    connection.state = State::Closed;
    connection.time_wait = Some(Instant::now() + TIME_WAIT);
    id.tell(RDMA_CM_EVENT_DISCONNECTED, 0);
    look();
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
        // What is no request of a connection that we could have is not answered.
        Kind::Request => {
            return admit::on_request(device, tables, strangers, from, mad).unwrap_or_default();
        }
        Kind::ServiceRequest => {
            return datagram::on_request(device, tables, strangers, from, mad).unwrap_or_default();
        }
        Kind::ServiceReply => return datagram::on_reply(device, tables, from, mad),
        _ => {}
    }
    let Some(id) = tables.find(receiver).filter(|id| !id.is_datagram()) else {
        if kind == Kind::DisconnectRequest {
            let reply = message::message(Kind::DisconnectReply, message::transaction(mad), receiver, sender);
            answer(device, from, &reply);
        }
        return;
    };
    let mut connection = id.lock();
    let Ok((source, destination)) = connection.addresses() else { return };
    if destination != from {
        return;
    }
    match (kind, connection.state) {
        (Kind::Reply, State::RequestSent) => {
            connection.remote = sender;
            connection.theirs = message::read_reply(mad, connection.ours.xrc);
            connection.pending = None;
            connection.state = State::ReplyCame;
            tell(id, &connection, RDMA_CM_EVENT_CONNECT_RESPONSE, 0, message::private_data(mad, kind));
        }
        (Kind::Reply, State::Established) => {
            let ready = message::message(Kind::ReadyToUse, connection.transaction, receiver, sender);
            // Lost again, the reply comes again.
            let _ = device.send(source, destination, &ready);
        }
        (Kind::ReadyToUse, State::ReplySent) => {
            connection.pending = None;
            connection.state = State::Established;
            tell(id, &connection, RDMA_CM_EVENT_ESTABLISHED, 0, message::private_data(mad, kind));
        }
        (Kind::Reject, state @ (State::RequestSent | State::ReplySent)) => {
            let reason = message::read_reject(mad);
            let unknown = reason == Reason::InvalidService as u16 && state == State::RequestSent;
            if unknown && connection.asks_again(Instant::now()) {
                return;
            }
            connection.pending = None;
            connection.state = State::Closed;
            tell(id, &connection, RDMA_CM_EVENT_REJECTED, reason.into(), message::private_data(mad, kind));
        }
        (Kind::DisconnectRequest, state) => {
            let reply = message::message(Kind::DisconnectReply, message::transaction(mad), receiver, sender);
            // Lost, the request comes again.
            let _ = device.send(source, destination, &reply);
            if matches!(
                state,
                State::Established | State::ReplySent | State::ReplyCame | State::DisconnectSent
            ) {
                end(id, &mut connection);
            }
        }
        (Kind::DisconnectReply, State::DisconnectSent) => end(id, &mut connection),
        // Repeated, or out of its order: answered before, or never.
        _ => {}
    }
}

/// To one whom no connection knows: from the address that is nearest to it.
pub(crate) fn answer(device: &Device, to: IpAddr, mad: &Mad) {
    if let Ok(from) = device.address_towards(to) {
        // Lost, it is asked for again.
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

/// What the program learns of its peer: what the peer begins is what we answer, and the other way round.
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
