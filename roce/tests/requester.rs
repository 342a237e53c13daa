//! Packet scripts against the requester: its reaction to each response, and to a missing one.

use crate::harness::script::{PSN, Script, ack, nak, rnr};
use crate::harness::{BASE, Options};
use core::time::Duration;
use roce::qp::{CompletionStatus, CongestionAlgorithm, Modify, Remote, SendRequest, State};
use roce::wire::{Aeth, NakCode, Operation, Syndrome};
use roce::{Discard, Lkey, Rkey};

const REMOTE: Remote = Remote { address: 0x1000, rkey: Rkey::new(5) };
const AETH: Aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
/// Ack timeout code 5.
const TIMEOUT: Duration = Duration::from_nanos(4096 << 5);

fn script() -> Script {
    Script::new(Options { memory: 1 << 16, ..Options::default() })
}

fn post(script: &mut Script, request: SendRequest) {
    let qpn = script.host.qpn;
    script.host.endpoint.post_send(script.now, qpn, request).unwrap();
}

fn write(script: &mut Script, id: u64, length: u32) {
    let from = script.host.sge(0, length);
    post(script, SendRequest::write(id, from, REMOTE));
}

fn read(script: &mut Script, id: u64, length: u32) {
    let into = script.host.sge(4096 * id, length);
    post(script, SendRequest::read(id, into, REMOTE));
}

fn psns(script: &mut Script) -> Vec<u32> {
    script.drain().iter().map(|(psn, _)| *psn).collect()
}

fn outcomes(script: &mut Script) -> Vec<(u64, CompletionStatus)> {
    script.host.sent().iter().map(|completion| (completion.id, completion.status)).collect()
}

/// IBA 9.7.5.2, 9.7.6: one acknowledgement retires all requests up to its PSN.
#[test]
fn an_acknowledgement_covers_all_before_it() {
    let mut script = script();
    write(&mut script, 1, 3000);
    write(&mut script, 2, 10);
    assert_eq!(psns(&mut script), [PSN, PSN + 1, PSN + 2, PSN + 3]);
    assert_eq!(script.send(PSN + 1, ack(0), &[]), Ok(()));
    assert_eq!(outcomes(&mut script), []);
    assert_eq!(script.send(PSN + 3, ack(2), &[]), Ok(()));
    let ok = CompletionStatus::Success;
    assert_eq!(outcomes(&mut script), [(1, ok), (2, ok)]);
}

#[test]
fn a_gap_nak_goes_back_to_the_gap() {
    let mut script = script();
    write(&mut script, 1, 5000);
    assert_eq!(psns(&mut script), [PSN, PSN + 1, PSN + 2, PSN + 3, PSN + 4]);
    assert_eq!(script.send(PSN + 2, nak(NakCode::PsnSequenceError, 0), &[]), Ok(()));
    assert_eq!(psns(&mut script), [PSN + 2, PSN + 3, PSN + 4]);
    assert_eq!(script.host.endpoint.counters().retransmitted, 3);
    assert_eq!(script.host.endpoint.counters().naks_received, 1);
    assert_eq!(script.send(PSN + 4, ack(1), &[]), Ok(()));
    assert_eq!(outcomes(&mut script), [(1, CompletionStatus::Success)]);
}

#[test]
fn a_read_continues_at_the_first_missing_response() {
    let mut script = script();
    read(&mut script, 1, 3000);
    write(&mut script, 2, 10);
    assert_eq!(psns(&mut script), [PSN, PSN + 3]);
    let first = Operation::ReadResponseFirst(AETH);
    assert_eq!(script.send(PSN, first, &[1; 1024]), Ok(()));
    // The rest is lost. The WRITE's acknowledgement implies the loss, once.
    assert_eq!(script.send(PSN + 3, ack(2), &[]), Ok(()));
    assert_eq!(script.send(PSN + 3, ack(2), &[]), Ok(()));
    let sent = script.drain();
    let rest = roce::wire::Reth { address: 0x1000 + 1024, rkey: REMOTE.rkey, length: 1976 };
    assert_eq!(sent[0], (PSN + 1, Operation::ReadRequest(rest)));
    assert_eq!(sent[1].0, PSN + 3);
    assert_eq!(sent.len(), 2);
    assert_eq!(script.send(PSN + 1, first, &[2; 1024]), Ok(()));
    assert_eq!(script.send(PSN + 2, Operation::ReadResponseLast(AETH), &[3; 952]), Ok(()));
    assert_eq!(outcomes(&mut script), [(1, CompletionStatus::Success)]);
    assert_eq!(script.send(PSN + 3, ack(2), &[]), Ok(()));
    assert_eq!(outcomes(&mut script), [(2, CompletionStatus::Success)]);
    let bytes = script.host.bytes(4096, 3000);
    assert_eq!((bytes[0], bytes[1023], bytes[1024], bytes[2047], bytes[2048]), (1, 1, 2, 2, 3));
}

/// IBA 11.6.2: each NAK has its completion status; later requests are flushed.
#[test]
fn a_refusal_ends_its_request_and_flushes_the_rest() {
    for (code, status) in [
        (NakCode::InvalidRequest, CompletionStatus::RemoteInvalidRequest),
        (NakCode::RemoteAccessError, CompletionStatus::RemoteAccess),
        (NakCode::RemoteOperationalError, CompletionStatus::RemoteOperation),
        (NakCode::InvalidRdRequest, CompletionStatus::RemoteInvalidRequest),
    ] {
        let mut script = script();
        for id in 1..4 {
            write(&mut script, id, 10);
        }
        script.drain();
        // The NAK acknowledges the packets before it.
        assert_eq!(script.send(PSN + 1, nak(code, 1), &[]), Ok(()));
        let flushed = CompletionStatus::Flushed;
        let ok = CompletionStatus::Success;
        assert_eq!(outcomes(&mut script), [(1, ok), (2, status), (3, flushed)]);
        assert_eq!(script.state(), State::Error);
        assert_eq!(script.drain(), []);
        write(&mut script, 4, 10);
        assert_eq!(outcomes(&mut script), [(4, flushed)]);
    }
}

/// IBA 9.7.5.2.8: an RNR NAK contains the time of the retry.
#[test]
fn a_request_is_retried_after_the_time_of_an_rnr_nak() {
    let mut script = Script::new(Options { rnr_retry: 2, ..Options::default() });
    write(&mut script, 1, 10);
    write(&mut script, 2, 10);
    assert_eq!(script.drain().len(), 2);
    for _ in 0..2 {
        // Timer code 12: 640 µs. The peer also reports the packets after it as a gap.
        assert_eq!(script.send(PSN, rnr(12, 0), &[]), Ok(()));
        assert_eq!(script.send(PSN, nak(NakCode::PsnSequenceError, 0), &[]), Ok(()));
        assert_eq!(script.drain(), []);
        script.wait(Duration::from_micros(639));
        assert_eq!(script.drain(), []);
        script.wait(Duration::from_micros(2));
        assert_eq!(psns(&mut script), [PSN, PSN + 1]);
    }
    assert_eq!(script.send(PSN, rnr(12, 0), &[]), Ok(()));
    let expected = [(1, CompletionStatus::RnrRetryExceeded), (2, CompletionStatus::Flushed)];
    assert_eq!(outcomes(&mut script), expected);
    assert_eq!(script.host.endpoint.counters().rnr_naks_received, 3);
}

/// IBA 9.7.6.1.3: the timeout, the retries, the error.
#[test]
fn a_request_without_an_answer_is_retried_and_then_fails() {
    let mut script = Script::new(Options { retry_count: 3, ..Options::default() });
    write(&mut script, 1, 2000);
    read(&mut script, 2, 10);
    for (round, patience) in [1, 2, 4, 4].into_iter().enumerate() {
        // After a timeout only the first packet is retransmitted: a slow peer may be unable to process more.
        let sent = if round == 0 { &[PSN, PSN + 1, PSN + 2][..] } else { &[PSN] };
        assert_eq!(psns(&mut script), sent, "round {round}");
        script.wait(patience * TIMEOUT - Duration::from_micros(1));
        assert_eq!(script.drain(), []);
        script.wait(Duration::from_micros(2));
    }
    let expected = [(1, CompletionStatus::RetryExceeded), (2, CompletionStatus::Flushed)];
    assert_eq!(outcomes(&mut script), expected);
    assert_eq!(script.host.endpoint.counters().timeouts, 4);
    assert_eq!(script.host.endpoint.poll_timeout(), None);
}

/// Packets that a slow peer dropped are not retransmitted in one burst: first one packet, then as many more as are acknowledged.
#[test]
fn after_a_timeout_the_window_grows_with_acknowledgements() {
    let mut script = Script::new(Options::default());
    write(&mut script, 1, 20_000);
    assert_eq!(script.drain().len(), 20);
    script.wait(TIMEOUT + Duration::from_micros(1));
    let mut sent = 0;
    for came in [1, 2, 4, 8] {
        assert_eq!(psns(&mut script), (sent..sent + came).map(|n| PSN + n).collect::<Vec<_>>());
        sent += came;
        assert_eq!(script.send(PSN + sent - 1, ack(0), &[]), Ok(()));
    }
    assert_eq!(script.drain().len(), 5, "the rest");
    // A gap that the peer reports is different: it shows that the peer processes packets.
    assert_eq!(script.send(PSN + 15, nak(NakCode::PsnSequenceError, 0), &[]), Ok(()));
    assert_eq!(script.drain().len(), 5);
}

#[test]
fn progress_restores_all_retries() {
    let mut script = Script::new(Options { retry_count: 1, ..Options::default() });
    write(&mut script, 1, 5000);
    for packet in 0..4 {
        script.drain();
        script.wait(TIMEOUT + Duration::from_micros(1));
        assert_eq!(psns(&mut script)[0], PSN + packet);
        assert_eq!(script.send(PSN + packet, ack(0), &[]), Ok(()));
    }
    assert_eq!(script.state(), State::ReadyToSend);
}

/// IBA 10.7, 11.6.2: completions keep the order of requests, also if one fails locally.
#[test]
fn a_bad_local_buffer_fails_after_the_requests_before_it() {
    let mut script = script();
    write(&mut script, 1, 10);
    let bad = script.host.sge_with(0, 10, Lkey::new(0xdead));
    post(&mut script, SendRequest::write(2, bad, REMOTE));
    write(&mut script, 3, 10);
    assert_eq!(psns(&mut script), [PSN]);
    assert_eq!(outcomes(&mut script), []);
    assert_eq!(script.send(PSN, ack(1), &[]), Ok(()));
    assert_eq!(script.drain(), []);
    assert_eq!(
        outcomes(&mut script),
        [
            (1, CompletionStatus::Success),
            (2, CompletionStatus::LocalProtection),
            (3, CompletionStatus::Flushed)
        ]
    );
}

#[test]
fn flushed_requests_keep_their_order_and_reset_clears_the_queues() {
    let mut script = script();
    let qpn = script.host.qpn;
    for id in 0..3 {
        let sge = script.host.sge(0, 10);
        post(&mut script, SendRequest::write(id, sge, REMOTE).unsignalled());
        script.host.endpoint.post_recv(qpn, roce::qp::RecvRequest::new(10 + id, sge)).unwrap();
    }
    script.host.endpoint.modify_qp(script.now, qpn, Modify::Error).unwrap();
    let flushed = CompletionStatus::Flushed;
    assert_eq!(outcomes(&mut script), [(0, flushed), (1, flushed), (2, flushed)]);
    let received: Vec<_> = script.host.received().iter().map(|c| (c.id, c.status)).collect();
    assert_eq!(received, [(10, flushed), (11, flushed), (12, flushed)]);
    script.host.endpoint.modify_qp(script.now, qpn, Modify::Reset).unwrap();
    assert_eq!(script.state(), State::Reset);
    assert_eq!(script.host.endpoint.send_room(qpn), 128);
    let refused = script.host.endpoint.post_recv(qpn, roce::qp::RecvRequest::scatter(1, &[]));
    assert!(refused.is_err());
}

/// Every packet of the response to a 2 GiB READ has its own PSN, which is half the PSN space at MTU 256.
#[test]
fn a_read_of_two_gibibytes_uses_half_the_psn_space() {
    let options = Options { mtu: roce::wire::Mtu::M256, ..Options::default() };
    let mut script = Script::new(options);
    let length = 1 << 31;
    let pd = script.host.pd;
    let access = roce::Access::ALL;
    let region = script.host.endpoint.register(pd, BASE, u64::from(length), access).unwrap();
    let into = roce::qp::Sge { address: BASE, length, lkey: region.lkey };
    post(&mut script, SendRequest::read(1, into, REMOTE));
    write(&mut script, 2, 1);
    // The WRITE is delayed: its PSN would be as far behind as ahead.
    assert_eq!(psns(&mut script), [PSN]);
    let last = PSN + (1 << 23) - 1;
    let report = script.host.endpoint.report(script.host.qpn).unwrap();
    assert_eq!(report.send_psn, roce::Psn::new(last + 1));
    assert_eq!(script.send(last + 1, ack(1), &[]), Err(Discard::StaleAcknowledge));
    // A response from the middle shows that those before it were lost.
    let middle = Operation::ReadResponseMiddle;
    assert_eq!(script.send(last - 1, middle, &[0; 256]), Ok(()));
    assert_eq!(psns(&mut script), [PSN]);
    // One packet has arrived, and the PSN space has room for one more.
    assert_eq!(script.send(PSN, Operation::ReadResponseFirst(AETH), &[1; 256]), Ok(()));
    assert_eq!(psns(&mut script), [last + 1]);
}

/// Observed with Linux 6.1's rdma_rxe and several concurrent READs of 1 MiB: after a loss it first sends the pending responses, for longer
/// than the timeout. Then it responds to the retransmitted request.
#[test]
fn late_responses_of_a_peer_postpone_the_timeout() {
    let mut script = Script::new(Options { retry_count: 1, memory: 1 << 16, ..Options::default() });
    read(&mut script, 1, 3000);
    read(&mut script, 2, 3000);
    assert_eq!(psns(&mut script), [PSN, PSN + 3]);
    let middle = Operation::ReadResponseMiddle;
    // The very first packet is lost; both READs are requested again, once.
    assert_eq!(script.send(PSN + 1, middle, &[1; 1024]), Ok(()));
    assert_eq!(psns(&mut script), [PSN, PSN + 3]);
    for _ in 0..3 {
        script.wait(TIMEOUT - Duration::from_micros(1));
        assert_eq!(psns(&mut script), []);
        assert_eq!(script.send(PSN + 4, middle, &[1; 1024]), Ok(()));
    }
    assert_eq!(script.host.endpoint.counters().timeouts, 0);
    assert_eq!(script.send(PSN, Operation::ReadResponseFirst(AETH), &[1; 1024]), Ok(()));
    assert_eq!(script.state(), State::ReadyToSend);
    // No response follows: the timeout applies again.
    script.wait(TIMEOUT + Duration::from_micros(1));
    assert_eq!(psns(&mut script), [PSN + 1]);
}

/// If a peer's responses are lost, half as many READs are requested at a time, and one more for each that completes.
#[test]
fn losses_halve_the_number_of_outstanding_reads() {
    let mut script = Script::new(Options { memory: 1 << 16, ..Options::default() });
    let only = Operation::ReadResponseOnly(AETH);
    for id in 1..=8 {
        read(&mut script, id, 10);
    }
    assert_eq!(psns(&mut script), [PSN, PSN + 1, PSN + 2, PSN + 3], "as many as the peer admits");
    assert_eq!(script.send(PSN + 1, only, &[1; 10]), Ok(()));
    assert_eq!(psns(&mut script), [PSN, PSN + 1]);
    assert_eq!(script.send(PSN, only, &[1; 10]), Ok(()));
    assert_eq!(psns(&mut script), [PSN + 2, PSN + 3]);
    script.wait(TIMEOUT + Duration::from_micros(1));
    assert_eq!(psns(&mut script), [PSN + 1], "one packet after a timeout");
    assert_eq!(script.send(PSN + 1, only, &[1; 10]), Ok(()));
    assert_eq!(psns(&mut script), [PSN + 2, PSN + 3]);
}

/// The same for a completed READ: it was requested twice, and the responses to the second request precede all new ones.
#[test]
fn a_peer_that_answers_a_completed_read_postpones_the_timeout() {
    let mut script = Script::new(Options { retry_count: 1, memory: 1 << 16, ..Options::default() });
    read(&mut script, 1, 3000);
    assert_eq!(psns(&mut script), [PSN]);
    script.wait(TIMEOUT + Duration::from_micros(1));
    assert_eq!(psns(&mut script), [PSN]);
    let rounds = [
        (PSN, Operation::ReadResponseFirst(AETH), 1024),
        (PSN + 1, Operation::ReadResponseMiddle, 1024),
        (PSN + 2, Operation::ReadResponseLast(AETH), 952),
    ];
    for (psn, operation, length) in rounds {
        assert_eq!(script.send(psn, operation, &vec![1; length]), Ok(()));
    }
    read(&mut script, 2, 10);
    assert_eq!(psns(&mut script), [PSN + 3]);
    for (psn, operation, length) in rounds {
        script.wait(TIMEOUT - Duration::from_micros(1));
        assert_eq!(psns(&mut script), []);
        assert_eq!(script.send(psn, operation, &vec![1; length]), Err(Discard::StaleAcknowledge));
    }
    assert_eq!(script.host.endpoint.counters().timeouts, 1);
    // A packet that was never requested delays nothing.
    script.wait(TIMEOUT - Duration::from_micros(1));
    assert_eq!(psns(&mut script), []);
    assert_eq!(
        script.send(PSN + 9, Operation::ReadResponseMiddle, &[1; 1024]),
        Err(Discard::StaleAcknowledge)
    );
    script.wait(Duration::from_micros(2));
    assert_eq!(psns(&mut script), [PSN + 3]);
}

/// The postponement is limited: a peer that repeats old responses, or a forger in its name, cannot keep a request from failing.
#[test]
fn a_peer_that_sends_only_stale_answers_exceeds_the_retries() {
    let mut script = Script::new(Options { retry_count: 2, ..Options::default() });
    let only = Operation::ReadResponseOnly(AETH);
    read(&mut script, 1, 10);
    assert_eq!(psns(&mut script), [PSN]);
    assert_eq!(script.send(PSN, only, &[1; 10]), Ok(()));
    read(&mut script, 2, 10);
    assert_eq!(psns(&mut script), [PSN + 1]);
    let (start, mut asked) = (script.now, 1);
    while script.state() != State::Error {
        assert!(script.now < start + 200 * TIMEOUT, "asked {asked} times");
        script.wait(TIMEOUT / 2);
        asked += psns(&mut script).len();
        assert_ne!(script.send(PSN, only, &[1; 10]), Ok(()));
    }
    // Because a round-trip time was measured, requests are retransmitted more often than retries are used.
    assert!((4..=6).contains(&asked), "asked {asked} times");
    assert_eq!(script.host.endpoint.counters().timeouts, 3, "each retry was spent");
    let ends: Vec<_> = script.host.sent().iter().map(|completion| completion.status).collect();
    assert_eq!(ends, [CompletionStatus::Success, CompletionStatus::RetryExceeded]);
}

/// The bytes of READ responses count in the window, so that no more is requested from a slow peer than it can send in time.
#[test]
fn reads_request_no_more_than_the_window() {
    let window = CongestionAlgorithm::Fixed { window: 6 << 10, rate: None };
    let mut script = Script::new(Options { congestion: window, memory: 1 << 16, ..Options::default() });
    for id in 1..=3 {
        read(&mut script, id, 3000);
    }
    read(&mut script, 4, 10_000);
    assert_eq!(psns(&mut script), [PSN, PSN + 3]);
    for id in 0..3 {
        let psn = PSN + 3 * id;
        assert_eq!(script.send(psn, Operation::ReadResponseFirst(AETH), &[1; 1024]), Ok(()));
        assert_eq!(script.send(psn + 1, Operation::ReadResponseMiddle, &[1; 1024]), Ok(()));
        assert_eq!(script.send(psn + 2, Operation::ReadResponseLast(AETH), &[1; 952]), Ok(()));
        // The last READ is longer than the window: it is sent alone.
        let next = [vec![PSN + 6], vec![], vec![PSN + 9]];
        assert_eq!(psns(&mut script), next[id as usize]);
    }
}
