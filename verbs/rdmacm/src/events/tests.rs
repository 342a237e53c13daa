//! Channels whose identifiers are destroyed or leave.

use super::*;
use crate::abi::{RDMA_PS_TCP, rdma_event_channel};
use std::ptr::null_mut;

fn channel() -> *mut rdma_event_channel {
    rdma_create_event_channel()
}

fn id(channel: *mut rdma_event_channel) -> *mut Id {
    Id::create(channel, null_mut(), RDMA_PS_TCP).unwrap()
}

fn events(channel: *mut rdma_event_channel) -> &'static Channel {
    // SAFETY: no test destroys its channels.
    unsafe { &*channel.cast() }
}

/// Returns whether a program that polls the channel would call `rdma_get_cm_event`.
fn is_readable(channel: *mut rdma_event_channel) -> bool {
    let mut watched = libc::pollfd { fd: events(channel).abi.fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, as said.
    unsafe { libc::poll(&mut watched, 1, 0) == 1 }
}

fn tell(id: *mut Id) {
    // SAFETY: no test destroys its identifiers.
    unsafe { &*id }.tell(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

/// Returns the identifiers of the channel's events.
fn taken(channel: *mut rdma_event_channel) -> Vec<*mut Id> {
    let mut taken = Vec::new();
    // SAFETY: the channel and the identifiers are alive.
    while let Some(event) = unsafe { next_now(channel) } {
        // SAFETY: as above.
        unsafe {
            taken.push((*event).id.cast());
            rdma_ack_cm_event(event);
        }
    }
    taken
}

#[test]
fn a_channel_without_events_is_not_readable() {
    let channel = channel();
    let (leaves, stays) = (id(channel), id(channel));
    tell(leaves);
    tell(leaves);
    assert!(is_readable(channel));
    assert!(events(channel).forget(leaves).is_empty());
    assert!(!is_readable(channel), "rdma_get_cm_event would wait");
    tell(leaves);
    tell(stays);
    events(channel).forget(leaves);
    assert!(is_readable(channel));
    assert_eq!(taken(channel), [stays]);
    assert!(!is_readable(channel));
}

#[test]
fn requests_leave_with_their_listener() {
    let channel = channel();
    let (listener, child) = (id(channel), id(channel));
    let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
    let parameters = Parameters::Connection(rdma_conn_param::default());
    let request = Waiting { id: child, listener, kind, status: 0, parameters, private: Vec::new() };
    // SAFETY: alive, as all in these tests.
    unsafe { &*listener }.tell_more(request);
    assert_eq!(events(channel).forget(listener), [child]);
    assert!(!is_readable(channel));
}

#[test]
fn events_that_move_are_announced_where_they_are() {
    let (from, to) = (channel(), channel());
    let (moves, stays) = (id(from), id(from));
    for id in [stays, moves, stays] {
        tell(id);
    }
    // SAFETY: both channels are alive.
    unsafe { (*moves).migrate(to) }.unwrap();
    assert_eq!((taken(from), taken(to)), (vec![stays, stays], vec![moves]));
    assert!(!is_readable(from) && !is_readable(to));
}
