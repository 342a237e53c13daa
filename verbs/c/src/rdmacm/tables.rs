//! The identifiers without a connection: those that resolve an address, those of datagrams, and the claims of programs to services. The
//! manager's thread finds them by their key, by a peer's request, by the service, and by the time of their next action.

#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::rdmacm::device::Device;
use crate::rdmacm::errno::Errno;
use crate::rdmacm::id::{Id, State, service};
use crate::rdmacm::manager::random;
use datapath::siblings::Claim;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::time::Instant;
use verbs::cm::machine::Environment;
use verbs::cm::machine::message::Mad;

/// A peer's request for a datagram service: the peer's address and the request id.
pub(crate) type Requester = (IpAddr, u32);

#[derive(Default)]
pub(crate) struct Tables {
    ids: HashMap<u32, *mut Id>,
    /// Keys of the identifiers that requests of peers created.
    requests: HashMap<Requester, u32>,
    claims: HashMap<u64, Vec<Claimed>>,
    /// Time of each identifier's next action. An outdated entry costs one look-up.
    timers: BTreeSet<(Instant, u32)>,
}

// SAFETY: an identifier is removed from the tables before it is destroyed, and is used only while the tables are locked.
unsafe impl Send for Tables {}

/// A claim of an identifier.
#[derive(Clone, Copy)]
pub(crate) struct Claimed {
    pub(crate) claim: Claim,
    /// The device that had the claimed address; `None` for all addresses of all devices. The device may lose the address later.
    pub(crate) device: Option<&'static Device>,
    id: *mut Id,
}

/// An action that is due for an identifier.
pub(crate) struct DueAction {
    request_id: u32,
    pub(crate) device: Result<&'static Device, Errno>,
    pub(crate) source: IpAddr,
    pub(crate) destination: IpAddr,
    /// The message to repeat. `None` stands for a check whether the destination's Ethernet address is resolved.
    pub(crate) mad: Option<Mad>,
}

impl Tables {
    /// Registers the claim of `id` to an address of `device`, or to all addresses. Fails if it conflicts with another.
    pub(crate) fn claim(
        &mut self,
        id: &Id,
        claim: &Claim,
        device: Option<&'static Device>,
    ) -> Result<(), Errno> {
        let claims = self.claims.entry(claim.service).or_default();
        if let Some(errno) = claims.iter().find_map(|other| claim.conflict(&other.claim)) {
            return Err(Errno(errno));
        }
        claims.push(Claimed { claim: *claim, device, id: id.abi().cast() });
        Ok(())
    }

    /// Registers `id` with a new key. Returns the key.
    pub(crate) fn insert(&mut self, device: &Device, id: &Id) -> Result<u32, Errno> {
        loop {
            let request_id = device.communication_id(random()?);
            if request_id != 0 && !self.ids.contains_key(&request_id) {
                self.ids.insert(request_id, id.abi().cast());
                return Ok(request_id);
            }
        }
    }

    /// Registers an identifier that a request of a peer created. Returns its key.
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

    /// Removes an identifier. Returns its claims.
    pub(crate) fn remove(&mut self, id: &Id) -> Vec<Claimed> {
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
        let removed = claims.extract_if(.., |claimed| std::ptr::eq(claimed.id, id)).collect();
        if claims.is_empty() {
            self.claims.remove(&service);
        }
        removed
    }

    /// Returns whether `id` is registered, with a key or with a claim.
    pub(crate) fn has(&self, id: &Id) -> bool {
        let with_services = self.claims.values().flatten().map(|claimed| claimed.id);
        self.ids.values().copied().chain(with_services).any(|other| std::ptr::eq(other, id))
    }

    pub(crate) fn find(&self, request_id: u32) -> Option<&Id> {
        // SAFETY: an identifier in the tables is alive while they are locked.
        self.ids.get(&request_id).map(|id| unsafe { &**id })
    }

    /// Returns the identifier that an earlier copy of the peer's request created.
    pub(crate) fn find_requested(&self, requester: Requester) -> Option<&Id> {
        self.find(*self.requests.get(&requester)?)
    }

    /// Returns the listener for a datagram service at one of our addresses.
    pub(crate) fn datagram_listener(&self, service: u64, at: IpAddr) -> Option<&Id> {
        let listens = |claimed: &&Claimed| claimed.claim.matches(service, at);
        let listener = self.claims.get(&service)?.iter().find(listens)?.id;
        // SAFETY: a listener in the tables is alive while they are locked.
        Some(unsafe { &*listener }).filter(|listener| listener.is_datagram())
    }

    /// Returns the actions that are due. `changed` contains the identifiers whose timers have changed.
    pub(crate) fn due(&mut self, now: Instant, changed: Vec<u32>) -> Vec<DueAction> {
        let (mut candidates, mut due) = (changed, Vec::new());
        while self.timers.first().is_some_and(|(at, _)| *at <= now) {
            candidates.extend(self.timers.pop_first().map(|(_, request_id)| request_id));
        }
        for request_id in candidates {
            if let Some(next) = self.find_due(request_id, now, &mut due) {
                self.timers.insert((next, request_id));
            }
        }
        due
    }

    /// Adds the action of one identifier if it is due. Returns when the next one is due.
    fn find_due(&self, request_id: u32, now: Instant, due: &mut Vec<DueAction>) -> Option<Instant> {
        let id = self.find(request_id)?;
        let mut connection = id.lock();
        let (source, destination) = connection.addresses().ok()?;
        let device = connection.device();
        if let Some(query) = &connection.query {
            if query.next > now {
                return Some(query.next);
            }
            // The outcome of the check determines when the next one is due.
            due.push(DueAction { request_id, device, source, destination, mad: None });
            return None;
        }
        let pending = connection.pending.as_mut()?;
        if pending.next > now {
            return Some(pending.next);
        }
        if pending.until <= now {
            connection.pending = None;
            connection.state = State::Closed;
            id.report(RDMA_CM_EVENT_UNREACHABLE, -libc::ETIMEDOUT);
            return None;
        }
        pending.sent(now);
        due.push(DueAction { request_id, device, source, destination, mad: Some(pending.mad) });
        Some(pending.next)
    }

    /// Reports the removal of a device to the identifiers that are bound to it. Returns them.
    pub(crate) fn remove_device(&self, device: &Device) -> HashSet<*mut Id> {
        let is_it = |other: &Device| std::ptr::eq(other, device);
        // An identifier with a claim but no key is not locked here: a thread that has locked it may be waiting for the tables.
        let claims = self.claims.values().flatten().filter(|claimed| claimed.device.is_some_and(is_it));
        let with_keys = self.ids.values().copied().filter(|id| {
            // SAFETY: an identifier in the tables is alive while they are locked.
            unsafe { &**id }.lock().device().is_ok_and(is_it)
        });
        let bound: HashSet<_> = claims.map(|claimed| claimed.id).chain(with_keys).collect();
        for id in &bound {
            // SAFETY: as above.
            unsafe { &**id }.report(RDMA_CM_EVENT_DEVICE_REMOVAL, 0);
        }
        bound
    }

    /// Returns when the next action is due.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Postpones a message for a short time, because its receiver's Ethernet address is still being resolved.
    pub(crate) fn postpone(&mut self, due: &DueAction) {
        let Some(id) = self.find(due.request_id) else { return };
        let mut connection = id.lock();
        let Some(pending) = connection.pending.as_mut().filter(|pending| due.mad == Some(pending.mad)) else {
            return;
        };
        pending.postpone(Instant::now());
        let next = pending.next;
        drop(connection);
        self.timers.insert((next, due.request_id));
    }

    /// Handles the outcome of a check whether a destination is resolved.
    pub(crate) fn on_check(&mut self, due: &DueAction, found: Result<bool, Errno>) {
        let next = self.find(due.request_id).and_then(|id| id.on_check(found, Instant::now()));
        self.timers.extend(next.map(|next| (next, due.request_id)));
    }

    /// Ends a request, because no host answers at its destination.
    pub(crate) fn not_found(&self, due: &DueAction, errno: Errno) {
        let Some(id) = self.find(due.request_id) else { return };
        let Ok(mut connection) = id.lock_in(State::ServiceRequested) else { return };
        if connection.pending.as_ref().is_some_and(|pending| due.mad == Some(pending.mad)) {
            connection.pending = None;
            connection.state = State::Closed;
            id.report(RDMA_CM_EVENT_UNREACHABLE, -errno.0);
        }
    }
}
