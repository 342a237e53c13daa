//! The connection manager's state machine (IBA 12.9.7). Its inputs are messages, calls and time; its outputs are messages and events.
//!
//! It has no clock, no thread and no port, so a test is a script. `manager` runs it for the Rust API, and `verbs/c/src/rdmacm/` for
//! `librdmacm`.

mod link;
pub mod message;
mod state;
#[cfg(test)]
mod tests;
pub mod unresolved;
mod world;

pub use link::Link;
pub use state::{End, State};
pub use world::{Event, World};

use super::Claim;
use message::{Kind, Mad, Pending, Reason, Request, SMALLEST_MTU, Sent, Side};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use unresolved::Unresolved;

/// The time during which a DREQ is repeated.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest time to wait for an answer. The limit keeps the sum with the clock from overflowing.
const LONGEST: Duration = Duration::from_secs(365 * 24 * 3600);

/// A listener: the service that it claims, and the program's data.
pub struct Listening<L> {
    pub claim: Claim,
    xrc: bool,
    pub program: L,
}

/// All connections and listeners of a device.
pub struct Machine<W: World> {
    guid: [u8; 8],
    /// The code of the port's largest path MTU at the moment.
    pub mtu: u8,
    max_rd_atomic: u8,
    links: HashMap<u32, Link<W::Connection>>,
    /// The communication ids of connections that peers requested, by the peer's address and communication id.
    requests: HashMap<(IpAddr, u32), u32>,
    pub listeners: Vec<Listening<W::Listener>>,
    pub unresolved: Unresolved,
    /// When each connection's timer is due. An outdated entry costs one look-up.
    timers: BTreeSet<(Instant, u32)>,
}

impl<W: World> Machine<W> {
    pub fn new(guid: [u8; 8], mtu: u8, max_rd_atomic: u8) -> Self {
        Self {
            guid,
            mtu,
            max_rd_atomic,
            links: HashMap::new(),
            requests: HashMap::new(),
            listeners: Vec::new(),
            unresolved: Unresolved::default(),
            timers: BTreeSet::new(),
        }
    }

    pub fn link(&mut self, local: u32) -> Option<&mut Link<W::Connection>> {
        self.links.get_mut(&local)
    }

    /// Returns all connections with their communication ids.
    pub fn links(&self) -> impl Iterator<Item = (u32, &Link<W::Connection>)> {
        self.links.iter().map(|(local, link)| (*local, link))
    }

    /// Adds a listener for XRC initiators or for reliable connections. Returns `false` if another listener conflicts with it.
    pub fn listen(&mut self, claim: Claim, xrc: bool, program: W::Listener) -> bool {
        let free = !self.listeners.iter().any(|other| claim.conflict(&other.claim).is_some());
        if free {
            self.listeners.push(Listening { claim, xrc, program });
        }
        free
    }

    /// Removes a listener. Returns the program's data.
    pub fn unlisten(&mut self, claim: &Claim) -> Option<W::Listener> {
        let at = self.listeners.iter().position(|other| other.claim == *claim)?;
        Some(self.listeners.swap_remove(at).program)
    }

    /// Adds a connection in any state, for tests.
    pub fn insert(&mut self, local: u32, link: Link<W::Connection>) {
        self.requests.insert((link.peer.ip(), link.remote), local);
        self.timers.extend(link.pending.as_ref().map(|pending| (pending.next, local)));
        self.links.insert(local, link);
    }

    fn new_id(&self, world: &W) -> Result<u32, W::Error> {
        loop {
            let local = world.communication_id(world.random()?);
            if local != 0 && !self.links.contains_key(&local) {
                return Ok(local);
            }
        }
    }

    /// Requests a connection, and repeats the request for up to `timeout`. Returns the connection's communication id.
    pub fn request(
        &mut self,
        mut link: Link<W::Connection>,
        (service, private): (u64, &[u8]),
        timeout: Duration,
        now: Instant,
        world: &W,
    ) -> Result<u32, W::Error> {
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
        put_private(&mut mad, Kind::Request, private, world)?;
        self.links.insert(local, link);
        self.begin(local, mad, timeout, now, world);
        Ok(local)
    }

    /// Accepts a peer's request: sends REP, and repeats it until the peer confirms.
    pub fn reply(
        &mut self,
        local: u32,
        private: &[u8],
        timeout: Duration,
        now: Instant,
        world: &W,
    ) -> Result<(), W::Error> {
        let Some(link) = self.links.get_mut(&local) else { return Ok(()) };
        let mut mad = link.write(Kind::Reply, local);
        message::write_reply(&mut mad, &link.ours, self.guid);
        put_private(&mut mad, Kind::Reply, private, world)?;
        // The peer may have withdrawn its request.
        if link.state == State::RequestReceived {
            link.state = State::ReplySent;
            link.remember(local, world);
            self.begin(local, mad, timeout, now, world);
        }
        Ok(())
    }

    /// Sends RTU, after this side has connected its queue pair.
    pub fn ready(&mut self, local: u32, world: &W) {
        let Some(link) = self.links.get_mut(&local) else { return };
        if link.state == State::ReplyReceived {
            link.state = State::Established;
            // If it is lost, the peer repeats its REP.
            let _ = world.send(link.source.ip(), link.peer.ip(), &link.write(Kind::ReadyToUse, local));
        }
    }

    /// Rejects a peer's request. The connection ends without an event.
    pub fn reject(&mut self, local: u32, private: &[u8], world: &W) -> Result<(), W::Error> {
        let Some(link) = self.links.get_mut(&local) else { return Ok(()) };
        let mut mad = message::reject(link.transaction, local, link.remote, Reason::Consumer, self.guid);
        put_private(&mut mad, Kind::Reject, private, world)?;
        if link.state == State::RequestReceived {
            link.state = State::Ended(End::Disconnected);
            // If it is lost, the peer repeats its request.
            let _ = world.send(link.source.ip(), link.peer.ip(), &mad);
        }
        Ok(())
    }

    /// Disconnects: sends DREQ, and repeats it for up to 2 s until the peer answers.
    pub fn disconnect(&mut self, local: u32, now: Instant, world: &W) {
        let Some(link) = self.links.get_mut(&local) else { return };
        if link.state.is_connected() {
            link.state = State::DisconnectSent;
            let mad = link.disconnect_request(local);
            self.begin(local, mad, DISCONNECT_TIMEOUT, now, world);
        }
    }

    /// Gives up a connection that the program has dropped. A peer with a connection receives DREQ until it answers, any other peer one REJ.
    pub fn give_up(&mut self, local: u32, now: Instant, world: &W) {
        let Some(link) = self.links.get_mut(&local) else { return };
        let state = link.state;
        // The program's queue pair and descriptor are gone, and the manager may end before the peer answers.
        (link.program, link.qpn) = (None, None);
        world.forget(local);
        self.disconnect(local, now, world);
        let reason = match state {
            State::RequestSent => Some(Reason::Timeout),
            // A peer ignores DREQ until it has received REP.
            State::RequestReceived | State::ReplySent => Some(Reason::Consumer),
            _ => None,
        };
        if let (Some(reason), Some(link)) = (reason, self.links.get_mut(&local)) {
            link.reject(local, reason, self.guid, world);
            if state != State::ReplySent {
                link.state = State::Ended(End::Disconnected);
            }
        }
        self.remove_ended(local);
    }

    /// Removes a connection that has ended, that the program has dropped, and whose TIME_WAIT is over.
    fn remove_ended(&mut self, local: u32) {
        let gone = |link: &&Link<_>| {
            link.program.is_none() && link.time_wait.is_none() && matches!(link.state, State::Ended(_))
        };
        let Some(Link { peer, remote, .. }) = self.links.get(&local).filter(gone) else { return };
        if let Entry::Occupied(request) = self.requests.entry((peer.ip(), *remote))
            && *request.get() == local
        {
            request.remove();
        }
        self.links.remove(&local);
    }

    /// Sends a message, and repeats it for up to `timeout` until it is answered.
    fn begin(&mut self, local: u32, mad: Mad, timeout: Duration, now: Instant, world: &W) {
        let Some(link) = self.links.get_mut(&local) else { return };
        link.pending = Some(Pending::new(mad, local, now, timeout.min(LONGEST)));
        self.expire(now, local, world);
    }

    /// Runs all timers that are due. Returns when the next one is.
    pub fn run_timers(&mut self, now: Instant, world: &W) -> Option<Instant> {
        for (from, mad) in self.unresolved.resolved(|peer| world.finds(peer), now) {
            self.receive(now, from, &mad, world);
        }
        while let Some(&(at, local)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.expire(now, local, world);
        }
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.unresolved.next()).min()
    }

    /// Repeats a connection's message, or ends its TIME_WAIT, if either is due.
    fn expire(&mut self, now: Instant, local: u32, world: &W) {
        let Some(link) = self.links.get_mut(&local) else { return };
        if link.time_wait.is_some_and(|until| until <= now) {
            link.time_wait = None;
            world.report(link, Event::TimeWaitExit);
            return self.remove_ended(local);
        }
        let Some(pending) = link.pending.as_mut().filter(|pending| pending.next <= now) else { return };
        if pending.until <= now {
            if link.state == State::DisconnectSent {
                self.timers.extend(link.disconnected(now, local, world).map(|at| (at, local)));
            } else {
                // The peer may have received it, and may still connect (IBA 12.9.7).
                link.reject(local, Reason::Timeout, self.guid, world);
                link.end(local, End::Unreachable, Event::Unreachable, world);
            }
            return self.remove_ended(local);
        }
        match world.send(link.source.ip(), link.peer.ip(), &pending.mad) {
            Ok(Sent::Asking) => pending.put_off(now),
            // Only a new request fails: in other states the peer has been found before.
            Err(error) if link.state == State::RequestSent => {
                return link.end(local, End::NotFound, Event::NotFound(error), world);
            }
            Ok(Sent::Left) | Err(_) => pending.sent(now),
        }
        self.timers.insert((pending.next, local));
    }

    /// Handles a message that `from` sent.
    pub fn receive(&mut self, now: Instant, from: IpAddr, mad: &Mad, world: &W) {
        let Some(kind) = message::kind(mad) else { return };
        let (sender, receiver) = message::ids(mad);
        if kind == Kind::Request {
            return self.requested(now, from, mad, world).unwrap_or_default();
        }
        let local = match kind {
            // A peer that withdrew its request never learned this side's communication id.
            Kind::Reject if receiver == 0 => self.requests.get(&(from, sender)).copied().unwrap_or(0),
            _ => receiver,
        };
        let Some(link) = self.links.get_mut(&local) else {
            if kind == Kind::DisconnectRequest && world.answers_to(from, receiver) {
                let transaction = message::transaction(mad);
                answer(from, &message::message(Kind::DisconnectReply, transaction, receiver, sender), world);
            }
            return;
        };
        let Some(message) = link.key(local).matches(from, mad) else { return };
        if let Some(due) = link.handle(now, local, &message, world) {
            self.timers.insert((due, local));
        }
        self.remove_ended(local);
    }

    /// Handles a connection request. Returns `None` if it creates no connection.
    fn requested(&mut self, now: Instant, from: IpAddr, mad: &Mad, world: &W) -> Option<()> {
        let (remote, transaction) = (message::ids(mad).0, message::transaction(mad));
        let request = Request::read(mad)?;
        if let Some(&local) = self.requests.get(&(from, remote)) {
            // A duplicate. The timer repeats the reply; without a reply, MRA makes the peer wait for the program.
            if self.link(local).is_some_and(|link| link.state == State::RequestReceived) {
                answer(from, &message::receipt(transaction, local, remote), world);
            }
            return None;
        }
        let (service, at) = (request.service, request.destination.ip());
        // The message's destination is only the peer's claim.
        if !world.is_own(at) || at.is_ipv4() != from.is_ipv4() {
            return None;
        }
        let guid = self.guid;
        let reject = |reason| answer(from, &message::reject(transaction, 0, remote, reason, guid), world);
        let listener = self.listeners.iter_mut().find(|other| other.claim.hears(service, at));
        let Some(listener) = listener.filter(|listener| listener.xrc == request.side.xrc) else {
            if world.answers_for(from, remote, service, at) {
                reject(Reason::InvalidService);
            }
            return None;
        };
        if !(SMALLEST_MTU..=self.mtu).contains(&request.mtu) {
            reject(Reason::InvalidMtu);
            return None;
        }
        let is_full = world.is_full(&listener.program);
        if is_full || !self.unresolved.is_resolved(|peer| world.finds(peer), now, from, mad) {
            return None;
        }
        let mut link = incoming(&request, from, self.max_rd_atomic, world.random().ok()?);
        (link.remote, link.transaction) = (remote, transaction);
        link.private = message::private_data(mad, Kind::Request).to_vec();
        let local = self.new_id(world).ok()?;
        let listener = self.listeners.iter_mut().find(|other| other.claim.hears(service, at))?;
        world.requested(&mut listener.program, local, &mut link).ok()?;
        self.links.insert(local, link);
        self.requests.insert((from, remote), local);
        Some(())
    }
}

/// Answers a peer that has no connection. The answer is not repeated.
fn answer<W: World>(to: IpAddr, mad: &Mad, world: &W) {
    let any = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let _ = world.send(any, to, mad);
}

/// Returns the connection that `from` requests, with as many READs and atomics in flight as both sides support.
fn incoming<C>(request: &Request, from: IpAddr, max_rd_atomic: u8, random: u32) -> Link<C> {
    let ours = Side {
        psn: random & 0xff_ffff,
        responder_resources: request.side.initiator_depth.min(max_rd_atomic),
        initiator_depth: request.side.responder_resources.min(max_rd_atomic),
        xrc: request.side.xrc,
        ..Side::default()
    };
    // The packet's source is the peer's address, whatever the message contains.
    let peer = SocketAddr::new(from, request.source.port());
    Link {
        state: State::RequestReceived,
        ours,
        theirs: request.side,
        mtu: request.mtu,
        ack_timeout: request.ack_timeout,
        retry_count: request.retry_count,
        traffic_class: request.traffic_class,
        ..Link::new(request.destination, peer)
    }
}

/// Writes private data. Returns an error if it does not fit the message.
fn put_private<W: World>(mad: &mut Mad, kind: Kind, data: &[u8], world: &W) -> Result<(), W::Error> {
    let limit = message::private_data(mad, kind).len();
    if message::put_private_data(mad, kind, data) { Ok(()) } else { Err(world.too_long(data.len(), limit)) }
}
