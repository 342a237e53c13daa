//! The connection manager's state machine (IBA 12.9.7). Its inputs are messages, calls and the time; its outputs are messages and events.
//!
//! It has no clock, no thread and no port, so tests run it step by step. `manager` runs it for the Rust API, and `verbs/c/src/rdmacm/` for
//! `librdmacm`.

mod connection;
mod environment;
pub mod message;
mod state;
#[cfg(test)]
mod tests;
pub mod unresolved;

pub use connection::CmConnection;
pub use environment::{Environment, Event};
pub use state::{End, State};

use super::Claim;
use message::{ConnectRequest, Kind, Mad, Pending, QpParameters, Reason, SMALLEST_MTU, Sent};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};
use unresolved::Unresolved;

/// The time during which a DREQ is repeated.
const DISCONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// The longest timeout of a message. The limit prevents an overflow of its sum with the current time.
const MAX_TIMEOUT: Duration = Duration::from_secs(365 * 24 * 3600);

/// A listener: the service that it listens to, and the program's data.
pub struct Listening<L> {
    pub claim: Claim,
    xrc: bool,
    pub program: L,
}

/// All connections and listeners of a device.
pub struct Machine<W: Environment> {
    guid: [u8; 8],
    /// Code of the port's current largest path MTU.
    pub mtu: u8,
    max_rd_atomic: u8,
    connections: HashMap<u32, CmConnection<W::Connection>>,
    /// The communication ids of connections that peers requested, by the peer's address and communication id.
    requests: HashMap<(IpAddr, u32), u32>,
    pub listeners: Vec<Listening<W::Listener>>,
    pub unresolved: Unresolved,
    /// Time at which each connection's timer is due. An outdated entry costs one look-up.
    timers: BTreeSet<(Instant, u32)>,
}

impl<W: Environment> Machine<W> {
    pub fn new(guid: [u8; 8], mtu: u8, max_rd_atomic: u8) -> Self {
        Self {
            guid,
            mtu,
            max_rd_atomic,
            connections: HashMap::new(),
            requests: HashMap::new(),
            listeners: Vec::new(),
            unresolved: Unresolved::default(),
            timers: BTreeSet::new(),
        }
    }

    pub fn connection(&mut self, local: u32) -> Option<&mut CmConnection<W::Connection>> {
        self.connections.get_mut(&local)
    }

    /// Returns all connections with their communication ids.
    pub fn connections(&self) -> impl Iterator<Item = (u32, &CmConnection<W::Connection>)> {
        self.connections.iter().map(|(local, connection)| (*local, connection))
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
    pub fn insert(&mut self, local: u32, connection: CmConnection<W::Connection>) {
        self.requests.insert((connection.peer.ip(), connection.remote), local);
        self.timers.extend(connection.pending.as_ref().map(|pending| (pending.next, local)));
        self.connections.insert(local, connection);
    }

    fn new_id(&self, environment: &W) -> Result<u32, W::Error> {
        loop {
            let local = environment.communication_id(environment.random()?);
            if local != 0 && !self.connections.contains_key(&local) {
                return Ok(local);
            }
        }
    }

    /// Requests a connection, and repeats the request for up to `timeout`. Returns the connection's communication id.
    pub fn request(
        &mut self,
        mut connection: CmConnection<W::Connection>,
        (service, private): (u64, &[u8]),
        timeout: Duration,
        now: Instant,
        environment: &W,
    ) -> Result<u32, W::Error> {
        let local = self.new_id(environment)?;
        connection.transaction = local.into();
        let request = ConnectRequest {
            service,
            guid: self.guid,
            qp: connection.ours,
            retry_count: connection.retry_count,
            mtu: connection.mtu,
            ack_timeout: connection.ack_timeout,
            traffic_class: connection.traffic_class,
            source: connection.source,
            destination: connection.peer,
        };
        let mut mad = connection.write(Kind::Request, local);
        request.write(&mut mad);
        put_private(&mut mad, Kind::Request, private, environment)?;
        self.connections.insert(local, connection);
        self.begin(local, mad, timeout, now, environment);
        Ok(local)
    }

    /// Accepts a peer's request: sends REP, and repeats it until the peer confirms.
    pub fn reply(
        &mut self,
        local: u32,
        private: &[u8],
        timeout: Duration,
        now: Instant,
        environment: &W,
    ) -> Result<(), W::Error> {
        let Some(connection) = self.connections.get_mut(&local) else { return Ok(()) };
        let mut mad = connection.write(Kind::Reply, local);
        message::write_reply(&mut mad, &connection.ours, self.guid);
        put_private(&mut mad, Kind::Reply, private, environment)?;
        // The peer may have withdrawn its request.
        if connection.state == State::RequestReceived {
            connection.state = State::ReplySent;
            connection.register_disconnect(local, environment);
            self.begin(local, mad, timeout, now, environment);
        }
        Ok(())
    }

    /// Sends RTU, after this side has connected its queue pair.
    pub fn ready(&mut self, local: u32, environment: &W) {
        let Some(connection) = self.connections.get_mut(&local) else { return };
        if connection.state == State::ReplyReceived {
            connection.state = State::Established;
            // If the RTU is lost, the peer repeats its REP.
            let _ = environment.send(
                connection.source.ip(),
                connection.peer.ip(),
                &connection.write(Kind::ReadyToUse, local),
            );
        }
    }

    /// Rejects a peer's request. The connection ends without an event.
    pub fn reject(&mut self, local: u32, private: &[u8], environment: &W) -> Result<(), W::Error> {
        let Some(connection) = self.connections.get_mut(&local) else { return Ok(()) };
        let mut mad =
            message::reject(connection.transaction, local, connection.remote, Reason::Consumer, self.guid);
        put_private(&mut mad, Kind::Reject, private, environment)?;
        if connection.state == State::RequestReceived {
            connection.state = State::Ended(End::Disconnected);
            // If the REJ is lost, the peer repeats its request.
            let _ = environment.send(connection.source.ip(), connection.peer.ip(), &mad);
        }
        Ok(())
    }

    /// Sends DREQ, and repeats it for up to 2 s until the peer answers.
    pub fn disconnect(&mut self, local: u32, now: Instant, environment: &W) {
        let Some(connection) = self.connections.get_mut(&local) else { return };
        if connection.state.is_connected() {
            connection.state = State::DisconnectSent;
            let mad = connection.disconnect_request(local);
            self.begin(local, mad, DISCONNECT_TIMEOUT, now, environment);
        }
    }

    /// Abandons a connection that the program has dropped. Sends DREQ until it is answered to a peer with a connection, and one REJ to any
    /// other peer.
    pub fn abandon(&mut self, local: u32, now: Instant, environment: &W) {
        let Some(connection) = self.connections.get_mut(&local) else { return };
        let state = connection.state;
        // The program has dropped its queue pair and descriptor, and the manager may end before the peer answers.
        (connection.program, connection.qpn) = (None, None);
        environment.unregister_disconnect(local);
        self.disconnect(local, now, environment);
        let reason = match state {
            State::RequestSent => Some(Reason::Timeout),
            // A peer ignores DREQ until it has received REP.
            State::RequestReceived | State::ReplySent => Some(Reason::Consumer),
            _ => None,
        };
        if let (Some(reason), Some(connection)) = (reason, self.connections.get_mut(&local)) {
            connection.reject(local, reason, self.guid, environment);
            if state != State::ReplySent {
                connection.state = State::Ended(End::Disconnected);
            }
        }
        self.remove_ended(local);
    }

    /// Removes a connection that has ended, that the program has dropped, and whose TIME_WAIT is over.
    fn remove_ended(&mut self, local: u32) {
        let gone = |connection: &&CmConnection<_>| {
            connection.program.is_none()
                && connection.time_wait.is_none()
                && matches!(connection.state, State::Ended(_))
        };
        let Some(CmConnection { peer, remote, .. }) = self.connections.get(&local).filter(gone) else {
            return;
        };
        if let Entry::Occupied(request) = self.requests.entry((peer.ip(), *remote))
            && *request.get() == local
        {
            request.remove();
        }
        self.connections.remove(&local);
    }

    /// Sends a message, and repeats it until it is answered, for up to `timeout`.
    fn begin(&mut self, local: u32, mad: Mad, timeout: Duration, now: Instant, environment: &W) {
        let Some(connection) = self.connections.get_mut(&local) else { return };
        connection.pending = Some(Pending::new(mad, local, now, timeout.min(MAX_TIMEOUT)));
        self.expire(now, local, environment);
    }

    /// Runs all timers that are due. Returns when the next one is.
    pub fn run_timers(&mut self, now: Instant, environment: &W) -> Option<Instant> {
        for (from, mad) in self.unresolved.resolved(|peer| environment.poll_resolution(peer), now) {
            self.receive(now, from, &mad, environment);
        }
        while let Some(&(at, local)) = self.timers.first()
            && at <= now
        {
            self.timers.pop_first();
            self.expire(now, local, environment);
        }
        self.timers.first().map(|(at, _)| *at).into_iter().chain(self.unresolved.next()).min()
    }

    /// Repeats a connection's message, or ends its TIME_WAIT, if either is due.
    fn expire(&mut self, now: Instant, local: u32, environment: &W) {
        let Some(connection) = self.connections.get_mut(&local) else { return };
        if connection.time_wait.is_some_and(|until| until <= now) {
            connection.time_wait = None;
            environment.report(connection, Event::TimeWaitExit);
            return self.remove_ended(local);
        }
        let Some(pending) = connection.pending.as_mut().filter(|pending| pending.next <= now) else { return };
        if pending.until <= now {
            if connection.state == State::DisconnectSent {
                self.timers.extend(connection.disconnected(now, local, environment).map(|at| (at, local)));
            } else {
                // The peer may have received it, and may still connect (IBA 12.9.7).
                connection.reject(local, Reason::Timeout, self.guid, environment);
                connection.end(local, End::Unreachable, Event::Unreachable, environment);
            }
            return self.remove_ended(local);
        }
        match environment.send(connection.source.ip(), connection.peer.ip(), &pending.mad) {
            Ok(Sent::Resolving) => pending.postpone(now),
            // Only a request can fail this way: in other states the peer's address has been resolved before.
            Err(error) if connection.state == State::RequestSent => {
                return connection.end(local, End::NotFound, Event::NotFound(error), environment);
            }
            Ok(Sent::Done) | Err(_) => pending.sent(now),
        }
        self.timers.insert((pending.next, local));
    }

    /// Handles a message that `from` sent.
    pub fn receive(&mut self, now: Instant, from: IpAddr, mad: &Mad, environment: &W) {
        let Some(kind) = message::kind(mad) else { return };
        let (sender, receiver) = message::ids(mad);
        if kind == Kind::Request {
            return self.on_request(now, from, mad, environment).unwrap_or_default();
        }
        let local = match kind {
            // A peer that withdrew its request does not have this side's communication id.
            Kind::Reject if receiver == 0 => self.requests.get(&(from, sender)).copied().unwrap_or(0),
            _ => receiver,
        };
        let Some(connection) = self.connections.get_mut(&local) else {
            if kind == Kind::DisconnectRequest && environment.answers_to(from, receiver) {
                let transaction = message::transaction(mad);
                answer(
                    from,
                    &message::message(Kind::DisconnectReply, transaction, receiver, sender),
                    environment,
                );
            }
            return;
        };
        let Some(message) = connection.key(local).matches(from, mad) else { return };
        if let Some(due) = connection.handle(now, local, &message, environment) {
            self.timers.insert((due, local));
        }
        self.remove_ended(local);
    }

    /// Handles a connection request. Returns `None` if it creates no connection.
    fn on_request(&mut self, now: Instant, from: IpAddr, mad: &Mad, environment: &W) -> Option<()> {
        let (remote, transaction) = (message::ids(mad).0, message::transaction(mad));
        let request = ConnectRequest::read(mad)?;
        if let Some(&local) = self.requests.get(&(from, remote)) {
            // A duplicate. The timer repeats the reply. Without a reply, the MRA extends the peer's timeout.
            if self.connection(local).is_some_and(|connection| connection.state == State::RequestReceived) {
                answer(from, &message::mra(transaction, local, remote), environment);
            }
            return None;
        }
        let (service, at) = (request.service, request.destination.ip());
        // The destination in the message is not authenticated, so it must be an address of the device.
        if !environment.is_own(at) || at.is_ipv4() != from.is_ipv4() {
            return None;
        }
        let guid = self.guid;
        let reject =
            |reason| answer(from, &message::reject(transaction, 0, remote, reason, guid), environment);
        let listener = self.listeners.iter_mut().find(|other| other.claim.matches(service, at));
        let Some(listener) = listener.filter(|listener| listener.xrc == request.qp.xrc) else {
            if environment.answers_for(from, remote, service, at) {
                reject(Reason::InvalidService);
            }
            return None;
        };
        if !(SMALLEST_MTU..=self.mtu).contains(&request.mtu) {
            reject(Reason::InvalidMtu);
            return None;
        }
        let is_full = environment.is_full(&listener.program);
        if is_full || !self.unresolved.is_resolved(|peer| environment.poll_resolution(peer), now, from, mad) {
            return None;
        }
        let mut connection = incoming(&request, from, self.max_rd_atomic, environment.random().ok()?);
        (connection.remote, connection.transaction) = (remote, transaction);
        connection.private = message::private_data(mad, Kind::Request).to_vec();
        let local = self.new_id(environment).ok()?;
        let listener = self.listeners.iter_mut().find(|other| other.claim.matches(service, at))?;
        environment.on_request(&mut listener.program, local, &mut connection).ok()?;
        self.connections.insert(local, connection);
        self.requests.insert((from, remote), local);
        Some(())
    }
}

/// Sends one answer to a peer without a connection.
fn answer<W: Environment>(to: IpAddr, mad: &Mad, environment: &W) {
    let any = if to.is_ipv4() { [0; 4].into() } else { [0; 16].into() };
    let _ = environment.send(any, to, mad);
}

/// Returns the connection that `from` requests, with the number of READs and atomics that both sides support.
fn incoming<C>(request: &ConnectRequest, from: IpAddr, max_rd_atomic: u8, random: u32) -> CmConnection<C> {
    let ours = QpParameters {
        psn: random & 0xff_ffff,
        responder_resources: request.qp.initiator_depth.min(max_rd_atomic),
        initiator_depth: request.qp.responder_resources.min(max_rd_atomic),
        xrc: request.qp.xrc,
        ..QpParameters::default()
    };
    // The connection uses the source address of the packet, not the address in the message.
    let peer = SocketAddr::new(from, request.source.port());
    CmConnection {
        state: State::RequestReceived,
        ours,
        theirs: request.qp,
        mtu: request.mtu,
        ack_timeout: request.ack_timeout,
        retry_count: request.retry_count,
        traffic_class: request.traffic_class,
        ..CmConnection::new(request.destination, peer)
    }
}

fn put_private<W: Environment>(
    mad: &mut Mad,
    kind: Kind,
    data: &[u8],
    environment: &W,
) -> Result<(), W::Error> {
    let limit = message::private_data(mad, kind).len();
    if message::put_private_data(mad, kind, data) {
        Ok(())
    } else {
        Err(environment.too_long(data.len(), limit))
    }
}
