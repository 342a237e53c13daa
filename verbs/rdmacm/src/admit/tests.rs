//! Requests in other peers' names, on a device on which a test chooses the hosts that answer.

use super::*;
use crate::abi::*;
use crate::connect::rdma_accept;
use crate::id::{Id, State};
use crate::message::FIRST_LOOK;
use crate::pretend::{LOOKS, Server, WHILE_MODIFIED, network};
use crate::strangers::MOST;
use std::time::Instant;

fn peer(id: *mut Id) -> IpAddr {
    // SAFETY: nothing destroys it.
    unsafe { &*id }.lock().destination.unwrap().ip()
}

#[test]
fn requests_in_the_names_of_peers_that_are_not_there_hold_nobody_up() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 0, 0, 2].into();
    let spoofed = |n: u32| IpAddr::from((0x0a01_0000 + n).to_be_bytes());
    for n in 0..10 * MOST as u32 {
        server.hears(spoofed(n), n);
        if n == 9 * MOST as u32 + 7 {
            // Its answer to ARP is on its way.
            server.hears(honest, 1);
            network().there.insert(honest);
        }
        assert!(server.strangers.count() <= MOST);
    }
    assert!(server.told().is_empty());
    server.looks(Instant::now() + FIRST_LOOK);
    let told = server.told();
    assert_eq!(told.iter().copied().map(peer).collect::<Vec<_>>(), [honest]);
    server.hears(honest, 1);
    assert!(server.told().is_empty(), "its request comes again, and is known");
    let answers: Vec<_> =
        network().sent.iter().filter(|(to, _)| *to == honest).map(|(_, mad)| *mad).collect();
    assert_eq!(answers.len(), 1);
    assert_eq!(message::kind(&answers[0]), Some(Kind::Receipt), "the program has not answered it yet");
    // A host that does not answer is looked for less and less often, and forgotten.
    let mut rounds = 0;
    while let Some(next) = server.strangers.next() {
        server.looks(next);
        rounds += 1;
    }
    assert!(server.told().is_empty());
    assert!(rounds < 100 * LOOKS, "{rounds} times looked at {MOST} strangers");
}

#[test]
fn a_request_that_comes_again_is_kept_once() {
    let mut server = Server::new();
    let late: IpAddr = [10, 0, 0, 3].into();
    for _ in 0..3 {
        server.hears(late, 1);
    }
    server.hears(late, 2);
    assert_eq!(server.strangers.count(), 2, "two connections");
    network().there.insert(late);
    server.looks(Instant::now() + FIRST_LOOK);
    assert_eq!(server.told().len(), 2);
    // Now it is known, and waits no more.
    server.hears(late, 3);
    assert_eq!(server.told().len(), 1);
}

#[test]
fn nobody_waits_for_who_accepts() {
    let mut server = Server::new();
    let honest: IpAddr = [10, 0, 0, 4].into();
    network().there.insert(honest);
    server.hears(honest, 1);
    let id = server.told()[0];
    // SAFETY: nothing destroys it.
    let free = move || assert!(unsafe { &*id }.is_free(), "whoever needs this connection waits");
    WHILE_MODIFIED.set(Some(Box::new(free)));
    let mut qp = ibv_qp { qp_num: 0x12, ..Default::default() };
    // SAFETY: the identifier is alive, and has no queue pair yet.
    unsafe {
        (*(*id).abi()).qp = &raw mut qp;
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), 0);
        assert_eq!((*id).lock().state, State::ReplySent);
        assert_eq!(rdma_accept(id.cast(), std::ptr::null_mut()), -1, "once");
    }
    assert!(network().sent.iter().any(|(to, mad)| *to == honest && message::kind(mad) == Some(Kind::Reply)));
}
