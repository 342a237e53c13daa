//! Responses of an XRC target to requests that name the wrong shared receive queue, or none (IBA annex A14).

use super::table::{FULL, IMMEDIATE, reth, write};
use crate::harness::script::{LAST, PEER, PSN, SEND, Script, ack, nak};
use crate::harness::xrc::Inbox;
use crate::harness::{Host, Options, path};
use cc::Instant;
use roce::qp::{CompletionStatus, State};
use roce::wire::NakCode::{self, InvalidRequest, RemoteAccessError};
use roce::wire::{AtomicEth, FetchAdd, Header, Operation, Service};
use roce::{Discard, Qpn, SrqNumber};

/// A target with five shared receive queues: two of its domain, one of another, a destroyed one, and one without a domain.
struct Target {
    script: Script,
    ours: [Inbox; 2],
    foreign: Inbox,
    gone: SrqNumber,
    plain: SrqNumber,
}

fn target() -> Target {
    let options = Options { send_psn: PSN, memory: 1 << 16, ..Options::default() };
    let mut host = Host::new(2, &options);
    let [domain, other] = [0, 1].map(|_| host.endpoint.create_xrcd().unwrap());
    host.qpn = host.endpoint.create_xrc_target(Instant::ZERO, domain).unwrap();
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    let first = host.inbox(domain);
    let [second, foreign, gone] = [domain, other, domain].map(|domain| host.inbox_with(domain, host.recv_cq));
    host.endpoint.destroy_srq(gone.srq).unwrap();
    let basic = roce::SrqInit { pd: first.pd, depth: 4, max_sge: 1, xrc: None };
    let plain = host.endpoint.create_srq(basic).unwrap();
    let plain = host.endpoint.srq_number(plain).unwrap();
    for inbox in [first, second, foreign] {
        (0..2).for_each(|id| host.post_to(&inbox, id, 0x8000, 3000));
    }
    let script = Script { host, now: Instant::from_nanos(1), path: path(1, 2), partition_key: 0xffff };
    Target { script, ours: [first, second], foreign, gone: gone.number, plain }
}

impl Target {
    fn send(
        &mut self,
        psn: u32,
        srq: SrqNumber,
        operation: Operation,
        payload: &[u8],
    ) -> Result<(), Discard> {
        let header = Header::Extended { bth: self.script.bth(psn), srq, operation };
        self.script.send_header(&header, payload)
    }
}

struct Row {
    name: &'static str,
    before: Vec<(Operation, &'static [u8])>,
    srq: SrqNumber,
    operation: Operation,
    payload: &'static [u8],
    discard: Discard,
    code: NakCode,
}

/// Returns the rows, each with the packets to the first queue before it.
fn rows(target: &Target) -> Vec<Row> {
    let [first, second] = target.ours;
    let key = first.region.rkey;
    let one = reth(key, 0, 1);
    let row = |name, srq, operation, payload, discard| Row {
        name,
        before: Vec::new(),
        srq,
        operation,
        payload,
        discard,
        code: InvalidRequest,
    };
    let unknown = |name, operation, payload| {
        row(name, SrqNumber::new(0xabcdef), operation, payload, Discard::UnknownSrq)
    };
    let foreign =
        |name, operation, payload| row(name, target.foreign.number, operation, payload, Discard::XrcDomain);
    let read = Operation::ReadRequest(one);
    let add =
        Operation::FetchAdd(AtomicEth { address: one.address, rkey: key, operands: FetchAdd { add: 1 } });
    let long = Operation::WriteFirst(reth(key, 0, 2048));
    let within = |name, before: &[(Operation, &'static [u8])], srq, operation, payload, discard| Row {
        before: before.to_vec(),
        ..row(name, srq, operation, payload, discard)
    };
    let (send, write_first) = (&[(Operation::SendFirst, FULL)], &[(long, FULL)]);
    let (other, gone, sequence) = (second.number, target.gone, Discard::Sequence);
    vec![
        unknown("SEND to no queue", SEND, &[1]),
        unknown("WRITE to no queue", write(one), &[1]),
        unknown("READ from no queue", read, &[]),
        unknown("atomic at no queue", add, &[]),
        row("SEND to queue 0", SrqNumber::new(0), SEND, &[1], Discard::UnknownSrq),
        row("SEND to a queue that is gone", gone, SEND, &[1], Discard::UnknownSrq),
        row("SEND to a queue of no domain", target.plain, SEND, &[1], Discard::UnknownSrq),
        foreign("SEND to another domain's queue", SEND, &[1]),
        foreign("WRITE by another domain's queue", write(one), &[1]),
        foreign("READ by another domain's queue", read, &[]),
        foreign("atomic by another domain's queue", add, &[]),
        foreign(
            "WRITE with immediate to another domain's queue",
            Operation::WriteOnly(one, Some(IMMEDIATE)),
            &[1],
        ),
        within("SEND Middle to another queue than First", send, other, Operation::SendMiddle, FULL, sequence),
        within("SEND Last to another queue than First", send, other, LAST, &[1], sequence),
        within("SEND Last to no queue", send, gone, LAST, &[1], Discard::UnknownSrq),
        within(
            "WRITE Last to another queue than First",
            write_first,
            other,
            Operation::WriteLast(None),
            FULL,
            sequence,
        ),
        within("SEND inside another queue's WRITE", write_first, other, SEND, &[1], sequence),
        within("SEND inside the same queue's WRITE", write_first, first.number, SEND, &[1], sequence),
        Row {
            code: RemoteAccessError,
            ..row("WRITE by a key of another queue's domain", other, write(one), &[1], Discard::RemoteKey)
        },
        Row {
            code: RemoteAccessError,
            ..row("READ by a key of another queue's domain", other, read, &[], Discard::RemoteKey)
        },
    ]
}

fn check(index: usize) {
    let mut target = target();
    let Row { name, before, srq, operation, payload, discard, code } = rows(&target).swap_remove(index);
    let first = target.ours[0];
    let mut psn = PSN;
    for (operation, payload) in &before {
        target.send(psn, first.number, *operation, payload).unwrap();
        psn += 1;
    }
    target.script.drain();
    let memory = target.script.host.ram.0.clone();
    assert_eq!(target.send(psn, srq, operation, payload), Err(discard), "{name}");
    assert_eq!(target.script.discarded(discard), 1, "{name}");
    assert!(target.script.host.ram.0 == memory, "{name}: memory changed");
    assert_eq!(target.script.drain(), [(psn, nak(code, 0))], "{name}");
    assert_eq!(target.script.state(), State::Error, "{name}");
    // The message in progress is reported to its own queue; requests that remain in the queues are available to the other targets.
    let arrived: Vec<_> = target.script.host.arrived(&first).iter().map(|c| (c.id, c.status)).collect();
    let begun = matches!(before.first(), Some((Operation::SendFirst, _)));
    let broken = (0, CompletionStatus::RemoteInvalidRequest);
    assert_eq!(arrived, if begun { vec![broken] } else { vec![] }, "{name}");
    assert!(target.script.host.received().is_empty(), "{name}");
    let waiting = |inbox: &Inbox| target.script.host.endpoint.srq_report(inbox.srq).unwrap().waiting;
    assert_eq!(waiting(&first), 2 - u32::from(begun), "{name}");
    assert_eq!(waiting(&target.ours[1]), 2, "{name}");
    assert_eq!(target.send(psn, first.number, SEND, &[1]), Err(Discard::QpState), "{name}");
}

#[test]
fn requests_to_a_wrong_queue_follow_the_rules_and_change_no_memory() {
    let count = rows(&target()).len();
    (0..count).for_each(check);
    assert_eq!(count, 20);
}

/// A packet that is no XRC request, or is not for a target, is dropped silently.
#[test]
fn a_target_and_an_initiator_accept_only_their_own_packets() {
    let mut target = target();
    let bth = target.script.bth(PSN);
    for service in [Service::Rc, Service::Uc] {
        let header = Header::Connected { service, bth, operation: SEND };
        assert_eq!(target.script.send_header(&header, &[1]), Err(Discard::Opcode));
    }
    let answer = Header::Connected { service: Service::Xrc, bth, operation: ack(0) };
    assert_eq!(target.script.send_header(&answer, &[]), Err(Discard::Opcode));
    assert_eq!(target.script.drain(), []);
    // An initiator receives no requests.
    let options = Options { send_psn: PSN, ..Options::default() };
    let mut host = Host::new(2, &options);
    let init = host.initiator(&options);
    host.qpn = host.endpoint.create_qp(Instant::ZERO, init).unwrap();
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
    host.ready_to_send(&options);
    let mut script = Script { host, now: Instant::from_nanos(1), path: path(1, 2), partition_key: 0xffff };
    let bth = script.bth(PSN);
    let request = Header::Extended { bth, srq: target.ours[0].number, operation: SEND };
    assert_eq!(script.send_header(&request, &[1]), Err(Discard::Opcode));
    let rc = Header::Connected { service: Service::Rc, bth, operation: ack(0) };
    assert_eq!(script.send_header(&rc, &[]), Err(Discard::Opcode));
    assert_eq!(script.drain(), []);
    assert_eq!(script.state(), State::ReadyToSend);
}

#[test]
fn a_duplicate_is_acknowledged_again() {
    let mut target = target();
    let number = target.ours[0].number;
    assert_eq!(target.send(PSN, number, SEND, &[1]), Ok(()));
    assert_eq!(target.script.drain(), [(PSN, ack(1))]);
    assert_eq!(target.send(PSN, SrqNumber::new(0), SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(target.script.drain(), [(PSN, ack(1))]);
    let inbox = target.ours[0];
    assert_eq!(target.script.host.arrived(&inbox).len(), 1);
}
