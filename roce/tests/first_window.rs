//! A flow's first window: probes are sent between the data packets, whether data carries telemetry later or not.

use crate::harness::Options;
use crate::harness::script::{PSN, Script, ack};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{CongestionAlgorithm, Remote, SendRequest};
use roce::wire::telemetry::{HopRecord, Speed};
use roce::wire::{Bth, Feedback, Header, Mtu, Report};

/// The first window is 12,500 bytes or 49 packets.
const BASE_RTT: Duration = Duration::from_micros(10);
const LINE: Rate = Rate::from_gbps(10);
const WINDOW: u64 = 12_500;
const EVERY: Option<NonZeroU32> = Some(NonZeroU32::MIN);

/// Packets sent: data packets, their number before each probe, and those with telemetry.
#[derive(Debug, Default, PartialEq, Eq)]
struct Left {
    data: u32,
    probes: Vec<u32>,
    stamped: u32,
}

/// Creates a host that starts a WRITE under HPCC++, with in-band telemetry if `in_band` is given.
fn writing(in_band: Option<NonZeroU32>) -> Script {
    writing_with(CongestionAlgorithm::Hpcc, in_band, None)
}

fn writing_with(
    algorithm: fn(HpccConfig) -> CongestionAlgorithm,
    in_band: Option<NonZeroU32>,
    probe_interval: Option<Duration>,
) -> Script {
    let mut script = Script::new(Options {
        mtu: Mtu::M256,
        congestion: algorithm(HpccConfig::new(LINE, BASE_RTT, NonZeroU32::MIN)),
        in_band,
        probe_interval,
        ..Options::default()
    });
    let to = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };
    let (qpn, from) = (script.host.qpn, script.host.sge(0, 60_000));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, to)).unwrap();
    script
}

/// Sends everything that may be sent. With its headers, a window takes more than a base round trip.
fn send(script: &mut Script, left: &mut Left) {
    for _ in 0..200 {
        send_due(script, left);
    }
}

/// Sends what may be sent now, and waits for a hundredth of a round trip.
fn send_due(script: &mut Script, left: &mut Left) {
    while let Some((header, _)) = script.next_header() {
        match header {
            Header::Connected { bth, .. } => {
                left.data += 1;
                left.stamped += u32::from(bth.congestion & Bth::TELEMETRY != 0);
            }
            Header::TelemetryRequest { .. } => left.probes.push(left.data),
            Header::TelemetrySetup { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    script.wait(BASE_RTT / 100);
}

fn hear(script: &mut Script, header: impl FnOnce(Bth, Feedback) -> Header, psn: u32, report: Report) {
    let header = header(script.bth(psn), Feedback { report, seal: None });
    assert_eq!(script.send_header(&header, &[]), Ok(()));
}

/// A probe follows every 781 bytes, which are 4 packets, until the peer confirms that it supports in-band telemetry.
#[test]
fn probes_leave_among_the_data_of_the_first_window() {
    let (mut script, mut left) = (writing(EVERY), Left::default());
    send(&mut script, &mut left);
    let expected = Left { data: 49, probes: (1..=49).step_by(4).collect(), stamped: 0 };
    assert_eq!(left, expected);
    hear(&mut script, |bth, feedback| Header::TelemetryNotification { bth, feedback }, 0, Report::Ready);
    script.send(PSN + 19, ack(0), &[]).unwrap();
    send(&mut script, &mut left);
    assert_eq!(left, Left { data: 69, stamped: 20, ..expected });
}

/// With windows of the receiver, and with regular probes, the first window is probed as often.
#[test]
fn every_kind_of_telemetry_begins_with_probes_among_the_data() {
    use CongestionAlgorithm::{Hpcc, HpccFair, HpccReceiver, Registered};
    let powertcp = |config: HpccConfig| Registered(&cc::POWERTCP, config.into());
    for algorithm in [Hpcc, HpccFair, HpccReceiver, powertcp] {
        for (in_band, probe_interval) in [(EVERY, None), (None, Some(BASE_RTT))] {
            let (mut script, mut left) = (writing_with(algorithm, in_band, probe_interval), Left::default());
            // Half a round trip.
            for _ in 0..50 {
                send_due(&mut script, &mut left);
            }
            assert!(left.data >= 20 && left.probes.len() >= 5, "{left:?}");
        }
    }
    let mut script = writing_with(Hpcc, None, None);
    let mut left = Left::default();
    send(&mut script, &mut left);
    assert_eq!(left.probes, [0; 0], "no telemetry is configured");
}

/// An acknowledgement returns telemetry, so it is requested every 390 bytes, a 32nd of the window. Without telemetry, a sixteenth is
/// sufficient.
#[test]
fn each_32nd_of_a_window_requests_an_acknowledgement() {
    for (in_band, packets) in [(EVERY, 2), (None, 4)] {
        let mut script = writing(in_band);
        let mut asked = Vec::new();
        for _ in 0..100 {
            while let Some((header, _)) = script.next_header() {
                if let Header::Connected { bth, .. } = header {
                    asked.push(bth.ack_request);
                }
            }
            script.wait(BASE_RTT / 100);
        }
        let expected: Vec<_> = (1..=asked.len()).map(|number| number % packets == 0).collect();
        assert_eq!(asked, expected);
    }
}

/// A peer that answers no probe receives no others.
#[test]
fn the_first_probes_are_sixteen_at_most() {
    let (mut script, mut left) = (writing(EVERY), Left::default());
    for acknowledged in [0, 30, 60, 90, 120] {
        if acknowledged > 0 {
            script.send(PSN + acknowledged - 1, ack(0), &[]).unwrap();
        }
        send(&mut script, &mut left);
    }
    assert_eq!((left.data > 150, left.probes.len(), left.stamped), (true, 16, 0), "{left:?}");
}

/// Lines 22 to 26 of rtgwg-00 4.2: `ack.seq` of a probe is its position in the data. The responses to all probes of the first window use
/// the same reference, however much data was sent since.
#[test]
fn a_probe_has_a_position_in_the_data() {
    let (mut script, mut left) = (writing(EVERY), Left::default());
    send(&mut script, &mut left);
    let speed = Speed::from_rate(LINE).unwrap();
    let mut rates = Vec::new();
    for probe in 0..4 {
        // The link is full, and a round trip's bytes are queued: U is 2.
        let time = u64::from(probe) * BASE_RTT.as_nanos() as u64;
        let record = HopRecord::new(speed, time, u64::from(probe) * WINDOW, WINDOW);
        let report = Report::Busiest { path_id: 1, hops: 1, busiest: Some((0, record)) };
        hear(&mut script, |bth, feedback| Header::TelemetryResponse { bth, feedback }, probe, report);
        script.send(PSN + 11 * (probe + 1), ack(0), &[]).unwrap();
        send(&mut script, &mut left);
        rates
            .push(script.host.endpoint.report(script.host.qpn).unwrap().rate.unwrap().as_bps() / 100_000_000);
    }
    // W_ai is 5 % of the line rate.
    assert_eq!(rates, [100, 52, 52, 52]);
}
