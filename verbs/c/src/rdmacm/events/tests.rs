//! Tests of channels whose identifiers are destroyed or moved to another channel.

use super::*;
use crate::abi::{RDMA_PS_TCP, ibv_qp, rdma_event_channel};
use crate::rdmacm::test_environment::{Server, WHILE_MODIFIED, WHILE_REPORTED};
use std::cell::Cell;
use std::ptr::null_mut;
use std::rc::Rc;
use verbs::cm::machine::State as Phase;

fn channel() -> *mut rdma_event_channel {
    rdma_create_event_channel()
}

fn id(channel: *mut rdma_event_channel) -> *mut Id {
    Id::create(channel, null_mut(), RDMA_PS_TCP).unwrap()
}

fn events(channel: *mut rdma_event_channel) -> &'static EventChannel {
    // SAFETY: no test destroys its channels.
    unsafe { &*channel.cast() }
}

/// Returns whether the descriptor is readable, so that a polling program would call `rdma_get_cm_event`.
fn is_readable(channel: *mut rdma_event_channel) -> bool {
    let mut watched = libc::pollfd { fd: events(channel).abi.fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: the pointer is to one descriptor, and the number passed is 1.
    unsafe { libc::poll(&mut watched, 1, 0) == 1 }
}

fn report(id: *mut Id) {
    // SAFETY: no test destroys its identifiers.
    unsafe { &*id }.report(RDMA_CM_EVENT_ADDR_RESOLVED, 0);
}

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
    report(leaves);
    report(leaves);
    assert!(is_readable(channel));
    assert!(events(channel).discard_events(leaves).is_empty());
    assert!(!is_readable(channel), "rdma_get_cm_event would wait");
    report(leaves);
    report(stays);
    events(channel).discard_events(leaves);
    assert!(is_readable(channel));
    assert_eq!(taken(channel), [stays]);
    assert!(!is_readable(channel));
}

#[test]
fn requests_are_discarded_with_their_listener() {
    let channel = channel();
    let (listener, child) = (id(channel), id(channel));
    let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
    let parameters = Parameters::Connection(rdma_conn_param::default());
    let request = QueuedEvent { id: child, listener, kind, status: 0, parameters, private: Vec::new() };
    // SAFETY: no test destroys its identifiers.
    unsafe { &*listener }.report_event(request);
    assert_eq!(events(channel).discard_events(listener), [child]);
    assert!(!is_readable(channel));
}

#[test]
fn moved_events_are_announced_on_their_channel() {
    let (from, to) = (channel(), channel());
    let (moves, stays) = (id(from), id(from));
    for id in [stays, moves, stays] {
        report(id);
    }
    // SAFETY: both channels are alive.
    unsafe { (*moves).migrate(to) }.unwrap();
    assert_eq!((taken(from), taken(to)), (vec![stays, stays], vec![moves]));
    assert!(!is_readable(from) && !is_readable(to));
}

#[test]
fn requests_move_with_their_listener() {
    let (from, to) = (channel(), channel());
    let (listener, child, stays) = (id(from), id(from), id(from));
    let kind = RDMA_CM_EVENT_CONNECT_REQUEST;
    let parameters = Parameters::Connection(rdma_conn_param::default());
    let request = QueuedEvent { id: child, listener, kind, status: 0, parameters, private: Vec::new() };
    // SAFETY: no test destroys its identifiers; the listener counts the request that `taken` receives.
    unsafe {
        (*listener).backlog.increment();
        (*listener).report_event(request);
    }
    report(child);
    report(stays);
    // SAFETY: both channels are alive.
    unsafe { (*listener).migrate(to) }.unwrap();
    assert_eq!((taken(from), taken(to)), (vec![stays], vec![child, child]));
    // SAFETY: as above.
    assert_eq!(unsafe { (*child).channel() }, to);
    assert!(!is_readable(from) && !is_readable(to));
}

/// A thread has already read the descriptor when the event is removed. The signal of the next event must then be withdrawn with that event.
#[test]
fn a_signal_that_was_read_for_a_discarded_event_counts_once() {
    let channel = channel();
    let (gone, next) = (id(channel), id(channel));
    report(gone);
    assert!(cancel::take_event(events(channel).abi.fd), "the event is announced");
    events(channel).discard_events(gone);
    report(next);
    assert!(events(channel).pop_announced().is_none(), "the thread that read it waits again");
    assert_eq!(taken(channel), [next]);
    assert!(!is_readable(channel));
}

#[test]
fn a_connection_that_is_being_established_keeps_identifier_and_queue_pair() {
    let server = Server::new();
    let channel = server.channel;
    let id = server.connection([10, 0, 0, 5].into(), Phase::ReplyReceived, 0x12);
    let mut qp = ibv_qp { qp_num: 0x12, ..Default::default() };
    // SAFETY: the identifier was created above, and is not destroyed.
    unsafe {
        (*(*id).abi()).qp = &raw mut qp;
        (*id).report(RDMA_CM_EVENT_CONNECT_RESPONSE, 0);
        let calls = Rc::new(Cell::new(0));
        let counter = calls.clone();
        let check = move || {
            counter.set(counter.get() + 1);
            assert!((*id).unacknowledged.any(), "rdma_destroy_id would free the identifier now");
            assert!((*id).is_queue_pair_locked(), "rdma_destroy_qp would free the queue pair now");
        };
        WHILE_MODIFIED.set(Some(Box::new(check)));
        let event = next_now(channel).unwrap();
        assert_eq!(((*event).event, calls.get()), (RDMA_CM_EVENT_ESTABLISHED, 2));
        assert!((*id).unacknowledged.any());
        rdma_ack_cm_event(event);
        assert!(!(*id).unacknowledged.any());
    }
}

#[test]
fn an_event_is_in_the_channel_of_its_identifier() {
    let (one, other) = (channel(), channel());
    let reported = id(one);
    // SAFETY: no test destroys its identifiers.
    let id: &Id = unsafe { &*reported };
    let rounds = 20_000;
    let mut came = 0;
    std::thread::scope(|scope| {
        let reports = scope.spawn(|| (0..rounds).for_each(|_| id.report(RDMA_CM_EVENT_ADDR_RESOLVED, 0)));
        let (mut from, mut to) = (one, other);
        while came < rounds {
            let ends = reports.is_finished();
            // SAFETY: both channels are alive.
            unsafe { id.migrate(to) }.unwrap();
            assert!(events(from).is_empty(), "an event is in the channel that the identifier left");
            came += taken(to).len();
            assert!(!ends || came == rounds, "{} of {rounds} events are lost", rounds - came);
            (from, to) = (to, from);
        }
    });
}

#[test]
fn an_identifier_stays_in_its_channel_while_an_event_is_sent_there() {
    let reported = id(channel());
    // SAFETY: no test destroys its identifiers.
    let id: &Id = unsafe { &*reported };
    let calls = Rc::new(Cell::new(0));
    let counter = calls.clone();
    let check = move || {
        counter.set(counter.get() + 1);
        assert!(id.is_channel_locked(), "rdma_migrate_id would leave the event in the old channel");
    };
    WHILE_REPORTED.set(Some(Box::new(check)));
    report(reported);
    assert!(!id.is_channel_locked());
    assert_eq!(calls.get(), 1);
}
