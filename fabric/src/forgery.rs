//! Misbehaving peers: a peer that is not Ferroce, and a receiver that forges reports. Any node on the path that can write a valid ICRC
//! could send the same reports (rtgwg-00 9.1).

use crate::random::Random;
use datapath::io::PacketBuf;
use roce::wire::telemetry::{HopRecord, Speed};
use roce::wire::{
    Bth, Feedback, Frame, Header, MAX_FEEDBACK, Operation, Records, Report, emit, parse, parse_unverified,
};

/// Longest frame with feedback; its headers are shorter than 100 bytes.
const LONGEST: usize = 100 + MAX_FEEDBACK;

/// Forges the report of a path in a frame, except the response to a setup. Returns whether it did. A MAC in the frame becomes invalid.
pub(crate) fn forge<B: PacketBuf>(buf: &mut B, random: &mut Random) -> bool {
    let mut frame = [0; LONGEST];
    match forged(buf, random, &mut frame) {
        Some(length) if length <= buf.capacity() => {
            buf.set_len(length);
            buf.copy_from_slice(&frame[..length]);
            true
        }
        _ => false,
    }
}

/// Returns whether a frame has a vendor-defined opcode, which other RoCEv2 implementations drop.
pub(crate) fn has_vendor_opcode(frame: &[u8]) -> bool {
    match parse_unverified(frame).map(|packet| packet.header) {
        Ok(
            Header::TelemetryRequest { .. }
            | Header::TelemetryResponse { .. }
            | Header::TelemetryNotification { .. }
            | Header::TelemetrySetup { .. }
            | Header::DirectResponse { .. }
            | Header::DatagramTelemetryRequest { .. }
            | Header::SelectiveAcknowledge { .. }
            | Header::SelectiveOffer { .. },
        ) => true,
        Ok(
            Header::Connected { .. }
            | Header::Extended { .. }
            | Header::Datagram { .. }
            | Header::CongestionNotification { .. },
        )
        | Err(_) => false,
    }
}

fn forged(original: &[u8], random: &mut Random, into: &mut [u8]) -> Option<usize> {
    let packet = parse(original).ok()?;
    let feedback = reported(&packet)?;
    let feedback = Feedback { report: other(random)?, ..feedback };
    let (header, behind) = match packet.header {
        Header::TelemetryResponse { bth, .. } => (Header::TelemetryResponse { bth, feedback }, 0),
        Header::TelemetryNotification { bth, .. } => (Header::TelemetryNotification { bth, feedback }, 0),
        Header::DirectResponse { bth, .. } => (Header::DirectResponse { bth, feedback }, 0),
        acknowledge => (acknowledge, feedback.length()),
    };
    let mut draft =
        emit(&packet.network.path(), packet.network.identification(), &header, behind, into).ok()?;
    if behind > 0 {
        feedback.write(draft.payload());
    }
    Some(draft.seal())
}

/// Returns the report of a path in a frame.
fn reported(packet: &Frame<'_>) -> Option<Feedback> {
    let feedback = match packet.header {
        Header::TelemetryResponse { feedback, .. }
        | Header::TelemetryNotification { feedback, .. }
        | Header::DirectResponse { feedback, .. } => feedback,
        Header::Connected { bth, operation: Operation::Acknowledge(_), .. }
            if bth.congestion & Bth::TELEMETRY != 0 =>
        {
            Feedback::read(packet.payload).ok()?
        }
        _ => return None,
    };
    (feedback.report != Report::Ready).then_some(feedback)
}

/// Returns a random report, often with an extreme value.
fn other(random: &mut Random) -> Option<Report> {
    let path_id = random.below(4) as u16;
    let interval = random.next() as u32;
    Some(match random.below(8) {
        0 => Report::Window(0),
        1 => Report::Window(u64::MAX),
        2 => Report::Window(random.next() >> random.below(64)),
        3 => Report::Ratio { path_id, utilisation: 0, interval },
        4 => Report::Ratio { path_id, utilisation: u32::MAX, interval },
        5 => Report::Ratio { path_id, utilisation: random.next() as u32, interval },
        6 => Report::Busiest { path_id, hops: 3, busiest: Some((random.below(3) as u8, record(random)?)) },
        _ => {
            let records = [record(random)?, record(random)?];
            Report::All { path_id, records: Records::of(records.into_iter())? }
        }
    })
}

fn record(random: &mut Random) -> Option<HopRecord> {
    let speed = Speed::from_code(random.below(15) as u8)?;
    Some(HopRecord::new(speed, random.next(), random.next() >> 1, random.next() >> random.below(64)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::wire::{Mac, Path};
    use roce::{Psn, Qpn};
    use std::collections::BTreeSet;

    fn frame(report: Report) -> Vec<u8> {
        let end = |last| (Mac([2, 0, 0, 0, 0, last]), [10, 0, 0, last].into());
        let bth = Bth::new(Qpn::new(7), Psn::new(9));
        let feedback = Feedback { report, seal: None };
        let mut frame = vec![0; LONGEST];
        let header = Header::TelemetryNotification { bth, feedback };
        let length = emit(&Path::new(end(1), end(2)), 5, &header, 0, &mut frame).unwrap().seal();
        frame.truncate(length);
        frame
    }

    #[test]
    fn telemetry_packets_are_ferroces_own_and_cnps_are_not() {
        assert!(has_vendor_opcode(&frame(Report::Ready)));
        let end = |last| (Mac([2, 0, 0, 0, 0, last]), [10, 0, 0, last].into());
        let header = Header::CongestionNotification { bth: Bth::new(Qpn::new(7), Psn::new(9)) };
        let mut cnp = vec![0; LONGEST];
        let length = emit(&Path::new(end(1), end(2)), 5, &header, 0, &mut cnp).unwrap().seal();
        assert!(!has_vendor_opcode(&cnp[..length]) && !has_vendor_opcode(&[]));
    }

    #[test]
    fn forged_notifications_parse_and_have_the_psn_of_the_original() {
        let mut random = Random::new(1);
        let mut kinds = BTreeSet::new();
        for _ in 0..200 {
            let original = frame(Report::Window(1000));
            let mut into = [0; LONGEST];
            let length = forged(&original, &mut random, &mut into).unwrap();
            let Header::TelemetryNotification { bth, feedback } = parse(&into[..length]).unwrap().header
            else {
                panic!("another packet");
            };
            assert_eq!((bth.destination, bth.psn), (Qpn::new(7), Psn::new(9)));
            let mut bytes = [0; MAX_FEEDBACK];
            feedback.write(&mut bytes);
            kinds.insert(bytes[0] >> 4);
        }
        assert_eq!(kinds, BTreeSet::from([0, 1, 2, 6]));
        assert_eq!(forged(&frame(Report::Ready), &mut random, &mut [0; LONGEST]), None);
    }
}
