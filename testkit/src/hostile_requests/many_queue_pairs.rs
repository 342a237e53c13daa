//! Every kind of frame that a peer, an unknown sender or a switch may send, to one queue pair of an endpoint with many. The cost of such a
//! frame must not depend on the other queue pairs, and no state may remain.

use super::table::{Packet, Row, options, prepare_with, reth, table, write};
use crate::harness::script::{LAST, PEER, PSN, SEND, Script, ack, nak, rnr};
use crate::harness::{Options, path, telemetry_setup};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{Capabilities, CongestionAlgorithm, Modify, QpInit, RecvRequest, Remote, SendRequest};
use roce::wire::telemetry::IntHeader;
use roce::wire::{
    Aeth, Bth, Feedback, Header, MAX_OVERHEAD, NakCode, Operation, Report, Reverse, Service, Syndrome,
};
use roce::{Discard, Psn, Qpn, SrqNumber};

/// A frame, and the packets before it.
struct Case {
    name: &'static str,
    /// Bytes of each posted receive.
    receive: u32,
    /// Valid packets of the peer.
    before: Vec<(Operation, &'static [u8])>,
    /// Whether three WRITEs are outstanding.
    asks: bool,
    packet: Packet,
}

/// An endpoint with many queue pairs, all connected to one peer, which attacks one of them.
pub struct ManyQueuePairs {
    script: Script,
    options: Options,
    cases: Vec<Case>,
    buffer: Vec<u8>,
}

const AETH: Aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };

impl ManyQueuePairs {
    /// Creates `others` more queue pairs; a switch's direct response may match any of them.
    pub fn new(others: u32) -> Self {
        let options = Options { max_qps: 8 + others, ..options() };
        let (mut script, keys) = prepare_with(&options);
        let ours = script.host.qpn;
        let hpcc = HpccConfig::new(Rate::from_gbps(10), Duration::from_micros(10), NonZeroU32::MIN);
        let capabilities = Capabilities { max_send: 1, max_recv: 1, ..Capabilities::default() };
        let theirs = Options { capabilities, congestion: CongestionAlgorithm::Hpcc(hpcc), ..options };
        for other in 0..others {
            let init: QpInit = script.host.init(&theirs);
            script.host.qpn = script.host.endpoint.create_qp(script.now, init).unwrap();
            script.host.ready_to_receive(path(2, 1), Qpn::new(0x10_0000 + other), PSN, &theirs);
            script.host.ready_to_send(&theirs);
        }
        script.host.qpn = ours;
        let mut cases: Vec<Case> = table(&keys).into_iter().map(Case::from).collect();
        cases.extend(answers());
        cases.extend(good(&script));
        cases.extend(control(&script));
        let datagrams =
            super::datagrams::packets(&mut script, &Options { congestion: theirs.congestion, ..options });
        cases.extend(datagrams.into_iter().map(|(name, packet)| case(name, packet)));
        Self { script, options, cases, buffer: vec![0; 4096 + MAX_OVERHEAD] }
    }

    /// Moves the queue pair to the state before each frame, and passes the frame's name and a function that processes it to `each`.
    pub fn each(&mut self, each: &mut dyn FnMut(&str, &mut dyn FnMut())) {
        for index in 0..self.cases.len() {
            self.restore(index);
            let Self { script, cases, buffer, .. } = self;
            let case = &cases[index];
            let frame = case.packet.frame(script, PSN + case.before.len() as u32);
            each(case.name, &mut || take(script, &frame, buffer));
        }
    }

    fn restore(&mut self, index: usize) {
        let Self { script, options, cases, buffer } = self;
        let (case, now, qpn) = (&cases[index], script.now, script.host.qpn);
        script.host.endpoint.modify_qp(now, qpn, Modify::Reset).unwrap();
        let options = Options { send_psn: PSN, ..*options };
        script.host.ready_to_receive(path(2, 1), Qpn::new(PEER), PSN, &options);
        script.host.ready_to_send(&options);
        for id in 0..2 {
            let sge = script.host.sge(0x8000, case.receive);
            script.host.endpoint.post_recv(qpn, RecvRequest::new(id, sge)).unwrap();
        }
        if case.asks {
            let (from, remote) = (script.host.sge(0, 8), Remote { address: 0, rkey: script.rkey() });
            for id in 0..3 {
                let request = SendRequest::write(id, from, remote);
                script.host.endpoint.post_send(now, qpn, request).unwrap();
            }
        }
        for (psn, (operation, payload)) in (PSN..).zip(&case.before) {
            script.send(psn, *operation, payload).unwrap_or_else(|discard: Discard| {
                panic!("{}: before: {discard:?}", case.name);
            });
        }
        // READs without a response remain: some frames are one READ more than permitted.
        if !case.before.iter().any(|(operation, _)| matches!(operation, Operation::ReadRequest(_))) {
            finish(script, buffer);
        }
    }
}

impl From<Row> for Case {
    fn from(row: Row) -> Self {
        let Row { name, receive, before, packet, .. } = row;
        Self { name, receive, before, asks: false, packet }
    }
}

fn case(name: &'static str, packet: Packet) -> Case {
    Case { name, receive: 3000, before: Vec::new(), asks: false, packet }
}

/// Performs all work of a core for a frame.
fn take(script: &mut Script, frame: &[u8], buffer: &mut [u8]) {
    // A dropped frame is counted, and its work is included.
    let _ = script.host.endpoint.on_frame(script.now, &mut script.host.ram, frame);
    finish(script, buffer);
}

fn finish(script: &mut Script, buffer: &mut [u8]) {
    let Script { host, now, .. } = script;
    while host.endpoint.poll_transmit(*now, &host.ram, buffer).is_some() {}
    while let Some(peer) = host.endpoint.poll_suspected() {
        host.endpoint.redirect(peer, path(2, 1).destination_mac);
    }
    while host.endpoint.poll_event().is_some() {}
    for cq in [host.send_cq, host.recv_cq] {
        host.endpoint.poll_cq(cq, &mut |_| true);
    }
    let _ = host.endpoint.poll_timeout();
}

/// Returns acknowledgements and responses: correct, late, repeated, or without a request.
fn answers() -> Vec<Case> {
    let rows: [(&'static str, i32, Operation); 12] = [
        ("ACK", 2, ack(3)),
        ("ACK of what was acknowledged", -1, ack(0)),
        ("ACK of what was never sent", 9, ack(9)),
        ("sequence NAK", 1, nak(NakCode::PsnSequenceError, 1)),
        ("fatal NAK", 0, nak(NakCode::RemoteAccessError, 0)),
        ("stale NAK", -5, nak(NakCode::PsnSequenceError, 0)),
        ("RNR NAK", 0, rnr(1, 0)),
        ("READ response to a WRITE", 0, Operation::ReadResponseOnly(AETH)),
        ("READ response to nothing", -3, Operation::ReadResponseOnly(AETH)),
        ("READ response of the future", 9, Operation::ReadResponseMiddle),
        ("atomic response to a WRITE", 1, Operation::AtomicAcknowledge { aeth: AETH, original: 5 }),
        ("atomic response to nothing", -3, Operation::AtomicAcknowledge { aeth: AETH, original: 5 }),
    ];
    rows.into_iter()
        .flat_map(|(name, psn, operation)| {
            [true, false].map(|asks| Case { asks, ..case(name, Packet::Made(psn, operation, vec![])) })
        })
        .collect()
}

/// Returns valid requests, which a peer may send at any rate, and a repetition of the last.
fn good(script: &Script) -> Vec<Case> {
    let to = reth(script.rkey(), 0, 8);
    let read = Operation::ReadRequest(to);
    let rows: [(&'static str, Operation, &'static [u8]); 3] =
        [("SEND", SEND, &[1]), ("WRITE", write(to), &[1; 8]), ("READ", read, &[])];
    rows.into_iter()
        .flat_map(|(name, operation, payload)| {
            let packet = |ahead| Packet::Made(ahead, operation, payload.to_vec());
            let again = Case { before: vec![(operation, payload)], ..case(name, packet(-1)) };
            [case(name, packet(0)), again]
        })
        .chain([Case {
            before: vec![(Operation::SendFirst, super::table::FULL)],
            ..case("the end of a SEND", Packet::Made(0, LAST, vec![1; 8]))
        }])
        .collect()
}

/// Returns packets without data: telemetry, its responses, reports of switches, other services.
fn control(script: &Script) -> Vec<Case> {
    let (bth, int) = (script.bth(PSN), IntHeader::with_room(0));
    let stray = |destination| Bth { destination: Qpn::new(destination), ..bth };
    let ratio = Report::Ratio { path_id: 0, utilisation: 1, interval: 1 };
    let feedback = |report| Feedback { report, seal: None };
    let setup_packet = |reverse| Header::TelemetrySetup { bth, setup: telemetry_setup(reverse), seal: None };
    let offer = |accepts| Header::SelectiveOffer {
        bth,
        accepts,
        first_sent: Psn::new(PSN),
        first_received: Psn::new(PSN),
    };
    let rows = [
        ("probe", Header::TelemetryRequest { bth, int }),
        ("probe to nobody", Header::TelemetryRequest { bth: stray(0x77_7777), int }),
        ("setup", setup_packet(Reverse::Notification)),
        ("setup of windows", setup_packet(Reverse::Window)),
        ("answer to no probe", Header::TelemetryResponse { bth, feedback: feedback(ratio) }),
        ("notification", Header::TelemetryNotification { bth, feedback: feedback(ratio) }),
        ("window", Header::TelemetryNotification { bth, feedback: feedback(Report::Window(1)) }),
        ("ready", Header::TelemetryNotification { bth, feedback: feedback(Report::Ready) }),
        ("direct response to nobody", Header::DirectResponse { bth: stray(0x55), feedback: feedback(ratio) }),
        ("direct response", Header::DirectResponse { bth: stray(PEER), feedback: feedback(ratio) }),
        (
            "direct response to another",
            Header::DirectResponse { bth: stray(0x10_0003), feedback: feedback(ratio) },
        ),
        ("congestion notification", Header::CongestionNotification { bth }),
        ("selective acknowledgement", Header::SelectiveAcknowledge { bth, msn: 0, ahead: 0, held: 2 }),
        ("offer of selective repeat", offer(false)),
        ("acceptance of selective repeat", offer(true)),
        ("XRC SEND", Header::Extended { bth, srq: SrqNumber::new(7), operation: SEND }),
        (
            "UD SEND to nobody",
            Header::Datagram { bth: stray(0x66), queue_key: 0, source: Qpn::new(PEER), immediate: None },
        ),
        (
            "probe of datagrams to a connection",
            Header::DatagramTelemetryRequest { bth, queue_key: 0, source: Qpn::new(PEER) },
        ),
        ("UC SEND", Header::Connected { service: Service::Uc, bth, operation: SEND }),
        (
            "XRC ACK",
            Header::Connected {
                service: Service::Xrc,
                bth: Bth { psn: Psn::new(9), ..bth },
                operation: ack(1),
            },
        ),
    ];
    rows.into_iter().map(|(name, header)| case(name, Packet::Foreign(header))).collect()
}
