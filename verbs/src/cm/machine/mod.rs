//! The states of connections (IBA 12.9.7): messages and time come in, messages go out.
//!
//! It has no clock, no thread and no port, so a test is a script. `manager` runs it with those of a device. Messages that are not answered
//! are repeated as librdmacm repeats them: every 0.5 s.

mod link;
pub(crate) mod message;
mod state;
#[cfg(test)]
mod tests;
mod unresolved;
mod world;

pub(crate) use link::Link;
pub(crate) use state::{End, State};
pub(crate) use world::World;

use crate::Error;
use datapath::event_fd::EventFd;
use datapath::siblings::{Claim, Siblings};
use message::{Kind, Mad, Pending, Reason, Request, SMALLEST_MTU, Sent, Side};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use unresolved::Strangers;

/// The time during which a request to disconnect is repeated: a peer that is gone needs no long farewell.
const FAREWELL: Duration = Duration::from_secs(2);
/// The longest time to wait for an answer: longer is like for ever, and the clock must not overflow.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);
/// The limit on the requests that a listener keeps until the program accepts them.
const BACKLOG: usize = 1024;
/// The bits of a communication id below the slot of the process.
const ID_BITS: u32 = 26;

/// A listener, with the communication ids of the requests that the program has not taken. Its bell counts them.
struct Listening {
    claim: Claim,
    backlog: VecDeque<u32>,
    bell: Arc<EventFd>,
}

/// All connections and listeners of a device.
pub(crate) struct Machine {
    /// The device's GUID, in requests and replies.
    guid: [u8; 8],
    /// The largest path MTU code of the port, and the READs and atomics that it answers at a time.
    mtu: u8,
    max_rd_atomic: u8,
    links: HashMap<u32, Link>,
    /// The communication ids of connections that peers requested.
    asked: HashMap<(IpAddr, u32), u32>,
    listeners: Vec<Listening>,
    strangers: Strangers,
    /// When each connection is looked at next. An entry that is out of date costs one look.
    timers: BTreeSet<(Instant, u32)>,
}

impl Machine {
    pub(crate) fn new(guid: [u8; 8], mtu: u8, max_rd_atomic: u8) -> Self {
        Self {
            guid,
            mtu,
            max_rd_atomic,
            links: HashMap::new(),
            asked: HashMap::new(),
            listeners: Vec::new(),
            strangers: Strangers::default(),
            timers: BTreeSet::new(),
        }
    }

    pub(crate) fn link(&mut self, local: u32) -> Option<&mut Link> {
        self.links.get_mut(&local)
    }

    /// Rings all bells, since the core has stopped.
    pub(crate) fn ring_all(&self) {
        let links = self.links.values().filter_map(|link| link.bell.as_ref());
        links.chain(self.listeners.iter().map(|listening| &listening.bell)).for_each(|bell| bell.signal());
    }

    /// Listens to a service. Returns `false` if there is such a listener.
    pub(crate) fn listen(&mut self, claim: Claim, bell: Arc<EventFd>) -> bool {
        let free = !self.listeners.iter().any(|other| claim.conflict(&other.claim).is_some());
        if free {
            self.listeners.push(Listening { claim, backlog: VecDeque::new(), bell });
        }
        free
    }

    /// Ends a listener, and rejects what the program has not taken.
    pub(crate) fn unlisten(&mut self, claim: &Claim, now: Instant, world: &impl World) {
        let Some(at) = self.listeners.iter().position(|other| other.claim == *claim) else { return };
        let listening = self.listeners.swap_remove(at);
        listening.backlog.into_iter().for_each(|local| self.leave(local, now, world));
    }

    /// Takes the oldest request of a listener, which gets a bell. If there is none to be had, the request stays.
    pub(crate) fn take_request(
        &mut self,
        claim: &Claim,
        bell: impl FnOnce() -> Result<Arc<EventFd>, Error>,
    ) -> Result<Option<(u32, &Link)>, Error> {
        let listening = self.listeners.iter_mut().find(|other| other.claim == *claim);
        let Some(listening) = listening.filter(|listening| !listening.backlog.is_empty()) else {
            return Ok(None);
        };
        let bell = bell()?;
        // An empty counter is not an error here.
        let _ = listening.bell.take();
        let taken = listening.backlog.pop_front();
        Ok(taken.and_then(|local| {
            let link = self.links.get_mut(&local)?;
            link.bell = Some(bell);
            Some((local, &*link))
        }))
    }

    fn new_id(&self, world: &impl World) -> Result<u32, Error> {
        loop {
            let random = world.random()?;
            let slot = world.siblings().map(|siblings| u32::from(siblings.slot()) << ID_BITS);
            let local = slot.map_or(random, |slot| slot | random & ((1 << ID_BITS) - 1));
            if local != 0 && !self.links.contains_key(&local) {
                return Ok(local);
            }
        }
    }

    /// Asks a peer to connect, for `timeout` at most. Returns the connection's communication id.
    pub(crate) fn request(
        &mut self,
        mut link: Link,
        (service, private): (u64, &[u8]),
        timeout: Duration,
        now: Instant,
        world: &impl World,
    ) -> Result<u32, Error> {
        let local = self.new_id(world)?;
        link.transaction = local.into();
        let request = Request {
            service,
            guid: self.guid,
            side: link.ours,
            retry_count: link.retry_count,
            mtu: link.mtu,
            ack_timeout: link.ack_timeout,
            traffic_class: link.traffic_class,
            source: link.source,
            destination: link.peer,
        };
        let mut mad = link.write(Kind::Request, local);
        request.write(&mut mad);
        put_private(&mut mad, Kind::Request, private)?;
        self.links.insert(local, link);
        self.begin(local, mad, timeout, now, world);
        Ok(local)
    }

    /// Informs the peer that its request is accepted, until it confirms.
    pub(crate) fn reply(
        &mut self,
        local: u32,
        private: &[u8],
        timeout: Duration,
        now: Instant,
        world: &impl World,
    ) -> Result<(), Error> {
        let Some(link) = self.links.get_mut(&local) else { return Ok(()) };
        let mut mad = link.write(Kind::Reply, local);
        message::write_reply(&mut mad, &link.ours, self.guid);
        put_private(&mut mad, Kind::Reply, private)?;
        // A peer that waits no longer has ended it.
        if let State::RequestCame = link.state {
            link.state = State::ReplySent;
            link.remember(local, world);
            self.begin(local, mad, timeout, now, world);
        }
        Ok(())
    }

    /// Informs the peer that this side has taken its queue pair to it.
    pub(crate) fn ready(&mut self, local: u32, world: &impl World) {
        let Some(link) = self.links.get_mut(&local) else { return };
        if let State::ReplyCame = link.state {
            link.state = State::Established;
            // If it is lost, the reply comes again.
            let _ = world.send(link.source.ip(), link.peer.ip(), &link.write(Kind::ReadyToUse, local));
        }
    }

    /// Rejects a peer's request.
    pub(crate) fn reject(&mut self, local: u32, private: &[u8], world: &impl World) -> Result<(), Error> {
        let Some(link) = self.links.get_mut(&local) else { return Ok(()) };
        let mut mad = message::reject(link.transaction, local, link.remote, Reason::Consumer, self.guid);
        put_private(&mut mad, Kind::Reject, private)?;
        if let State::RequestCame = link.state {
            link.becomes(State::Ended(End::Disconnected));
            // If it is lost, the peer asks again, and learns that no program listens.
            let _ = world.send(link.source.ip(), link.peer.ip(), &mad);
        }
        Ok(())
    }

    /// Ends a connection, and informs the peer until it answers.
    pub(crate) fn disconnect(&mut self, local: u32, now: Instant, world: &impl World) {
        let Some(link) = self.links.get_mut(&local) else { return };
        if let State::Established | State::ReplySent | State::ReplyCame = link.state {
            link.state = State::DisconnectSent;
            let mad = link.disconnect_request(local);
            self.begin(local, mad, FAREWELL, now, world);
        }
    }

    /// Takes a connection back that the program has dropped. A peer with a connection is informed until it answers, others once.
    pub(crate) fn leave(&mut self, local: u32, now: Instant, world: &impl World) {
        let is_replied = self.link(local).is_some_and(|link| matches!(link.state, State::ReplySent));
        self.disconnect(local, now, world);
        let Some(link) = self.links.get_mut(&local) else { return };
        // The program's queue pair and descriptor are gone, and the manager may end before the peer answers.
        if let Some(siblings) = world.siblings() {
            siblings.forget(local);
        }
        (link.left, link.qpn, link.bell) = (true, None, None);
        let reason = match link.state {
            State::RequestSent => Reason::Timeout,
            State::RequestCame => Reason::Consumer,
            // Until the peer has taken the reply, it ignores requests to disconnect.
            State::DisconnectSent if is_replied => Reason::Consumer,
            _ => return self.bury(local),
        };
        link.reject(local, reason, self.guid, world);
        if !is_replied {
            link.end(local, End::Disconnected, world);
        }
        self.bury(local);
    }

    /// Forgets a connection that the program has dropped and that has ended.
    fn bury(&mut self, local: u32) {
        let gone = |link: &&Link| link.left && matches!(link.state, State::Ended(_));
        let Some(Link { peer, remote, .. }) = self.links.get(&local).filter(gone) else { return };
        if let Entry::Occupied(asked) = self.asked.entry((peer.ip(), *remote))
            && *asked.get() == local
        {
            asked.remove();
        }
        self.links.remove(&local);
    }

    /// Sends a message until it is answered, for `timeout` at most.
    fn begin(&mut self, local: u32, mad: Mad, timeout: Duration, now: Instant, world: &impl World) {
        let Some(link) = self.links.get_mut(&local) else { return };
        link.pending = Some(Pending::new(mad, local, now, timeout.min(LONGEST)));
        self.look(now, local, world);
    }

    /// Does all that is due. Returns when the next is.
    pub(crate) fn tick(&mut self, now: Instant, world: &impl World) -> Option<Instant> {
        for (from, mad) in self.strangers.look(|peer| world.finds(peer), now) {
            self.take_in(now, from, &mad, world);
        }
        while let Some(&(at, local)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.look(now, local, world);
        }
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.strangers.next()).min()
    }

    /// Repeats a connection's message if it is due.
    fn look(&mut self, now: Instant, local: u32, world: &impl World) {
        let Some(link) = self.links.get_mut(&local) else { return };
        let Some(pending) = link.pending.as_mut().filter(|pending| pending.next <= now) else { return };
        if pending.until <= now {
            let end = if let State::DisconnectSent = link.state {
                End::Disconnected
            } else {
                // The peer may have received it, and may still connect (IBA 12.9.7).
                link.reject(local, Reason::Timeout, self.guid, world);
                End::Silent
            };
            link.end(local, end, world);
            return self.bury(local);
        }
        match world.send(link.source.ip(), link.peer.ip(), &pending.mad) {
            Ok(Sent::Asking) => pending.put_off(now),
            // A connection's peer was there before.
            Err(error) if matches!(link.state, State::RequestSent) => {
                return link.end(local, End::NotFound(error), world);
            }
            Ok(Sent::Left) | Err(_) => pending.sent(now),
        }
        self.timers.insert((pending.next, local));
    }

    /// Takes a message in.
    pub(crate) fn take_in(&mut self, now: Instant, from: IpAddr, mad: &Mad, world: &impl World) {
        let Some(kind) = message::kind(mad) else { return };
        let (sender, receiver) = message::ids(mad);
        if kind == Kind::Request {
            // A request for a connection that this side could not have is not answered.
            return self.on_request(from, mad, world).unwrap_or_default();
        }
        let local = match kind {
            // A peer that waits no longer for an answer never learned our communication id.
            Kind::Reject if receiver == 0 => self.asked.get(&(from, sender)).copied().unwrap_or(0),
            _ => receiver,
        };
        let Some(link) = self.links.get_mut(&local) else {
            let answers = |siblings: &Siblings| siblings.answers_to(receiver);
            if kind == Kind::DisconnectRequest && world.siblings().is_none_or(answers) {
                let transaction = message::transaction(mad);
                let reply = message::message(Kind::DisconnectReply, transaction, receiver, sender);
                self.answer(from, &reply, world);
            }
            return;
        };
        let Some(message) = link.key(local).admit(from, mad) else { return };
        if let Some(again) = link.take_in(now, local, &message, world) {
            self.timers.insert((again, local));
        }
        self.bury(local);
    }

    /// Answers a peer that has no connection. If the answer is lost, the peer asks again.
    fn answer(&self, to: IpAddr, mad: &Mad, world: &impl World) {
        let any = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
        let _ = world.send(any, to, mad);
    }

    /// A peer wants to connect.
    fn on_request(&mut self, from: IpAddr, mad: &Mad, world: &impl World) -> Option<()> {
        let (remote, transaction) = (message::ids(mad).0, message::transaction(mad));
        let request = Request::read(mad)?;
        if let Some(&local) = self.asked.get(&(from, remote)) {
            // It comes again: the reply does too, by its own clock. Without a reply, the peer must wait for the program.
            if let Some(State::RequestCame) = self.link(local).map(|link| &link.state) {
                self.answer(from, &message::receipt(transaction, local, remote), world);
            }
            return None;
        }
        let (service, at) = (request.service, request.destination.ip());
        // The connection's own address: a peer may claim that any is.
        if !world.is_own(at) || at.is_ipv4() != from.is_ipv4() {
            return None;
        }
        let reject = |reason| message::reject(transaction, 0, remote, reason, self.guid);
        let hears = |listening: &Listening| listening.claim.hears(service, at);
        let Some(heard) = self.listeners.iter().position(hears).filter(|_| !request.side.xrc) else {
            if world.siblings().is_none_or(|siblings| siblings.answers_for(service, at)) {
                self.answer(from, &reject(Reason::InvalidService), world);
            }
            return None;
        };
        if !(SMALLEST_MTU..=self.mtu).contains(&request.mtu) {
            let mad = reject(Reason::InvalidMtu);
            self.answer(from, &mad, world);
            return None;
        }
        let full = self.listeners[heard].backlog.len() >= BACKLOG;
        if full || !self.strangers.are_found(|peer| world.finds(peer), from, mad) {
            return None;
        }
        let local = self.new_id(world).ok()?;
        let psn = world.random().ok()? & 0xff_ffff;
        // The address below the datagram is the peer's, whatever it says of itself.
        let peer = SocketAddr::new(from, request.source.port());
        let ours = Side {
            psn,
            responder_resources: request.side.initiator_depth.min(self.max_rd_atomic),
            initiator_depth: request.side.responder_resources.min(self.max_rd_atomic),
            ..Side::default()
        };
        let link = Link {
            state: State::RequestCame,
            ours,
            theirs: request.side,
            mtu: request.mtu,
            ack_timeout: request.ack_timeout,
            retry_count: request.retry_count,
            traffic_class: request.traffic_class,
            private: message::private_data(mad, Kind::Request).to_vec(),
            remote,
            transaction,
            ..Link::new(request.destination, peer, None)
        };
        self.links.insert(local, link);
        self.asked.insert((from, remote), local);
        self.listeners[heard].backlog.push_back(local);
        self.listeners[heard].bell.signal();
        Some(())
    }
}

/// Fails if private data does not fit its message.
fn put_private(mad: &mut Mad, kind: Kind, data: &[u8]) -> Result<(), Error> {
    let limit = message::private_data(mad, kind).len();
    if message::put_private_data(mad, kind, data) {
        return Ok(());
    }
    let shorter = format!("at most {limit} bytes; send the rest over the connection");
    Err(Error::value("the length of private data", data.len(), shorter))
}
