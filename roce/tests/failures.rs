//! Failures of a queue pair: one packet script for each reported reason.

use crate::harness::script::{PEER, PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Host, Options, Pair, path_over};
use cc::Instant;
use core::net::IpAddr;
use core::time::Duration;
use roce::qp::{
    CompletionStatus, Data, Modify, QpInit, RecvRequest, Remote, SendOperation, SendRequest, State,
};
use roce::wire::{Mtu, NakCode, Operation, Reth, Service};
use roce::{Discard, Event, FailureCause, FailureReason, QpFailure, Qpn, Rkey, Unreachable};

/// An upper bound on the timeout of ack timeout code 5.
const TIMEOUT: Duration = Duration::from_micros(600);
const LIMIT: Duration = Duration::from_secs(10);
const REMOTE: Remote = Remote { address: 0x1000, rkey: Rkey::new(5) };

fn few() -> Options {
    Options { retry_count: 2, rnr_retry: 1, mtu: Mtu::M4096, ..Options::default() }
}

/// Returns the failure that the script's queue pair reports; the event must have the same.
fn failure(script: &mut Script) -> QpFailure {
    let host = &mut script.host;
    let report = host.endpoint.report(host.qpn).unwrap();
    assert_eq!(report.state, State::Error);
    let told = core::iter::from_fn(|| host.endpoint.poll_event()).collect::<Vec<_>>();
    let [Event::QpFailed(failure)] = told[..] else { panic!("{told:?}") };
    assert_eq!(report.failure, Some(failure));
    failure
}

fn post(script: &mut Script, request: SendRequest) {
    script.host.endpoint.post_send(script.now, script.host.qpn, request).unwrap();
}

fn write(script: &mut Script, id: u64, length: u32) {
    let from = script.host.sge(0, length);
    post(script, SendRequest::write(id, from, REMOTE));
    script.drain();
}

/// Waits until all retries have passed without a response.
fn silence(script: &mut Script) -> QpFailure {
    for _ in 0..=2 {
        script.wait(TIMEOUT);
        script.drain();
    }
    failure(script)
}

#[test]
fn a_peer_that_never_answers_is_reported_as_such() {
    let mut script = Script::new(few());
    write(&mut script, 1, 10);
    let QpFailure { qpn, cause, reason, peer, acknowledged, send, expected, retries, busiest } =
        silence(&mut script);
    assert_eq!((qpn, reason, retries, busiest), (script.host.qpn, FailureReason::NeverAnswered, 2, None));
    assert_eq!(cause, FailureCause::Request(CompletionStatus::RetryExceeded));
    assert_eq!(peer, Some((IpAddr::from([10, 0, 0, 1]), Qpn::new(PEER))));
    assert_eq!([acknowledged, send, expected].map(roce::Psn::get), [PSN - 1, PSN + 1, PSN]);
}

#[test]
fn a_peer_that_stops_answering_is_reported_with_the_last_acknowledged_psn() {
    let mut script = Script::new(few());
    for psn in [PSN, PSN + 1] {
        write(&mut script, 1, 10);
        assert_eq!(script.send(psn, ack(1), &[]), Ok(()));
    }
    write(&mut script, 1, 10);
    let failure = silence(&mut script);
    assert_eq!((failure.reason, failure.acknowledged.get()), (FailureReason::WentDark, PSN + 1));
}

/// The path loses frames of more than 1500 bytes, in both directions. The traffic before the loss determines the reason. Packets that fit
/// any path (RFC 8200 5) are not large.
#[test]
fn a_path_that_loses_large_packets_is_reported_as_such() {
    for (selective_repeat, read, way) in
        [(false, false, 0), (true, false, 0), (false, true, 1), (true, true, 1)]
    {
        let mut pair = Pair::connect(Options { selective_repeat, ..few() });
        let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
        let small = (1..=9).map(|id| (id, 125));
        for (id, length) in small.chain([(10, 9000)]) {
            let sge = pair.hosts[0].sge(0, length);
            let request =
                if read { SendRequest::read(id, sge, remote) } else { SendRequest::write(id, sge, remote) };
            pair.post(0, request);
            if id >= 9 {
                pair.filter = Some(Box::new(move |from, frame| from != way || frame.len() < 1500));
                pair.run(LIMIT);
            }
        }
        let host = &pair.hosts[0];
        let failure = host.endpoint.report(host.qpn).unwrap().failure.unwrap();
        assert_eq!(failure.reason, FailureReason::LargePackets { lost: 4096, arrived: 125 });
        assert_eq!(failure.cause, FailureCause::Request(CompletionStatus::RetryExceeded));
    }
    // With one request at a time, the bytes that arrived are a bound.
    let mut script = Script::new(few());
    write(&mut script, 1, 1000);
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    write(&mut script, 1, 9000);
    assert_eq!(silence(&mut script).reason, FailureReason::LargePackets { lost: 4096, arrived: 1000 });
    // A large first packet shows nothing if no response has arrived before.
    let mut script = Script::new(few());
    write(&mut script, 1, 4096);
    assert_eq!(silence(&mut script).reason, FailureReason::NeverAnswered);
    // It shows nothing either if packets of the same length arrived before.
    let mut script = Script::new(few());
    write(&mut script, 1, 4096);
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    write(&mut script, 1, 9000);
    assert_eq!(silence(&mut script).reason, FailureReason::WentDark);
    let mut script = Script::new(few());
    write(&mut script, 1, 125);
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    write(&mut script, 1, 1024);
    assert_eq!(silence(&mut script).reason, FailureReason::WentDark);
}

/// A path loses large packets from the start, or from some time on: the peer answers a probe without payload (IBA 9.7.5.1).
#[test]
fn a_keep_alive_distinguishes_a_lossy_path_from_a_silent_peer() {
    for (before, read) in [(0, false), (0, true), (9, false), (9, true)] {
        for selective_repeat in [false, true] {
            let mut pair = Pair::connect(Options { selective_repeat, ..few() });
            let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
            for id in 0..=before {
                let sge = pair.hosts[0].sge(0, 8192);
                let request = if read {
                    SendRequest::read(id, sge, remote)
                } else {
                    SendRequest::write(id, sge, remote)
                };
                if id == before {
                    pair.filter = Some(Box::new(|_, frame| frame.len() < 1500));
                }
                pair.post(0, request);
                pair.run(LIMIT);
            }
            let failure = pair.hosts[0].endpoint.report(pair.hosts[0].qpn).unwrap().failure.unwrap();
            let reason = FailureReason::LargePackets { lost: 4096, arrived: 0 };
            assert_eq!(failure.reason, reason, "{before} before, read {read}, selective {selective_repeat}");
            assert_eq!(pair.hosts[0].endpoint.counters().discarded(Discard::StaleAcknowledge), 0);
        }
    }
}

#[test]
fn a_keep_alive_repeats_the_last_acknowledged_psn_for_large_packets_only() {
    for (length, questions) in [(4096, 1), (1024, 0)] {
        let mut script = Script::new(few());
        write(&mut script, 1, 10);
        assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
        write(&mut script, 2, length);
        script.wait(TIMEOUT);
        let sent = script.drain();
        let nothing = Operation::WriteOnly(Reth { address: 0, rkey: Rkey::new(0), length: 0 }, None);
        let asked = sent.iter().filter(|&&packet| packet == (PSN, nothing)).count();
        assert_eq!((asked, sent.len()), (questions, questions + 1), "{length} B");
        // The answer is no progress, so the retries continue.
        let answer = script.send(PSN, ack(1), &[]);
        assert_eq!(answer.is_ok(), questions == 1, "{length} B");
        let reason = if questions == 1 {
            FailureReason::LargePackets { lost: 4096, arrived: 10 }
        } else {
            FailureReason::WentDark
        };
        for _ in 0..2 {
            script.wait(TIMEOUT);
            script.drain();
        }
        assert_eq!(failure(&mut script).reason, reason);
    }
}

/// The short last packet of each message arrives, and the peer requests retransmission of the others repeatedly.
#[test]
fn a_message_that_ends_short_shows_that_large_packets_are_lost() {
    let mut pair = Pair::connect(Options { retry_count: 7, ..few() });
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.filter = Some(Box::new(|_, frame| frame.len() < 1500));
    let sge = pair.hosts[0].sge(0, 9000);
    pair.post(0, SendRequest::write(1, sge, remote));
    pair.run(LIMIT);
    let failure = pair.hosts[0].endpoint.report(pair.hosts[0].qpn).unwrap().failure.unwrap();
    assert_eq!(failure.reason, FailureReason::LargePackets { lost: 4096, arrived: 0 });
}

#[test]
fn a_peer_that_sends_but_does_not_answer_is_reported_as_one_way() {
    for answered in [false, true] {
        let mut script = Script::new(few());
        if answered {
            write(&mut script, 1, 10);
            assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
        }
        write(&mut script, 1, 10);
        for psn in PSN..=PSN + 2 {
            let reth = script.reth(0, 4);
            assert_eq!(script.send(psn, Operation::WriteOnly(reth, None), &[1; 4]), Ok(()));
            script.drain();
            script.wait(TIMEOUT);
        }
        assert_eq!(failure(&mut script).reason, FailureReason::OneWay);
    }
}

#[test]
fn an_answer_with_an_unrelated_psn_is_reported_as_other_psns() {
    let mut script = Script::new(few());
    write(&mut script, 1, 10);
    let wrong = nak(NakCode::PsnSequenceError, 0);
    assert_eq!(script.send(PSN + 700, wrong, &[]), Err(Discard::StaleAcknowledge));
    assert_eq!(silence(&mut script).reason, FailureReason::OtherPsns);
}

#[test]
fn a_packet_that_is_lost_each_time_is_reported_as_loss() {
    let mut script = Script::new(few());
    write(&mut script, 1, 10);
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    write(&mut script, 2, 10);
    write(&mut script, 3, 10);
    for _ in 0..3 {
        assert_eq!(script.send(PSN + 1, nak(NakCode::PsnSequenceError, 1), &[]), Ok(()));
        script.drain();
    }
    let failure = failure(&mut script);
    assert_eq!((failure.reason, failure.retries), (FailureReason::Loss, 2));
}

#[test]
fn a_peer_without_receives_is_reported_as_such() {
    let mut script = Script::new(few());
    let from = script.host.sge(0, 10);
    post(&mut script, SendRequest::send(1, from));
    for _ in 0..2 {
        script.drain();
        assert_eq!(script.send(PSN, rnr(1, 0), &[]), Ok(()));
        script.wait(TIMEOUT);
    }
    let failure = failure(&mut script);
    assert_eq!(failure.cause, FailureCause::Request(CompletionStatus::RnrRetryExceeded));
    assert_eq!((failure.reason, failure.retries), (FailureReason::NoReceive, 1));
}

#[test]
fn a_refusal_of_the_peer_is_reported_with_its_reason() {
    let access = FailureReason::RemoteAccess { remote: Some(REMOTE), length: 10 };
    for (code, reason) in [
        (NakCode::RemoteAccessError, access),
        (NakCode::InvalidRequest, FailureReason::RemoteRequest),
        (NakCode::RemoteOperationalError, FailureReason::RemoteFailed),
    ] {
        let mut script = Script::new(few());
        write(&mut script, 1, 10);
        assert_eq!(script.send(PSN, nak(code, 0), &[]), Ok(()));
        assert_eq!(failure(&mut script).reason, reason);
    }
    let text = access.to_string();
    assert_eq!(text, "the peer refuses rkey 0x5 at 0x1000, 10 B");
}

#[test]
fn an_answer_of_another_kind_is_reported_as_a_bad_answer() {
    let mut script = Script::new(few());
    write(&mut script, 1, 10);
    let answer = Operation::AtomicAcknowledge {
        aeth: roce::wire::Aeth { syndrome: roce::wire::Syndrome::Ack { credits: 31 }, msn: 1 },
        original: 7,
    };
    assert_eq!(script.send(PSN, answer, &[]), Err(Discard::BadResponse));
    assert_eq!(failure(&mut script).reason, FailureReason::BadAnswer);
}

#[test]
fn a_refused_request_of_the_peer_is_reported_with_its_reason() {
    let mut script = Script::new(few());
    let reth = Reth { rkey: Rkey::new(1), ..script.reth(0, 10) };
    assert_eq!(script.send(PSN, Operation::WriteOnly(reth, None), &[1; 10]), Err(Discard::RemoteKey));
    let refused = failure(&mut script);
    assert_eq!(refused.cause, FailureCause::Refused(NakCode::RemoteAccessError, Discard::RemoteKey));
    assert_eq!(refused.reason, FailureReason::Refused(Discard::RemoteKey));
    // The message is longer than the receive.
    let mut script = Script::new(few());
    let short = script.host.sge(0, 4);
    script.host.endpoint.post_recv(script.host.qpn, RecvRequest::new(1, short)).unwrap();
    assert_eq!(script.send(PSN, SEND, &[1; 10]), Err(Discard::LocalProtection));
    assert_eq!(failure(&mut script).reason, FailureReason::Refused(Discard::LocalProtection));
    // A receive buffer outside its region is an error of the program, not of the peer.
    let mut script = Script::new(few());
    let outside = script.host.sge(1 << 20, 10);
    script.host.endpoint.post_recv(script.host.qpn, RecvRequest::new(1, outside)).unwrap();
    assert_eq!(script.send(PSN, SEND, &[1; 10]), Err(Discard::LocalProtection));
    assert_eq!(failure(&mut script).reason, FailureReason::LocalBuffer);
}

#[test]
fn a_local_error_is_reported_with_its_reason() {
    let mut script = Script::new(few());
    let outside = script.host.sge(1 << 20, 10);
    post(&mut script, SendRequest::write(1, outside, REMOTE));
    script.drain();
    assert_eq!(failure(&mut script).reason, FailureReason::LocalBuffer);
    let mut script = Script::new(few());
    let operation = SendOperation::LocalInvalidate { rkey: Rkey::new(9) };
    post(&mut script, SendRequest { operation, ..SendRequest::send(1, Data::empty()) });
    script.drain();
    assert_eq!(failure(&mut script).reason, FailureReason::LocalRequest);
}

/// Returns an IPv4 or IPv6 frame with an ICMP message that contains the start of a packet of this side.
fn icmp(v6: bool, kind: u8, code: u8, word: [u8; 4], about: &[u8]) -> Vec<u8> {
    let about = &about[14..about.len().min(14 + 40 + 8)];
    let mut frame = vec![2; 12];
    if v6 {
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 8 + about.len() as u8, 58, 64]);
        // From a router to the source of the packet.
        frame.extend([0xfe; 16]);
        frame.extend(&about[8..24]);
    } else {
        frame.extend([8, 0, 0x45, 0xc0, 0, 28 + about.len() as u8, 0, 0, 0, 0, 64, 1, 0, 0]);
        frame.extend([10, 0, 0, 254]);
        frame.extend(&about[12..16]);
    }
    frame.extend([kind, code, 0, 0]);
    frame.extend(word);
    frame.extend(about);
    frame
}

/// Returns a frame from host `from` to host `to`, as it is on the wire.
fn sent(v6: bool, from: u8, to: u8) -> Vec<u8> {
    let bth = roce::wire::Bth::new(Qpn::new(PEER), roce::Psn::new(PSN));
    let header = roce::wire::Header::Connected { service: Service::Rc, bth, operation: SEND };
    let mut frame = vec![0; 200];
    let length = roce::wire::emit(&path_over(v6, from, to), 0, &header, 0, &mut frame).unwrap().seal();
    frame.truncate(length);
    frame
}

/// RFC 792, RFC 4443 3.1, 3.2.
#[test]
fn an_icmp_error_is_the_reason_of_a_missing_answer() {
    use Unreachable::{Address, Port, Prohibited, TooBig};
    let (mtu_v4, mtu_v6) = ([0, 0, 5, 220], [0, 1, 0, 0]);
    for (v6, kind, code, word, what) in [
        (false, 3, 0, [0; 4], Address),
        (false, 3, 1, [0; 4], Address),
        (false, 3, 3, [0; 4], Port),
        (false, 3, 4, mtu_v4, TooBig { mtu: 1500 }),
        (false, 3, 13, [0; 4], Prohibited),
        (true, 1, 0, [0; 4], Address),
        (true, 1, 1, [0; 4], Prohibited),
        (true, 1, 3, [0; 4], Address),
        (true, 1, 4, [0; 4], Port),
        (true, 2, 0, mtu_v6, TooBig { mtu: u16::MAX }),
    ] {
        let options = Options { v6, ..few() };
        let mut pair = Pair::connect(options);
        pair.filter = Some(Box::new(|_, _| false));
        let (sge, now) = (pair.hosts[0].sge(0, 10), pair.now);
        pair.post(0, SendRequest::write(1, sge, REMOTE));
        let host = &mut pair.hosts[0];
        let frame = icmp(v6, kind, code, word, &sent(v6, 1, 2));
        assert_eq!(host.endpoint.on_frame(now, &mut host.ram, &frame), Err(Discard::NotRoce));
        // A message truncated at any byte gives no reason and causes no panic.
        for length in 0..frame.len() {
            assert!(host.endpoint.on_frame(now, &mut host.ram, &frame[..length]).is_err());
        }
        pair.run(LIMIT);
        let host = &pair.hosts[0];
        let failure = host.endpoint.report(host.qpn).unwrap().failure.unwrap();
        assert_eq!(failure.reason, FailureReason::Unreachable(what), "type {kind}, code {code}");
    }
}

/// ICMP messages that are old, concern another peer, or contain no packet of this host give no reason.
#[test]
fn an_icmp_error_that_is_old_or_of_another_peer_is_ignored() {
    for (from, to, age) in [(2, 1, Duration::from_secs(1)), (2, 3, Duration::ZERO), (3, 1, Duration::ZERO)] {
        let mut script = Script::new(few());
        let mut frame = icmp(false, 3, 3, [0; 4], &sent(false, from, to));
        // Addressed to this host, whichever packet the message contains.
        frame[30..34].copy_from_slice(&[10, 0, 0, 2]);
        let now = script.now;
        assert_eq!(script.host.endpoint.on_frame(now, &mut script.host.ram, &frame), Err(Discard::NotRoce));
        script.wait(age);
        write(&mut script, 1, 10);
        assert_eq!(silence(&mut script).reason, FailureReason::NeverAnswered, "{from} to {to}");
    }
}

#[test]
fn an_error_state_that_the_program_requested_has_no_failure() {
    let mut script = Script::new(few());
    let qpn = script.host.qpn;
    script.host.endpoint.modify_qp(script.now, qpn, Modify::Error).unwrap();
    assert_eq!(script.host.endpoint.report(qpn).unwrap().failure, None);
}

/// On an unreliable service a failed send moves the queue pair to SQE until the program resumes.
#[test]
fn a_failed_send_queue_is_reported_until_it_resumes() {
    let mut host = Host::new(1, &few());
    let now = Instant::ZERO;
    let init = QpInit { service: Service::Uc, ..host.init(&few()) };
    host.qpn = host.endpoint.create_qp(now, init).unwrap();
    host.ready_to_receive(path_over(false, 1, 2), Qpn::new(PEER), PSN, &few());
    host.ready_to_send(&few());
    let outside = host.sge(1 << 20, 10);
    host.endpoint.post_send(now, host.qpn, SendRequest::send(1, outside)).unwrap();
    assert_eq!(host.endpoint.poll_transmit(now, &host.ram, &mut [0; 5000]), None);
    let report = host.endpoint.report(host.qpn).unwrap();
    let Some(failure) = report.failure else { panic!("{report:?}") };
    assert_eq!((report.state, failure.reason), (State::SendQueueError, FailureReason::LocalBuffer));
    assert_eq!(host.endpoint.poll_event(), Some(Event::SendQueueFailed(failure)));
    host.endpoint.modify_qp(now, host.qpn, Modify::Resume).unwrap();
    assert_eq!(host.endpoint.report(host.qpn).unwrap().failure, None);
}

/// Requests that were sent, but end because the peer is gone, are not counted as delivered.
#[test]
fn flushed_requests_are_not_acknowledged() {
    let mut pair = Pair::connect(Options { retry_count: 1, ..Options::default() });
    let from = pair.hosts[0].sge(0, 4096);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(0, from, remote));
    pair.run(LIMIT);
    pair.filter = Some(Box::new(|_, _| false));
    for id in 1..4 {
        pair.post(0, SendRequest::write(id, from, remote));
    }
    pair.run(LIMIT);
    let report = pair.reports()[0].unwrap();
    assert_eq!((report.state, report.acknowledged_bytes), (State::Error, 4096));
}
