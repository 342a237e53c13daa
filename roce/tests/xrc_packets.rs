//! XRC as packets: those of `formats/xrc.pcap`, which `ci/dissector` checks with tshark.

use crate::harness::capture;
use roce::wire::{
    Aeth, AtomicEth, Bth, FetchAdd, Header, Mac, Operation, Path, Reth, SendTail, Service, Syndrome, emit,
    parse,
};
use roce::{Psn, Qpn, Rkey, SrqNumber};
use std::net::IpAddr;
use std::path::Path as File;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/xrc.pcap");

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let address = |last: u8| IpAddr::from([10, 0, 0, last]);
    let path = Path::new((Mac([2, 0, 0, 0, 0, 1]), address(1)), (Mac([2, 0, 0, 0, 0, 2]), address(2)));
    let mut frame = vec![0; 200];
    let mut draft = emit(&path, 1, header, payload.len(), &mut frame).unwrap();
    draft.payload().copy_from_slice(payload);
    let length = draft.seal();
    frame.truncate(length);
    frame
}

fn frames() -> Vec<Vec<u8>> {
    let bth = |psn| Bth { ack_request: true, ..Bth::new(Qpn::new(7), Psn::new(psn)) };
    let srq = SrqNumber::new(0x001_001);
    let request = |psn, operation| Header::Extended { bth: bth(psn), srq, operation };
    let answer = |psn, operation| Header::Connected { service: Service::Xrc, bth: bth(psn), operation };
    let reth = Reth { address: 0x1000, rkey: Rkey::new(0xdead_beef), length: 8 };
    let add = AtomicEth { address: 0x2000, rkey: Rkey::new(0xdead_beef), operands: FetchAdd { add: 5 } };
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 4 };
    vec![
        frame(&request(1, Operation::SendOnly(SendTail::Immediate([1, 2, 3, 4]))), &[0xaa; 8]),
        frame(&request(2, Operation::WriteOnly(reth, None)), &[0xbb; 8]),
        frame(&request(3, Operation::ReadRequest(reth)), &[]),
        frame(&request(4, Operation::FetchAdd(add)), &[]),
        frame(&answer(2, Operation::Acknowledge(aeth)), &[]),
        frame(&answer(3, Operation::ReadResponseOnly(aeth)), &[0xcc; 8]),
        frame(&answer(4, Operation::AtomicAcknowledge { aeth, original: 9 }), &[]),
    ]
}

/// With FERROCE_WRITE_CAPTURES set, the capture is rewritten first.
#[test]
fn the_capture_has_the_frames_that_are_sent() {
    let frames = frames();
    if std::env::var_os("FERROCE_WRITE_CAPTURES").is_some() {
        std::fs::write(FILE, capture::of(&frames)).unwrap();
    }
    assert!(
        capture::frames(File::new(FILE)) == frames,
        "run it with FERROCE_WRITE_CAPTURES=1, then ci/dissector"
    );
    assert!(frames.iter().all(|frame| parse(frame).is_ok()));
}
