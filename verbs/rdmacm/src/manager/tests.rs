//! The ends of connections.

use super::*;
use crate::message::{Request, Side};
use crate::pretend::{PORT, Server, network, ours, pending, request};
use std::net::SocketAddr;

/// The peer's communication id.
const REMOTE: u32 = 0x77;

/// A connection to `peer` in the server's tables.
fn connection(server: &mut Server, peer: IpAddr, state: State, qpn: u32) -> &'static Id {
    connection_of(Process::this(), server, peer, state, qpn)
}

fn connection_of(process: Process, server: &mut Server, peer: IpAddr, state: State, qpn: u32) -> &'static Id {
    let id = Id::create(server.channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
    // SAFETY: it was created right here, and no test destroys its identifiers.
    let id = unsafe {
        (*id).process = process;
        &*id
    };
    *id.lock() = Connection {
        state,
        source: Some(ours()),
        destination: Some(SocketAddr::new(peer, PORT)),
        remote: REMOTE,
        theirs: Side { qpn: 0x99, ..Side::default() },
        queue_pair: Some(qpn),
        pending: Some(pending([0; 256])),
        ..Default::default()
    };
    let local = server.tables.insert_asked(crate::pretend::device(), id, (peer, REMOTE, false)).unwrap();
    id.lock().local = local;
    id
}

/// Returns the next event.
fn event(server: &Server) -> Option<rdma_cm_event_type> {
    crate::pretend::event(server.channel).map(|(kind, _)| kind)
}

/// Returns what a peer was sent: each message's kind, with its sender's communication id.
fn sent(peer: IpAddr) -> Vec<(Kind, u32)> {
    let sent = &network().sent;
    let to_it = sent.iter().filter(|(to, _)| *to == peer);
    to_it.map(|(_, mad)| (message::kind(mad).unwrap(), message::ids(mad).0)).collect()
}

/// IBA 12.6.10, 12.9.8.4: the connection rests before its identifiers mean another. As with rdma-core, the queue pair goes on until the
/// program ends it, unless the peer has rejected the connection.
#[test]
fn a_connection_ends_once_and_its_queue_pair_with_a_rejection() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 2].into();
    for (qpn, kind, state, told) in [
        (0x301, Kind::DisconnectRequest, State::Established, RDMA_CM_EVENT_DISCONNECTED),
        (0x302, Kind::DisconnectRequest, State::ReplySent, RDMA_CM_EVENT_DISCONNECTED),
        (0x303, Kind::DisconnectReply, State::DisconnectSent, RDMA_CM_EVENT_DISCONNECTED),
        (0x304, Kind::Reject, State::DisconnectSent, RDMA_CM_EVENT_DISCONNECTED),
        (0x305, Kind::Reject, State::Established, RDMA_CM_EVENT_REJECTED),
        (0x306, Kind::Reject, State::RequestSent, RDMA_CM_EVENT_REJECTED),
    ] {
        let id = connection(&mut server, peer, state, qpn);
        let local = id.lock().local;
        let mad = message::message(kind, 1, REMOTE, local);
        let ends = || network().ended.iter().filter(|ended| **ended == qpn).count();
        server.takes(peer, &mad);
        assert_eq!(event(&server), Some(told));
        assert_eq!(id.lock().time_wait.is_some(), told == RDMA_CM_EVENT_DISCONNECTED, "its identifiers rest");
        assert!(id.lock().pending.is_none(), "it is repeated no more");
        assert_eq!(ends(), usize::from(told == RDMA_CM_EVENT_REJECTED));
        server.takes(peer, &mad);
        assert_eq!(ends(), usize::from(told == RDMA_CM_EVENT_REJECTED), "once");
        assert_eq!(event(&server), None);
    }
}

/// IBA 12.6.7.2, reason 26: the peer's port carries a smaller path MTU, for which this side asks.
#[test]
fn a_smaller_mtu_is_asked_for_until_there_is_none() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 10].into();
    let id = connection(&mut server, peer, State::RequestSent, 0x352);
    id.lock().mtu = 3;
    id.lock().pending = Some(pending(request(peer, 0x53)));
    let rejection = message::reject(1, REMOTE, id.lock().local, Reason::InvalidMtu, [0; 8]);
    for mtu in [2, 1] {
        server.takes(peer, &rejection);
        let asked = id.lock().pending.as_ref().map(|pending| Request::read(&pending.mad).unwrap().mtu);
        assert_eq!((asked, id.lock().mtu, event(&server)), (Some(mtu), mtu, None));
        assert!(id.lock().pending.as_ref().unwrap().next <= Instant::now(), "at once");
    }
    server.takes(peer, &rejection);
    assert_eq!(event(&server), Some(RDMA_CM_EVENT_REJECTED));
}

/// IBA 12.6.6; a receipt of another message, or in another state, changes nothing.
#[test]
fn a_receipt_puts_the_message_off_that_it_is_of() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 11].into();
    for (state, of) in [(State::RequestSent, 0), (State::ReplySent, 1)] {
        let id = connection(&mut server, peer, state, 0x353);
        let before = id.lock().pending.as_ref().map(|pending| (pending.next, pending.until)).unwrap();
        for message in 0..4_u8 {
            let mut receipt = message::receipt(1, REMOTE, id.lock().local);
            message::put(&mut receipt, 8, [message << 6]);
            // The longest time that can be said is 2.4 hours.
            message::put(&mut receipt, 9, [31 << 3]);
            server.takes(peer, &receipt);
            let connection = id.lock();
            let after = connection.pending.as_ref().map(|pending| (pending.next, pending.until)).unwrap();
            if message < of {
                assert_eq!(after, before, "{message}");
            } else {
                let time = Duration::from_nanos(4096 << 24);
                assert!(after.0 > before.0 + Duration::from_secs(60) && after.0 < before.0 + time);
                assert!(after.1 > before.1 + Duration::from_secs(60), "the patience begins then");
            }
        }
        assert!(id.lock_in(state).is_ok() && event(&server).is_none());
    }
}

/// As Linux: whichever side waits in vain.
#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut server = Server::new();
    for state in [State::RequestSent, State::ReplySent] {
        let id = connection(&mut server, [10, 3, 0, 8].into(), state, 0x351);
        give_up(id, &mut id.lock());
        assert_eq!(event(&server), Some(RDMA_CM_EVENT_UNREACHABLE), "{state:?}");
    }
}

/// IBA 12.9.7; Linux's `cm_acquire_id`: both communication ids, the peer's address and the queue pair of a request to disconnect.
#[test]
fn a_message_that_names_another_connection_changes_nothing() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 9].into();
    let mut effective = Vec::new();
    for state in [
        State::RequestSent,
        State::ReplyCame,
        State::RequestCame,
        State::ReplySent,
        State::Established,
        State::DisconnectSent,
        State::Closed,
    ] {
        let id = connection(&mut server, peer, state, 0x361);
        id.lock().ours.qpn = 0x0b_0a09;
        let key = id.lock().key().unwrap();
        for (what, from, mad) in message::key::tests::wrong_messages(&key, REMOTE) {
            network().sent.retain(|(to, _)| *to != from);
            server.takes(from, &mad);
            assert_eq!((id.lock().state, event(&server)), (state, None), "{what}");
            // A request to disconnect what is not known is answered, as by Linux.
            let is_unknown =
                message::ids(&mad).1 != key.local && message::kind(&mad) == Some(Kind::DisconnectRequest);
            assert_eq!(sent(from).len(), usize::from(is_unknown), "{what}");
        }
        for (kind, mad) in message::key::tests::messages(&key, REMOTE) {
            let id = connection(&mut server, peer, state, 0x362);
            id.lock().ours.qpn = 0x0b_0a09;
            let mut mad = mad;
            message::put(&mut mad, 4, id.lock().local.to_be_bytes());
            server.takes(peer, &mad);
            if id.lock().state != state {
                effective.push(kind);
            }
            while event(&server).is_some() {}
        }
    }
    let count = |kind| effective.iter().filter(|other| **other == kind).count();
    let counts =
        [Kind::Reply, Kind::ReadyToUse, Kind::Reject, Kind::DisconnectRequest, Kind::DisconnectReply];
    assert_eq!(counts.map(count), [1, 1, 6, 4, 1], "states that the right message changes");
}

#[test]
fn a_reply_is_not_repeated_to_who_waits_no_longer() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 3].into();
    for state in [State::RequestCame, State::ReplySent] {
        for named in [true, false] {
            let id = connection(&mut server, peer, state, 0x311);
            let local = if named { id.lock().local } else { 0 };
            server.takes(peer, &message::reject(1, REMOTE, local, Reason::Timeout, [2; 8]));
            assert_eq!(event(&server), Some(RDMA_CM_EVENT_REJECTED), "{state:?}");
            let connection = id.lock();
            assert!(connection.pending.is_none() && connection.state == State::Closed);
        }
    }
    let id = connection(&mut server, peer, State::ReplySent, 0x312);
    server.takes([10, 3, 0, 4].into(), &message::reject(1, REMOTE, 0, Reason::Timeout, [2; 8]));
    assert_eq!((event(&server), id.lock().state), (None, State::ReplySent), "it is not this peer's");
}

#[test]
fn peers_are_told_when_the_process_ends() {
    let mut server = Server::new();
    let mut expected = Vec::new();
    let peer: IpAddr = [10, 3, 0, 5].into();
    for (state, told) in [
        (State::RequestSent, Some(Kind::Reject)),
        (State::RequestCame, Some(Kind::Reject)),
        (State::ReplySent, Some(Kind::DisconnectRequest)),
        (State::ReplyCame, Some(Kind::DisconnectRequest)),
        (State::Established, Some(Kind::DisconnectRequest)),
        (State::DisconnectSent, None),
        (State::Closed, None),
    ] {
        let local = connection(&mut server, peer, state, 0x321).lock().local;
        expected.extend(told.map(|kind| (kind, local)));
    }
    server.tables.part();
    let mut sent = sent(peer);
    let order = |(kind, local): &(Kind, u32)| (*kind as u16, *local);
    sent.sort_by_key(order);
    expected.sort_by_key(order);
    assert_eq!(sent, expected);
}

#[test]
fn a_forked_process_ends_no_connection_of_its_parent() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 7].into();
    for (process, told) in [(Process::other(), 0), (Process::this(), 1)] {
        leave(connection_of(process, &mut server, peer, State::Established, 0x341));
        assert_eq!(sent(peer).len(), told);
    }
}

#[test]
fn the_end_of_the_process_reaches_the_manager_s_thread() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 6].into();
    let id = connection(&mut server, peer, State::Established, 0x331);
    let mut connection = id.lock();
    connection.local = 0;
    join(id, &mut connection).unwrap();
    let local = connection.local;
    drop(connection);
    at_exit();
    assert_eq!(sent(peer), [(Kind::DisconnectRequest, local)]);
}

/// A generator of numbers: the test is the same each time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// A message of any kind and any content, whose communication ids are often known ones.
    fn message(&mut self, known: &[u32]) -> Mad {
        let kinds = [
            Kind::Request,
            Kind::Reject,
            Kind::Reply,
            Kind::ReadyToUse,
            Kind::DisconnectRequest,
            Kind::DisconnectReply,
            Kind::ServiceRequest,
            Kind::ServiceReply,
        ];
        let (sender, receiver) = (self.below(4) as u32 + REMOTE, self.one_of(known));
        let mut mad = if self.below(4) == 0 {
            crate::pretend::request([10, 3, 1, 1].into(), self.below(1 << 20) as u32)
        } else {
            message::message(self.one_of(&kinds), self.below(9) as u64, sender, receiver)
        };
        for _ in 0..self.below(8) {
            mad[24 + self.below(232)] = self.below(256) as u8;
        }
        mad
    }
}

/// IBA 12.9.7: what comes in which state.
#[test]
fn whatever_peers_say_each_message_has_one_answer_at_most_and_events_are_bounded() {
    let mut server = Server::new();
    let peers: [IpAddr; 2] = [[10, 3, 1, 1].into(), [10, 3, 1, 2].into()];
    network().there.extend(peers);
    let mut known = vec![0, 1];
    for state in [
        State::RequestSent,
        State::RequestCame,
        State::ReplySent,
        State::ReplyCame,
        State::Established,
        State::DisconnectSent,
        State::Closed,
    ] {
        for peer in peers {
            known.push(connection(&mut server, peer, state, 0x341).lock().local);
        }
    }
    let mut dice = Dice(7);
    let rounds = 50_000;
    for _ in 0..rounds {
        let (from, mad) = (dice.one_of(&peers), dice.message(&known));
        server.takes(from, &mad);
    }
    let answers: usize = peers.iter().map(|peer| sent(*peer).len()).sum();
    assert!(answers <= rounds, "{answers} answers to {rounds} messages");
    let events = std::iter::from_fn(|| event(&server)).count();
    // A listener's backlog, each request's end, and what the connections' states lead to.
    assert!((1024..=2 * 1024 + 3 * known.len()).contains(&events), "{events} events");
}
