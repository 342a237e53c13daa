//! Tests of XRC packets, byte for byte (IBA annex A14): an XRCETH follows the BTH of each request, and of no answer.

use super::inband_tests::path;
use super::*;
use crate::{Discard, Psn, Qpn, Rkey, SrqNumber};
use std::vec;
use std::vec::Vec;

/// Offset of the BTH: after Ethernet, IPv4 and UDP.
const AT: usize = 14 + 20 + 8;

fn bth() -> Bth {
    Bth {
        solicited: true,
        migration: false,
        partition_key: 0xffff,
        congestion: 0,
        destination: Qpn::new(0x01_0203),
        ack_request: true,
        psn: Psn::new(0x0a_0b0c),
    }
}

const SRQ: u32 = 0x11_2233;

fn request(operation: Operation) -> Header {
    Header::Extended { bth: bth(), srq: SrqNumber::new(SRQ), operation }
}

fn answer(operation: Operation) -> Header {
    Header::Connected { service: Service::Xrc, bth: bth(), operation }
}

fn frame(header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 300];
    let mut draft = emit(&path(false), 1, header, payload.len(), &mut frame).expect("a legal packet");
    draft.payload().copy_from_slice(payload);
    let length = draft.seal();
    frame.truncate(length);
    frame
}

/// Returns the bytes from the BTH to the pad.
fn bytes(header: &Header, payload: &[u8]) -> Vec<u8> {
    let frame = frame(header, payload);
    assert_eq!(parse(&frame).map(|frame| frame.header), Ok(*header));
    frame[AT..frame.len() - 4].to_vec()
}

/// Returns a BTH with this opcode and pad, followed by `rest`.
fn expected(opcode: u8, pad: u8, rest: &[&[u8]]) -> Vec<u8> {
    let bth = [opcode, 0x80 | pad << 4, 0xff, 0xff, 0, 1, 2, 3, 0x80, 0x0a, 0x0b, 0x0c];
    [&bth[..]].iter().chain(rest).copied().flatten().copied().collect()
}

const XRCETH: &[u8] = &[0, 0x11, 0x22, 0x33];
const RETH: &[u8] = &[0, 0, 0, 0, 0, 0, 0x10, 0, 0xde, 0xad, 0xbe, 0xef, 0, 0, 0, 5];

fn reth() -> Reth {
    Reth { address: 0x1000, rkey: Rkey::new(0xdead_beef), length: 5 }
}

#[test]
fn requests_have_the_xrceth_before_all_else() {
    let five = &[1, 2, 3, 4, 5];
    let padded: &[u8] = &[1, 2, 3, 4, 5, 0, 0, 0];
    let key = Rkey::new(0x0102_0304);
    let operands = CompareSwap { compare: 2, swap: 3 };
    let atomic = AtomicEth { address: 8, rkey: key, operands };
    let words = [8u64.to_be_bytes(), 3u64.to_be_bytes(), 2u64.to_be_bytes()];
    let rows = [
        (Operation::SendFirst, &[9; 4][..], expected(0xa0, 0, &[XRCETH, &[9; 4]])),
        (Operation::SendMiddle, &[9; 4], expected(0xa1, 0, &[XRCETH, &[9; 4]])),
        (Operation::SendOnly(SendTail::Plain), five, expected(0xa4, 3, &[XRCETH, padded])),
        (
            Operation::SendOnly(SendTail::Immediate([6; 4])),
            five,
            expected(0xa5, 3, &[XRCETH, &[6; 4], padded]),
        ),
        (
            Operation::SendLast(SendTail::Invalidate(key)),
            five,
            expected(0xb6, 3, &[XRCETH, &[1, 2, 3, 4], padded]),
        ),
        (Operation::WriteMiddle, &[9; 4], expected(0xa7, 0, &[XRCETH, &[9; 4]])),
        (
            Operation::WriteOnly(reth(), Some([6; 4])),
            five,
            expected(0xab, 3, &[XRCETH, RETH, &[6; 4], padded]),
        ),
        (Operation::ReadRequest(reth()), &[], expected(0xac, 0, &[XRCETH, RETH])),
        (
            Operation::CompareSwap(atomic),
            &[],
            expected(0xb3, 0, &[XRCETH, &words[0], &[1, 2, 3, 4], &words[1], &words[2]]),
        ),
        (
            Operation::Flush(Feth::new(true, false, false), reth()),
            &[],
            expected(0xbc, 0, &[XRCETH, &[0, 0, 0, 1], RETH]),
        ),
        (Operation::AtomicWrite(reth()), &[9; 8], expected(0xbd, 0, &[XRCETH, RETH, &[9; 8]])),
    ];
    for (operation, payload, expected) in rows {
        assert_eq!(bytes(&request(operation), payload), expected, "{operation:?}");
    }
}

#[test]
fn responses_have_no_xrc_header() {
    let aeth = Aeth { syndrome: Syndrome::Nak(NakCode::InvalidRequest), msn: 7 };
    let bare: &[u8] = &[0x61, 0, 0, 7];
    let original = 0x0102_0304_0506_0708;
    let rows = [
        (Operation::ReadResponseFirst(aeth), &[9; 4][..], expected(0xad, 0, &[bare, &[9; 4]])),
        (Operation::ReadResponseMiddle, &[9; 4], expected(0xae, 0, &[&[9; 4]])),
        (Operation::Acknowledge(aeth), &[], expected(0xb1, 0, &[bare])),
        (
            Operation::AtomicAcknowledge { aeth, original },
            &[],
            expected(0xb2, 0, &[bare, &original.to_be_bytes()]),
        ),
    ];
    for (operation, payload, expected) in rows {
        assert_eq!(bytes(&answer(operation), payload), expected, "{operation:?}");
    }
}

/// The first 8 bits of an XRCETH are reserved and ignored.
#[test]
fn reserved_bits_are_ignored_and_a_missing_xrceth_is_refused() {
    let send = Operation::SendOnly(SendTail::Plain);
    let mut whole = frame(&request(send), &[]);
    whole[AT + 12] = 0xee;
    assert_eq!(parse_unverified(&whole).map(|frame| frame.header), Ok(request(send)));
    assert_eq!(parse(&whole), Err(Discard::Icrc), "but they are inside the ICRC");
    let mut bare = frame(&Header::Connected { service: Service::Rc, bth: bth(), operation: send }, &[]);
    bare[AT] = 0xa4;
    assert_eq!(parse_unverified(&bare), Err(Discard::Truncated));
}
