//! Tests that in-band telemetry is outside the ICRC, and nothing else is.

use super::telemetry::{HopRecord, IntHeader, Speed, stamp};
use super::*;
use crate::{Discard, Psn, Qpn};
use core::net::IpAddr;
use proptest::prelude::*;
use std::vec;
use std::vec::Vec;

fn bth(congestion: u8) -> Bth {
    Bth { congestion, ..Bth::new(Qpn::new(7), Psn::new(1)) }
}

pub(crate) fn path(v6: bool) -> Path {
    let address = |last: u8| match v6 {
        true => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        false => IpAddr::from([10, 0, 0, last]),
    };
    Path { traffic_class: 2, ..Path::new((Mac([2; 6]), address(1)), (Mac([4; 6]), address(2))) }
}

fn emitted(path: &Path, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0xa5; MAX_OVERHEAD + MAX_IN_BAND + MAX_PAYLOAD];
    let mut draft = emit(path, 0, header, payload.len(), &mut frame).expect("a legal packet");
    draft.payload().copy_from_slice(payload);
    let length = draft.seal();
    frame.truncate(length);
    frame
}

fn write(congestion: u8) -> Header {
    let operation = Operation::WriteMiddle;
    Header::Connected { service: Service::Rc, bth: bth(congestion), operation }
}

fn record(number: u64) -> HopRecord {
    HopRecord::new(Speed::from_code(2).expect("100 Gb/s"), number * 87, number * 1090, 80 * number)
}

#[test]
fn a_stamped_packet_with_a_udp_checksum_is_received() {
    for v6 in [false, true] {
        let mut frame = emitted(&path(v6), &write(Bth::TELEMETRY | Bth::EXACT_ECHO), &[1; 8]);
        let place = if v6 { 14 + 40 + 6 } else { 14 + 20 + 6 };
        let is_right = |checksum: &u16| {
            frame[place..place + 2].copy_from_slice(&checksum.to_be_bytes());
            parse(&frame).is_ok()
        };
        assert!((1..=u16::MAX).find(is_right).is_some());
        assert!(stamp(&mut frame, 1, record(1)));
        let in_band = parse(&frame).expect("telemetry is outside the ICRC").in_band.expect("it is there");
        assert_eq!(in_band.records().collect::<Vec<_>>(), [record(1)]);
    }
}

proptest! {
    #[test]
    fn switches_stamp_data_and_the_icrc_holds(
        v6: bool,
        payload in prop_oneof![
            proptest::collection::vec(any::<u8>(), 0..200),
            proptest::collection::vec(any::<u8>(), 1020..=1024)
        ],
        switches in 0u64..8,
    ) {
        let sent = emitted(&path(v6), &write(Bth::TELEMETRY | Bth::EXACT_ECHO), &payload);
        let plain = emitted(&path(v6), &write(0), &payload);
        prop_assert_eq!(&sent[sent.len() - 4..], &plain[plain.len() - 4..], "as if no telemetry were there");
        prop_assert_eq!(sent.len(), plain.len() + MAX_IN_BAND);
        let mut frame = sent.clone();
        for number in 0..switches {
            let took = stamp(&mut frame, number as u16 + 1, record(number));
            prop_assert_eq!(took, number < u64::from(IN_BAND_ROOM));
        }
        let parsed = parse(&frame).expect("telemetry is outside the ICRC");
        prop_assert_eq!(parsed.payload, &payload[..]);
        let in_band = parsed.in_band.expect("it is there");
        let records: Vec<_> = in_band.records().collect();
        let expected: Vec<_> = (0..switches.min(IN_BAND_ROOM.into())).map(record).collect();
        prop_assert_eq!(records, expected);
    }

    #[test]
    fn a_changed_bit_outside_telemetry_is_detected(bit in 0usize..8, at in 0usize..200) {
        let payload = [3; 64];
        let mut frame = emitted(&path(false), &write(Bth::TELEMETRY), &payload);
        let bth_at = 14 + 20 + 8;
        let at = bth_at + at % (frame.len() - bth_at);
        frame[at] ^= 1 << bit;
        let room = bth_at + 12 + 4..bth_at + 12 + MAX_IN_BAND;
        // The first INT word is also outside the ICRC. It contains the length of the room, whose change may be an error.
        let is_outside = room.contains(&at) || at >= bth_at + 12 && at < bth_at + 16 || at == bth_at + 4;
        prop_assert!(is_outside || parse(&frame).is_err(), "byte {at}");
        if parse(&frame).is_ok() {
            prop_assert_eq!(parse(&frame).map(|frame| frame.payload), Ok(&payload[..]));
        }
    }
}

#[test]
fn a_wrong_length_of_the_telemetry_room_is_refused() {
    let mut frame = emitted(&path(false), &write(Bth::TELEMETRY), &[1; 8]);
    let word = 14 + 20 + 8 + 12;
    frame[word + 3] = 15;
    assert_eq!(parse(&frame), Err(Discard::Telemetry));
    assert!(!stamp(&mut frame, 1, record(1)));
    frame[word + 3] = 16;
    assert_eq!(parse(&frame), Err(Discard::Telemetry));
    assert_eq!(IntHeader::with_room(IN_BAND_ROOM).room_bytes() + 4, MAX_IN_BAND);
}

#[test]
fn feedback_follows_acknowledges_only() {
    let aeth = Aeth { syndrome: Syndrome::Ack { credits: 31 }, msn: 1 };
    let ack = |congestion| Header::Connected {
        service: Service::Rc,
        bth: bth(congestion),
        operation: Operation::Acknowledge(aeth),
    };
    let feedback = Feedback { report: Report::Window(52_000), seal: None };
    let mut bytes = [0; MAX_FEEDBACK];
    let length = feedback.write(&mut bytes);
    let mut frame = emitted(&path(false), &ack(Bth::TELEMETRY), &bytes[..length]);
    let parsed = parse(&frame).expect("good");
    assert_eq!(Feedback::read(parsed.payload), Ok(feedback));
    assert!(!stamp(&mut frame, 1, record(1)), "feedback is not for switches");
    let at = frame.len() - 6;
    frame[at] ^= 1;
    assert_eq!(parse(&frame), Err(Discard::Icrc), "feedback is inside the ICRC");
    let mut room = vec![0; 200];
    let refused =
        |header: &Header, length, room: &mut [u8]| emit(&path(false), 0, header, length, room).err();
    assert!(matches!(refused(&ack(0), 12, &mut room), Some(EmitError::Payload { .. })));
    assert!(matches!(
        refused(&ack(Bth::TELEMETRY), MAX_FEEDBACK + 4, &mut room),
        Some(EmitError::Payload { .. })
    ));
}
