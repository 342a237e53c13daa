//! The limits of requests.

use crate::rdmacm::placeholder::{Server, network};
use std::net::IpAddr;
use verbs::cm::machine::State;

#[test]
fn a_listener_keeps_no_more_requests_than_its_backlog() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 2, 0, 3].into();
    network().there.insert(peer);
    // SAFETY: no test destroys its identifiers.
    unsafe { &*server.listener }.backlog.limit(2);
    for id in 0..5 {
        server.receive_request(peer, id);
    }
    assert_eq!(server.requests().len(), 2);
    // A peer that received no answer repeats its request.
    server.receive_request(peer, 2);
    assert_eq!(server.requests().len(), 1);
    // A number out of range means the maximum.
    for (round, wanted) in (1..).zip([0, -1, 100_000]) {
        // SAFETY: as above.
        unsafe { &*server.listener }.backlog.limit(wanted);
        for id in 0..2000 {
            server.receive_request(peer, round * 10_000 + id);
        }
        assert_eq!(server.requests().len(), 1024);
    }
}

#[test]
fn requests_of_peers_take_no_place_from_a_program_s_own() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 2, 0, 4].into();
    network().there.insert(peer);
    for id in 0..5000 {
        server.receive_request(peer, id);
        assert!(id % 1000 > 0 || server.requests().len() <= 1000);
    }
    for _ in 0..5000 {
        server.connection(peer, State::Established, 0x201);
    }
}
