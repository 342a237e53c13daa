//! Tests of the events of connections, and of their ends.

use super::*;
use crate::abi::*;
use crate::rdmacm::test_environment::{PORT, REMOTE, Server, device, network, ours};
use std::net::SocketAddr;
use verbs::cm::machine::message::Reason;
use verbs::cm::machine::{CmConnection, End, State as Phase};

fn connection(server: &Server, peer: IpAddr, state: Phase, qpn: u32) -> &'static Id {
    // SAFETY: no test destroys the identifiers of its connections.
    unsafe { &*server.connection(peer, state, qpn) }
}

fn state(id: &Id) -> Phase {
    id.with_cm_connection(|cm_connection| Ok(cm_connection.state)).unwrap()
}

fn event(server: &Server) -> Option<rdma_cm_event_type> {
    crate::rdmacm::test_environment::event(server.channel).map(|(kind, _)| kind)
}

/// Returns the messages that were sent to a peer: the kind of each, and its sender's communication id.
fn sent(peer: IpAddr) -> Vec<(Kind, u32)> {
    let sent = &network().sent;
    let to_it = sent.iter().filter(|(to, _)| *to == peer);
    to_it.filter_map(|(_, mad)| Some((message::kind(mad)?, message::ids(mad).0))).collect()
}

/// IBA 12.6.10, 12.9.8.4: TIME_WAIT precedes another use of the identifiers. As with rdma-core, the queue pair works until the program ends
/// it, unless the peer has rejected the connection.
#[test]
fn a_connection_ends_once_and_its_queue_pair_with_a_rejection() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 2].into();
    for (qpn, kind, state, reported) in [
        (0x301, Kind::DisconnectRequest, Phase::Established, RDMA_CM_EVENT_DISCONNECTED),
        (0x302, Kind::DisconnectRequest, Phase::ReplySent, RDMA_CM_EVENT_DISCONNECTED),
        (0x303, Kind::DisconnectReply, Phase::DisconnectSent, RDMA_CM_EVENT_DISCONNECTED),
        (0x304, Kind::Reject, Phase::DisconnectSent, RDMA_CM_EVENT_DISCONNECTED),
        (0x305, Kind::Reject, Phase::Established, RDMA_CM_EVENT_REJECTED),
        (0x306, Kind::Reject, Phase::RequestSent, RDMA_CM_EVENT_REJECTED),
    ] {
        let local = connection(&server, peer, state, qpn).lock().local;
        let mad = message::message(kind, 1, REMOTE, local);
        let ends = || network().ended.iter().filter(|ended| **ended == qpn).count();
        for expected in [Some(reported), None] {
            server.receive(peer, &mad);
            assert_eq!(event(&server), expected, "once");
            assert_eq!(ends(), usize::from(reported == RDMA_CM_EVENT_REJECTED));
        }
        server.run_timers(Instant::now() + Duration::from_secs(2));
        let rested = (reported == RDMA_CM_EVENT_DISCONNECTED).then_some(RDMA_CM_EVENT_TIMEWAIT_EXIT);
        assert_eq!(event(&server), rested, "{kind:?} {state:?}");
    }
}

/// As in Linux, for a timeout on either side. The peer receives a rejection.
#[test]
fn a_peer_that_does_not_answer_is_unreachable() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 8].into();
    for state in [Phase::RequestSent, Phase::ReplySent] {
        let local = connection(&server, peer, state, 0x351).lock().local;
        let mut now = Instant::now();
        while event(&server) != Some(RDMA_CM_EVENT_UNREACHABLE) {
            now = server.run_timers(now).unwrap_or(now).max(now + Duration::from_millis(1));
        }
        assert_eq!(sent(peer).pop(), Some((Kind::Reject, local)), "{state:?}");
    }
}

#[test]
fn a_reply_is_not_repeated_after_the_peers_timeout() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 3, 0, 3].into();
    for phase in [Phase::RequestReceived, Phase::ReplySent] {
        for named in [true, false] {
            let id = connection(&server, peer, phase, 0x311);
            let local = if named { id.lock().local } else { 0 };
            server.receive(peer, &message::reject(1, REMOTE, local, Reason::Timeout, [2; 8]));
            assert_eq!(event(&server), Some(RDMA_CM_EVENT_REJECTED), "{phase:?}");
            assert_eq!(state(id), Phase::Ended(End::Rejected(Reason::Timeout as u16)));
        }
    }
    let id = connection(&server, peer, Phase::ReplySent, 0x312);
    server.receive([10, 3, 0, 4].into(), &message::reject(1, REMOTE, 0, Reason::Timeout, [2; 8]));
    assert_eq!((event(&server), state(id)), (None, Phase::ReplySent), "it is not this peer's");
}

/// A peer ignores DREQ until it has received a reply.
#[test]
fn peers_are_informed_when_an_identifier_is_destroyed() {
    let server = Server::new();
    let mut expected = Vec::new();
    let peer: IpAddr = [10, 3, 0, 5].into();
    for (state, messages) in [
        (Phase::RequestSent, &[Kind::Reject][..]),
        (Phase::RequestReceived, &[Kind::Reject]),
        (Phase::ReplySent, &[Kind::DisconnectRequest, Kind::Reject]),
        (Phase::ReplyReceived, &[Kind::DisconnectRequest]),
        (Phase::Established, &[Kind::DisconnectRequest]),
        (Phase::DisconnectSent, &[]),
        (Phase::Ended(End::Disconnected), &[]),
    ] {
        let id = connection(&server, peer, state, 0x321);
        expected.extend(messages.iter().map(|kind| (*kind, id.lock().local)));
        leave(id);
    }
    assert_eq!(sent(peer), expected);
}

#[test]
fn a_forked_process_ends_no_connection_of_its_parent() {
    let server = Server::new();
    let peer: IpAddr = [10, 3, 0, 7].into();
    for (process, messages) in [(Process::other(), 0), (Process::this(), 1)] {
        let id = server.connection(peer, Phase::Established, 0x341);
        // SAFETY: no other code uses the identifier. The parent's CM connection is not in the child's machine.
        unsafe { (*id).process = process };
        if process == Process::other() {
            // SAFETY: as above.
            unsafe { &*id }
                .with_cm_connection(|cm_connection| {
                    cm_connection.program = None;
                    Ok(())
                })
                .unwrap();
        }
        // SAFETY: as above.
        leave(unsafe { &*id });
        assert_eq!(sent(peer).len(), messages);
    }
}

#[test]
fn a_process_that_exits_sends_its_disconnect_requests() {
    let peer = SocketAddr::new([10, 3, 0, 6].into(), PORT);
    let device = device();
    let program = Server::new().connection(peer.ip(), Phase::Established, 0x331);
    let cm_connection = CmConnection {
        state: Phase::Established,
        program: Some(Handle(program)),
        ..CmConnection::new(ours(), peer)
    };
    device.machine().insert(0x331, cm_connection);
    wake();
    at_exit();
    assert_eq!(sent(peer.ip()), [(Kind::DisconnectRequest, 0x331)]);
}

/// A random number generator with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }

    fn one_of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len())]
    }

    /// Returns a message of any kind and content, often with known communication ids.
    fn message(&mut self, server: &Server, known: &[u32]) -> Mad {
        let (sender, receiver) = (self.below(4) as u32 + REMOTE, self.one_of(known));
        let mut mad = if self.below(4) == 0 {
            server.request([10, 3, 1, 1].into(), self.below(1 << 20) as u32)
        } else {
            message::message(self.one_of(&Kind::ALL), self.below(9) as u64, sender, receiver)
        };
        for _ in 0..self.below(8) {
            mad[24 + self.below(232)] = self.below(256) as u8;
        }
        mad
    }
}

/// IBA 12.9.7: any message in any state.
#[test]
fn any_message_has_at_most_one_answer_and_events_are_bounded() {
    let mut server = Server::new();
    let peers: [IpAddr; 2] = [[10, 3, 1, 1].into(), [10, 3, 1, 2].into()];
    network().there.extend(peers);
    let mut known = vec![0, 1];
    for state in [
        Phase::RequestSent,
        Phase::RequestReceived,
        Phase::ReplySent,
        Phase::ReplyReceived,
        Phase::Established,
        Phase::DisconnectSent,
        Phase::Ended(End::Disconnected),
    ] {
        for peer in peers {
            known.push(connection(&server, peer, state, 0x341).lock().local);
        }
    }
    let mut rng = Rng(7);
    let rounds = 50_000;
    for _ in 0..rounds {
        let (from, mad) = (rng.one_of(&peers), rng.message(&server, &known));
        server.receive(from, &mad);
    }
    let answers: usize = peers.iter().map(|peer| sent(*peer).len()).sum();
    assert!(answers <= rounds, "{answers} answers to {rounds} messages");
    let events = std::iter::from_fn(|| event(&server)).count();
    // The backlog of the listener, the end of each request, and the events of the other connections.
    assert!((1024..=2 * 1024 + 3 * known.len()).contains(&events), "{events} events");
}

#[test]
fn the_end_of_a_device_is_reported_once_to_its_connections() {
    let server = Server::new();
    let peer: IpAddr = [10, 3, 0, 9].into();
    let accepted = connection(&server, peer, Phase::Established, 0x391);
    let requested = connection(&server, peer, Phase::RequestSent, 0x392);
    let manager = Manager::new(EventFd::new(libc::EFD_NONBLOCK).unwrap());
    // The requesting side has a key since the resolution of the address.
    requested.lock().request_id = manager.lock().insert(server.device, requested).unwrap();
    manager.remove(server.device);
    let events: Vec<_> = std::iter::from_fn(|| event(&server)).collect();
    assert_eq!(events, [RDMA_CM_EVENT_DEVICE_REMOVAL; 2], "{:?} {:?}", state(accepted), state(requested));
}
