//! Packet scripts against the responder: which requests it executes, acknowledges and refuses.

use crate::harness::script::{PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{BASE, Options, path};
use roce::qp::{Modify, State};
use roce::wire::{Aeth, AtomicEth, FetchAdd, NakCode, Operation, Syndrome};
use roce::{Access, Discard, Rkey};

fn script() -> Script {
    Script::new(Options { memory: 1 << 16, ..Options::default() })
}

fn post_recv(script: &mut Script, id: u64, length: u32) {
    let sge = script.host.sge(0, length);
    let qpn = script.host.qpn;
    script.host.endpoint.post_recv(qpn, roce::qp::RecvRequest::new(id, sge)).unwrap();
}

fn fetch_add(address: u64, rkey: Rkey) -> Operation {
    Operation::FetchAdd(AtomicEth { address, rkey, operands: FetchAdd { add: 1 } })
}

const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// IBA 9.7.5.1.2: one acknowledgement covers several packets; IBA 9.7.7.2: it counts no credits.
#[test]
fn acknowledgements_are_coalesced() {
    let mut script = script();
    for i in 0..10 {
        let write = Operation::WriteOnly(script.reth(u64::from(i), 1), None);
        assert_eq!(script.send(PSN + i, write, &[1]), Ok(()));
    }
    assert_eq!(script.drain(), [(PSN + 9, ack(10))]);
}

/// IBA 9.7.5.2.8: a gap is reported once.
#[test]
fn a_gap_gets_one_nak() {
    let mut script = script();
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    assert_eq!(script.send(PSN, write, &[1]), Ok(()));
    assert_eq!(script.send(PSN + 2, write, &[2]), Err(Discard::PsnGap));
    assert_eq!(script.send(PSN + 3, write, &[3]), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN + 1, nak(NakCode::PsnSequenceError, 1))]);
    assert_eq!(script.send(PSN + 4, write, &[4]), Err(Discard::PsnGap));
    assert_eq!(script.drain(), []);
    // The gap is filled, and the next one is reported again.
    assert_eq!(script.send(PSN + 1, write, &[5]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    assert_eq!(script.send(PSN + 3, write, &[6]), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN + 2, nak(NakCode::PsnSequenceError, 2))]);
    assert_eq!(script.host.endpoint.counters().naks_sent, 2);
    assert_eq!(script.host.bytes(0, 1), [5]);
}

/// IBA 9.7.5.1: a duplicate is acknowledged and not executed.
#[test]
fn duplicates_of_send_and_write_are_acknowledged_and_not_executed() {
    let mut script = script();
    post_recv(&mut script, 1, 100);
    let write = Operation::WriteOnly(script.reth(500, 1), None);
    assert_eq!(script.send(PSN, SEND, &[1]), Ok(()));
    assert_eq!(script.send(PSN + 1, write, &[1]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    assert_eq!(script.send(PSN, SEND, &[9]), Err(Discard::Duplicate));
    assert_eq!(script.send(PSN + 1, write, &[9]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    assert_eq!(script.host.received().len(), 1);
    assert_eq!((script.host.bytes(0, 1), script.host.bytes(500, 1)), (&[1][..], &[1][..]));
    // Half the PSN space behind is still a duplicate, half the PSN space ahead a gap.
    let behind = PSN + 2 + (1 << 23);
    assert_eq!(script.send(behind, write, &[9]), Err(Discard::Duplicate));
    assert_eq!(script.send(behind - 1, write, &[9]), Err(Discard::PsnGap));
}

/// IBA 9.7.5.1.5: a duplicate READ is executed again.
#[test]
fn a_duplicate_read_is_answered_from_the_requested_packet() {
    let mut script = script();
    script.host.ram.0[..3000].copy_from_slice(&[7; 3000]);
    let read = Operation::ReadRequest(script.reth(0, 3000));
    assert_eq!(script.send(PSN, read, &[]), Ok(()));
    let aeth = Aeth { syndrome: ACK, msn: 1 };
    let first = [
        (PSN, Operation::ReadResponseFirst(aeth)),
        (PSN + 1, Operation::ReadResponseMiddle),
        (PSN + 2, Operation::ReadResponseLast(aeth)),
    ];
    assert_eq!(script.drain(), first);
    let rest = Operation::ReadRequest(script.reth(1024, 1976));
    assert_eq!(script.send(PSN + 1, rest, &[]), Err(Discard::Duplicate));
    let again = [(PSN + 1, Operation::ReadResponseFirst(aeth)), (PSN + 2, Operation::ReadResponseLast(aeth))];
    assert_eq!(script.drain(), again);
    let tail = Operation::ReadRequest(script.reth(2048, 952));
    assert_eq!(script.send(PSN + 2, tail, &[]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN + 2, Operation::ReadResponseOnly(aeth))]);
    // A correct peer never sends a duplicate with any other range.
    let other = Operation::ReadRequest(script.reth(0, 1976));
    assert_eq!(script.send(PSN + 1, other, &[]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), []);
}

/// IBA 9.7.5.1.5: a duplicate atomic is answered with the original value.
#[test]
fn a_duplicate_atomic_is_answered_from_memory() {
    let mut script = script();
    script.host.ram.0[8..16].copy_from_slice(&41u64.to_ne_bytes());
    let add = fetch_add(BASE + 8, script.rkey());
    let answer = Operation::AtomicAcknowledge { aeth: Aeth { syndrome: ACK, msn: 1 }, original: 41 };
    assert_eq!(script.send(PSN, add, &[]), Ok(()));
    assert_eq!(script.drain(), [(PSN, answer)]);
    assert_eq!(script.send(PSN, add, &[]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN, answer)]);
    assert_eq!(script.host.bytes(8, 8), 42u64.to_ne_bytes());
}

/// IBA 9.7.5.1: responses are sent in the order of their PSNs.
#[test]
fn an_acknowledgement_waits_for_the_read_before_it() {
    let mut script = script();
    let read = Operation::ReadRequest(script.reth(0, 1500));
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    script.send(PSN, read, &[]).unwrap();
    script.send(PSN + 2, write, &[1]).unwrap();
    let psns: Vec<_> = script.drain().iter().map(|(psn, _)| *psn).collect();
    assert_eq!(psns, [PSN, PSN + 1, PSN + 2]);
}

#[test]
fn a_message_without_a_receive_is_accepted_when_it_is_retransmitted() {
    let mut script = script();
    assert_eq!(script.send(PSN, SEND, &[3]), Err(Discard::ReceiverNotReady));
    // A packet after the refused one is no gap to report.
    assert_eq!(script.send(PSN + 1, SEND, &[4]), Err(Discard::PsnGap));
    assert_eq!(script.drain(), [(PSN, rnr(1, 0))]);
    post_recv(&mut script, 1, 10);
    assert_eq!(script.send(PSN, SEND, &[3]), Ok(()));
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    // WRITE with immediate: not even its data is placed.
    let write = Operation::WriteOnly(script.reth(100, 1), Some([0; 4]));
    assert_eq!(script.send(PSN + 1, write, &[5]), Err(Discard::ReceiverNotReady));
    assert_eq!(script.drain(), [(PSN + 1, rnr(1, 1))]);
    assert_eq!(script.host.bytes(100, 1), [0]);
    assert_eq!(script.host.endpoint.counters().rnr_naks_sent, 2);
    assert_eq!(script.state(), State::ReadyToSend);
}

#[test]
fn a_deregistered_region_fails_the_read_that_uses_it() {
    let mut script = script();
    let read = Operation::ReadRequest(script.reth(0, 3000));
    script.send(PSN, read, &[]).unwrap();
    assert!(matches!(script.next(), Some((PSN, Operation::ReadResponseFirst(_)))));
    let lkey = script.host.region.lkey;
    script.host.endpoint.deregister(lkey).unwrap();
    assert_eq!(script.drain(), [(PSN + 1, nak(NakCode::RemoteAccessError, 1))]);
    assert_eq!(script.state(), State::Error);
}

#[test]
fn an_operation_that_the_queue_pair_does_not_allow_is_an_invalid_request() {
    for (access, operation, payload) in [
        (Access::REMOTE_READ, 0, &[1][..]),
        (Access::REMOTE_WRITE, 1, &[]),
        (Access::REMOTE_READ | Access::REMOTE_WRITE, 2, &[]),
    ] {
        let mut script = Script::new(Options { access, ..Options::default() });
        let operation = match operation {
            0 => Operation::WriteOnly(script.reth(0, 1), None),
            1 => Operation::ReadRequest(script.reth(0, 1)),
            _ => fetch_add(BASE, script.rkey()),
        };
        assert_eq!(script.send(PSN, operation, payload), Err(Discard::RemoteAccess));
        assert_eq!(script.drain(), [(PSN, nak(NakCode::InvalidRequest, 0))]);
    }
}

/// IBA 9.6.1.1, 9.6.1.1.3: another partition, another source, another queue pair.
#[test]
fn packets_of_another_partition_source_or_queue_pair_are_dropped() {
    let mut script = script();
    let write = Operation::WriteOnly(script.reth(0, 1), None);
    script.partition_key = 0x7fff;
    assert_eq!(script.send(PSN, write, &[1]), Ok(()), "a limited member talks to a full one");
    script.partition_key = 0x8001;
    assert_eq!(script.send(PSN + 1, write, &[2]), Err(Discard::PartitionKey));
    script.partition_key = 0xffff;
    let peer = script.path;
    script.path = path(3, 2);
    assert_eq!(script.send(PSN + 1, write, &[3]), Err(Discard::Address));
    script.path = peer;
    let qpn = script.host.qpn;
    script.host.qpn = roce::Qpn::new(qpn.get() ^ 1);
    assert_eq!(script.send(PSN + 1, write, &[4]), Err(Discard::UnknownQp));
    script.host.qpn = qpn;
    assert_eq!(script.host.bytes(0, 1), [1]);
    script.host.endpoint.modify_qp(script.now, qpn, Modify::Reset).unwrap();
    assert_eq!(script.send(PSN + 1, write, &[5]), Err(Discard::QpState));
    assert_eq!(script.host.bytes(0, 1), [1]);
}

#[test]
fn a_wrong_icrc_leaves_no_byte() {
    let mut script = script();
    let header = roce::wire::Header::Connected {
        service: roce::wire::Service::Rc,
        bth: script.bth(PSN),
        operation: Operation::WriteOnly(script.reth(0, 4), None),
    };
    let mut frame = script.frame(&header, &[1, 2, 3, 4]);
    let at = frame.len() - 6;
    frame[at] ^= 1;
    let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame);
    assert_eq!(taken, Err(Discard::Icrc));
    assert_eq!(script.host.bytes(0, 4), [0; 4]);
    assert_eq!(script.drain(), []);
}

/// An ACK with the PSN of a READ or an atomic completes it at Linux's requester. Their responses acknowledge the requests before them
/// (IBA 9.7.5.1.2).
#[test]
fn an_ack_never_names_the_psn_of_a_read_or_an_atomic() {
    let mut script = script();
    post_recv(&mut script, 1, 100);
    let read = Operation::ReadRequest(script.reth(0, 100));
    let add = fetch_add(BASE + 8, script.rkey());
    let aeth = |msn| Aeth { syndrome: ACK, msn };
    let responses = [
        (PSN + 1, Operation::ReadResponseOnly(aeth(2))),
        (PSN + 2, Operation::AtomicAcknowledge { aeth: aeth(3), original: 0 }),
    ];
    assert_eq!(script.send(PSN, SEND, &[1]), Ok(()));
    assert_eq!(script.send(PSN + 1, read, &[]), Ok(()));
    assert_eq!(script.send(PSN + 2, add, &[]), Ok(()));
    assert_eq!(script.drain(), responses);
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    // A request after the atomic is acknowledged with its own PSN, and a duplicate of an earlier one with its own, too.
    let write = Operation::WriteOnly(script.reth(200, 1), None);
    assert_eq!(script.send(PSN + 3, write, &[1]), Ok(()));
    assert_eq!(script.drain(), [(PSN + 3, ack(4))]);
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN, ack(1))]);
    // A WRITE with the PSN of the atomic is no request of the peer: it tests whether small packets arrive.
    let nothing = Operation::WriteOnly(script.reth(0, 0), None);
    assert_eq!(script.send(PSN + 2, nothing, &[]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN, ack(2))]);
}

/// An ACK between the responses of a later READ fails the READ at Linux's requester.
#[test]
fn the_second_duplicate_before_a_long_read_is_acknowledged() {
    let mut script = script();
    let read = Operation::ReadRequest(script.reth(0, 2500));
    for psn in [PSN, PSN + 1] {
        post_recv(&mut script, 1, 100);
        assert_eq!(script.send(psn, SEND, &[1]), Ok(()));
    }
    assert_eq!(script.send(PSN + 2, read, &[]), Ok(()));
    let responses = script.drain();
    assert_eq!(responses.len(), 3);
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.send(PSN + 1, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), []);
    // The window has no room for the READ, so the peer goes back to the first SEND.
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), [(PSN + 1, ack(2))]);
    // The READ is retransmitted, too, so its responses acknowledge the SENDs.
    assert_eq!(script.send(PSN, SEND, &[1]), Err(Discard::Duplicate));
    assert_eq!(script.send(PSN + 2, read, &[]), Err(Discard::Duplicate));
    assert_eq!(script.drain(), responses);
}
