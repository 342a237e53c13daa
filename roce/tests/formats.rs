//! Telemetry in every format as packets: those of `formats/formats.pcap`, which `ci/dissector` checks with tshark.

use crate::harness::capture;
use cc::{Counter, Hop, Rate};
use roce::wire::format::aecn::Load;
use roce::wire::format::{PortState, Request};
use roce::wire::telemetry::{HopRecord, IntHeader, Speed};
use roce::wire::{
    Bth, Feedback, Format, Header, Mac, Numbers, Operation, Path, Records, Report, ReportKind, Reverse, Seal,
    Service, Setup, emit, parse,
};
use roce::{Psn, Qpn};
use std::net::IpAddr;
use std::path::Path as File;
use std::time::Duration;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/formats/formats.pcap");

fn path(v6: bool) -> Path {
    let address = |last: u8| match v6 {
        true => IpAddr::from([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last]),
        false => IpAddr::from([10, 0, 0, last]),
    };
    Path::new((Mac([2, 0, 0, 0, 0, 1]), address(1)), (Mac([2, 0, 0, 0, 0, 2]), address(2)))
}

const fn bth(congestion: u8, psn: u32) -> Bth {
    Bth {
        solicited: false,
        migration: false,
        partition_key: 0xffff,
        congestion,
        destination: Qpn::new(7),
        ack_request: false,
        psn: Psn::new(psn),
    }
}

fn port(number: u16) -> PortState {
    let n = u64::from(number);
    PortState {
        switch: number,
        port: 3,
        rate: Rate::from_gbps(10),
        time: n * 1_000_000_000 + 7_654_321,
        tx_bytes: n * 128_000,
        queue: n * 1600,
        sojourn: 6_400,
        load: Load { inflight: 60 * number as u8, rate: 50, queue: 9, delay: 100, congested: 1 },
    }
}

/// Returns a packet with telemetry of two switches.
fn packet(format: Format, v6: bool, header: &Header, payload: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; 2000];
    let behind = &mut frame[format.inserted()..];
    let mut draft = emit(&path(v6), 1, header, payload.len(), behind).unwrap();
    draft.payload().copy_from_slice(payload);
    let mut length = draft.seal();
    length = format.insert(&mut frame, length, Numbers::DEFAULT).unwrap();
    for number in [1, 2] {
        if let Some(request) = Request::find(&frame[..length], Numbers::DEFAULT) {
            length = request.stamp(&mut frame, length, &port(number)).unwrap();
        }
    }
    frame.truncate(length);
    frame
}

fn feedback(report: Report, seal: Option<Seal>) -> Vec<u8> {
    let header = Header::TelemetryNotification { bth: bth(0, 9), feedback: Feedback { report, seal } };
    packet(Format::Hpcc, false, &header, &[])
}

fn frames() -> Vec<Vec<u8>> {
    let data = |congestion| Header::Connected {
        service: Service::Rc,
        bth: bth(congestion, 5),
        operation: Operation::WriteMiddle,
    };
    let probe = |room| Header::TelemetryRequest { bth: bth(0, 6), int: IntHeader::with_room(room) };
    let mut frames = vec![
        packet(Format::Hpcc, false, &data(Bth::TELEMETRY), &[0xaa; 16]),
        packet(Format::Hpcc, true, &probe(8), &[0; 64]),
    ];
    for (format, v6) in [
        (Format::IntMd, false),
        (Format::Ioam, true),
        (Format::Ifa, false),
        (Format::Aecn, true),
        (Format::Csig, false),
        (Format::CsigWide, true),
    ] {
        frames.push(packet(format, v6, &data(0), &[0xaa; 16]));
        frames.push(packet(format, true, &probe(0), &[]));
    }
    let record = HopRecord::new(Speed::from_rate(Rate::from_gbps(10)).unwrap(), 7_654_321, 128_000, 1600);
    let faster = HopRecord::new(Speed::from_rate(Rate::from_gbps(40)).unwrap(), 7_654_322, 256_000, 0);
    let hop = Hop {
        bandwidth: Rate::from_gbps(10),
        time: Counter::of::<32, 1000>(7_654),
        tx_bytes: Counter::of::<64, 1>(128_000),
        queue: 1600,
    };
    let setup = Setup {
        reverse: Reverse::Notification,
        base_rtt: Duration::from_micros(20),
        line_rate: 10_000_000_000,
        min_rate: 1_000_000,
        additive_increase: 500_000_000,
        target_utilisation: 0x7999_9999,
        max_stage: 5,
        reports: ReportKind::Busiest,
    };
    let seal = Some(Seal { counter: 12, tag: [0x5a; 16] });
    frames.extend([
        feedback(Report::Busiest { path_id: 3, hops: 2, busiest: Some((1, record)) }, None),
        feedback(Report::Window(52_000), seal),
        feedback(Report::Ratio { path_id: 3, utilisation: 1 << 19, interval: 20_000 }, None),
        feedback(Report::Ready, None),
        feedback(Report::Hop { path_id: 3, hops: 2, index: 1, hop }, None),
        feedback(
            Report::All { path_id: 3, records: Records::of([record, faster].into_iter()).unwrap() },
            None,
        ),
        packet(Format::Hpcc, false, &Header::TelemetrySetup { bth: bth(0, 0), setup, seal: None }, &[]),
        packet(
            Format::Hpcc,
            false,
            &Header::SelectiveAcknowledge { bth: bth(0, 5), msn: 1, ahead: 0, held: 6 },
            &[],
        ),
    ]);
    frames.extend([false, true].map(|accepts| {
        let (first_sent, first_received) = (Psn::new(3), Psn::new(4));
        let bth = bth(0, 5 + u32::from(accepts));
        packet(Format::Hpcc, false, &Header::SelectiveOffer { bth, accepts, first_sent, first_received }, &[])
    }));
    let bth = bth(Bth::TELEMETRY, 7);
    let ask = Header::DatagramTelemetryRequest { bth, queue_key: 0x1234_5678, source: Qpn::new(0x99) };
    frames.push(packet(Format::Hpcc, false, &ask, &[]));
    frames
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
}

#[test]
fn every_packet_of_the_capture_parses() {
    let frames = capture::frames(File::new(FILE));
    assert!(frames.iter().all(|frame| parse(frame).is_ok()));
    let carried: Vec<_> =
        frames.iter().filter_map(|frame| parse(frame).unwrap().network.telemetry()).collect();
    assert_eq!(carried.len(), 12);
    assert!(carried.iter().all(|carried| carried.read().is_some()));
}
