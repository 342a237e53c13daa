//! The identifiers that are no connection's: those that ask for an address, those of datagrams, and the services that programs have. The
//! manager's thread finds them by their number, by what a peer asked, by the service, and by when something of theirs is due.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::Errno;
use crate::rdmacm::id::{Id, State, service};
use crate::rdmacm::manager::random;
use datapath::siblings::Claim;
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;
use verbs::cm::machine::World;
use verbs::cm::machine::message::Mad;

/// A peer's request for a service of datagrams: its address and its request id.
pub(crate) type Requester = (IpAddr, u32);

/// A table of identifiers. An identifier leaves it before it is destroyed.
#[derive(Default)]
pub(crate) struct Tables {
    ids: HashMap<u32, *mut Id>,
    /// The numbers of the identifiers that peers' requests created.
    requests: HashMap<Requester, u32>,
    /// The claims to each service.
    claims: HashMap<u64, Vec<(Claim, *mut Id)>>,
    /// When something of each identifier is due. An entry that is out of date costs one look.
    timers: BTreeSet<(Instant, u32)>,
}

// SAFETY: an identifier leaves the tables before it is destroyed, and is used with the tables locked.
unsafe impl Send for Tables {}

/// What is due of an identifier.
pub(crate) struct Due {
    request_id: u32,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The message to send again. `None`: the destination's Ethernet address is looked for.
    pub(crate) mad: Option<Mad>,
}

impl Tables {
    /// Gives `id` a service, unless another has it.
    pub(crate) fn claim(&mut self, id: &Id, claim: &Claim) -> Result<(), Errno> {
        let claims = self.claims.entry(claim.service).or_default();
        if let Some(errno) = claims.iter().find_map(|(other, _)| claim.conflict(other)) {
            return Err(Errno(errno));
        }
        claims.push((*claim, id.abi().cast()));
        Ok(())
    }

    /// Returns a new number of `id`.
    pub(crate) fn insert(&mut self, device: &Device, id: &Id) -> Result<u32, Errno> {
        loop {
            let request_id = device.communication_id(random()?);
            if request_id != 0 && !self.ids.contains_key(&request_id) {
                self.ids.insert(request_id, id.abi().cast());
                return Ok(request_id);
            }
        }
    }

    /// As [`insert`](Self::insert), for an identifier that a peer's request created.
    pub(crate) fn insert_requested(
        &mut self,
        device: &Device,
        id: &Id,
        requester: Requester,
    ) -> Result<u32, Errno> {
        let request_id = self.insert(device, id)?;
        self.requests.insert(requester, request_id);
        Ok(request_id)
    }

    /// Removes an identifier. Returns the services that it had.
    pub(crate) fn remove(&mut self, id: &Id) -> Vec<Claim> {
        let connection = id.lock();
        let (request_id, remote) = (connection.request_id, connection.remote);
        let service = service(id.port_space(), connection.source.map_or(0, |source| source.port()));
        let peer = connection.destination.map(|peer| peer.ip());
        drop(connection);
        self.ids.remove(&request_id);
        if let Some(peer) = peer
            && self.requests.get(&(peer, remote)) == Some(&request_id)
        {
            self.requests.remove(&(peer, remote));
        }
        let Some(claims) = self.claims.get_mut(&service) else { return Vec::new() };
        let removed = claims.extract_if(.., |(_, other)| std::ptr::eq(*other, id)).map(|(claim, _)| claim);
        let removed = removed.collect();
        if claims.is_empty() {
            self.claims.remove(&service);
        }
        removed
    }

    /// Returns whether `id` is here, with a number or with a service.
    pub(crate) fn has(&self, id: &Id) -> bool {
        let with_services = self.claims.values().flatten().map(|(_, other)| *other);
        self.ids.values().copied().chain(with_services).any(|other| std::ptr::eq(other, id))
    }

    pub(crate) fn find(&self, request_id: u32) -> Option<&Id> {
        // SAFETY: an identifier in the tables is alive while they are locked.
        self.ids.get(&request_id).map(|id| unsafe { &**id })
    }

    /// Returns the identifier that a peer's request created before.
    pub(crate) fn find_requested(&self, requester: Requester) -> Option<&Id> {
        self.find(*self.requests.get(&requester)?)
    }

    /// Returns the listener to a service of datagrams at an address of ours.
    pub(crate) fn datagram_listener(&self, service: u64, at: IpAddr) -> Option<&Id> {
        let (_, listener) = self.claims.get(&service)?.iter().find(|(claim, _)| claim.hears(service, at))?;
        // SAFETY: a listener in the tables is alive while they are locked.
        Some(unsafe { &**listener }).filter(|listener| listener.is_datagram())
    }

    /// Returns what is due now. `changed` are identifiers whose timers have changed.
    pub(crate) fn due(&mut self, now: Instant, changed: Vec<u32>) -> Vec<Due> {
        let (mut look, mut due) = (changed, Vec::new());
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            look.extend(self.timers.pop_first().map(|(_, request_id)| request_id));
        }
        for request_id in look {
            if let Some(next) = self.look(request_id, now, &mut due) {
                self.timers.insert((next, request_id));
            }
        }
        due
    }

    /// Looks at one identifier. Returns when the next look is.
    fn look(&self, request_id: u32, now: Instant, due: &mut Vec<Due>) -> Option<Instant> {
        let id = self.find(request_id)?;
        let mut connection = id.lock();
        let (source, destination) = connection.addresses().ok()?;
        if let Some(query) = &connection.query {
            if query.next > now {
                return Some(query.next);
            }
            // What it finds schedules the next one.
            due.push(Due { request_id, source, destination, mad: None });
            return None;
        }
        let pending = connection.pending.as_mut()?;
        if pending.next > now {
            return Some(pending.next);
        }
        if pending.until <= now {
            connection.pending = None;
            connection.state = State::Closed;
            id.tell(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            return None;
        }
        pending.sent(now);
        due.push(Due { request_id, source, destination, mad: Some(pending.mad) });
        Some(pending.next)
    }

    /// Returns when the next identifier is looked at.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The receiver of a message is still looked for: it is sent again soon.
    pub(crate) fn put_off(&mut self, due: &Due) {
        let Some(id) = self.find(due.request_id) else { return };
        let mut connection = id.lock();
        let Some(pending) = connection.pending.as_mut().filter(|pending| due.mad == Some(pending.mad)) else {
            return;
        };
        pending.put_off(Instant::now());
        let next = pending.next;
        drop(connection);
        self.timers.insert((next, due.request_id));
    }

    /// Takes in what a look for a destination found.
    pub(crate) fn take_look(&mut self, due: &Due, found: Result<bool, Errno>) {
        let next = self.find(due.request_id).and_then(|id| id.take_look(found, Instant::now()));
        self.timers.extend(next.map(|next| (next, due.request_id)));
    }

    /// No host is at the address that a request went to.
    pub(crate) fn not_found(&self, due: &Due, errno: Errno) {
        let Some(id) = self.find(due.request_id) else { return };
        let Ok(mut connection) = id.lock_in(State::ServiceRequested) else { return };
        if connection.pending.as_ref().is_some_and(|pending| due.mad == Some(pending.mad)) {
            connection.pending = None;
            connection.state = State::Closed;
            id.tell(RDMA_CM_EVENT_UNREACHABLE, -errno.0);
        }
    }
}
