//! Tests of the limits of requests, and of the removal of a device.

use super::*;
use crate::rdmacm::test_environment::{Server, device, event, network};
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
    // A number out of range stands for the maximum.
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
fn requests_of_peers_do_not_use_up_the_programs_connections() {
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

/// One identifier's connection is locked, as in `rdma_resolve_addr`, which waits for the tables while it has locked the connection.
#[test]
fn the_end_of_a_device_is_reported_to_each_identifier_that_is_bound_to_it() {
    let server = Server::new();
    let [bound, elsewhere, anywhere, resolved] = std::array::from_fn(|_| {
        let id = Id::create(server.channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
        // SAFETY: the identifier was created above, and is never destroyed.
        unsafe { &*id }
    });
    let mut tables = Tables::default();
    let claims = [
        (bound, "10.2.0.5", Some(server.device)),
        (elsewhere, "10.2.0.6", Some(device())),
        (anywhere, "0.0.0.0", None),
    ];
    for (service, (id, at, device)) in (1..).zip(claims) {
        let at = at.parse().unwrap();
        let claim = Claim { service, at, family_only: true, shared: false, listens: false };
        tables.claim(id, &claim, device).unwrap();
    }
    resolved.lock().context = server.device.context.addr();
    tables.insert(server.device, resolved).unwrap();
    let connection = bound.lock();
    let reported = tables.remove_device(server.device);
    drop(connection);
    assert_eq!(reported, [bound, resolved].map(|id| id.abi().cast()).into());
    let events: Vec<_> = std::iter::from_fn(|| event(server.channel)).collect();
    assert_eq!(events, [(RDMA_CM_EVENT_DEVICE_REMOVAL, 0); 2]);
}
