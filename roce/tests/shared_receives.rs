//! Packet scripts of shared receive queues.

use crate::harness::{Host, Options, Pair, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{Capabilities, CompletionStatus, Modify, PostError, QpInit, RecvRequest, SendRequest};
use roce::wire::Service;
use roce::{ControlError, Event, PdId, Qpn, SrqId, SrqInit, SrqReport};

const LIMIT: Duration = Duration::from_millis(100);

/// Two pairs of queue pairs between two hosts; those of host 1 share a queue.
fn shared(options: Options) -> (Pair, SrqId, [Qpn; 2]) {
    let mut pair = Pair::connect(options);
    let first = pair.hosts[0].qpn;
    let pd = pair.hosts[1].pd;
    let srq = pair.hosts[1].endpoint.create_srq(SrqInit { pd, depth: 8, max_sge: 2, xrc: None }).unwrap();
    let old = pair.hosts[1].qpn;
    let mut senders = [first, first];
    let mut receivers = Vec::new();
    for index in 0..2 {
        if index == 1 {
            senders[1] = create(&mut pair.hosts[0], None);
        } else {
            pair.hosts[0].endpoint.modify_qp(pair.now, first, Modify::Reset).unwrap();
        }
        receivers.push(create(&mut pair.hosts[1], Some(srq)));
        let options = pair.options;
        for (host, ours, theirs) in
            [(0, senders[index], receivers[index]), (1, receivers[index], senders[index])]
        {
            let host_ref: &mut Host = &mut pair.hosts[host];
            host_ref.qpn = ours;
            let way = if host == 0 { path(1, 2) } else { path(2, 1) };
            host_ref.ready_to_receive(way, theirs, options.send_psn, &options);
            host_ref.ready_to_send(&options);
        }
    }
    let now = pair.now;
    pair.hosts[1].endpoint.destroy_qp(now, old).unwrap();
    (pair, srq, senders)
}

fn create(host: &mut Host, srq: Option<SrqId>) -> Qpn {
    let init = QpInit {
        service: Service::Rc,
        pd: host.pd,
        send_cq: host.send_cq,
        recv_cq: host.recv_cq,
        capabilities: Capabilities { max_send: 16, max_recv: 16, ..Capabilities::default() },
        signal_all: false,
        srq,
    };
    host.endpoint.create_qp(Instant::ZERO, init).unwrap()
}

fn post(pair: &mut Pair, srq: SrqId, id: u64) {
    let sge = pair.hosts[1].sge(id * 4096, 4096);
    pair.hosts[1].endpoint.post_srq_recv(srq, RecvRequest::new(id, sge)).unwrap();
}

fn send(pair: &mut Pair, qpn: Qpn, id: u64, length: u32) {
    pair.hosts[0].qpn = qpn;
    let request = SendRequest::send(id, pair.hosts[0].sge(0, length));
    pair.post(0, request);
}

#[test]
fn whoever_comes_first_takes_the_next_request() {
    let (mut pair, srq, [a, b]) = shared(Options::default());
    (0..4).for_each(|id| post(&mut pair, srq, id));
    pair.hosts[0].ram.0[..3000].fill(7);
    for (round, qpn) in [a, b, b, a].into_iter().enumerate() {
        send(&mut pair, qpn, round as u64, 3000);
        pair.run(LIMIT);
        let came = pair.hosts[1].received();
        assert_eq!(came.len(), 1);
        assert_eq!((came[0].id, came[0].length), (round as u64, 3000));
        assert_eq!(pair.hosts[1].bytes(round * 4096, 3000), [7; 3000]);
    }
    let report = pair.hosts[1].endpoint.srq_report(srq);
    assert_eq!(report, Some(SrqReport { waiting: 0, limit: 0, qps: 2 }));
}

#[test]
fn a_dry_queue_answers_not_ready_until_somebody_posts() {
    let (mut pair, srq, [a, _]) = shared(Options::default());
    send(&mut pair, a, 1, 10);
    while pair.hosts[1].endpoint.counters().rnr_naks_sent == 0 {
        assert!(pair.step(), "something must come");
    }
    post(&mut pair, srq, 5);
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].received()[0].id, 5);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
}

#[test]
fn falling_below_the_limit_is_told_once() {
    let (mut pair, srq, [a, b]) = shared(Options::default());
    (0..4).for_each(|id| post(&mut pair, srq, id));
    pair.hosts[1].endpoint.arm_srq(srq, 3).unwrap();
    assert_eq!(pair.hosts[1].endpoint.poll_event(), None);
    for (qpn, told) in [(a, None), (b, Some(srq)), (a, None)] {
        send(&mut pair, qpn, 0, 10);
        pair.run(LIMIT);
        assert_eq!(pair.hosts[1].endpoint.poll_event(), told.map(Event::SharedReceivesLow));
    }
    pair.hosts[1].endpoint.arm_srq(srq, 2).unwrap();
    assert_eq!(
        pair.hosts[1].endpoint.poll_event(),
        Some(Event::SharedReceivesLow(srq)),
        "it is below already"
    );
    let beyond = pair.hosts[1].endpoint.arm_srq(srq, 9);
    assert_eq!(beyond, Err(ControlError::Value { what: "limit", value: 9, limit: 8 }));
}

#[test]
fn a_queue_pair_that_fails_leaves_the_requests_to_the_others() {
    let (mut pair, srq, [a, b]) = shared(Options::default());
    (0..2).for_each(|id| post(&mut pair, srq, id));
    let receiver = pair.hosts[1].qpn;
    pair.hosts[1].endpoint.modify_qp(pair.now, receiver, Modify::Error).unwrap();
    assert!(pair.hosts[1].received().is_empty(), "no request of the shared queue is flushed");
    send(&mut pair, a, 0, 10);
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].received()[0].id, 0);
    assert_ne!(a, b);
    let refused = pair.hosts[1].endpoint.post_recv(receiver, RecvRequest::new(1, pair.hosts[1].sge(0, 1)));
    assert_eq!(refused, Err(PostError::SharedReceives { qpn: receiver }));
}

#[test]
fn a_queue_in_use_stays_and_a_stranger_may_not_take_from_it() {
    let (mut pair, srq, _) = shared(Options::default());
    let endpoint = &mut pair.hosts[1].endpoint;
    assert_eq!(endpoint.destroy_srq(srq), Err(ControlError::SrqBusy { srq, qps: 2 }));
    let foreign = QpInit {
        service: Service::Rc,
        pd: PdId(99),
        send_cq: pair.hosts[1].send_cq,
        recv_cq: pair.hosts[1].recv_cq,
        capabilities: Capabilities::default(),
        signal_all: false,
        srq: Some(srq),
    };
    let endpoint = &mut pair.hosts[1].endpoint;
    assert_eq!(endpoint.create_qp(Instant::ZERO, foreign), Err(ControlError::SrqDomain { srq }));
    (0..8).for_each(|id| post(&mut pair, srq, id));
    let sge = pair.hosts[1].sge(0, 1);
    let endpoint = &mut pair.hosts[1].endpoint;
    assert_eq!(endpoint.post_srq_recv(srq, RecvRequest::new(8, sge)), Err(PostError::QueueFull { limit: 8 }));
    assert_eq!(endpoint.srq_room(srq), 0);
}
