//! Asynchronous events: which part reports them, when, and how often (IBA 11.6.3).

use crate::harness::script::{PEER, PSN, SEND, Script, ack};
use crate::harness::{Host, Options, path};
use cc::Instant;
use core::time::Duration;
use roce::qp::{CompletionStatus, Modify, QpInit, RecvRequest, Remote, SendRequest, State};
use roce::wire::{NakCode, Operation};
use roce::{Discard, Event, FailureCause, FailureReason, Psn, QpFailure, Qpn, Rkey, SrqInit};

/// Ack timeout code 5, plus the tolerance of the timer.
const TIMEOUT: Duration = Duration::from_nanos((4096 << 5) + 1000);
const REMOTE: Remote = Remote { address: 0x1000, rkey: Rkey::new(5) };

fn events(host: &mut Host) -> Vec<Event> {
    core::iter::from_fn(|| host.endpoint.poll_event()).collect()
}

fn write(script: &mut Script, id: u64, length: u32) {
    let (qpn, from) = (script.host.qpn, script.host.sge(0, length));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(id, from, REMOTE)).unwrap();
}

fn modify(script: &mut Script, to: Modify) {
    script.host.endpoint.modify_qp(script.now, script.host.qpn, to).unwrap();
}

#[test]
fn the_first_packet_in_rtr_establishes_the_communication() {
    let options = Options::default();
    let mut script = Script::receiving(options);
    let (qpn, into) = (script.host.qpn, script.host.sge(0, 100));
    // An out-of-order packet does not show the peer's state.
    assert_eq!(script.send(PSN + 7, SEND, &[1; 10]), Err(Discard::PsnGap));
    assert_eq!(events(&mut script.host), []);
    for id in 0..2 {
        script.host.endpoint.post_recv(qpn, RecvRequest::new(id, into)).unwrap();
        assert_eq!(script.send(PSN + id as u32, SEND, &[1; 10]), Ok(()));
    }
    assert_eq!(events(&mut script.host), [Event::CommunicationEstablished(qpn)]);
    script.host.ready_to_send(&options);
    script.host.endpoint.post_recv(qpn, RecvRequest::new(2, into)).unwrap();
    assert_eq!(script.send(PSN + 2, SEND, &[1; 10]), Ok(()));
    assert_eq!(events(&mut script.host), []);
}

/// IBA 10.3.1.5: SQD completes the requests in progress, and then reports that the queue is drained.
#[test]
fn a_queue_is_drained_when_the_begun_messages_are_acknowledged() {
    for notify in [true, false] {
        let mut script = Script::new(Options::default());
        let qpn = script.host.qpn;
        write(&mut script, 1, 3000);
        write(&mut script, 2, 10);
        assert_eq!(script.next().unwrap().0, PSN);
        modify(&mut script, Modify::Drain { notify });
        assert_eq!(script.drain().len(), 2, "the rest of the first");
        assert_eq!(script.send(PSN + 1, ack(0), &[]), Ok(()));
        assert_eq!(events(&mut script.host), []);
        assert_eq!(script.send(PSN + 2, ack(1), &[]), Ok(()));
        let told = if notify { vec![Event::SendQueueDrained(qpn)] } else { vec![] };
        assert_eq!(events(&mut script.host), told);
        // No request is in progress: the queue is drained at once.
        modify(&mut script, Modify::Resume);
        script.drain();
        assert_eq!(script.send(PSN + 3, ack(2), &[]), Ok(()));
        modify(&mut script, Modify::Drain { notify });
        assert_eq!(events(&mut script.host), told);
    }
}

/// The log line has both sides, their progress, and the reason.
#[test]
fn a_peer_that_stops_answering_is_reported_in_one_log_line() {
    let mut script = Script::new(Options { retry_count: 2, ..Options::default() });
    let qpn = script.host.qpn;
    write(&mut script, 1, 10);
    write(&mut script, 2, 10);
    script.drain();
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    for _ in 0..=3 {
        script.wait(4 * TIMEOUT);
        script.drain();
    }
    let failure = QpFailure {
        qpn,
        cause: FailureCause::Request(CompletionStatus::RetryExceeded),
        peer: Some((path(2, 1).destination, Qpn::new(PEER))),
        acknowledged: Psn::new(PSN),
        send: Psn::new(PSN + 2),
        expected: Psn::new(PSN),
        reason: FailureReason::WentDark,
        retries: 2,
        busiest: None,
    };
    assert_eq!(events(&mut script.host), [Event::QpFailed(failure)]);
    let (address, peer) = failure.peer.unwrap();
    assert_eq!(
        failure.to_string(),
        format!(
            "QP {qpn} failed, peer {address} QP {peer}, last ACK {PSN}, next PSN {}, expected PSN {PSN}, retries 2: \
             its oldest request: transport retry counter exceeded: the peer does not answer; likely reason: the peer \
             answered before, and then went silent; check that the peer still runs, and the links on the way to it",
            PSN + 2
        )
    );
    // An error is reported once, and not if the program requested it.
    modify(&mut script, Modify::Error);
    assert_eq!(events(&mut script.host), []);
}

#[test]
fn a_refused_request_raises_an_event() {
    let mut script = Script::new(Options::default());
    let reth = roce::wire::Reth { rkey: Rkey::new(1), ..script.reth(0, 10) };
    assert_eq!(script.send(PSN, Operation::WriteOnly(reth, None), &[1; 10]), Err(Discard::RemoteKey));
    let told = events(&mut script.host);
    let [Event::QpFailed(QpFailure { cause, expected, .. })] = told[..] else { panic!("{told:?}") };
    assert_eq!(cause, FailureCause::Refused(NakCode::RemoteAccessError, Discard::RemoteKey));
    assert_eq!(expected, Psn::new(PSN));
}

#[test]
fn an_overflowed_queue_and_its_failed_queue_pairs_raise_events() {
    let (mut host, now) = (Host::new(1, &Options::default()), Instant::ZERO);
    let small = host.endpoint.create_cq(1).unwrap();
    let init = QpInit { send_cq: small, ..host.init(&Options::default()) };
    let [qpn, unused] = [0, 1].map(|_| host.endpoint.create_qp(now, init).unwrap());
    host.endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
    let sge = host.sge(0, 10);
    for id in 0..2 {
        host.endpoint.post_send(now, qpn, SendRequest::write(id, sge, REMOTE)).unwrap();
    }
    assert_eq!(events(&mut host), [Event::CqOverflowed(small)], "the queue pair had failed before");
    assert_eq!(host.endpoint.report(qpn).unwrap().state, State::Error);
    assert_eq!(host.endpoint.report(unused).unwrap().state, State::Reset, "it has no requests");
}

#[test]
fn a_failed_queue_pair_consumes_no_shared_receives() {
    let (mut host, now) = (Host::new(1, &Options::default()), Instant::ZERO);
    let srq = host.endpoint.create_srq(SrqInit { pd: host.pd, depth: 4, max_sge: 1, xrc: None }).unwrap();
    let init = QpInit { srq: Some(srq), ..host.init(&Options::default()) };
    let [a, b] = [0, 1].map(|_| host.endpoint.create_qp(now, init).unwrap());
    for qpn in [a, b] {
        host.endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
        host.endpoint.modify_qp(now, qpn, Modify::Error).unwrap();
    }
    // Events of destroyed queue pairs are dropped.
    host.endpoint.destroy_qp(now, a).unwrap();
    assert_eq!(events(&mut host), [Event::LastReceive(b)]);
}

#[test]
fn events_that_are_not_polled_are_limited() {
    let Script { mut host, now, .. } = Script::new(Options::default());
    let qpn = host.qpn;
    for _ in 0..(1 << 16) + 3 {
        host.endpoint.modify_qp(now, qpn, Modify::Drain { notify: true }).unwrap();
        host.endpoint.modify_qp(now, qpn, Modify::Resume).unwrap();
    }
    assert_eq!(host.endpoint.events_lost(), 3);
    assert_eq!(events(&mut host).len(), 1 << 16);
}
