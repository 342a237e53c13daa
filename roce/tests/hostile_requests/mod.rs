//! Every malformed request that the specification names, delivered by the test as the peer: the response, the counter, and the effect on
//! both queue pairs. No byte of memory changes.

mod xrc;

use crate::harness::raw::Raw;
use crate::harness::script::{PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Options};
use many_queue_pairs::ManyQueuePairs;
use roce::qp::{CompletionStatus, RecvRequest, Remote, SendRequest, State};
use roce::wire::NakCode::{InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError};
use roce::wire::{Header, Operation, Reth, Service};
use roce::{Discard, Psn, Rkey};
use table::Outcome::{self, Acknowledged, Again, Fatal, Gap, NotReady, Silence};
use table::{FULL, IMMEDIATE, Packet, prepare, raw, raw_reth, reth, table, write};
use testkit::hostile_requests::{many_queue_pairs, table};

fn post_receives(script: &mut Script, length: u32) {
    let qpn = script.host.qpn;
    for id in 0..2 {
        let sge = script.host.sge(0x8000, length);
        script.host.endpoint.post_recv(qpn, RecvRequest::new(id, sge)).unwrap();
    }
}

fn deliver(script: &mut Script, psn: u32, packet: &Packet) -> Result<(), Discard> {
    let frame = packet.frame(script, psn);
    script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame)
}

/// Returns the status with which the row's response fails the requester's oldest request, if it does.
fn ends_as(outcome: Outcome) -> Option<CompletionStatus> {
    match outcome {
        Fatal(InvalidRequest, _) => Some(CompletionStatus::RemoteInvalidRequest),
        Fatal(RemoteAccessError, _) => Some(CompletionStatus::RemoteAccess),
        Fatal(RemoteOperationalError, _) => Some(CompletionStatus::RemoteOperation),
        Fatal(..) | Silence | Gap | NotReady | Again | Acknowledged(_) => None,
    }
}

/// Checks the requester's side: a requester that sent this packet receives the response.
fn asker_gets(row: &str, expected: Option<CompletionStatus>, answer: (u32, Operation)) {
    let mut asker = Script::new(Options::default());
    let remote = Remote { address: BASE, rkey: Rkey::new(1) };
    for id in 0..4 {
        let request = SendRequest::write(id, asker.host.sge(0, 1), remote);
        let qpn = asker.host.qpn;
        asker.host.endpoint.post_send(asker.now, qpn, request).unwrap();
    }
    asker.drain();
    asker.send(answer.0, answer.1, &[]).unwrap();
    let failed: Vec<_> = asker
        .host
        .sent()
        .into_iter()
        .filter(|c| c.status != CompletionStatus::Success)
        .map(|c| c.status)
        .collect();
    match expected {
        None => {
            assert_eq!(asker.state(), State::ReadyToSend, "{row}: the requester");
            assert!(failed.is_empty(), "{row}: {failed:?}");
        }
        Some(status) => {
            assert_eq!(asker.state(), State::Error, "{row}: the requester");
            assert_eq!(failed[0], status, "{row}: the requester");
            assert!(failed[1..].iter().all(|&s| s == CompletionStatus::Flushed), "{row}: {failed:?}");
        }
    }
}

fn check(index: usize) {
    let (mut script, keys) = prepare();
    let row = table(&keys).swap_remove(index);
    let name = row.name;
    if !matches!(row.outcome, NotReady) {
        post_receives(&mut script, row.receive);
    }
    let mut psn = PSN;
    for (operation, payload) in &row.before {
        script.send(psn, *operation, payload).unwrap_or_else(|discard| panic!("{name}: before: {discard:?}"));
        psn += 1;
    }
    let reads =
        row.before.iter().filter(|(operation, _)| matches!(operation, Operation::ReadRequest(_))).count();
    if reads == 0 {
        script.drain();
    }
    let (before, outcome) = (script.host.ram.0.clone(), row.outcome);
    assert_eq!(deliver(&mut script, psn, &row.packet), Err(row.discard), "{name}");
    assert_eq!(script.discarded(row.discard), 1, "{name}");
    assert!(script.host.ram.0 == before, "{name}: memory changed");
    let mut answers = script.drain();
    let msn = if reads > 0 || psn > PSN && matches!(outcome, Gap | Again | Silence) { psn - PSN } else { 0 };
    // The pending responses are sent before the refusal.
    answers.drain(..reads);
    let expected = match outcome {
        Silence => vec![],
        Fatal(code, _) => vec![(psn, nak(code, msn))],
        Gap => vec![(psn, nak(PsnSequenceError, msn))],
        NotReady => vec![(psn, rnr(1, msn))],
        Again => vec![(psn - 1, ack(msn))],
        Acknowledged(_) => vec![(psn, ack(psn - PSN))],
    };
    assert_eq!(answers, expected, "{name}");
    check_after(&mut script, name, psn, outcome);
    if let Some(&answer) = answers.first() {
        asker_gets(name, ends_as(outcome), answer);
    }
}

/// In ERR everything is flushed and nothing more is accepted; otherwise the connection continues unaffected.
fn check_after(script: &mut Script, name: &str, psn: u32, outcome: Outcome) {
    let write = write(script.reth(40_000, 1));
    match outcome {
        Fatal(_, receive) | Acknowledged(receive) => {
            assert_eq!(script.state(), State::Error, "{name}");
            let statuses: Vec<_> = script.host.received().iter().map(|c| c.status).collect();
            assert_eq!(statuses, [receive, CompletionStatus::Flushed], "{name}");
            assert_eq!(script.send(psn, write, &[1]), Err(Discard::QpState), "{name}");
            assert_eq!(script.drain(), [], "{name}");
            assert_eq!(script.host.bytes(40_000, 1), [0], "{name}");
        }
        Silence | Gap | NotReady | Again => {
            assert_eq!(script.state(), State::ReadyToSend, "{name}");
            assert_eq!(
                script.host.endpoint.report(script.host.qpn).unwrap().expected_psn,
                Psn::new(psn),
                "{name}"
            );
            assert!(script.host.received().is_empty(), "{name}");
            assert_eq!(script.send(psn, write, &[1]), Ok(()), "{name}");
            assert_eq!(script.host.bytes(40_000, 1), [1], "{name}");
        }
    }
}

#[test]
fn every_malformed_request_is_answered_by_the_rules_and_changes_no_memory() {
    let count = table(&prepare().1).len();
    (0..count).for_each(check);
    assert_eq!(count, 159);
}

/// The raw builder and the codec produce equal bytes, so that a raw row contains only its intended error.
#[test]
fn raw_packets_equal_those_of_the_codec() {
    let (mut script, keys) = prepare();
    let one = reth(keys.whole, 0, 1);
    let bytes = Raw { flags: 0x30, ..raw(0x0a, 3, raw_reth(one, &[5, 0, 0, 0])) }.frame(script.host.qpn);
    let header = Header::Connected { service: Service::Rc, bth: script.bth(PSN), operation: write(one) };
    assert_eq!(bytes, script.frame(&header, &[5]));
    assert_eq!(script.host.endpoint.on_frame(script.now, &mut script.host.ram, &bytes), Ok(()));
    assert_eq!(script.host.bytes(0, 1), [5]);
}

/// IBA 9.7.4.1.4, 9.7.3.1: a request of no bytes does not access memory, so its key is not checked.
#[test]
fn requests_of_no_bytes_need_no_key() {
    let (mut script, keys) = prepare();
    let nothing = Reth { address: 0, rkey: keys.unknown, length: 0 };
    let qpn = script.host.qpn;
    for id in 0..2 {
        script.host.endpoint.post_recv(qpn, RecvRequest::new(id, script.host.sge(0, 0))).unwrap();
    }
    assert_eq!(script.send(PSN, write(nothing), &[]), Ok(()));
    assert_eq!(script.send(PSN + 1, SEND, &[]), Ok(()));
    assert_eq!(script.send(PSN + 2, Operation::WriteOnly(nothing, Some(IMMEDIATE)), &[]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 2, ack(3))]);
    assert_eq!(script.send(PSN + 3, Operation::ReadRequest(nothing), &[]), Ok(()));
    let answers = script.drain();
    assert!(matches!(answers[..], [(psn, Operation::ReadResponseOnly(_))] if psn == PSN + 3), "{answers:?}");
    let received: Vec<_> = script.host.received().iter().map(|c| (c.id, c.length, c.immediate)).collect();
    assert_eq!(received, [(0, 0, None), (1, 0, Some(IMMEDIATE))]);
    assert!(script.host.ram.0.iter().all(|&byte| byte == 0));
}

/// IBA 9.7.4.1.4: a region that is deregistered within a WRITE fails the rest of the WRITE.
#[test]
fn a_key_invalidated_within_a_message_fails_the_message() {
    let (mut script, keys) = prepare();
    let long = Operation::WriteFirst(reth(keys.whole, 0, 2000));
    assert_eq!(script.send(PSN, long, FULL), Ok(()));
    let lkey = script.host.region.lkey;
    script.host.endpoint.deregister(lkey).unwrap();
    assert_eq!(script.send(PSN + 1, Operation::WriteLast(None), &FULL[..976]), Err(Discard::RemoteKey));
    assert_eq!(script.drain(), [(PSN + 1, nak(RemoteAccessError, 0))]);
    assert!(script.host.bytes(1024, 976).iter().all(|&byte| byte == 0));
}

/// IBA 9.7.5.2.4: a local error of the responder is a remote operational error for the peer.
#[test]
fn a_deregistered_receive_buffer_is_a_remote_operational_error() {
    let (mut script, _) = prepare();
    let qpn = script.host.qpn;
    let sge = script.host.sge(0, 100);
    script.host.endpoint.post_recv(qpn, RecvRequest::new(1, sge)).unwrap();
    let lkey = script.host.region.lkey;
    script.host.endpoint.deregister(lkey).unwrap();
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::LocalProtection));
    let answers = script.drain();
    assert_eq!(answers, [(PSN, nak(RemoteOperationalError, 0))]);
    assert_eq!(script.host.received()[0].status, CompletionStatus::LocalProtection);
    asker_gets("no buffer", Some(CompletionStatus::RemoteOperation), answers[0]);
}

/// However often a hostile frame is repeated, it allocates no more memory than its first few repetitions.
#[test]
fn no_hostile_frame_makes_memory_grow() {
    let mut many = ManyQueuePairs::new(2);
    let (mut grown, mut count) = (Vec::new(), 0);
    many.each(&mut |name, take| {
        (0..20).for_each(|_| take());
        let memory = allocation_counter::measure(|| (0..200).for_each(|_| take()));
        if memory.bytes_current > 0 {
            grown.push((name.to_owned(), memory.bytes_current));
        }
        count += 1;
    });
    assert!(grown.is_empty(), "{grown:?}");
    assert_eq!(count, 218);
}
