//! The identifiers that the manager's thread finds: by communication id, by what a peer asked, by the service that they listen to, and
//! by when something of theirs is due. No message and no timer looks at other connections than its own.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::address;
use crate::device::Device;
use crate::errno::Errno;
use crate::id::{Connection, Id, State, service};
use crate::manager::{give_up, random};
use crate::message::Mad;
use crate::siblings::Held;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

/// A peer's request: its address, its communication id, and whether it asks for datagrams.
pub(crate) type Asked = (IpAddr, u32, bool);

/// A table of identifiers. An identifier leaves it before it is destroyed.
#[derive(Default)]
pub(crate) struct Tables {
    ids: HashMap<u32, *mut Id>,
    /// The communication ids of the identifiers that peers' requests created.
    asked: HashMap<Asked, u32>,
    listeners: HashMap<u64, Vec<(Place, *mut Id)>>,
    /// The services that programs have taken.
    bound: HashMap<u64, Vec<(Place, *mut Id)>>,
    /// When each connection is looked at next. An entry that is out of date costs one look.
    timers: BTreeSet<(Instant, u32)>,
}

// SAFETY: an identifier leaves the tables before it is destroyed, and is used with the tables locked.
unsafe impl Send for Tables {}

/// The address at which a program has taken a service.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    at: IpAddr,
    /// It meets only others of its address family.
    family_only: bool,
    /// Others that are shared too may have the same place.
    shared: bool,
}

impl Place {
    /// Returns the place of an identifier that is bound to `at`. An IPv4 address is never one of IPv6.
    pub(crate) fn new(at: IpAddr, connection: &Connection) -> Self {
        Self { at, family_only: at.is_ipv4() || connection.family_only, shared: connection.shares_port }
    }

    /// Returns the place of a service, as other processes see it.
    pub(crate) fn held(&self, service: u64, listens: bool) -> Held {
        Held { service, at: self.at, family_only: self.family_only, shared: self.shared && !listens, listens }
    }

    /// Returns the error, as Linux has it, if one program cannot have both places.
    fn conflict(&self, other: &Self) -> Option<Errno> {
        let apart = self.family_only && other.family_only && self.at.is_ipv4() != other.at.is_ipv4();
        if apart || (self.shared && other.shared) {
            None
        } else if address::is_any(self.at) || address::is_any(other.at) {
            Some(Errno(libc::EADDRNOTAVAIL))
        } else {
            (self.at == other.at).then_some(Errno(libc::EADDRINUSE))
        }
    }

    /// Returns how wide the place is, if requests to `at` are for it.
    fn hears(&self, at: IpAddr) -> Option<u8> {
        let same_family = self.at.is_ipv4() == at.is_ipv4();
        match address::is_any(self.at) {
            false => (address::gid(self.at) == address::gid(at)).then_some(0),
            true if same_family => Some(1),
            true => (!self.family_only).then_some(2),
        }
    }
}

/// What is due of a connection.
pub(crate) struct Due {
    local: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The message to send again. `None`: the destination's Ethernet address is looked for.
    pub(crate) mad: Option<Mad>,
}

impl Tables {
    /// Takes a service at a place for `id`.
    pub(crate) fn take(&mut self, id: &Id, service: u64, place: Place) -> Result<(), Errno> {
        let taken = self.bound.entry(service).or_default();
        if let Some(errno) = taken.iter().find_map(|(other, _)| place.conflict(other)) {
            return Err(errno);
        }
        taken.push((place, id.abi().cast()));
        Ok(())
    }

    /// Directs requests for a service at a place to `id`. Two that share a port cannot both listen.
    pub(crate) fn listen(&mut self, id: &Id, service: u64, place: Place) -> Result<(), Errno> {
        let place = Place { shared: false, ..place };
        let listeners = self.listeners.entry(service).or_default();
        if let Some(errno) = listeners.iter().find_map(|(other, _)| place.conflict(other)) {
            return Err(errno);
        }
        listeners.push((place, id.abi().cast()));
        Ok(())
    }

    /// Returns a new communication id of `id`.
    pub(crate) fn insert(&mut self, device: &Device, id: &Id) -> Result<u32, Errno> {
        loop {
            let local = device.communication_id(random()?);
            if local != 0 && !self.ids.contains_key(&local) {
                self.ids.insert(local, id.abi().cast());
                return Ok(local);
            }
        }
    }

    /// As [`insert`](Self::insert), for an identifier that a peer's request created.
    pub(crate) fn insert_asked(&mut self, device: &Device, id: &Id, asked: Asked) -> Result<u32, Errno> {
        let local = self.insert(device, id)?;
        self.asked.insert(asked, local);
        Ok(local)
    }

    /// Removes an identifier. Returns the services that it had.
    pub(crate) fn remove(&mut self, id: &Id) -> Vec<Held> {
        let connection = id.lock();
        let (local, remote) = (connection.local, connection.remote);
        let service = service(id.port_space(), connection.source.map_or(0, |source| source.port()));
        let peer = connection.destination.map(|peer| peer.ip());
        drop(connection);
        self.ids.remove(&local);
        if let Some(peer) = peer {
            let asked = (peer, remote, id.is_datagram());
            if self.asked.get(&asked) == Some(&local) {
                self.asked.remove(&asked);
            }
        }
        let mut held = Vec::new();
        for (places, listens) in [(&mut self.listeners, true), (&mut self.bound, false)] {
            let Some(taken) = places.get_mut(&service) else { continue };
            let its = taken.extract_if(.., |(_, other)| *other == id.abi().cast());
            held.extend(its.map(|(place, _)| place.held(service, listens)));
            if taken.is_empty() {
                places.remove(&service);
            }
        }
        held
    }

    /// Returns whether `id` is here, with a communication id or with a service.
    pub(crate) fn has(&self, id: &Id) -> bool {
        let places = [&self.listeners, &self.bound].into_iter().flat_map(|places| places.values()).flatten();
        let with_services = places.map(|(_, other)| *other);
        self.ids.values().copied().chain(with_services).any(|other| std::ptr::eq(other, id))
    }

    pub(crate) fn find(&self, local: u32) -> Option<&Id> {
        // SAFETY: an identifier in the tables is alive while they are locked.
        self.ids.get(&local).map(|id| unsafe { &**id })
    }

    /// Returns the identifier that a peer's request created before.
    pub(crate) fn find_asked(&self, asked: Asked) -> Option<&Id> {
        self.find(*self.asked.get(&asked)?)
    }

    /// Informs the peers of all connections that this side ends them.
    pub(crate) fn part(&self) {
        let connections =
            self.ids.keys().filter_map(|local| self.find(*local)).filter(|id| !id.is_datagram());
        connections.for_each(|id| {
            let connection = id.lock();
            connection.part();
        });
    }

    /// Returns the listener to a service at an address of ours, for connections or for datagrams: the one whose place is the
    /// narrowest.
    pub(crate) fn listener(&self, service: u64, at: IpAddr, datagram: bool) -> Option<*mut Id> {
        let hears = |(place, listener): &(Place, *mut Id)| Some((place.hears(at)?, *listener));
        let (_, listener) =
            self.listeners.get(&service)?.iter().filter_map(hears).min_by_key(|(width, _)| *width)?;
        // SAFETY: a listener in the tables is alive while they are locked.
        (unsafe { (*listener).is_datagram() } == datagram).then_some(listener)
    }

    /// Returns what is due now. `changed` are connections whose timers have changed.
    pub(crate) fn due(&mut self, now: Instant, changed: Vec<u32>) -> Vec<Due> {
        let (mut look, mut due) = (changed, Vec::new());
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            look.extend(self.timers.pop_first().map(|(_, local)| local));
        }
        for local in look {
            if let Some(next) = self.look(local, now, &mut due) {
                self.timers.insert((next, local));
            }
        }
        due
    }

    /// Looks at one connection. Returns when the next look is.
    fn look(&self, local: u32, now: Instant, due: &mut Vec<Due>) -> Option<Instant> {
        let id = self.find(local)?;
        let mut connection = id.lock();
        if connection.time_wait.is_some_and(|until| until <= now) {
            connection.time_wait = None;
            id.tell(RDMA_CM_EVENT_TIMEWAIT_EXIT, 0);
        }
        if let Ok((source, destination)) = connection.addresses()
            && connection.query.as_ref().is_some_and(|query| query.next <= now)
        {
            // What it finds schedules the next one.
            due.push(Due { local, source, destination, mad: None });
            return None;
        }
        if let Ok((source, destination)) = connection.addresses()
            && let Some(pending) = &mut connection.pending
            && pending.next <= now
        {
            if pending.until <= now {
                give_up(id, &mut connection);
            } else {
                pending.sent(now);
                due.push(Due { local, source, destination, mad: Some(pending.mad) });
            }
        }
        let repeats = connection.pending.as_ref().map(|pending| pending.next);
        let looks = connection.query.as_ref().map(|query| query.next);
        connection.time_wait.into_iter().chain(repeats).chain(looks).min()
    }

    /// Returns when the next connection is looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The receiver of a message is still looked for: it is sent again soon.
    pub(crate) fn put_off(&mut self, due: &Due) {
        let Some(id) = self.find(due.local) else { return };
        let mut connection = id.lock();
        let Some(pending) = connection.pending.as_mut().filter(|pending| due.mad == Some(pending.mad)) else {
            return;
        };
        pending.put_off(Instant::now());
        let next = pending.next;
        drop(connection);
        self.timers.insert((next, due.local));
    }

    /// Takes in what a look for a destination found.
    pub(crate) fn take_look(&mut self, due: &Due, found: Result<bool, Errno>) {
        let next = self.find(due.local).and_then(|id| id.take_look(found, Instant::now()));
        self.timers.extend(next.map(|next| (next, due.local)));
    }

    /// No host is at the address that a request went to. Other messages are sent again: the peer was there before.
    pub(crate) fn not_found(&self, due: &Due, errno: Errno) {
        let Some(id) = self.find(due.local) else { return };
        let Ok(mut connection) = id.lock_in(State::RequestSent) else { return };
        if connection.pending.as_ref().is_some_and(|pending| due.mad == Some(pending.mad)) {
            connection.pending = None;
            connection.state = State::Closed;
            id.tell(RDMA_CM_EVENT_UNREACHABLE, -errno.0);
        }
    }
}
