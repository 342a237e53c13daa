//! Packet scripts of shared receive queues.

use crate::harness::script::{LAST, PEER, PSN, SEND};
use crate::harness::{BASE, Host, Options, Pair, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{Capabilities, CompletionStatus, Modify, PostError, QpInit, RecvRequest, SendRequest, Sge};
use roce::wire::{Bth, Header, MAX_OVERHEAD, Operation, Service, emit};
use roce::{ControlError, Discard, Event, PdId, Psn, Qpn, SrqId, SrqInit, SrqReport};

const LIMIT: Duration = Duration::from_millis(100);

/// Connects two queue pairs of each of two hosts; those of host 1 share a receive queue.
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

/// IBA 10.2.9: the queue pairs consume requests in the order of their messages.
#[test]
fn messages_consume_shared_requests_in_order_of_arrival() {
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
fn an_empty_shared_queue_gets_rnr_naks_until_a_receive_is_posted() {
    let (mut pair, srq, [a, _]) = shared(Options::default());
    send(&mut pair, a, 1, 10);
    while pair.hosts[1].endpoint.counters().rnr_naks_sent == 0 {
        assert!(pair.step(), "no frame and no timer is left");
    }
    post(&mut pair, srq, 5);
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].received()[0].id, 5);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
}

/// IBA 10.2.9.1: the event of the limit disarms it.
#[test]
fn falling_below_the_limit_raises_one_event() {
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
fn a_shared_queue_in_use_is_kept_and_other_domains_are_refused() {
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

/// Creates a UC queue pair that is ready to receive from `srq`.
fn unreliable(depth: u32) -> (Host, SrqId) {
    let options = Options::default();
    let mut host = Host::new(2, &options);
    let pd = host.pd;
    let srq = host.endpoint.create_srq(SrqInit { pd, depth, max_sge: 1, xrc: None }).unwrap();
    host.qpn = connect_unreliable(&mut host, srq);
    (host, srq)
}

fn connect_unreliable(host: &mut Host, srq: SrqId) -> Qpn {
    let options = Options::default();
    let init = QpInit { service: Service::Uc, srq: Some(srq), ..host.init(&options) };
    host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    host.qpn
}

fn arrive(host: &mut Host, psn: u32, operation: Operation, length: usize) -> Result<(), Discard> {
    let header =
        Header::Connected { service: Service::Uc, bth: Bth::new(host.qpn, Psn::new(psn)), operation };
    let mut frame = vec![0; length + MAX_OVERHEAD];
    let length = emit(&path(1, 2), 0, &header, length, &mut frame).unwrap().seal();
    host.endpoint.on_frame(Instant::from_nanos(1), &mut host.ram, &frame[..length])
}

fn post_one(host: &mut Host, srq: SrqId, id: u64) -> Result<(), PostError> {
    let sge = host.sge(id * 8192, 8192);
    host.endpoint.post_srq_recv(srq, RecvRequest::new(id, sge))
}

/// Returns the number of posted requests, and the number of free entries of the queue.
fn fill(host: &Host, srq: SrqId) -> (u32, u32) {
    (host.endpoint.srq_report(srq).unwrap().waiting, host.endpoint.srq_room(srq))
}

/// The request of an abandoned message returns to the queue. Its entry was not used meanwhile.
#[test]
fn the_request_of_an_abandoned_message_returns_to_the_queue() {
    let (mut host, srq) = unreliable(4);
    (0..4).for_each(|id| post_one(&mut host, srq, id).unwrap());
    let full = Err(PostError::QueueFull { limit: 4 });
    arrive(&mut host, PSN, Operation::SendFirst, 1024).unwrap();
    assert_eq!(fill(&host, srq), (3, 0));
    assert_eq!(post_one(&mut host, srq, 4), full);
    // The following packets are lost.
    assert_eq!(arrive(&mut host, PSN + 7, Operation::SendMiddle, 1024), Err(Discard::PsnGap));
    assert_eq!(fill(&host, srq), (4, 0));
    // The next message consumes the same request, and arrives completely.
    arrive(&mut host, PSN + 8, Operation::SendFirst, 1024).unwrap();
    arrive(&mut host, PSN + 9, LAST, 10).unwrap();
    assert_eq!(fill(&host, srq), (3, 1));
    assert_eq!(host.received().iter().map(|c| c.id).collect::<Vec<_>>(), [0]);
    assert_eq!(post_one(&mut host, srq, 4), Ok(()));
    assert_eq!(post_one(&mut host, srq, 5), full);
}

/// However a queue pair fails within a message, the request of the message is available to the next queue pair.
#[test]
fn a_queue_pair_that_ends_within_a_message_returns_its_request() {
    let (mut host, srq) = unreliable(2);
    (0..2).for_each(|id| post_one(&mut host, srq, id).unwrap());
    for ending in [Some(Modify::Reset), Some(Modify::Error), None] {
        arrive(&mut host, PSN, Operation::SendFirst, 1024).unwrap();
        assert_eq!(fill(&host, srq), (1, 0));
        let qpn = host.qpn;
        match ending {
            Some(modify) => host.endpoint.modify_qp(Instant::ZERO, qpn, modify).unwrap(),
            None => host.endpoint.destroy_qp(Instant::ZERO, qpn).unwrap(),
        }
        assert_eq!(fill(&host, srq), (2, 0), "{ending:?}");
        connect_unreliable(&mut host, srq);
    }
    // A message of one packet, and one that is too long.
    arrive(&mut host, PSN, SEND, 10).unwrap();
    assert_eq!(fill(&host, srq), (1, 1));
    for packet in 1..9 {
        arrive(
            &mut host,
            PSN + packet,
            if packet == 1 { Operation::SendFirst } else { Operation::SendMiddle },
            1024,
        )
        .unwrap();
    }
    assert_eq!(fill(&host, srq), (0, 1));
    assert_eq!(arrive(&mut host, PSN + 9, Operation::SendMiddle, 1024), Err(Discard::LocalProtection));
    assert_eq!(fill(&host, srq), (1, 1));
}

#[test]
fn both_kinds_of_queue_refuse_the_same_requests() {
    let options = Options {
        capabilities: Capabilities { max_recv_sge: 2, ..Capabilities::default() },
        ..Options::default()
    };
    let mut host = Host::new(2, &options);
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    let (pd, reliable) = (host.pd, host.qpn);
    let unreliable = host
        .endpoint
        .create_qp(Instant::ZERO, QpInit { service: Service::Ud, ..host.init(&options) })
        .unwrap();
    let init = Modify::InitDatagram { queue_key: 1, partition_key: 0xffff };
    host.endpoint.modify_qp(Instant::ZERO, unreliable, init).unwrap();
    let srq = host.endpoint.create_srq(SrqInit { pd, depth: 8, max_sge: 2, xrc: None }).unwrap();
    let sge = |length| Sge { address: BASE, length, lkey: host.region.lkey };
    let cases = [
        (vec![], Ok(())),
        (vec![sge(1 << 31)], Ok(())),
        (vec![sge(u32::MAX); 2], Ok(())),
        (vec![sge(1); 3], Err(PostError::TooManyBuffers { given: 3, limit: 2 })),
    ];
    for (buffers, expected) in cases {
        let request = RecvRequest::scatter(1, &buffers);
        for qpn in [reliable, unreliable] {
            assert_eq!(host.endpoint.post_recv(qpn, request.clone()), expected, "{buffers:?}");
        }
        assert_eq!(host.endpoint.post_srq_recv(srq, request), expected, "{buffers:?}");
    }
}
