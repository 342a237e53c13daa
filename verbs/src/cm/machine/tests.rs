//! Tests with two machines that exchange messages, and a clock that the test advances.

use super::connection::TIME_WAIT;
use super::*;
use datapath::siblings::Siblings;
use std::cell::RefCell;
use std::collections::VecDeque;

const CLIENT: &str = "10.0.0.2:40000";
const SERVER: &str = "10.0.0.1:7471";
const SERVICE: u64 = 0x0106_0000 | 7471;
const TIMEOUT: Duration = Duration::from_secs(8);

/// Records the messages that a machine sends, the queue pairs that it ends, and its events. Every peer is resolved.
#[derive(Default)]
struct Script {
    sent: RefCell<Vec<Mad>>,
    ended: RefCell<Vec<u32>>,
    reported: RefCell<Vec<Event<()>>>,
    numbers: RefCell<u32>,
    /// Maximum number of queued requests; `None` for no limit.
    backlog: Option<usize>,
}

impl Environment for Script {
    type Error = ();
    type Connection = ();
    type Listener = VecDeque<u32>;

    const MRA_RESTARTS_TIMEOUT: bool = false;

    fn send(&self, _: IpAddr, _: IpAddr, mad: &Mad) -> Result<Sent, ()> {
        self.sent.borrow_mut().push(*mad);
        Ok(Sent::Done)
    }

    fn poll_resolution(&self, _: IpAddr) -> Result<bool, ()> {
        Ok(true)
    }

    fn is_own(&self, address: IpAddr) -> bool {
        [CLIENT, SERVER].iter().any(|own| own.parse::<SocketAddr>().unwrap().ip() == address)
    }

    fn random(&self) -> Result<u32, ()> {
        *self.numbers.borrow_mut() += 0x0101;
        Ok(*self.numbers.borrow())
    }

    fn too_long(&self, _: usize, _: usize) {}

    fn siblings(&self) -> Option<&Siblings> {
        None
    }

    fn is_full(&self, listener: &VecDeque<u32>) -> bool {
        self.backlog.is_some_and(|most| listener.len() >= most)
    }

    fn on_request(
        &self,
        listener: &mut VecDeque<u32>,
        local: u32,
        connection: &mut CmConnection<()>,
    ) -> Result<(), ()> {
        connection.program = Some(());
        listener.push_back(local);
        Ok(())
    }

    fn report(&self, connection: &mut CmConnection<()>, event: Event<()>) {
        if let State::Ended(_) = connection.state {
            self.ended.borrow_mut().extend(connection.qpn.take());
        }
        self.reported.borrow_mut().push(event);
    }
}

impl Script {
    fn kinds(&self) -> Vec<Kind> {
        self.sent.borrow().iter().filter_map(message::kind).collect()
    }
}

struct Host {
    machine: Machine<Script>,
    environment: Script,
    ip: IpAddr,
}

impl Host {
    fn new(at: &str) -> Self {
        let ip = at.parse::<SocketAddr>().unwrap().ip();
        Self { machine: Machine::new([1; 8], 5, 16), environment: Script::default(), ip }
    }

    fn listening() -> Self {
        let mut host = Self::new(SERVER);
        let claim = Claim { service: SERVICE, at: host.ip, family_only: true, shared: false, listens: true };
        assert!(host.machine.listen(claim, false, VecDeque::new()));
        assert!(!host.machine.listen(claim, false, VecDeque::new()));
        host
    }

    fn asking(now: Instant) -> (Self, u32) {
        Self::asking_for(SERVER, now)
    }

    fn asking_for(peer: &str, now: Instant) -> (Self, u32) {
        Self::asking_while(TIMEOUT, peer, now)
    }

    fn asking_while(timeout: Duration, peer: &str, now: Instant) -> (Self, u32) {
        let mut host = Self::new(CLIENT);
        let local = host.requests(timeout, peer, now);
        (host, local)
    }

    fn requests(&mut self, timeout: Duration, peer: &str, now: Instant) -> u32 {
        let [source, peer] = [CLIENT, peer].map(|at| at.parse().unwrap());
        let ours = QpParameters {
            qpn: 0x11,
            initiator_depth: 4,
            responder_resources: 16,
            ..QpParameters::default()
        };
        let connection = CmConnection {
            ours,
            mtu: 5,
            qpn: Some(0x11),
            program: Some(()),
            ..CmConnection::new(source, peer)
        };
        self.machine.request(connection, (SERVICE, b"words"), timeout, now, &self.environment).unwrap()
    }

    /// Receives the messages of `from`, except those that `lost` selects.
    fn receives(&mut self, now: Instant, from: &Self, mut lost: impl FnMut(&Mad) -> bool) {
        for mad in from.environment.sent.take().iter().filter(|mad| !lost(mad)) {
            self.machine.receive(now, from.ip, mad, &self.environment);
        }
    }

    /// Receives the client's request and accepts it. Returns the connection's communication id on this side.
    fn accepts(&mut self, now: Instant, client: &Self) -> u32 {
        self.receives(now, client, |_| false);
        let there = self.take_request().unwrap();
        self.machine.reply(there, b"", TIMEOUT, now, &self.environment).unwrap();
        there
    }

    fn take_request(&mut self) -> Option<u32> {
        self.machine.listeners.first_mut()?.program.pop_front()
    }

    fn state(&mut self, local: u32) -> String {
        format!("{:?}", self.machine.connection(local).unwrap().state)
    }
}

/// IBA 12.9.7: each message of a connection is lost once and repeated.
#[test]
fn a_connection_survives_the_loss_of_each_message() {
    let mut now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    let mut lost = Vec::new();
    let (mut there, mut steps) = (0, 0);
    while there == 0
        || server.state(there) != "Ended(Disconnected)"
        || client.state(here) != "Ended(Disconnected)"
    {
        let mut first = |mad: &Mad| {
            let kind = message::kind(mad);
            let is_first = !lost.contains(&kind);
            lost.extend(is_first.then_some(kind));
            is_first
        };
        server.receives(now, &client, &mut first);
        if let Some(local) = server.take_request() {
            let connection = server.machine.connection(local).unwrap();
            assert_eq!((&connection.private[..5], connection.ours.responder_resources), (&b"words"[..], 4));
            there = local;
            server.machine.connection(there).unwrap().qpn = Some(0x22);
            server.machine.reply(there, b"yes", TIMEOUT, now, &server.environment).unwrap();
        }
        client.receives(now, &server, &mut first);
        client.machine.ready(here, &client.environment);
        if there != 0 && server.state(there) == "Established" {
            assert_eq!(client.state(here), "Established");
            client.machine.disconnect(here, now, &client.environment);
        }
        now += Duration::from_millis(500);
        client.machine.run_timers(now, &client.environment);
        server.machine.run_timers(now, &server.environment);
        steps += 1;
        assert!(steps < 20, "{} {}", client.state(here), server.state(there));
    }
    assert_eq!((client.environment.ended.take(), server.environment.ended.take()), (vec![0x11], vec![0x22]));
    assert_eq!(lost.len(), 5, "REQ, REP, RTU, DREQ and DREP: {lost:?}");
}

/// IBA 12.6.6: the server answers the second copy of the request with an MRA, and the client sends no third copy.
#[test]
fn a_client_waits_for_a_program_that_accepts_late() {
    for seconds in [5, 10, 30] {
        let mut now = Instant::now();
        let accepted = now + Duration::from_secs(seconds);
        let mut server = Host::listening();
        let (mut client, here) = Host::asking_while(Duration::from_secs(60), SERVER, now);
        let mut copies = 0;
        while now < accepted {
            copies += client.environment.kinds().len();
            server.receives(now, &client, |_| false);
            client.receives(now, &server, |_| false);
            now = client
                .machine
                .run_timers(now, &client.environment)
                .map_or(accepted, |next| next.min(accepted));
            client.machine.run_timers(now, &client.environment);
        }
        assert_eq!(copies, 2, "accepted after {seconds} s");
        let there = server.accepts(now, &client);
        client.receives(now, &server, |_| false);
        client.machine.ready(here, &client.environment);
        server.receives(now, &client, |_| false);
        assert_eq!((client.state(here), server.state(there)), ("Established".into(), "Established".into()));
    }
}

/// The program accepts a request in 5 ms, and the backlog is one request. All others are dropped and repeated.
#[test]
fn two_hundred_clients_connect_to_a_listener_with_a_backlog_of_one() {
    let mut now = Instant::now();
    let end = now + Duration::from_secs(69);
    let mut server = Host::listening();
    server.environment.backlog = Some(1);
    let mut client = Host::new(CLIENT);
    let connections: Vec<u32> = (0..200).map(|_| client.requests(end - now, SERVER, now)).collect();
    let mut accepts = now;
    while now < end {
        server.receives(now, &client, |_| false);
        if accepts <= now
            && let Some(there) = server.take_request()
        {
            server.machine.reply(there, b"", TIMEOUT, now, &server.environment).unwrap();
            accepts = now + Duration::from_millis(5);
        }
        client.receives(now, &server, |_| false);
        for &here in &connections {
            client.machine.ready(here, &client.environment);
        }
        let timers = client.machine.run_timers(now, &client.environment).into_iter();
        let next = timers.chain(server.machine.run_timers(now, &server.environment)).min();
        let waits = server.machine.listeners[0].program.front().map(|_| accepts);
        let Some(next) = next.into_iter().chain(waits).filter(|&next| next > now).min() else { break };
        now = next;
    }
    for here in connections {
        assert_eq!(client.state(here), "Established");
    }
}

/// A peer that has not received the reply has no connection to disconnect.
#[test]
fn a_connection_that_is_dropped_before_its_reply_arrives_is_rejected() {
    let now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    let there = server.accepts(now, &client);
    client.receives(now, &server, |_| true);
    server.machine.abandon(there, now, &server.environment);
    client.receives(now, &server, |_| false);
    assert!(client.state(here).starts_with("Ended(Rejected"), "{}", client.state(here));
}

/// IBA 12.9.7: the request to disconnect is lost twice. Afterwards neither side has any state of the connection.
#[test]
fn the_disconnect_request_of_a_dropped_connection_is_repeated() {
    let mut now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    let there = server.accepts(now, &client);
    client.receives(now, &server, |_| false);
    client.machine.ready(here, &client.environment);
    server.receives(now, &client, |_| false);
    client.machine.abandon(here, now, &client.environment);
    for _ in 0..2 {
        server.receives(now, &client, |_| true);
        now = client.machine.run_timers(now, &client.environment).unwrap();
        client.machine.run_timers(now, &client.environment);
    }
    server.receives(now, &client, |_| false);
    assert_eq!(server.state(there), "Ended(Disconnected)");
    client.receives(now, &server, |_| false);
    assert_eq!(client.state(here), "Ended(Disconnected)", "the peer has answered");
    let ended = now;
    while let Some(next) = client.machine.run_timers(now, &client.environment) {
        now = next;
    }
    assert!(client.machine.connections.is_empty());
    assert_eq!(now - ended, TIME_WAIT);
    assert!(client.environment.ended.take().is_empty(), "the queue pair is gone already");
    // A connection whose peer never answers is removed, too.
    server.machine.abandon(there, now, &server.environment);
    server.machine.run_timers(now, &server.environment);
    let (mut client, here) = Host::asking(now);
    server.accepts(now, &client);
    client.receives(now, &server, |_| false);
    client.machine.abandon(here, now, &client.environment);
    while let Some(next) = client.machine.run_timers(now, &client.environment) {
        now = next;
    }
    assert!(client.machine.connections.is_empty());
}

/// IBA 12.9.8.4: during TIME_WAIT no other connection uses these identifiers, because late packets may arrive.
#[test]
fn a_delayed_copy_of_a_request_begins_no_connection_during_time_wait() {
    let mut now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    let copy = client.environment.sent.borrow()[0];
    let there = server.accepts(now, &client);
    client.receives(now, &server, |_| false);
    client.machine.ready(here, &client.environment);
    server.receives(now, &client, |_| false);
    client.machine.disconnect(here, now, &client.environment);
    server.receives(now, &client, |_| false);
    server.machine.abandon(there, now, &server.environment);
    for is_late in [true, false] {
        server.machine.receive(now, client.ip, &copy, &server.environment);
        assert_eq!(server.take_request().is_none(), is_late);
        now += TIME_WAIT;
        server.machine.run_timers(now, &server.environment);
    }
    let reported = [Event::Established, Event::Disconnected, Event::TimeWaitExit];
    assert_eq!(*server.environment.reported.borrow(), reported, "each once");
}

#[test]
fn an_unanswered_request_is_repeated_until_the_time_is_over() {
    let start = Instant::now();
    let (mut client, here) = Host::asking(start);
    let mut last = start;
    while let Some(next) = client.machine.run_timers(last, &client.environment) {
        last = next;
    }
    assert_eq!((last - start, client.state(here)), (TIMEOUT, "Ended(Unreachable)".into()));
    let mut kinds = client.environment.kinds();
    assert_eq!(kinds.pop(), Some(Kind::Reject));
    assert_eq!(kinds, [Kind::Request; 5]);
}

#[test]
fn a_request_before_the_listener_exists_is_retried_and_then_rejected() {
    let mut now = Instant::now();
    let mut server = Host::new(SERVER);
    let (mut client, here) = Host::asking(now);
    let mut asked = 0;
    while client.state(here) == "RequestSent" {
        asked += client.environment.kinds().len();
        server.receives(now, &client, |_| false);
        client.receives(now, &server, |_| false);
        now = client.machine.run_timers(now, &client.environment).unwrap_or(now);
        client.machine.run_timers(now, &client.environment);
    }
    assert_eq!((asked, client.state(here)), (8, "Ended(Rejected(8))".into()));
}

/// IBA 12.6.7.2, reason 26: the peer's port carries a smaller path MTU.
#[test]
fn both_ports_agree_on_the_smaller_mtu() {
    let now = Instant::now();
    for (least, port, negotiated) in
        [(1, 5, Some(5)), (1, 3, Some(3)), (1, 1, Some(1)), (4, 4, Some(4)), (4, 3, None)]
    {
        let mut server = Host::listening();
        server.machine.mtu = port;
        let (mut client, here) = Host::asking(now);
        client.machine.connection(here).unwrap().min_mtu = least;
        while client.environment.sent.borrow().iter().any(|mad| message::kind(mad) == Some(Kind::Request)) {
            server.receives(now, &client, |_| false);
            client.receives(now, &server, |_| false);
            client.machine.run_timers(now, &client.environment);
        }
        let request = server.take_request();
        assert_eq!(
            request.map(|there| server.machine.connection(there).unwrap().mtu),
            negotiated,
            "at least {least}, the port carries {port}"
        );
        let refused = client.state(here) == "Ended(Rejected(26))";
        assert_eq!(
            (refused, client.machine.connection(here).unwrap().mtu),
            (negotiated.is_none(), negotiated.unwrap_or(least))
        );
    }
}

#[test]
fn an_accepting_side_learns_the_traffic_class() {
    let now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    client.environment.sent.borrow_mut()[0][message::BODY + 92] = 0x68;
    let there = server.accepts(now, &client);
    assert_eq!(server.machine.connection(there).unwrap().traffic_class, 0x68);
    assert_eq!(client.machine.connection(here).unwrap().traffic_class, 0);
}

#[test]
fn a_request_to_an_address_of_another_host_is_ignored() {
    let now = Instant::now();
    let mut server = Host::new(SERVER);
    let any = [0; 4].into();
    let claim = Claim { service: SERVICE, at: any, family_only: true, shared: false, listens: true };
    assert!(server.machine.listen(claim, false, VecDeque::new()));
    for (to, is_heard) in [("10.0.0.9:7471", false), ("[fd00::9]:7471", false), (SERVER, true)] {
        let (client, _) = Host::asking_for(to, now);
        server.receives(now, &client, |_| false);
        assert_eq!(server.take_request().is_some(), is_heard, "{to}");
    }
}

#[test]
fn a_dropped_request_is_rejected() {
    let now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    server.receives(now, &client, |_| false);
    client.machine.abandon(here, now, &client.environment);
    server.receives(now, &client, |_| false);
    let there = server.take_request().unwrap();
    assert_eq!(server.state(there), "Ended(Rejected(4))");
    server.machine.abandon(there, now, &server.environment);
    let (mut client, here) = Host::asking(now);
    server.receives(now, &client, |_| false);
    assert_eq!(server.machine.unresolved.count(), 0, "each was found at once");
    let there = server.take_request().unwrap();
    server.machine.abandon(there, now, &server.environment);
    client.receives(now, &server, |_| false);
    assert_eq!(client.state(here), "Ended(Rejected(28))");
}

/// IBA 12.9.7: a side that times out informs its peer, whichever message was lost.
#[test]
fn a_side_that_times_out_sends_the_peer_a_rejection() {
    let now = Instant::now();
    let mut server = Host::listening();
    let (mut client, here) = Host::asking(now);
    server.receives(now, &client, |_| false);
    client.machine.run_timers(now + TIMEOUT, &client.environment);
    assert_eq!(client.state(here), "Ended(Unreachable)");
    server.receives(now, &client, |_| false);
    let there = server.take_request().unwrap();
    assert_eq!(server.state(there), "Ended(Rejected(4))");
    server.machine.abandon(there, now, &server.environment);

    let (mut client, here) = Host::asking(now);
    let there = server.accepts(now, &client);
    client.receives(now, &server, |_| false);
    client.machine.ready(here, &client.environment);
    // No RTU arrives.
    server.receives(now, &client, |_| true);
    server.environment.sent.take();
    server.machine.run_timers(now + TIMEOUT, &server.environment);
    assert_eq!(server.state(there), "Ended(Unreachable)");
    client.receives(now, &server, |_| false);
    assert_eq!(
        (client.state(here), client.environment.ended.take()),
        ("Ended(Disconnected)".into(), vec![0x11])
    );
}

/// IBA 12.9.7; Linux's `cm_acquire_id`: a message must match both communication ids, the peer's address and, in a request to disconnect,
/// the QPN.
#[test]
fn a_message_about_another_connection_changes_nothing() {
    const LOCAL: u32 = 0x1234_5678;
    const REMOTE: u32 = 0x0077_0066;
    let now = Instant::now();
    let states: [fn() -> State; 7] = [
        || State::RequestSent,
        || State::ReplyReceived,
        || State::RequestReceived,
        || State::ReplySent,
        || State::Established,
        || State::DisconnectSent,
        || State::Ended(End::Disconnected),
    ];
    let mut effective = Vec::new();
    for state in states {
        let host = || {
            let mut host = Host::new(SERVER);
            let [source, peer] = [SERVER, CLIENT].map(|at| at.parse().unwrap());
            let ours = QpParameters { qpn: 0x0b_0a09, ..QpParameters::default() };
            let remote = if matches!(state(), State::RequestSent) { 0 } else { REMOTE };
            let connection = CmConnection {
                state: state(),
                ours,
                remote,
                qpn: Some(0x0b_0a09),
                program: Some(()),
                ..CmConnection::new(source, peer)
            };
            let key = connection.key(LOCAL);
            host.machine.insert(LOCAL, connection);
            (host, key)
        };
        let (mut unchanged, key) = host();
        for (what, from, mad) in message::key::tests::wrong_messages(&key, REMOTE) {
            unchanged.machine.receive(now, from, &mad, &unchanged.environment);
            assert_eq!(unchanged.state(LOCAL), format!("{:?}", state()), "{what}");
            assert!(unchanged.environment.ended.take().is_empty(), "{what}");
            // As on Linux, a DREQ for an unknown connection is answered.
            let answered = unchanged.environment.kinds();
            unchanged.environment.sent.take();
            let is_unknown =
                message::ids(&mad).1 != LOCAL && message::kind(&mad) == Some(Kind::DisconnectRequest);
            assert_eq!(answered, if is_unknown { vec![Kind::DisconnectReply] } else { vec![] }, "{what}");
        }
        for (kind, mad) in message::key::tests::messages(&key, REMOTE) {
            let (mut host, key) = host();
            host.machine.receive(now, key.peer, &mad, &host.environment);
            if host.state(LOCAL) != format!("{:?}", state()) {
                effective.push(kind);
            }
        }
    }
    let count = |kind| effective.iter().filter(|other| **other == kind).count();
    let counts =
        [Kind::Reply, Kind::ReadyToUse, Kind::Reject, Kind::DisconnectRequest, Kind::DisconnectReply];
    assert_eq!(counts.map(count), [1, 1, 6, 4, 1], "states that the right message changes");
}
