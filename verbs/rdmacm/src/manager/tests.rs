//! The ends of connections.

use super::*;
use crate::events::{next_now, rdma_ack_cm_event};
use crate::id::Pending;
use crate::message::Side;
use crate::pretend::{PORT, Server, network, ours};
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
        pending: Some(Pending::new([0; 256], Instant::now(), Duration::from_secs(1), 3)),
        ..Default::default()
    };
    let local = server.tables.insert_asked(crate::pretend::device(), id, (peer, REMOTE, false)).unwrap();
    id.lock().local = local;
    id
}

/// Returns the next event.
fn event(server: &Server) -> Option<rdma_cm_event_type> {
    // SAFETY: the channel is alive, and the event is given back once.
    unsafe {
        let event = next_now(server.channel)?;
        let kind = (*event).event;
        rdma_ack_cm_event(event);
        Some(kind)
    }
}

/// Returns what a peer was sent: each message's kind, with its sender's communication id.
fn sent(peer: IpAddr) -> Vec<(Kind, u32)> {
    let sent = &network().sent;
    let to_it = sent.iter().filter(|(to, _)| *to == peer);
    to_it.map(|(_, mad)| (message::kind(mad).unwrap(), message::ids(mad).0)).collect()
}

/// IBA 12.6.10, 12.9.8.4: the connection rests before its identifiers mean another.
#[test]
fn the_queue_pair_ends_with_its_connection() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 2].into();
    for (qpn, kind, state) in [
        (0x301, Kind::DisconnectRequest, State::Established),
        (0x302, Kind::DisconnectRequest, State::ReplySent),
        (0x303, Kind::DisconnectReply, State::DisconnectSent),
        (0x304, Kind::Reject, State::DisconnectSent),
    ] {
        let id = connection(&mut server, peer, state, qpn);
        let local = id.lock().local;
        let mad = message::message(kind, 1, REMOTE, local);
        server.takes(peer, &mad);
        assert_eq!(event(&server), Some(RDMA_CM_EVENT_DISCONNECTED));
        assert!(id.lock().time_wait.is_some(), "its identifiers rest");
        assert!(id.lock().pending.is_none(), "it is repeated no more");
        assert_eq!(network().ended.iter().filter(|ended| **ended == qpn).count(), 1);
        server.takes(peer, &mad);
        assert_eq!(network().ended.iter().filter(|ended| **ended == qpn).count(), 1, "once");
        assert_eq!(event(&server), None);
    }
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
