//! Extended reliable connections (IBA annex A14): each request names its shared receive queue, which determines the protection domain of
//! its keys and the completion queue.

use crate::harness::xrc::{Inbox, connected};
use crate::harness::{BASE, Faults, Host, Options, Pair, Random, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{
    CompletionOpcode, CompletionStatus, PostError, QpInit, RecvRequest, Remote, SendRequest, State,
};
use roce::wire::{Feth, Header, Service, parse};
use roce::{ControlError, CqId, Discard, SrqInit, SrqNumber, XrcReceives, XrcdId};

const LIMIT: Duration = Duration::from_millis(100);

fn options() -> Options {
    Options { memory: 1 << 17, ..Options::default() }
}

fn fill(pair: &mut Pair, host: usize, offset: usize, length: usize, seed: u8) -> Vec<u8> {
    let bytes: Vec<u8> = (0..length).map(|i| (i as u8).wrapping_mul(31) ^ seed).collect();
    pair.hosts[host].ram.0[offset..offset + length].copy_from_slice(&bytes);
    bytes
}

fn remote(inbox: &Inbox, offset: u64) -> Remote {
    Remote { address: BASE + offset, rkey: inbox.region.rkey }
}

#[test]
fn a_message_uses_the_shared_queue_in_its_header() {
    let (mut pair, _, [a, b]) = connected(options());
    let target = pair.hosts[1].qpn;
    let sent = fill(&mut pair, 0, 0, 5000, 7);
    for (id, inbox) in [(1, &a), (2, &b), (3, &a)] {
        pair.hosts[1].post_to(inbox, id, id * 8192, 8192);
    }
    for (id, inbox) in [(10, &b), (11, &a), (12, &a)] {
        let sge = pair.hosts[0].sge(0, 5000);
        pair.post(0, SendRequest::send(id, sge).with_immediate([id as u8; 4]).to_srq(inbox.number));
    }
    pair.run(LIMIT);
    let seen = |host: &mut Host, inbox: &Inbox| -> Vec<_> {
        let arrived = host.arrived(inbox);
        assert!(arrived.iter().all(|c| c.qpn == target && c.srq == Some(inbox.srq) && c.length == 5000));
        arrived.iter().map(|c| (c.id, c.immediate, c.status)).collect()
    };
    let good = CompletionStatus::Success;
    let host = &mut pair.hosts[1];
    assert_eq!(seen(host, &a), [(1, Some([11; 4]), good), (3, Some([12; 4]), good)]);
    assert_eq!(seen(host, &b), [(2, Some([10; 4]), good)]);
    assert!((1..4).all(|id| host.bytes(id * 8192, 5000) == sent));
    assert!(host.received().is_empty(), "a target has no completions of its own");
    assert_eq!(pair.hosts[0].sent().iter().map(|c| c.id).collect::<Vec<_>>(), [10, 11, 12]);
}

#[test]
fn every_operation_works_by_the_keys_of_the_queues_domain() {
    let (mut pair, _, [a, _]) = connected(options());
    let bytes = fill(&mut pair, 0, 0, 3000, 1);
    pair.hosts[1].ram.0[40_000..40_008].copy_from_slice(&5u64.to_ne_bytes());
    pair.hosts[1].post_to(&a, 9, 0, 0);
    let (local, word) = (pair.hosts[0].sge(0, 3000), pair.hosts[0].sge(20_000, 8));
    let into = pair.hosts[0].sge(10_000, 3000);
    let flush = Feth::new(true, false, false);
    for request in [
        SendRequest::write(1, local, remote(&a, 30_000)),
        SendRequest::read(2, into, remote(&a, 30_000)).fenced(),
        SendRequest::fetch_add(3, word, remote(&a, 40_000), 2),
        SendRequest::write(4, local, remote(&a, 50_000)).with_immediate([6; 4]),
        SendRequest::atomic_write(5, roce::qp::Data::inline(&9u64.to_ne_bytes()), remote(&a, 60_000)),
    ] {
        pair.post(0, request.to_srq(a.number));
        pair.run(LIMIT);
    }
    let done = pair.hosts[0].sent();
    assert!(done.iter().all(|c| c.status == CompletionStatus::Success), "{done:?}");
    assert_eq!(done.iter().map(|c| c.id).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(pair.hosts[0].bytes(10_000, 3000), bytes);
    assert_eq!(pair.hosts[0].bytes(20_000, 8), 5u64.to_ne_bytes());
    assert_eq!(pair.hosts[1].bytes(40_000, 8), 7u64.to_ne_bytes());
    assert_eq!(pair.hosts[1].bytes(60_000, 8), 9u64.to_ne_bytes());
    let arrived = pair.hosts[1].arrived(&a);
    assert_eq!(
        arrived.iter().map(|c| (c.id, c.opcode, c.length)).collect::<Vec<_>>(),
        [(9, CompletionOpcode::RecvWithWrite, 3000)]
    );
    // The region has no right to flush.
    pair.post(0, SendRequest::flush(6, remote(&a, 0), 8, flush).to_srq(a.number));
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::RemoteInvalidRequest);
}

#[test]
fn a_key_of_one_protection_domain_is_invalid_for_a_queue_of_another() {
    for (name, status) in [(0, CompletionStatus::Success), (1, CompletionStatus::RemoteAccess)] {
        let (mut pair, _, inboxes) = connected(options());
        let request = SendRequest::write(1, pair.hosts[0].sge(0, 8), remote(&inboxes[0], 64));
        pair.hosts[0].ram.0[..8].fill(3);
        pair.post(0, request.to_srq(inboxes[name].number));
        pair.run(LIMIT);
        assert_eq!(pair.hosts[0].sent()[0].status, status);
        let written = u8::from(status == CompletionStatus::Success) * 3;
        assert_eq!(pair.hosts[1].bytes(64, 8), [written; 8]);
    }
}

/// On the wire: opcodes of XRC, with the queue's number in each request.
#[test]
fn packets_have_xrc_opcodes_and_the_queues_number() {
    let (mut pair, _, [a, _]) = connected(options());
    let seen = std::rc::Rc::new(std::cell::RefCell::new(Vec::new()));
    let log = seen.clone();
    pair.filter = Some(Box::new(move |_, frame| {
        let header = parse(frame).unwrap().header;
        let srq = if let Header::Extended { srq, .. } = header { Some(srq) } else { None };
        log.borrow_mut().push((header.opcode().0, srq));
        true
    }));
    let into = pair.hosts[0].sge(0, 2048);
    pair.post(0, SendRequest::read(1, into, remote(&a, 0)).to_srq(a.number));
    pair.post(0, SendRequest::write(2, into, remote(&a, 0)).to_srq(a.number));
    pair.run(LIMIT);
    let number = Some(a.number);
    let mut seen = seen.borrow().clone();
    seen.sort_by_key(|(opcode, _)| *opcode);
    assert_eq!(
        seen,
        [(0xa6, number), (0xa8, number), (0xac, number), (0xad, None), (0xaf, None), (0xb1, None)]
    );
}

#[test]
fn an_empty_queue_gets_an_rnr_nak_while_another_has_requests() {
    let (mut pair, _, [a, b]) = connected(Options { rnr_timer: 14, ..options() });
    pair.hosts[1].post_to(&b, 2, 0, 64);
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, SendRequest::send(1, sge).to_srq(a.number));
    pair.step();
    let soon = pair.now + Duration::from_micros(200);
    pair.run_until(soon);
    assert_eq!(pair.hosts[1].endpoint.counters().rnr_naks_sent, 1);
    assert!(pair.hosts[1].arrived(&b).is_empty());
    pair.hosts[1].post_to(&a, 1, 64, 64);
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].arrived(&a)[0].id, 1);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
}

/// With loss, duplication and reordering, with go-back-N and with selective repeat, each message arrives once and in the order of its
/// queue.
#[test]
fn messages_arrive_once_and_in_order_despite_faults() {
    for (selective_repeat, seed) in (0..40).map(|seed| (seed % 2 == 0, seed)) {
        let (mut pair, _, inboxes) = connected(Options { selective_repeat, ..options() });
        pair.random = Random(seed);
        pair.faults = Faults { loss: 60, duplicate: 30, reorder: 60, flip: 10 };
        let sent = fill(&mut pair, 0, 0, 6000, seed as u8);
        let source = fill(&mut pair, 1, 100_000, 6000, !seed as u8);
        let [a, b] = inboxes;
        for id in 0..6 {
            let inbox = inboxes[id as usize % 2];
            pair.hosts[1].post_to(&inbox, id, id * 6000, 6000);
            let sge = pair.hosts[0].sge(0, 6000);
            pair.post(0, SendRequest::send(id, sge).to_srq(inbox.number));
            let into = pair.hosts[0].sge(20_000 + id * 6000, 6000);
            pair.post(0, SendRequest::read(100 + id, into, remote(&inbox, 100_000)).to_srq(inbox.number));
        }
        pair.run(LIMIT);
        let done = pair.hosts[0].sent();
        assert!(
            done.len() == 12 && done.iter().all(|c| c.status == CompletionStatus::Success),
            "{seed}: {done:?}"
        );
        for (inbox, ids) in [(a, [0, 2, 4]), (b, [1, 3, 5])] {
            assert_eq!(pair.hosts[1].arrived(&inbox).iter().map(|c| c.id).collect::<Vec<_>>(), ids, "{seed}");
        }
        for id in 0..6 {
            assert_eq!(pair.hosts[1].bytes(id * 6000, 6000), sent, "{seed}");
            assert_eq!(pair.hosts[0].bytes(20_000 + id * 6000, 6000), source, "{seed}");
        }
    }
}

/// Several targets of a domain consume from one queue, in the order of arrival.
#[test]
fn targets_of_a_domain_share_its_queues() {
    let (mut pair, domain, [a, _]) = connected(options());
    let first = pair.hosts[0].qpn;
    let old_target = pair.hosts[1].qpn;
    let init = pair.hosts[0].initiator(&pair.options);
    let now = pair.now;
    let second = pair.hosts[0].endpoint.create_qp(now, init).unwrap();
    let target = pair.hosts[1].endpoint.create_xrc_target(now, domain).unwrap();
    let options = pair.options;
    for (host, ours, theirs, way) in [(0, second, target, path(1, 2)), (1, target, second, path(2, 1))] {
        pair.hosts[host].qpn = ours;
        pair.hosts[host].ready_to_receive(way, theirs, options.send_psn, &options);
        // A target needs only RTR.
        if host == 0 {
            pair.hosts[host].ready_to_send(&options);
        }
    }
    for (id, qpn) in [(1, first), (2, second), (3, first)] {
        pair.hosts[1].post_to(&a, id, id * 64, 64);
        pair.hosts[0].qpn = qpn;
        let sge = pair.hosts[0].sge(0, 8);
        pair.post(0, SendRequest::send(id, sge).to_srq(a.number));
        pair.run(LIMIT);
    }
    let arrived: Vec<_> = pair.hosts[1].arrived(&a).iter().map(|c| (c.id, c.qpn)).collect();
    assert_eq!(arrived, [(1, old_target), (2, target), (3, old_target)]);
}

#[test]
fn invalid_xrc_objects_are_refused() {
    let (mut pair, domain, [a, _]) = connected(options());
    let (host, now, none) = (&mut pair.hosts[1], pair.now, XrcdId(9));
    let target = host.qpn;
    assert_eq!(host.endpoint.create_xrc_target(now, none), Err(ControlError::NoXrcd(none)));
    assert_eq!(host.endpoint.destroy_xrcd(none), Err(ControlError::NoXrcd(none)));
    assert_eq!(host.endpoint.destroy_xrcd(domain), Err(ControlError::XrcdBusy { domain, users: 3 }));
    let shared = QpInit { srq: Some(a.srq), pd: a.pd, ..host.init(&options()) };
    assert_eq!(host.endpoint.create_qp(now, shared), Err(ControlError::SrqOfXrc { srq: a.srq }));
    let receiving = QpInit { service: Service::Xrc, ..shared };
    assert_eq!(host.endpoint.create_qp(now, receiving), Err(ControlError::InitiatorReceives));
    let init = |domain, cq| SrqInit { pd: a.pd, depth: 4, max_sge: 1, xrc: Some(XrcReceives { domain, cq }) };
    assert_eq!(host.endpoint.create_srq(init(none, a.cq)), Err(ControlError::NoXrcd(none)));
    assert_eq!(host.endpoint.create_srq(init(domain, CqId(7))), Err(ControlError::NoCq(CqId(7))));
    assert_eq!(host.endpoint.destroy_cq(a.cq), Err(ControlError::CqBusy { cq: a.cq, qps: 1 }));
    // A target has no send queue, and its receives come from the shared queues.
    let receive = RecvRequest::new(1, host.sge(0, 8));
    let posted = host.endpoint.post_recv(target, receive.clone());
    assert_eq!(posted, Err(PostError::SharedReceives { qpn: target }));
    let send = SendRequest::send(1, host.sge(0, 8));
    assert_eq!(host.endpoint.post_send(now, target, send), Err(PostError::Service { qpn: target }));
    // An initiator has no receive queue, and its requests name a shared queue; those of other queue pairs do not.
    let sender = &mut pair.hosts[0];
    let qpn = sender.qpn;
    assert_eq!(sender.endpoint.post_recv(qpn, receive), Err(PostError::Service { qpn }));
    let send = SendRequest::send(1, sender.sge(0, 8));
    assert_eq!(sender.endpoint.post_send(now, qpn, send.clone()), Err(PostError::RemoteSrq { qpn }));
    let rc = sender.endpoint.create_qp(now, sender.init(&options())).unwrap();
    let named = send.to_srq(SrqNumber::new(1));
    assert_eq!(sender.endpoint.post_send(now, rc, named), Err(PostError::RemoteSrq { qpn: rc }));
}

#[test]
fn an_xrc_domain_is_destroyed_after_its_users_and_numbers_are_not_reused() {
    let (mut pair, domain, inboxes) = connected(options());
    let (host, now) = (&mut pair.hosts[1], pair.now);
    let mut numbers = inboxes.map(|inbox| inbox.number).to_vec();
    host.endpoint.destroy_qp(now, host.qpn).unwrap();
    inboxes.iter().for_each(|inbox| host.endpoint.destroy_srq(inbox.srq).unwrap());
    inboxes.iter().for_each(|inbox| host.endpoint.destroy_cq(inbox.cq).unwrap());
    host.endpoint.destroy_xrcd(domain).unwrap();
    let domain = host.endpoint.create_xrcd().unwrap();
    let cq = host.endpoint.create_cq(4).unwrap();
    for _ in 0..100 {
        let xrc = Some(XrcReceives { domain, cq });
        let srq = host.endpoint.create_srq(SrqInit { pd: host.pd, depth: 1, max_sge: 1, xrc }).unwrap();
        numbers.push(host.endpoint.srq_number(srq).unwrap());
        host.endpoint.destroy_srq(srq).unwrap();
        assert_eq!(host.endpoint.srq_number(srq), None);
    }
    let mut distinct: Vec<u32> = numbers.iter().map(|number| number.get()).collect();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 102);
    assert!(!distinct.contains(&0));
}

/// The queue is destroyed within a message to it: the rest is refused. No side gets a completion of its receive, because the id of its
/// completion queue may have been reused.
#[test]
fn a_shared_queue_destroyed_within_a_message_drops_the_message() {
    let (mut pair, _, [a, b]) = connected(options());
    pair.hosts[1].post_to(&a, 1, 0, 8192);
    let sge = pair.hosts[0].sge(0, 8192);
    pair.post(0, SendRequest::send(1, sge).to_srq(a.number));
    // One of the message's packets is lost; the queue is destroyed before the retransmission.
    let mut count = 0;
    pair.filter = Some(Box::new(move |from, _| {
        count += usize::from(from == 0);
        from == 1 || count != 4
    }));
    pair.step();
    let soon = pair.now + Duration::from_micros(7);
    pair.run_until(soon);
    assert_eq!(pair.hosts[1].endpoint.srq_report(a.srq).map(|report| report.waiting), Some(0));
    pair.hosts[1].endpoint.destroy_srq(a.srq).unwrap();
    pair.hosts[1].endpoint.destroy_cq(a.cq).unwrap();
    let cq = pair.hosts[1].endpoint.create_cq(4).unwrap();
    assert_eq!(cq, a.cq, "the same name for another queue");
    pair.run(LIMIT);
    assert_eq!(pair.hosts[1].poll(cq), []);
    assert_eq!(pair.hosts[1].arrived(&b), []);
    assert_eq!(pair.hosts[1].endpoint.counters().discarded(Discard::UnknownSrq), 1);
    assert_eq!(pair.reports()[1].unwrap().state, State::Error);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::RemoteInvalidRequest);
}

/// A queue's completion queue overflows: targets that recently used it move to ERR, and later requests to it are refused.
#[test]
fn an_overflow_reaches_the_targets_that_used_the_queue() {
    let mut hosts = [Host::new(1, &options()), Host::new(2, &options())];
    let initiator = hosts[0].initiator(&options());
    hosts[0].qpn = hosts[0].endpoint.create_qp(Instant::ZERO, initiator).unwrap();
    let domain = hosts[1].endpoint.create_xrcd().unwrap();
    hosts[1].qpn = hosts[1].endpoint.create_xrc_target(Instant::ZERO, domain).unwrap();
    let small = hosts[1].endpoint.create_cq(1).unwrap();
    let inbox = hosts[1].inbox_with(domain, small);
    let mut pair = Pair::of(hosts, options());
    for id in 0..2 {
        pair.hosts[1].post_to(&inbox, id, 0, 64);
        let sge = pair.hosts[0].sge(0, 8);
        pair.post(0, SendRequest::send(id, sge).to_srq(inbox.number));
    }
    pair.run(Duration::from_secs(1));
    assert!(pair.hosts[1].endpoint.cq_overflowed(small));
    assert_eq!(pair.reports()[1].unwrap().state, State::Error);
    // Another target, created later.
    let now = pair.now;
    let target = pair.hosts[1].endpoint.create_xrc_target(now, domain).unwrap();
    let init = pair.hosts[0].initiator(&options());
    let second = pair.hosts[0].endpoint.create_qp(now, init).unwrap();
    for (host, ours, theirs, way) in [(0, second, target, path(1, 2)), (1, target, second, path(2, 1))] {
        pair.hosts[host].qpn = ours;
        pair.hosts[host].ready_to_receive(way, theirs, options().send_psn, &options());
        pair.hosts[host].ready_to_send(&options());
    }
    pair.hosts[0].sent();
    let sge = pair.hosts[0].sge(0, 8);
    pair.post(0, SendRequest::send(9, sge).to_srq(inbox.number));
    pair.run(LIMIT);
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::RemoteOperation);
}

/// A requested ERR flushes the message in progress into its queue's completion queue, and leaves the other requests.
#[test]
fn a_failed_target_drops_only_its_own_message() {
    let (mut pair, _, [a, _]) = connected(options());
    pair.hosts[1].post_to(&a, 1, 0, 8192);
    pair.hosts[1].post_to(&a, 2, 0, 8192);
    let sge = pair.hosts[0].sge(0, 8192);
    pair.post(0, SendRequest::send(1, sge).to_srq(a.number));
    pair.filter = Some(Box::new(|from, frame| from == 1 || parse(frame).unwrap().header.opcode().0 != 0xa2));
    pair.step();
    let soon = pair.now + Duration::from_micros(30);
    pair.run_until(soon);
    let (now, target) = (pair.now, pair.hosts[1].qpn);
    pair.hosts[1].endpoint.modify_qp(now, target, roce::qp::Modify::Error).unwrap();
    let arrived = pair.hosts[1].arrived(&a);
    assert_eq!(
        arrived.iter().map(|c| (c.id, c.status)).collect::<Vec<_>>(),
        [(1, CompletionStatus::Flushed)]
    );
    assert_eq!(arrived[0].srq, Some(a.srq));
    assert_eq!(pair.hosts[1].endpoint.srq_report(a.srq).map(|r| r.waiting), Some(1));
}
