//! Asynchronous events, which completions do not report.

mod common;

use common::*;
use ferroce_verbs::event::{AsyncEvent, Event, FailureCause, FailureReason};
use ferroce_verbs::state::AckTimeout;
use ferroce_verbs::{
    Access, Capabilities, CompletionStatus, ConnectOptions, Data, MemoryRegion, Progress, RecvRequest,
    SendRequest,
};
use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

fn transport(event: AsyncEvent) -> Event {
    match event {
        AsyncEvent::Transport(event) => event,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_failure_event_has_the_last_acknowledged_psn() {
    let [a, b] = devices(Progress::Inline);
    let (mut a, mut b) =
        (side(&a, 4096, Capabilities::default(), 16), side(&b, 4096, Capabilities::default(), 16));
    let options = ConnectOptions::new().ack_timeout(AckTimeout::new(4)).retry_count(2);
    connect(&mut a, &mut b, &options);
    let (events, deaf) = (a.device.events().unwrap(), a.device.events_where(|_| false).unwrap());
    let (peer, first) = (b.qp.endpoint(), a.qp.endpoint().psn);
    assert_eq!(events.take(), None);
    drop(b);
    a.qp.post_send(SendRequest::send(1, Data::inline(b"anyone?"))).unwrap();
    assert_eq!(a.send_cq.wait().unwrap().status, CompletionStatus::RetryExceeded);
    let Event::QpFailed(failure) = transport(events.wait().unwrap()) else { panic!("not a failure") };
    assert_eq!((failure.qpn, failure.peer), (a.qp.qpn(), Some((peer.ip, peer.qpn))));
    assert_eq!((failure.acknowledged.next(), failure.send), (first, first.next()));
    assert_eq!(failure.cause, FailureCause::Request(CompletionStatus::RetryExceeded));
    assert_eq!((failure.reason, failure.retries), (FailureReason::NeverAnswered, 2));
    assert_eq!(a.qp.failure().unwrap(), Some(failure));
    assert_eq!((events.take(), deaf.take()), (None, None));
}

#[test]
fn a_copy_of_the_descriptor_is_readable_once_its_receiver_is_gone() {
    let [a, _b] = devices(Progress::Adaptive);
    let events = a.events().unwrap();
    let mut copy = File::from(events.as_fd().try_clone_to_owned().unwrap());
    drop(events);
    // Without a count, the read would block permanently.
    assert_eq!(copy.read(&mut [0; 8]).unwrap(), 8);
}

/// IBA 10.2.9.1: the event is due once fewer requests than the limit are left.
#[test]
fn requests_posted_before_a_limit_is_armed_count_for_it() {
    for progress in [Progress::Inline, Progress::Adaptive] {
        let [a, _b] = devices(progress);
        let pd = a.allocate_pd().unwrap();
        let region = MemoryRegion::alloc(&pd, 4096, Access::ALL).unwrap();
        let mut srq = pd.shared_receive_queue(8, 1).unwrap();
        let events = a.events().unwrap();
        for id in 0..4 {
            srq.post_recv(RecvRequest::new(id, region.sge(0, 64).unwrap())).unwrap();
        }
        srq.arm(4).unwrap();
        // The second query is answered in a later turn than the one that would report the event.
        assert_eq!(srq.query().unwrap().waiting, 4);
        assert_eq!((srq.query().unwrap().limit, events.take()), (4, None));
        srq.arm(5).unwrap();
        let id = srq.id();
        assert_eq!(transport(events.wait().unwrap()), Event::SharedReceivesLow(id));
    }
}

#[test]
fn an_overflow_event_precedes_the_failures_of_its_queue_pairs() {
    let [a, b] = devices(Progress::Inline);
    let (mut a, mut b) =
        (side(&a, 4096, Capabilities::default(), 4), side(&b, 4096, Capabilities::default(), 64));
    connect(&mut a, &mut b, &ConnectOptions::default());
    let events = a.device.events().unwrap();
    for id in 0..8 {
        a.qp.post_send(SendRequest::write(id, Data::empty(), b.region.remote().at(0))).unwrap();
    }
    let mut heard = Vec::new();
    while heard.len() < 2 {
        heard.extend(events.take().map(transport));
        b.device.progress();
    }
    assert_eq!(heard[0], Event::CqOverflowed(a.send_cq.id()));
    let Event::QpFailed(failure) = heard[1] else { panic!("{heard:?}") };
    assert_eq!((failure.qpn, failure.cause), (a.qp.qpn(), FailureCause::CompletionQueue));
    assert_eq!(failure.reason, FailureReason::CompletionQueue);
}

#[test]
fn a_queue_gets_another_depth_while_messages_come() {
    let (mut a, mut b) = connected(Progress::Inline, 4096);
    let mut sent = 0;
    for depth in [1, 64, 2, 7, 1024] {
        a.send_cq.resize(depth).unwrap();
        assert_eq!(a.send_cq.depth(), depth);
        for _ in 0..depth.min(32) {
            a.qp.post_send(SendRequest::write(sent, Data::empty(), b.region.remote().at(0))).unwrap();
            sent += 1;
            let done = success(&mut a.send_cq, &b.device);
            assert_eq!(done.id, sent - 1);
        }
    }
    assert!(a.send_cq.resize(0).unwrap_err().to_string().contains("depth"));
    // Waiting completions need room in the new queue.
    for id in 0..3 {
        b.qp.post_recv(RecvRequest::new(id, b.region.sge(0, 64).unwrap())).unwrap();
    }
    b.qp.fail().unwrap();
    b.device.progress();
    let refused = b.recv_cq.resize(2).unwrap_err().to_string();
    assert!(refused.contains("no room for the 3 completions"), "{refused}");
    b.recv_cq.resize(3).unwrap();
    assert_eq!((0..3).map(|_| b.recv_cq.wait().unwrap().id).collect::<Vec<_>>(), [0, 1, 2]);
}
