//! Every wrong response of a peer is ignored, or fails the queue pair. No byte changes that a correct response would not have changed.

use crate::harness::raw::Raw;
use crate::harness::script::{PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Options};
use Outcome::{Fails, GoesBack, Ignored, Waits};
use core::time::Duration;
use roce::qp::{CompletionStatus, Remote, SendRequest, State};
use roce::wire::{Aeth, NakCode, Operation, Syndrome};
use roce::{Discard, Lkey, Rkey};

const FULL: &[u8] = &[0xa5; 1024];

/// The request that is outstanding when the response arrives; every kind uses the PSNs `PSN`, `PSN + 1`, ...
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    /// Three WRITEs of a packet each.
    Writes,
    /// A READ of 2500 bytes, three packets, then a WRITE.
    Read,
    /// A READ into memory that has been deregistered meanwhile.
    ReadIntoNowhere,
    /// A FETCH_ADD, then a WRITE.
    Atomic,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// Nothing is sent and nothing completes. `Some`: the packet is counted with this reason.
    Ignored(Option<Discard>),
    /// The oldest request fails with this status, all others are flushed. `Some`: the packet is counted with this reason.
    Fails(CompletionStatus, Option<Discard>),
    /// Everything from this PSN on is retransmitted.
    GoesBack(u32),
    /// Everything from this PSN on is retransmitted after the peer's RNR timer.
    Waits(u32),
}

struct Row {
    name: &'static str,
    asked: Asked,
    psn: i32,
    operation: Operation,
    payload: &'static [u8],
    outcome: Outcome,
}

const fn row(
    name: &'static str,
    asked: Asked,
    (psn, operation, payload): (i32, Operation, &'static [u8]),
    outcome: Outcome,
) -> Row {
    Row { name, asked, psn, operation, payload, outcome }
}

const AETH: Aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
const FIRST: Operation = Operation::ReadResponseFirst(AETH);
const MIDDLE: Operation = Operation::ReadResponseMiddle;
const LAST: Operation = Operation::ReadResponseLast(AETH);
const ONLY: Operation = Operation::ReadResponseOnly(AETH);
const ATOMIC: Operation = Operation::AtomicAcknowledge { aeth: AETH, original: 5 };
const STALE: Outcome = Ignored(Some(Discard::StaleAcknowledge));
const BAD: Outcome = Fails(CompletionStatus::BadResponse, Some(Discard::BadResponse));

/// Acknowledgements and NAKs.
fn acknowledgements() -> Vec<Row> {
    use Asked::{Atomic, Nothing, Read, Writes};
    use NakCode::{
        InvalidRdRequest, InvalidRequest, PsnSequenceError, RemoteAccessError, RemoteOperationalError,
    };
    let half = 1 << 23;
    let at = |psn, operation| (psn, operation, &[][..]);
    let fails = |status| Fails(status, None);
    vec![
        row("ACK of what was never sent", Writes, at(3, ack(4)), STALE),
        row("ACK far ahead", Writes, at(half - 1, ack(4)), STALE),
        row("ACK of what was acknowledged", Writes, at(-1, ack(0)), STALE),
        row("ACK far behind", Writes, at(-half, ack(0)), STALE),
        row("ACK with nothing outstanding", Nothing, at(0, ack(1)), STALE),
        row("RNR NAK of what was never sent", Writes, at(3, rnr(1, 0)), STALE),
        row("RNR NAK with nothing outstanding", Nothing, at(0, rnr(1, 0)), STALE),
        row("sequence NAK of what was never sent", Writes, at(3, nak(PsnSequenceError, 0)), STALE),
        row("fatal NAK of what was never sent", Writes, at(3, nak(InvalidRequest, 0)), STALE),
        row("fatal NAK of what was acknowledged", Writes, at(-1, nak(RemoteAccessError, 0)), STALE),
        row("sequence NAK", Writes, at(0, nak(PsnSequenceError, 0)), GoesBack(0)),
        row("RNR NAK", Writes, at(0, rnr(1, 0)), Waits(0)),
        row(
            "invalid request",
            Writes,
            at(0, nak(InvalidRequest, 0)),
            fails(CompletionStatus::RemoteInvalidRequest),
        ),
        row(
            "invalid RD request",
            Writes,
            at(0, nak(InvalidRdRequest, 0)),
            fails(CompletionStatus::RemoteInvalidRequest),
        ),
        row(
            "remote access error",
            Writes,
            at(0, nak(RemoteAccessError, 0)),
            fails(CompletionStatus::RemoteAccess),
        ),
        row(
            "remote operational error",
            Writes,
            at(0, nak(RemoteOperationalError, 0)),
            fails(CompletionStatus::RemoteOperation),
        ),
        row(
            "remote access error for a READ",
            Read,
            at(0, nak(RemoteAccessError, 0)),
            fails(CompletionStatus::RemoteAccess),
        ),
        row(
            "remote access error within a READ's answer",
            Read,
            at(2, nak(RemoteAccessError, 0)),
            GoesBack(0),
        ),
        // IBA 9.7.5.1: a response after a READ without its own response shows that the READ's response was lost.
        row("ACK for a READ", Read, at(2, ack(1)), GoesBack(0)),
        row("ACK behind a READ", Read, at(3, ack(2)), GoesBack(0)),
        row("ACK for an atomic", Atomic, at(0, ack(1)), GoesBack(0)),
        row("ACK behind an atomic", Atomic, at(1, ack(2)), GoesBack(0)),
    ]
}

/// Responses with data.
fn answers() -> Vec<Row> {
    use Asked::{Atomic, Nothing, Read, ReadIntoNowhere, Writes};
    let nowhere = Fails(CompletionStatus::LocalProtection, Some(Discard::LocalProtection));
    vec![
        row("READ response to nothing", Nothing, (0, ONLY, FULL), STALE),
        row("READ response to a WRITE", Writes, (0, ONLY, FULL), BAD),
        row("READ response beyond all requests", Read, (4, MIDDLE, FULL), STALE),
        row("READ response that was taken", Read, (-1, MIDDLE, FULL), STALE),
        row("READ response First that is short", Read, (0, FIRST, &FULL[1..]), BAD),
        row("READ response First that is empty", Read, (0, FIRST, &[]), BAD),
        row("READ response First above the MTU", Read, (0, FIRST, &[0xa5; 1025]), BAD),
        row("READ response Last where First belongs", Read, (0, LAST, FULL), BAD),
        row("READ response Only where First belongs", Read, (0, ONLY, FULL), BAD),
        row("READ response of a later packet", Read, (1, MIDDLE, FULL), GoesBack(0)),
        row("READ response Last before the others", Read, (2, LAST, &FULL[..452]), GoesBack(0)),
        row("READ response at a WRITE behind the READ", Read, (3, ONLY, FULL), GoesBack(0)),
        row("atomic answer to a READ", Read, (0, ATOMIC, &[]), BAD),
        row("atomic answer to a WRITE", Writes, (0, ATOMIC, &[]), BAD),
        row("atomic answer to nothing", Nothing, (0, ATOMIC, &[]), STALE),
        row("READ response to an atomic", Atomic, (0, ONLY, &FULL[..8]), BAD),
        row("atomic answer beyond all requests", Atomic, (2, ATOMIC, &[]), STALE),
        row("READ response to a buffer that went away", ReadIntoNowhere, (0, FIRST, FULL), nowhere),
    ]
}

fn ask(asked: Asked) -> (Script, u64) {
    let mut script = Script::new(Options { memory: 1 << 16, ack_timeout: 14, ..Options::default() });
    let remote = Remote { address: BASE, rkey: Rkey::new(1) };
    let buffer = script.host.endpoint.register(script.host.pd, BASE, 1 << 16, roce::Access::ALL).unwrap();
    let (sge, into) = (script.host.sge(0, 100), script.host.sge_with(8192, 2500, buffer.lkey));
    let write = |id| SendRequest::write(id, sge, remote);
    let requests = match asked {
        Asked::Nothing => vec![],
        Asked::Writes => vec![write(0), write(1), write(2)],
        Asked::Read | Asked::ReadIntoNowhere => vec![SendRequest::read(0, into, remote), write(1)],
        Asked::Atomic => {
            vec![SendRequest::fetch_add(0, script.host.sge_with(8192, 8, buffer.lkey), remote, 1), write(1)]
        }
    };
    let count = requests.len() as u64;
    for request in requests {
        let qpn = script.host.qpn;
        script.host.endpoint.post_send(script.now, qpn, request).unwrap();
    }
    script.drain();
    if asked == Asked::ReadIntoNowhere {
        forget(&mut script, buffer.lkey);
    }
    (script, count)
}

fn forget(script: &mut Script, lkey: Lkey) {
    script.host.endpoint.deregister(lkey).unwrap();
}

fn check(row: &Row) {
    let name = row.name;
    let (mut script, count) = ask(row.asked);
    let before = script.host.ram.0.clone();
    let taken = script.send(PSN.wrapping_add_signed(row.psn), row.operation, row.payload);
    let (expected, state) = match row.outcome {
        Ignored(discard) => (discard, State::ReadyToSend),
        Fails(_, discard) => (discard, State::Error),
        GoesBack(_) | Waits(_) => (None, State::ReadyToSend),
    };
    assert_eq!(taken, expected.map_or(Ok(()), Err), "{name}");
    if let Some(discard) = expected {
        assert_eq!(script.discarded(discard), 1, "{name}");
    }
    assert!(script.host.ram.0 == before, "{name}: memory changed");
    assert_eq!(script.state(), state, "{name}");
    let again: Vec<_> = script.drain().iter().map(|(psn, _)| psn - PSN).collect();
    let ended: Vec<_> = script.host.sent().iter().map(|c| c.status).collect();
    match row.outcome {
        Ignored(_) => assert_eq!((again.len(), ended.len()), (0, 0), "{name}"),
        GoesBack(psn) => assert_eq!((again.first(), ended.len()), (Some(&psn), 0), "{name}"),
        Waits(psn) => {
            assert_eq!((again.len(), ended.len()), (0, 0), "{name}");
            script.wait(Duration::from_micros(11));
            assert_eq!(script.next().map(|(next, _)| next - PSN), Some(psn), "{name}");
        }
        Fails(status, _) => {
            assert_eq!(again, [], "{name}: an ended queue pair is silent");
            assert_eq!(ended.len() as u64, count, "{name}");
            assert_eq!(ended[0], status, "{name}");
            assert!(ended[1..].iter().all(|&s| s == CompletionStatus::Flushed), "{name}: {ended:?}");
        }
    }
}

/// IBA 9.7.2, 9.7.5.1, 9.7.5.2, 9.7.6: a response beyond the last PSN sent is invalid, as is one that does not match its request.
#[test]
fn every_wrong_answer_is_ignored_or_ends_the_request_by_the_rules() {
    let table: Vec<_> = acknowledgements().into_iter().chain(answers()).collect();
    assert_eq!(table.len(), 40);
    table.iter().for_each(check);
}

/// IBA 9.7.5.2.1: reserved syndromes are ignored.
#[test]
fn reserved_syndromes_are_ignored() {
    let (mut script, _) = ask(Asked::Writes);
    let codes = (0x40..0x60).chain(0x65..=0xff);
    let mut count = 0;
    for syndrome in codes {
        let rest = vec![syndrome, 0, 0, 1];
        let raw = Raw { opcode: 0x11, flags: 0x40, partition_key: 0xffff, ack_request: true, psn: PSN, rest };
        let frame = raw.frame(script.host.qpn);
        let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame);
        assert_eq!(taken, Err(Discard::Syndrome), "{syndrome:#04x}");
        count += 1;
    }
    assert_eq!(script.discarded(Discard::Syndrome), count);
    assert_eq!((script.state(), script.drain().len(), script.host.sent().len()), (State::ReadyToSend, 0, 0));
}

/// IBA 9.2.8: an acknowledgement carries no payload and no pad.
#[test]
fn an_acknowledgement_with_a_payload_is_ignored() {
    let (mut script, _) = ask(Asked::Writes);
    for (flags, tail) in [(0x40, vec![0; 4]), (0x70, vec![0; 4]), (0x40, vec![0; 2])] {
        let rest = [&[0x1f, 0, 0, 1][..], &tail].concat();
        let raw = Raw { opcode: 0x11, flags, partition_key: 0xffff, ack_request: true, psn: PSN, rest };
        let frame = raw.frame(script.host.qpn);
        let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame);
        assert_eq!(taken, Err(Discard::Length));
    }
    assert!(script.host.sent().is_empty());
}

/// Repeated identical responses change only the number of retries.
#[test]
fn a_peer_that_only_ever_refuses_ends_in_an_error_completion() {
    let (mut script, count) = ask(Asked::Writes);
    for _ in 0..7 {
        script.send(PSN, nak(NakCode::PsnSequenceError, 0), &[]).unwrap();
        assert_eq!(script.drain().len() as u64, count);
    }
    script.send(PSN, nak(NakCode::PsnSequenceError, 0), &[]).unwrap();
    assert_eq!(script.state(), State::Error);
    let statuses: Vec<_> = script.host.sent().iter().map(|c| c.status).collect();
    assert_eq!(statuses[0], CompletionStatus::RetryExceeded);
    assert_eq!(statuses.len() as u64, count);
}

/// A queue pair before RTS has sent nothing that could be acknowledged.
#[test]
fn answers_before_rts_are_dropped() {
    let options = Options::default();
    let mut script = Script::receiving(options);
    assert_eq!(script.send(PSN, ack(1), &[]), Err(Discard::QpState));
    assert_eq!(script.send(PSN, ONLY, FULL), Err(Discard::QpState));
    let qpn = script.host.qpn;
    let sge = script.host.sge(0, 10);
    script.host.endpoint.post_recv(qpn, roce::qp::RecvRequest::new(1, sge)).unwrap();
    assert_eq!(script.send(PSN, SEND, &[1]), Ok(()), "but requests are taken from RTR on");
    assert_eq!(script.drain(), [(PSN, ack(1))]);
}
