//! The cost of one message or timer, and the limits of requests.

use super::*;
use crate::connect::PATIENCE;
use crate::id::{Connection, LOCKS};
use crate::message::Pending;
use crate::pretend::{Server, device, network, ours};
use std::net::SocketAddr;
use std::time::Duration;

/// Returns the number of connections that `act` locks.
fn locks(act: impl FnOnce()) -> u64 {
    let before = LOCKS.get();
    act();
    LOCKS.get() - before
}

/// An established connection in the server's tables.
fn establish(server: &mut Server, peer: IpAddr) -> u32 {
    let id = Id::create(server.channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
    // SAFETY: no test destroys its identifiers.
    let id = unsafe { &*id };
    let (source, destination) = (Some(ours()), Some(SocketAddr::new(peer, 40_000)));
    *id.lock() = Connection { state: State::Established, source, destination, ..Default::default() };
    let local = server.tables.insert(device(), id).unwrap();
    id.lock().local = local;
    local
}

#[test]
fn a_request_or_a_timer_locks_only_its_own_connection() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 2, 0, 2].into();
    network().there.insert(peer);
    let mut costs = Vec::new();
    for round in 0..3 {
        let first = locks(|| server.hears(peer, round));
        let again = locks(|| server.hears(peer, round));
        let local = establish(&mut server, peer);
        let now = Instant::now();
        let mut pending = Pending::new([0; 256], local, now, PATIENCE);
        pending.put_off(now);
        server.tables.find(local).unwrap().lock().pending = Some(pending);
        let timer = locks(|| {
            assert!(server.tables.due(now, vec![local]).is_empty());
            assert_eq!(server.tables.due(now + Duration::from_millis(1), vec![]).len(), 1);
        });
        let id: *const Id = server.tables.find(local).unwrap();
        // SAFETY: no test destroys its identifiers.
        let gone = locks(|| drop(server.tables.remove(unsafe { &*id })));
        costs.push([first, again, timer, gone]);
        for _ in 0..500 {
            establish(&mut server, peer);
        }
    }
    assert_eq!(costs[0], costs[1]);
    assert_eq!(costs[1], costs[2]);
    assert_eq!(server.told().len(), 3);
}

#[test]
fn a_listener_holds_no_more_requests_than_its_backlog() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 2, 0, 3].into();
    network().there.insert(peer);
    // SAFETY: no test destroys its identifiers.
    unsafe { &*server.listener }.backlog.limit(2);
    for id in 0..5 {
        server.hears(peer, id);
    }
    assert_eq!(server.told().len(), 2);
    // A peer that received no answer asks again.
    server.hears(peer, 2);
    assert_eq!(server.told().len(), 1);
    // A senseless number asks for the most.
    for wanted in [0, -1, 100_000] {
        // SAFETY: as above.
        unsafe { &*server.listener }.backlog.limit(wanted);
        for id in 10..2000 {
            server.hears(peer, id);
        }
        let told = server.told();
        assert_eq!(told.len(), 1024);
        // SAFETY: as above.
        told.into_iter().for_each(|id| drop(server.tables.remove(unsafe { &*id })));
    }
}

#[test]
fn requests_of_peers_take_no_place_from_a_program_s_own() {
    let mut server = Server::new();
    let peer: IpAddr = [10, 2, 0, 4].into();
    network().there.insert(peer);
    for id in 0..5000 {
        server.hears(peer, id);
        assert!(id % 1000 > 0 || server.told().len() <= 1000);
    }
    for _ in 0..5000 {
        establish(&mut server, peer);
    }
}
