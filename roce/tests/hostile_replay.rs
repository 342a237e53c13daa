//! Replays to the responder the packets that a prober sent to Linux Soft-RoCE (rdma_rxe of Linux 6.1). The responses are the same, or
//! differ by a rule of the specification.

use crate::harness::capture::frames;
use crate::harness::raw::Raw;
use crate::harness::script::{PEER, Script};
use crate::harness::{Host, Options, path};
use roce::qp::RecvRequest;
use roce::wire::{self, Header, NakCode, Operation, RnrTimer, Syndrome};
use roce::{Access, Discard, Qpn};
use std::path::Path;

/// The last byte of the prober's address; that of rxe is 1.
const PROBER: u8 = 9;
/// The first PSN of each of the prober's connections.
const FIRST: u32 = 0xff00;
/// Bytes from the Ethernet header to the BTH over IPv4.
const BTH: usize = 42;

/// PSN, syndrome, MSN.
type Reply = (u32, Syndrome, u32);

/// One connection of the prober: its packets, and the responses of rxe.
struct Probe {
    qpn: u32,
    sent: Vec<Raw>,
    answered: Vec<Reply>,
}

/// Returns the connections, which the prober opened one after the other, each to a new queue pair of rxe.
fn probes() -> Vec<Probe> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/captures/probe_rxe_k61.pcap");
    let mut probes: Vec<Probe> = Vec::new();
    for bytes in frames(&file) {
        if bytes[29] == PROBER {
            let qpn = u32::from_be_bytes([0, bytes[BTH + 5], bytes[BTH + 6], bytes[BTH + 7]]);
            if probes.last().is_none_or(|probe| probe.qpn != qpn) {
                probes.push(Probe { qpn, sent: Vec::new(), answered: Vec::new() });
            }
            probes.last_mut().unwrap().sent.push(raw(&bytes));
        } else if let Some(reply) = reply(&bytes) {
            probes.last_mut().unwrap().answered.push(reply);
        }
    }
    probes
}

fn raw(bytes: &[u8]) -> Raw {
    let bth = &bytes[BTH..];
    Raw {
        opcode: bth[0],
        flags: bth[1],
        partition_key: u16::from_be_bytes([bth[2], bth[3]]),
        ack_request: bth[8] & 0x80 != 0,
        psn: u32::from_be_bytes([0, bth[9], bth[10], bth[11]]),
        rest: bth[12..bth.len() - 4].to_vec(),
    }
}

/// Returns the contents of an acknowledgement; rxe's own requests are no responses.
fn reply(bytes: &[u8]) -> Option<Reply> {
    match wire::parse(bytes).unwrap().header {
        Header::Connected { bth, operation: Operation::Acknowledge(aeth), .. } => {
            Some((bth.psn.get(), aeth.syndrome, aeth.msn))
        }
        Header::Connected { operation: Operation::SendOnly(_), .. } => None,
        other => panic!("{other:?}"),
    }
}

/// Creates a responder with the settings of the probed queue pairs: no remote access, one receive, an RNR timer of 640 µs.
fn responder() -> Script {
    let options =
        Options { access: Access::LOCAL_WRITE, rnr_timer: 12, memory: 1 << 16, ..Options::default() };
    let mut host = Host::new(2, &options);
    host.ready_to_receive(path(2, 1), Qpn::new(PEER), FIRST, &options);
    host.ready_to_send(&options);
    let mut script = Script::new(options);
    script.host = host;
    let sge = script.host.sge(0, 4096);
    let qpn = script.host.qpn;
    script.host.endpoint.post_recv(qpn, RecvRequest::new(1, sge)).unwrap();
    script
}

/// Returns the response to each packet, and the reasons of discarded packets.
fn replay(probe: &Probe) -> (Vec<Reply>, Vec<Option<Discard>>) {
    let mut script = responder();
    let (mut reply, mut counted) = (Vec::new(), Vec::new());
    for raw in &probe.sent {
        let frame = raw.frame(script.host.qpn);
        counted.push(script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame).err());
        for (psn, operation) in script.drain() {
            let Operation::Acknowledge(aeth) = operation else { panic!("{operation:?}") };
            reply.push((psn, aeth.syndrome, aeth.msn));
        }
    }
    (reply, counted)
}

const ACK: Syndrome = Syndrome::Ack { credits: 31 };
const INVALID: Syndrome = Syndrome::Nak(NakCode::InvalidRequest);
const RNR: Syndrome = Syndrome::RnrNak(RnrTimer::new(12));
const GAP: Syndrome = Syndrome::Nak(NakCode::PsnSequenceError);

/// The responses that rxe sends and this side does not.
///
/// rxe answers a message without a receive with an RNR NAK, and the following message with a NAK for the gap. This side does not send the
/// second: until the refused packet is retransmitted, no other NAK follows it (IBA 9.7.5.2.8). A peer that acted on both would retransmit
/// at once instead of after the RNR timer.
const LESS: [(u32, Reply); 1] = [(35, (FIRST + 1, GAP, 1))];

#[test]
fn replayed_frames_get_the_answers_of_rxe_or_those_of_the_rule() {
    let probes = probes();
    assert_eq!(probes.iter().map(|probe| probe.qpn).collect::<Vec<_>>(), (30..=41).collect::<Vec<_>>());
    for probe in &probes {
        let mut expected = probe.answered.clone();
        for (_, extra) in LESS.iter().filter(|(qpn, _)| *qpn == probe.qpn) {
            let at = expected.iter().position(|reply| reply == extra).expect("an answer of rxe");
            expected.remove(at);
        }
        assert_eq!(replay(probe).0, expected, "QP {}", probe.qpn);
    }
}

/// Queue pair, purpose, this side's responses, and its reasons for each packet.
type Case = (u32, &'static str, &'static [Reply], &'static [Option<Discard>]);

/// Checks the contents of the probes, so that the comparison above cannot pass with empty data.
#[test]
fn the_replayed_frames_have_the_expected_answers() {
    let cases: [Case; 12] = [
        (30, "SEND", &[(FIRST, ACK, 1)], &[None]),
        (31, "SEND that asks for no answer", &[], &[None]),
        (32, "SEND with Immediate", &[(FIRST, ACK, 1)], &[None]),
        (33, "gap", &[(FIRST, GAP, 0)], &[Some(Discard::PsnGap); 2]),
        (34, "duplicate", &[(FIRST, ACK, 1); 2], &[None, Some(Discard::Duplicate)]),
        (
            35,
            "more than there are receives",
            &[(FIRST, ACK, 1), (FIRST + 1, RNR, 1)],
            &[None, Some(Discard::ReceiverNotReady), Some(Discard::PsnGap), Some(Discard::PsnGap)],
        ),
        (36, "WRITE without the right", &[(FIRST, INVALID, 0)], &[Some(Discard::RemoteAccess)]),
        (37, "READ without the right", &[(FIRST, INVALID, 0)], &[Some(Discard::RemoteAccess)]),
        (38, "SEND Middle without First", &[(FIRST, INVALID, 0)], &[Some(Discard::Sequence)]),
        (39, "atomic without the right", &[(FIRST, INVALID, 0)], &[Some(Discard::RemoteAccess)]),
        (40, "another partition", &[], &[Some(Discard::PartitionKey)]),
        (41, "version 1", &[], &[Some(Discard::TransportVersion)]),
    ];
    let probes = probes();
    assert_eq!(probes.len(), cases.len());
    for (probe, (qpn, name, reply, counted)) in probes.iter().zip(cases) {
        assert_eq!((probe.qpn, replay(probe)), (qpn, (reply.to_vec(), counted.to_vec())), "{name}");
    }
}
