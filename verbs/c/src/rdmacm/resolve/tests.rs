//! Tests of destinations that answer late or never.

use super::*;
use crate::rdmacm::events::rdma_create_event_channel;
use crate::rdmacm::id::rdma_create_id;
use crate::rdmacm::query::LONGEST_PAUSE;
use crate::rdmacm::test_environment::{PORT, event, network, ours};
use std::net::IpAddr;

const TIMEOUT: Duration = Duration::from_secs(2);

/// Returns an identifier that has been resolving a destination since `now`, and its channel.
fn resolving(now: Instant) -> (&'static Id, *mut rdma_event_channel) {
    crate::rdmacm::test_environment::device();
    let channel = rdma_create_event_channel();
    let id = Id::create(channel, std::ptr::null_mut(), RDMA_PS_TCP).unwrap();
    // SAFETY: the identifier was created above, and no test destroys its identifiers.
    let id = unsafe { &*id };
    *id.lock() = Connection {
        state: State::AddressQuery,
        source: Some(ours()),
        destination: Some(SocketAddr::new([10, 7, 0, 2].into(), PORT)),
        query: Some(Query::new(now, TIMEOUT)),
        ..Default::default()
    };
    (id, channel)
}

#[test]
fn a_destination_that_answers_late_is_resolved_then() {
    let mut now = Instant::now();
    let (id, channel) = resolving(now);
    for _ in 0..10 {
        let next = id.on_check(Ok(false), now).unwrap();
        assert!(next > now && next <= now + LONGEST_PAUSE);
        now = next;
    }
    assert_eq!(event(channel), None);
    assert_eq!(id.on_check(Ok(true), now), None);
    assert_eq!(event(channel), Some((RDMA_CM_EVENT_ADDR_RESOLVED, 0)));
    assert!(id.lock_in(State::AddressResolved).is_ok());
    assert_eq!(id.on_check(Ok(true), now), None);
    assert_eq!(event(channel), None);
}

#[test]
fn a_destination_that_does_not_answer_in_time_is_an_address_error() {
    let now = Instant::now();
    let (id, channel) = resolving(now);
    assert_eq!(id.on_check(Ok(false), now + TIMEOUT), None);
    assert_eq!(event(channel), Some((RDMA_CM_EVENT_ADDR_ERROR, -libc::ETIMEDOUT)));
    assert!(id.lock_in(State::Bound).is_ok(), "the program may ask again");
}

#[test]
fn an_error_of_the_search_is_the_status_of_the_event() {
    let now = Instant::now();
    let (id, channel) = resolving(now);
    assert_eq!(id.on_check(Err(Errno(libc::EHOSTUNREACH)), now), None);
    assert_eq!(event(channel), Some((RDMA_CM_EVENT_ADDR_ERROR, -libc::EHOSTUNREACH)));
}

/// The manager's thread checks until the simulated network reports that the host does not answer.
#[test]
fn a_waiting_program_gets_an_error_if_no_host_answers() {
    crate::rdmacm::test_environment::device();
    let resolve = |peer: IpAddr| {
        let mut id = std::ptr::null_mut();
        // SAFETY: all-zero bytes are a valid address, with room for either family; the identifier is alive.
        unsafe {
            // Calls of an identifier without a channel wait for their events.
            assert_eq!(rdma_create_id(std::ptr::null_mut(), &mut id, std::ptr::null_mut(), RDMA_PS_TCP), 0);
            let mut to: libc::sockaddr_storage = std::mem::zeroed();
            let to = (&raw mut to).cast();
            address::write(to, SocketAddr::new(peer, PORT));
            let done = rdma_resolve_addr(id, std::ptr::null_mut(), to.cast(), TIMEOUT.as_millis() as c_int);
            (done, crate::rdmacm::errno::last())
        }
    };
    network().there.insert([10, 7, 0, 3].into());
    assert_eq!(resolve([10, 7, 0, 3].into()).0, 0);
    assert_eq!(resolve([10, 7, 0, 4].into()), (-1, Errno(libc::ETIMEDOUT)));
}
