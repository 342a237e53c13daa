//! Responses that report all links of the path, not only the busiest one (rtgwg-00 3, 4.2 line 3).

use crate::harness::script::{PSN, Script};
use crate::harness::{BASE, Options, Pair};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::Discard;
use roce::qp::{
    CompletionStatus, Congestion, CongestionAlgorithm, FeedbackKey, Remote, Reverse, SendRequest,
};
use roce::wire::format::aecn::Load;
use roce::wire::format::{PortState, Request};
use roce::wire::telemetry::{HopRecord, IntHeader, Speed, stamp};
use roce::wire::{
    Bth, Feedback, Format, Header, Numbers, Operation, Records, Report, ReportKind, Service, Setup, emit,
    parse,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const BASE_RTT: Duration = Duration::from_micros(10);
const LINE: Rate = Rate::from_gbps(10);

fn hpcc(adjust: fn(&mut Congestion)) -> Options {
    let config = HpccConfig::new(LINE, BASE_RTT, NonZeroU32::new(4).unwrap());
    Options { congestion: CongestionAlgorithm::Hpcc(config), ack_timeout: 10, adjust, ..Options::default() }
}

fn setup() -> Setup {
    Setup {
        reverse: Reverse::Ack,
        base_rtt: BASE_RTT,
        line_rate: LINE.as_bps(),
        min_rate: 1_000_000,
        additive_increase: 1_000_000,
        target_utilisation: (0.95 * f64::from(1u32 << 31)) as u32,
        max_stage: 5,
        reports: ReportKind::All,
    }
}

/// Returns the record of a 10 Gb/s link at `micros`, with `bytes` transmitted and `queue` bytes queued.
fn record(micros: u64, bytes: u64, queue: u64) -> HopRecord {
    HopRecord::new(Speed::from_rate(LINE).unwrap(), micros * 1000, bytes, queue)
}

fn all(path_id: u16, records: &[HopRecord]) -> Report {
    Report::All { path_id, records: Records::of(records.iter().copied()).unwrap() }
}

/// Creates a receiver whose peer has requested all hops.
fn index() -> Script {
    let mut script = Script::receiving(hpcc(|_| {}));
    let header = Header::TelemetrySetup { bth: script.bth(0), setup: setup(), seal: None };
    assert_eq!(script.send_header(&header, &[]), Ok(()));
    let (ready, _) = script.next_header().unwrap();
    let Header::TelemetryNotification { feedback, .. } = ready else { panic!("{ready:?}") };
    assert_eq!(feedback.report, Report::Ready);
    script
}

fn take_in(script: &mut Script, frame: &[u8]) -> (Header, Vec<u8>) {
    assert_eq!(script.host.endpoint.on_frame(script.now, &mut script.host.ram, frame), Ok(()));
    script.next_header().unwrap()
}

#[test]
fn an_acknowledgement_reports_the_record_of_every_switch() {
    let mut script = index();
    let bth = Bth { congestion: Bth::TELEMETRY, ..script.bth(PSN) };
    let operation = Operation::WriteOnly(script.reth(0, 5), None);
    let mut frame = script.frame(&Header::Connected { service: Service::Rc, bth, operation }, b"hello");
    let records = [record(1, 1280, 800), record(2, 2560, 80), record(3, 0, 0)];
    for (id, record) in [0x101, 0x022, 0x003].into_iter().zip(records) {
        assert!(stamp(&mut frame, id, record));
    }
    let (header, payload) = take_in(&mut script, &frame);
    assert_eq!(header.bth().congestion, Bth::TELEMETRY);
    assert_eq!(payload.len(), 4 + 3 * 8);
    assert_eq!(Feedback::read(&payload), Ok(Feedback { report: all(0x120, &records), seal: None }));
    assert_eq!(script.host.bytes(0, 5), b"hello");
}

#[test]
fn a_response_reports_five_hops_or_else_the_busiest() {
    let mut script = index();
    for switches in 0..=8_u8 {
        let bth = script.bth(switches.into());
        let probe = Header::TelemetryRequest { bth, int: IntHeader::with_room(8) };
        let mut frame = script.frame(&probe, &[0; 64]);
        let records: Vec<_> = (0..switches).map(|at| record(1, 0, u64::from(at) * 80)).collect();
        for record in &records {
            assert!(stamp(&mut frame, 0, *record));
        }
        let (header, _) = take_in(&mut script, &frame);
        let Header::TelemetryResponse { feedback, .. } = header else { panic!("{header:?}") };
        match switches {
            0 => assert_eq!(feedback.report, Report::Busiest { path_id: 0, hops: 0, busiest: None }),
            1..=5 => assert_eq!(feedback.report, all(0, &records)),
            _ => assert!(matches!(feedback.report, Report::Busiest { hops, .. } if hops == switches)),
        }
    }
}

/// Telemetry of other formats is reported as Figure 4 records, at the resolution of that figure, if a code exists for each rate.
#[test]
fn other_formats_come_back_as_records_of_figure_4() {
    for format in [Format::IntMd, Format::Ifa] {
        for (rate, is_told) in [(LINE, true), (Rate::from_mbps(333), false)] {
            let mut script = index();
            let probe = Header::TelemetryRequest { bth: script.bth(0), int: IntHeader::with_room(0) };
            let mut frame = vec![0; 500];
            let draft = emit(&script.path, 0, &probe, 0, &mut frame[format.inserted()..]).unwrap();
            let mut length = draft.seal();
            length = format.insert(&mut frame, length, Numbers::DEFAULT).unwrap();
            for (number, rate) in [(1, LINE), (2, rate)] {
                let port = PortState {
                    switch: number,
                    port: 3,
                    rate,
                    time: 1_000 * u64::from(number),
                    tx_bytes: 1280,
                    queue: 800,
                    sojourn: 0,
                    load: Load { inflight: 0, rate: 0, queue: 0, delay: 0, congested: 0 },
                };
                let request = Request::find(&frame[..length], Numbers::DEFAULT).unwrap();
                if let Some(longer) = request.stamp(&mut frame, length, &port) {
                    length = longer;
                }
            }
            let (header, _) = take_in(&mut script, &frame[..length]);
            let Header::TelemetryResponse { feedback, .. } = header else { panic!("{header:?}") };
            match (format, is_told) {
                (_, true) => {
                    assert_eq!(feedback.report, all(3, &[record(1, 1280, 800), record(2, 1280, 800)]));
                }
                // An IFA switch stamps nothing for a rate without a code.
                (Format::Ifa, false) => assert_eq!(feedback.report, all(1, &[record(1, 1280, 800)])),
                (_, false) => assert!(matches!(feedback.report, Report::Hop { hops: 2, .. }), "{feedback:?}"),
            }
        }
    }
}

/// Line 3 applies to each link: a link that has just become the busiest is compared with its own previous record. With reports of the
/// busiest link alone, its first record could not be compared.
#[test]
fn a_bottleneck_that_moves_is_measured_at_once() {
    let before = [record(0, 0, 0), record(0, 0, 100_000)];
    let after = [record(10, 0, 0), record(10, 12_500, 100_000)];
    let one = |index: u8, records: &[HopRecord]| Report::Busiest {
        path_id: 3,
        hops: 2,
        busiest: Some((index, records[usize::from(index)])),
    };
    let rate = |reports: [Report; 2]| {
        let mut script = Script::new(hpcc(|congestion| congestion.all_hops = true));
        let remote = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };
        let (qpn, from) = (script.host.qpn, script.host.sge(0, 100_000));
        script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, remote)).unwrap();
        for report in reports {
            while script.next_header().is_some() {}
            let feedback = Feedback { report, seal: None };
            let header = Header::TelemetryNotification { bth: script.bth(PSN), feedback };
            assert_eq!(script.send_header(&header, &[]), Ok(()));
            script.wait(BASE_RTT);
        }
        script.host.endpoint.report(qpn).unwrap().rate.unwrap()
    };
    assert_eq!(rate([one(0, &before), one(1, &after)]), LINE, "a first record says nothing");
    // u' = 8 + 1: 100 kB are queued, the link carries 12.5 kB in a round trip, and is full.
    let measured = rate([all(3, &before), all(3, &after)]);
    assert!(measured < LINE && measured.as_bps() * 8 < LINE.as_bps(), "{measured}");
}

type Kinds = Rc<RefCell<BTreeMap<u8, u32>>>;

/// Runs a transfer through two switches; the second has a 1 Gb/s link that is always busy.
fn transfer(options: Options) -> (Kinds, f64, Pair) {
    let mut pair = Pair::connect(options);
    let kinds = Kinds::default();
    let count = Rc::clone(&kinds);
    let slow = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    let mut time = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        let packet = parse(frame).unwrap();
        if from == 0 {
            time += frame.len() as u64 * 8;
            stamp(frame, 1, HopRecord::new(Speed::from_rate(LINE).unwrap(), time, time / 8, 0));
            stamp(frame, 2, HopRecord::new(slow, time, time / 8, 100_000));
            return true;
        }
        let content = match packet.header {
            Header::Connected { bth, .. } if bth.congestion & Bth::TELEMETRY != 0 => packet.payload[0] >> 4,
            Header::TelemetryResponse { feedback, .. } | Header::TelemetryNotification { feedback, .. } => {
                let mut bytes = [0; 100];
                feedback.write(&mut bytes);
                bytes[0] >> 4
            }
            _ => return true,
        };
        *count.borrow_mut().entry(content).or_default() += 1;
        true
    }));
    let before = pair.reports()[0].unwrap().rate.unwrap();
    let from = pair.hosts[0].sge(0, 400_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    let after = pair.reports()[0].unwrap().rate.unwrap();
    (kinds, after.as_bps() as f64 / before.as_bps() as f64, pair)
}

/// For every kind of request and response: all responses but the first, which may precede the setup, report all hops.
#[test]
fn a_sender_that_requests_all_hops_is_paced_by_them() {
    let ways: [fn(&mut Congestion); 4] = [
        |congestion| {
            congestion.all_hops = true;
            congestion.in_band = Some(NonZeroU32::MIN);
        },
        |congestion| {
            congestion.all_hops = true;
            congestion.in_band = NonZeroU32::new(4);
            congestion.reverse = Reverse::Notification;
        },
        |congestion| {
            congestion.all_hops = true;
            congestion.probe_interval = Some(BASE_RTT);
        },
        |congestion| {
            congestion.all_hops = true;
            congestion.in_band = Some(NonZeroU32::MIN);
            congestion.feedback_key = Some(FeedbackKey([9; 16]));
        },
    ];
    for (way, adjust) in ways.into_iter().enumerate() {
        let (kinds, share, pair) = transfer(hpcc(adjust));
        let kinds = kinds.borrow();
        let of = |kind| kinds.get(&kind).copied().unwrap_or(0);
        assert!(share < 0.25, "way {way}: {share}");
        assert!(of(6) >= 5 && of(0) <= 2 && of(3) == 1, "way {way}: {kinds:?}");
        for host in &pair.hosts {
            assert_eq!(host.endpoint.counters().discarded(Discard::ForgedFeedback), 0);
        }
    }
    let (kinds, _, _) = transfer(hpcc(|congestion| congestion.in_band = Some(NonZeroU32::MIN)));
    assert_eq!(kinds.borrow().get(&6), None, "without a request only the busiest hop is reported");
}

/// The hop with the highest power may not be the busiest, so PowerTCP's sender compares all hops.
#[test]
fn powertcp_receives_all_hops_without_the_setting() {
    let probing = hpcc(|congestion| congestion.probe_interval = Some(BASE_RTT));
    let CongestionAlgorithm::Hpcc(config) = probing.congestion else { panic!("not HPCC++") };
    let options =
        Options { congestion: CongestionAlgorithm::Registered(&cc::POWERTCP, config.into()), ..probing };
    let (kinds, share, _) = transfer(options);
    let kinds = kinds.borrow();
    let of = |kind| kinds.get(&kind).copied().unwrap_or(0);
    assert!(share < 0.25, "{share}");
    assert!(of(6) >= 5 && of(0) <= 2 && of(3) == 1, "{kinds:?}");
}

/// A ratio covers the time between two packets. The ratios of packets that no Acknowledge has reported are merged with the next one.
#[test]
fn a_ratio_is_about_all_the_time_since_the_last_answer() {
    let mut script = Script::new(hpcc(|congestion| congestion.ratio_only = true));
    // The link is full for 3 µs, then idle for 1 µs, and nothing is queued.
    for (number, (micros, bytes)) in [(0, 0), (2, 2500), (3, 3750), (4, 3750)].into_iter().enumerate() {
        let bth = Bth { congestion: Bth::TELEMETRY, ..script.bth(PSN + number as u32) };
        let operation = Operation::WriteOnly(script.reth(0, 5), None);
        let mut frame = script.frame(&Header::Connected { service: Service::Rc, bth, operation }, b"hello");
        assert!(stamp(&mut frame, 3, record(micros, bytes, 0)));
        script.now = script.now + Duration::from_micros(1);
        assert_eq!(script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame), Ok(()));
    }
    let (_, payload) = script.next_header().unwrap();
    let Ok(Feedback { report: Report::Ratio { utilisation, interval, .. }, .. }) = Feedback::read(&payload)
    else {
        panic!("no ratio: {payload:?}");
    };
    assert_eq!(interval, 4000);
    let share = f64::from(utilisation) / f64::from(1 << 20);
    assert!((share - 0.75).abs() < 0.05, "{share}");
}
