//! Paths of more switches than data packets have room for: a probe counts the switches, and replaces telemetry in data.

use crate::harness::Options;
use crate::harness::script::{PSN, Script, ack};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::CongestionNotice;
use roce::qp::{CongestionAlgorithm, Remote, SendRequest};
use roce::wire::telemetry::{HopRecord, Speed};
use roce::wire::{Bth, Feedback, Header, Report};

const BASE_RTT: Duration = Duration::from_micros(10);
const PATH: u16 = 7;

/// Returns the packets sent in a base round trip: the rooms of the probes, and whether data carried telemetry.
fn sent(script: &mut Script) -> (Vec<u8>, Option<bool>) {
    let (mut rooms, mut stamped) = (Vec::new(), None);
    for _ in 0..11 {
        while let Some((header, _)) = script.next_header() {
            match header {
                Header::Connected { bth, .. } => stamped = Some(bth.congestion & Bth::TELEMETRY != 0),
                Header::TelemetryRequest { int, .. } => rooms.push(int.room()),
                _ => {}
            }
        }
        script.wait(BASE_RTT / 10);
    }
    (rooms, stamped)
}

fn report(hops: u8) -> Report {
    let record = HopRecord::new(Speed::from_rate(Rate::from_gbps(10)).unwrap(), 1000, 0, 0);
    Report::Busiest { path_id: PATH, hops, busiest: Some((0, record)) }
}

/// Handles the telemetry of `hops` switches from the data packet `number`, and its acknowledgement.
fn data_answered(script: &mut Script, number: u32, hops: u8) {
    let feedback = Feedback { report: report(hops), seal: None };
    let header = Header::TelemetryNotification { bth: script.bth(PSN + number), feedback };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
    script.send(PSN + number, ack(0), &[]).unwrap();
}

fn probe_answered(script: &mut Script, probe: u32, hops: u8) {
    let feedback = Feedback { report: report(hops), seal: None };
    let header = Header::TelemetryResponse { bth: script.bth(probe), feedback };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
}

#[test]
fn full_telemetry_is_checked_by_a_probe_and_a_long_path_is_probed() {
    let mut script = Script::new(Options {
        congestion: CongestionAlgorithm::Hpcc(HpccConfig::new(
            Rate::from_gbps(10),
            BASE_RTT,
            NonZeroU32::MIN,
        )),
        in_band: Some(NonZeroU32::MIN),
        ..Options::default()
    });
    let to = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };
    let (qpn, from) = (script.host.qpn, script.host.sge(0, 400_000));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, to)).unwrap();
    let mut probes = 0;
    let mut sent = |script: &mut Script| {
        let (rooms, stamped) = sent(script);
        probes += rooms.len() as u32;
        (rooms, stamped, probes.saturating_sub(1))
    };
    let (rooms, ..) = sent(&mut script);
    assert!(rooms.len() > 8 && rooms.iter().all(|room| *room == 8), "{rooms:?}");
    let ready = Feedback { report: Report::Ready, seal: None };
    let header = Header::TelemetryNotification { bth: script.bth(0), feedback: ready };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
    data_answered(&mut script, 1, 4);
    assert_eq!(sent(&mut script).1, Some(true));
    data_answered(&mut script, 2, 4);
    assert_eq!(sent(&mut script).0, [0; 0], "there was room for another switch");
    data_answered(&mut script, 3, 5);
    let (rooms, _, last) = sent(&mut script);
    assert_eq!(rooms, [8], "there may be more switches");
    probe_answered(&mut script, last, 5);
    data_answered(&mut script, 4, 5);
    assert_eq!(sent(&mut script).0, [0; 0], "a probe has counted five");
    assert_eq!(script.host.endpoint.poll_congestion_change(), None);

    // The path becomes longer.
    let Report::Busiest { busiest, hops, .. } = report(5) else { panic!() };
    let feedback = Feedback { report: Report::Busiest { path_id: PATH + 1, hops, busiest }, seal: None };
    let header = Header::TelemetryNotification { bth: script.bth(PSN + 4), feedback };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
    let (rooms, _, last) = sent(&mut script);
    assert_eq!(rooms, [8]);
    probe_answered(&mut script, last, 8);
    script.send(PSN + 5, ack(0), &[]).unwrap();
    let (rooms, stamped, last) = sent(&mut script);
    assert_eq!(
        (rooms, stamped),
        (vec![15], Some(false)),
        "there may be more, and data has no room for eight"
    );
    assert_eq!(script.host.endpoint.poll_congestion_change(), None);
    probe_answered(&mut script, last, 9);
    script.send(PSN + 6, ack(0), &[]).unwrap();
    let (rooms, stamped, last) = sent(&mut script);
    assert_eq!((rooms, stamped), (vec![15], Some(false)), "probes once a round trip");
    let change = script.host.endpoint.poll_congestion_change().unwrap();
    assert_eq!(change.notice, CongestionNotice::LongPath { switches: 9 });
    assert!(change.to_string().contains("has 9 switches"), "{change}");
    probe_answered(&mut script, last, 5);
    script.send(PSN + 7, ack(0), &[]).unwrap();
    assert_eq!(sent(&mut script).1, Some(true), "short again");
    assert_eq!(script.host.endpoint.poll_congestion_change(), None, "reported once");
}
