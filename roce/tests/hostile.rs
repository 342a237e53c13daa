//! Arbitrary packets in any order cause no panic, and a refused packet writes no byte.

use crate::harness::script::{PSN, Script};
use crate::harness::{BASE, Options};
use core::time::Duration;
use proptest::prelude::*;
use roce::Rkey;
use roce::qp::{RecvRequest, Remote, SendRequest, State};
use roce::wire::{
    Aeth, AtomicEth, CompareSwap, FetchAdd, Feth, NakCode, Operation, Reth, RnrTimer, SendTail, Syndrome,
};

const SIZE: u64 = 1 << 14;

/// A packet relative to its destination endpoint, whose keys are unknown to a strategy.
#[derive(Clone, Debug)]
struct Packet {
    kind: u8,
    psn: i32,
    offset: i64,
    length: u32,
    forged: bool,
    syndrome: Syndrome,
    payload: usize,
    wait: u32,
}

fn packet() -> impl Strategy<Value = Packet> {
    let syndrome = prop_oneof![
        4 => Just(Syndrome::Ack { credits: 31 }),
        1 => Just(Syndrome::RnrNak(RnrTimer::new(1))),
        1 => Just(Syndrome::Nak(NakCode::PsnSequenceError)),
        1 => Just(Syndrome::Nak(NakCode::RemoteAccessError)),
    ];
    // Usually the correct PSN, so that scripts make progress.
    let psn = prop_oneof![12 => Just(0), 4 => -3..4i32, 1 => any::<i32>()];
    let offset = prop_oneof![6 => 0..SIZE as i64, 1 => any::<i64>()];
    let length = prop_oneof![3 => Just(2000u32), 3 => 0..3000u32, 1 => any::<u32>()];
    let payload = prop_oneof![6 => Just(1024usize), 2 => Just(976), 3 => Just(0), 2 => 0..1100usize];
    let forged = proptest::bool::weighted(0.05);
    (0..22u8, psn, offset, length, forged, syndrome, payload, 0..300u32).prop_map(
        |(kind, psn, offset, length, forged, syndrome, payload, wait)| Packet {
            kind,
            psn,
            offset,
            length,
            forged,
            syndrome,
            payload,
            wait,
        },
    )
}

impl Packet {
    /// Returns the operation, and whether it may carry a payload.
    fn operation(&self, script: &Script) -> (Operation, bool) {
        let address = BASE.wrapping_add_signed(self.offset);
        let rkey = Rkey::new(script.rkey().get() ^ u32::from(self.forged));
        let reth = Reth { address, rkey, length: self.length };
        let aeth = Aeth { syndrome: self.syndrome, msn: 0 };
        match self.kind {
            0 => (Operation::SendFirst, true),
            1 => (Operation::SendMiddle, true),
            2 => (Operation::SendLast(SendTail::Plain), true),
            3 => (Operation::SendOnly(SendTail::Immediate([1; 4])), true),
            4 => (Operation::SendOnly(SendTail::Invalidate(rkey)), true),
            5 => (Operation::WriteFirst(reth), true),
            6 => (Operation::WriteMiddle, true),
            7 => (Operation::WriteLast(None), true),
            8 => (Operation::WriteLast(Some([2; 4])), true),
            9 => (Operation::WriteOnly(reth, None), true),
            10 => (Operation::WriteOnly(Reth { length: self.payload as u32, ..reth }, Some([3; 4])), true),
            11 | 12 => (Operation::ReadRequest(reth), false),
            13 => (Operation::ReadResponseFirst(aeth), true),
            14 => (Operation::ReadResponseMiddle, true),
            15 => (Operation::ReadResponseLast(aeth), true),
            16 => (Operation::ReadResponseOnly(aeth), true),
            17 => (Operation::Acknowledge(aeth), false),
            18 => (Operation::AtomicAcknowledge { aeth, original: 5 }, false),
            19 => (Operation::AtomicWrite(Reth { length: self.length % 16, ..reth }), true),
            20 => {
                let of = (self.length & 1 != 0, self.length & 2 != 0, self.length & 4 != 0);
                (Operation::Flush(Feth::new(of.0, of.1, of.2), reth), false)
            }
            _ if self.length.is_multiple_of(2) => {
                let operands = CompareSwap { compare: 0, swap: 1 };
                (Operation::CompareSwap(AtomicEth { address, rkey, operands }), false)
            }
            _ => (Operation::FetchAdd(AtomicEth { address, rkey, operands: FetchAdd { add: 1 } }), false),
        }
    }
}

fn is_answer(kind: u8) -> bool {
    (13..=18).contains(&kind)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    #[test]
    fn any_packets_in_any_order_are_handled_without_a_panic(packets in proptest::collection::vec(packet(), 1..60)) {
        let mut script = Script::new(Options { memory: SIZE as usize, ..Options::default() });
        let qpn = script.host.qpn;
        let remote = Remote { address: BASE, rkey: Rkey::new(1) };
        for id in 0..8 {
            let sge = script.host.sge(0, 3000);
            script.host.endpoint.post_recv(qpn, RecvRequest::new(id, sge)).unwrap();
            let request = match id % 3 {
                0 => SendRequest::write(id, sge, remote),
                1 => SendRequest::read(id, sge, remote),
                _ => SendRequest::fetch_add(id, script.host.sge(0, 8), remote, 1),
            };
            script.host.endpoint.post_send(script.now, qpn, request).unwrap();
        }
        let mut oldest = PSN;
        for packet in packets {
            let sent = script.drain();
            // The first packet of an attempt is the oldest that is not acknowledged.
            oldest = sent.first().map_or(oldest, |(psn, _)| *psn);
            let (operation, carries) = packet.operation(&script);
            let report = script.host.endpoint.report(qpn).unwrap();
            let base = if is_answer(packet.kind) { oldest } else { report.expected_psn.get() };
            let payload = vec![0xee; if carries { packet.payload } else { 0 }];
            let before = script.host.ram.0.clone();
            let taken = script.send(base.wrapping_add_signed(packet.psn), operation, &payload);
            if let Err(discard) = taken {
                prop_assert!(script.host.ram.0 == before, "{discard:?} wrote");
                prop_assert!(script.discarded(discard) > 0);
            }
            script.wait(Duration::from_micros(u64::from(packet.wait)));
        }
        // In ERR no request is left: each has had its completion.
        script.drain();
        if script.state() == State::Error {
            prop_assert_eq!(script.host.endpoint.send_room(qpn), 128);
            prop_assert_eq!(script.host.endpoint.recv_room(qpn), 512);
            prop_assert_eq!(script.host.received().len(), 8);
            prop_assert_eq!(script.host.sent().len(), 8);
        }
    }
}
