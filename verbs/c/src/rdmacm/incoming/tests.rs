//! Tests of requests with forged sources, on a device with simulated neighbours.

use super::*;
use crate::abi::*;
use crate::rdmacm::connect::{rdma_accept, rdma_init_qp_attr};
use crate::rdmacm::test_environment::{CHECKS, Server, WHILE_MODIFIED, network};
use std::net::IpAddr;
use std::time::Instant;
use verbs::cm::machine::State;
use verbs::cm::machine::message::{self, FIRST_CHECK, Kind};
use verbs::cm::machine::unresolved::LIMIT;

fn peer(id: *mut Id) -> IpAddr {
    // SAFETY: no test destroys the identifier.
    unsafe { &*id }.lock().destination.unwrap().ip()
}

#[test]
fn requests_with_spoofed_sources_delay_no_other_request() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 5, 0, 2].into();
    let spoofed = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
    for n in 0..10 * LIMIT as u32 {
        server.receive_request(spoofed(n), n);
        if n == 9 * LIMIT as u32 + 7 {
            // Its answer to ARP has not arrived yet.
            server.receive_request(honest, 1);
            network().there.insert(honest);
        }
        assert!(server.device.machine().unresolved.count() <= LIMIT);
    }
    assert!(server.requests().is_empty());
    server.run_timers(Instant::now() + FIRST_CHECK);
    let requests = server.requests();
    assert_eq!(requests.iter().copied().map(peer).collect::<Vec<_>>(), [honest]);
    server.receive_request(honest, 1);
    assert!(server.requests().is_empty(), "its request comes again, and is known");
    let answers: Vec<_> =
        network().sent.iter().filter(|(to, _)| *to == honest).map(|(_, mad)| *mad).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(message::kind(&answers[0]), Some(Kind::MessageReceipt), "the program has not answered it yet");
    // A host that does not answer is checked at growing intervals, and then its request is dropped.
    let mut rounds = 0;
    loop {
        let Some(next) = server.device.machine().unresolved.next() else { break };
        server.run_timers(next);
        rounds += 1;
    }
    assert!(server.requests().is_empty());
    assert!(rounds < 100 * CHECKS, "{rounds} rounds of checks of {LIMIT} sources");
}

#[test]
fn a_repeated_request_is_reported_once() {
    let mut server = Server::new();
    let late: IpAddr = [10, 0, 0, 3].into();
    for _ in 0..3 {
        server.receive_request(late, 1);
    }
    server.receive_request(late, 2);
    assert_eq!(server.device.machine().unresolved.count(), 2, "two connections");
    network().there.insert(late);
    server.run_timers(Instant::now() + FIRST_CHECK);
    assert_eq!(server.requests().len(), 2);
    // The source is resolved now, and its request is reported at once.
    server.receive_request(late, 3);
    assert_eq!(server.requests().len(), 1);
}

#[test]
fn accepting_does_not_delay_other_requests() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 0, 0, 4].into();
    network().there.insert(honest);
    server.receive_request(honest, 1);
    let id = server.requests()[0];
    // SAFETY: no test destroys the identifier.
    let free = move || assert!(unsafe { &*id }.is_free(), "accepting holds the lock of the connection");
    WHILE_MODIFIED.set(Some(Box::new(free)));
    let mut qp = ibv_qp { qp_num: 0x12, ..Default::default() };
    // SAFETY: the identifier is alive, and has no queue pair yet.
    unsafe {
        (*(*id).abi()).qp = &raw mut qp;
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), 0);
        assert_eq!((*id).with_cm_connection(|cm_connection| Ok(cm_connection.state)), Ok(State::ReplySent));
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), -1, "once");
    }
    assert!(network().sent.iter().any(|(to, mad)| *to == honest && message::kind(mad) == Some(Kind::Reply)));
}

/// Linux derives the accepting side's path from the request (`cm_format_paths_from_req`).
#[test]
fn an_accepted_queue_pair_has_the_traffic_class_of_the_request() {
    let mut server = Server::new();
    network().there.insert([10, 4, 0, 7].into());
    server.receive_request([10, 4, 0, 7].into(), 0x71);
    let [id] = server.requests()[..] else { panic!("one request") };
    let mut attributes = ibv_qp_attr { qp_state: IBV_QPS_RTR, ..Default::default() };
    let mut mask = 0;
    // SAFETY: no test destroys the identifiers of its peers.
    assert_eq!(unsafe { rdma_init_qp_attr(id.cast(), &mut attributes, &mut mask) }, 0);
    assert_eq!(attributes.ah_attr.grh.traffic_class, 0x68);
}
