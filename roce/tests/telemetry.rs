//! In-band telemetry, and the kinds of responses that return it (rtgwg-00 6.2).

use crate::harness::script::{PSN, Script, ack};
use crate::harness::{BASE, Host, Options, Pair};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::Discard;
use roce::qp::{
    CompletionStatus, Congestion, CongestionAlgorithm, FeedbackKey, Remote, Reverse, SendRequest,
};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{
    Bth, Feedback, Header, MAX_FEEDBACK, Mtu, Operation, Report, ReportKind, Reth, Service, Setup, emit,
    parse,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const BASE_RTT: Duration = Duration::from_micros(10);
const LENGTH: u32 = 400_000;

fn config() -> HpccConfig {
    HpccConfig::new(Rate::from_gbps(10), BASE_RTT, NonZeroU32::new(4).unwrap())
}

fn hpcc(adjust: fn(&mut Congestion)) -> Options {
    Options { congestion: CongestionAlgorithm::Hpcc(config()), ack_timeout: 10, adjust, ..Options::default() }
}

fn receiver_based(adjust: fn(&mut Congestion)) -> Options {
    Options { congestion: CongestionAlgorithm::HpccReceiver(config()), ..hpcc(adjust) }
}

const EVERY: Option<NonZeroU32> = NonZeroU32::new(1);
const FOURTH: Option<NonZeroU32> = NonZeroU32::new(4);

/// The number of packets of each opcode from each host; the second key says whether the telemetry flag is set.
type Seen = Rc<RefCell<[BTreeMap<(u8, bool), u32>; 2]>>;

/// Adds a switch between the hosts, whose 1 Gb/s link is always busy, with `queue` bytes queued.
fn switched(pair: &mut Pair, queue: u64) -> Seen {
    let seen = Seen::default();
    let count = Rc::clone(&seen);
    let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    let mut time = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        let header = parse(frame).unwrap().header;
        let is_flagged = header.bth().congestion & Bth::TELEMETRY != 0;
        *count.borrow_mut()[from].entry((header.opcode().0, is_flagged)).or_default() += 1;
        if from == 0 {
            time += frame.len() as u64 * 8;
            stamp(frame, 3, HopRecord::new(speed, time, time / 8, queue));
        }
        true
    }));
    seen
}

/// Writes `LENGTH` bytes through the busy switch; returns the observed packets, and the final rate as a share of the first.
fn transfer(options: Options) -> (Seen, f64, Pair) {
    let mut pair = Pair::connect(options);
    let (seen, share) = transfer_on(&mut pair);
    (seen, share, pair)
}

/// As [`transfer`], between connected hosts.
fn transfer_on(pair: &mut Pair) -> (Seen, f64) {
    let seen = switched(pair, 100_000);
    let before = pair.reports()[0].unwrap().rate.unwrap();
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    for byte in 0..LENGTH as usize {
        pair.hosts[0].ram.0[byte] = byte as u8 ^ (byte >> 8) as u8;
    }
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    let length = LENGTH as usize;
    assert!(pair.hosts[0].bytes(0, length) == pair.hosts[1].bytes(0, length));
    let after = pair.reports()[0].unwrap().rate.unwrap();
    (seen, after.as_bps() as f64 / before.as_bps() as f64)
}

fn count(seen: &Seen, host: usize, opcodes: &[u8], is_flagged: bool) -> u32 {
    let seen = &seen.borrow()[host];
    opcodes.iter().map(|opcode| seen.get(&(*opcode, is_flagged)).copied().unwrap_or(0)).sum()
}

const WRITES: &[u8] = &[6, 7, 8];
const ACKNOWLEDGE: &[u8] = &[17];
const NOTIFICATION: &[u8] = &[0xc2];

#[test]
fn every_data_packet_carries_telemetry_and_acknowledgements_return_it() {
    let (seen, share, pair) = transfer(hpcc(|congestion| congestion.in_band = EVERY));
    assert!(share < 0.25, "{share}");
    // 100,000 B are queued at a link that carries 1,250 B in a base round trip and is always busy: 81,000 thousandths.
    let busiest = pair.reports()[0].unwrap().busiest.unwrap();
    assert_eq!((busiest.index, busiest.queue, busiest.permille.unwrap() / 1000), (0, 100_000, 81));
    let (observed, _) = pair.hosts[0].endpoint.observe(pair.now, 0, 1);
    assert_eq!(observed[0].hops, [busiest]);
    let (with, without) = (count(&seen, 0, WRITES, true), count(&seen, 0, WRITES, false));
    assert!(with > 350 && without < 20, "{without} without: those sent before the peer answered the setup");
    assert!(count(&seen, 1, ACKNOWLEDGE, true) >= 5);
    assert_eq!(count(&seen, 1, NOTIFICATION, false), 1, "only the answer to the setup");
}

#[test]
fn one_of_four_data_packets_is_enough() {
    let (seen, share, _) = transfer(hpcc(|congestion| congestion.in_band = FOURTH));
    assert!(share < 0.25, "{share}");
    let (with, without) = (count(&seen, 0, WRITES, true), count(&seen, 0, WRITES, false));
    assert!(with.abs_diff((with + without) / 4) < 10, "{with} of {}", with + without);
}

/// The data packets without telemetry contain a subscription; the peer removes it and sends no response to it.
#[test]
fn data_without_telemetry_subscribes() {
    let (seen, share, _) = transfer(hpcc(|congestion| {
        congestion.in_band = FOURTH;
        congestion.subscribe = true;
    }));
    assert!(share < 0.25, "{share}");
    let (with, without) = (count(&seen, 0, WRITES, true), count(&seen, 0, WRITES, false));
    assert!(with > 350 && without < 20, "{with} with, {without} without");
    assert_eq!(count(&seen, 1, NOTIFICATION, false), 1, "only the answer to the setup");
}

#[test]
fn a_notification_answers_each_packet_with_telemetry() {
    let (seen, share, _) = transfer(hpcc(|congestion| {
        congestion.in_band = FOURTH;
        congestion.reverse = Reverse::Notification;
    }));
    assert!(share < 0.25, "{share}");
    assert_eq!(count(&seen, 1, ACKNOWLEDGE, true), 0);
    let (stamped, answers) = (count(&seen, 0, WRITES, true), count(&seen, 1, NOTIFICATION, false));
    assert!(answers.abs_diff(stamped) <= 2, "{answers} for {stamped}");
}

/// rtgwg-00 6.3.2: with in-band telemetry or probes, the window is returned once per T.
#[test]
fn a_receiver_returns_windows_once_per_round_trip() {
    for adjust in [(|congestion| congestion.in_band = EVERY) as fn(&mut Congestion), |congestion| {
        congestion.probe_interval = Some(BASE_RTT)
    }] {
        let (seen, share, pair) = transfer(receiver_based(adjust));
        assert!(share < 0.25, "{share}");
        let windows = count(&seen, 1, NOTIFICATION, false) + count(&seen, 1, ACKNOWLEDGE, true);
        let rounds = pair.now.as_nanos() / BASE_RTT.as_nanos() as u64;
        assert!(windows > 10 && u64::from(windows) <= rounds + 1, "{windows} in {rounds} round trips");
        assert_eq!(count(&seen, 1, &[0xc1], false), 0);
    }
}

#[test]
fn ratio_reports_lower_the_rate() {
    let (seen, share, _) = transfer(hpcc(|congestion| {
        congestion.in_band = EVERY;
        congestion.ratio_only = true;
    }));
    assert!(share < 0.25, "{share}");
    assert!(count(&seen, 1, ACKNOWLEDGE, true) >= 5);
}

/// A peer that does not support telemetry receives data without it, and the setup 20 times at most. DCQCN replaces HPCC++.
#[test]
fn a_peer_without_telemetry_gets_plain_packets() {
    let mut pair = Pair::connect(hpcc(|congestion| congestion.in_band = EVERY));
    let mut setups = 0;
    let counted = Rc::new(RefCell::new(0));
    let outer = Rc::clone(&counted);
    pair.filter = Some(Box::new(move |_, frame| {
        let header = parse(frame).unwrap().header;
        assert_eq!(header.bth().congestion & Bth::TELEMETRY, 0);
        if let Header::TelemetrySetup { .. } = header {
            setups += 1;
            *outer.borrow_mut() = setups;
        }
        !matches!(header, Header::TelemetrySetup { .. } | Header::TelemetryRequest { .. })
    }));
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    for id in 0..200 {
        let from = pair.hosts[0].sge(0, LENGTH);
        pair.post(0, SendRequest::write(id, from, remote));
        pair.run(Duration::from_secs(2));
        pair.now = pair.now + Duration::from_millis(500);
    }
    assert_eq!(*counted.borrow(), 20);
    assert_eq!(pair.reports()[0].unwrap().algorithm, "dcqcn");
}

const KEY: FeedbackKey = FeedbackKey([9; 16]);

const KEYED: fn(&mut Congestion) = |congestion| {
    congestion.in_band = EVERY;
    congestion.feedback_key = Some(KEY);
};

/// rtgwg-00 9.1.
#[test]
fn sealed_feedback_lowers_the_rate() {
    let (_, share, pair) = transfer(hpcc(KEYED));
    assert!(share < 0.25, "{share}");
    let (_, other, windows) = transfer(receiver_based(KEYED));
    assert!(other < 0.25, "{other}");
    for pair in [pair, windows] {
        for host in &pair.hosts {
            assert_eq!(host.endpoint.counters().discarded(Discard::ForgedFeedback), 0);
        }
    }
}

/// A server that never sends may stay in RTR. The sender verifies its answers in RTR, and also after the server enters RTS.
#[test]
fn a_receiver_in_rtr_seals_its_answers() {
    for options in [hpcc(KEYED), receiver_based(KEYED)] {
        let options = Options { feedback_key: Some(KEY), ..options };
        let mut pair = Pair::one_way([Host::new(1, &options), Host::new(2, &options)], options);
        let (_, share) = transfer_on(&mut pair);
        assert!(share < 0.25, "{share}");
        let options = &pair.options;
        pair.hosts[1].ready_to_send(options);
        let before = pair.hosts[0].endpoint.counters().feedback_received;
        transfer_on(&mut pair);
        let counters = pair.hosts[0].endpoint.counters();
        assert!(counters.feedback_received >= before + 5, "{before}, {}", counters.feedback_received);
        assert_eq!(counters.discarded(Discard::ForgedFeedback), 0);
        assert_eq!(counters.discarded(Discard::StaleFeedback), 0);
    }
}

/// An attacker on the path can change feedback, forge it, and replay it, with a valid ICRC. rtgwg-00 9.1: feedback is authenticated, and
/// accepted once.
#[test]
fn forged_and_replayed_feedback_is_counted_and_ignored() {
    let mut pair = Pair::connect(hpcc(KEYED));
    let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    let mut heard = None;
    let mut time = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        if from == 0 {
            time += 9000;
            stamp(frame, 3, HopRecord::new(speed, time, time / 8, 100_000));
            return true;
        }
        let packet = parse(frame).unwrap();
        let Header::Connected { bth, operation: Operation::Acknowledge(_), .. } = packet.header else {
            return true;
        };
        let Ok(feedback) = Feedback::read(packet.payload) else { return true };
        let before = *heard.get_or_insert(feedback);
        let idle =
            Report::Busiest { path_id: 3, hops: 1, busiest: Some((0, HopRecord::new(speed, 0, 0, 0))) };
        let other = match bth.psn.get() % 3 {
            0 => Feedback { report: idle, ..feedback },
            1 => Feedback { report: idle, seal: None },
            _ => before,
        };
        let (mut content, mut again) = ([0; MAX_FEEDBACK], vec![0; 300]);
        let length = other.write(&mut content);
        let mut draft = emit(&packet.network.path(), 0, &packet.header, length, &mut again).unwrap();
        draft.payload().copy_from_slice(&content[..length]);
        let sealed = draft.seal();
        *frame = again[..sealed].to_vec();
        true
    }));
    let before = pair.reports()[0].unwrap().rate;
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    let from = pair.hosts[0].sge(0, LENGTH);
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(2));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success, "the acknowledgements are good");
    let counters = pair.hosts[0].endpoint.counters();
    assert!(counters.discarded(Discard::ForgedFeedback) > 2);
    assert!(counters.feedback_received <= 1, "only the original of the replayed feedback is accepted");
    assert_eq!(pair.reports()[0].unwrap().rate, before);
}

fn post_write(script: &mut Script, length: u32) {
    let remote = Remote { address: 0x1000, rkey: roce::Rkey::new(5) };
    let (qpn, from) = (script.host.qpn, script.host.sge(0, length));
    script.host.endpoint.post_send(script.now, qpn, SendRequest::write(1, from, remote)).unwrap();
}

/// With any window that a receiver reports, the rate stays between the minimum and the line rate.
#[test]
fn false_windows_keep_the_rate_in_bounds() {
    let mut script = Script::new(receiver_based(|congestion| congestion.in_band = EVERY));
    post_write(&mut script, 100_000);
    assert!(matches!(
        script.next_header(),
        Some((Header::TelemetrySetup { .. } | Header::Connected { .. }, _))
    ));
    for window in [0, 1, u64::MAX, 1 << 40] {
        let feedback = Feedback { report: Report::Window(window), seal: None };
        let header = Header::TelemetryNotification { bth: script.bth(PSN), feedback };
        assert_eq!(script.send_header(&header, &[]), Ok(()));
        let report = script.host.endpoint.report(script.host.qpn).unwrap();
        let rate = report.rate.unwrap();
        assert!(rate >= config().min_rate && rate <= config().line_rate, "{window}: {rate}");
        assert!(report.window >= 1 && report.window <= config().initial_window());
    }
}

/// RFC 9002 7.5: probes "MUST NOT be blocked by the congestion controller". The window shrinks below the bytes in flight, none of which
/// requested an acknowledgement. The next packet requests one, because otherwise both sides would wait permanently. Nothing was lost, so
/// nothing is retransmitted.
#[test]
fn a_window_that_closes_without_an_ack_request_forces_one() {
    let mut script = Script::new(Options { mtu: Mtu::M256, ..receiver_based(|_| {}) });
    post_write(&mut script, 100_000);
    let mut index = None;
    let mut after = Vec::new();
    while after.len() < 2 {
        match script.next_header() {
            Some((Header::Connected { bth, .. }, _)) if bth.ack_request && index.is_none() => {
                index = Some(bth.psn.get())
            }
            Some((Header::Connected { bth, .. }, _)) if index.is_some() => {
                assert!(!bth.ack_request);
                after.push(bth.psn.get());
            }
            _ => script.wait(Duration::from_micros(1)),
        }
    }
    let window = Feedback { report: Report::Window(1), seal: None };
    let notification = Header::TelemetryNotification { bth: script.bth(PSN), feedback: window };
    assert_eq!(script.send_header(&notification, &[]), Ok(()));
    assert_eq!(script.send(index.unwrap(), ack(0), &[]), Ok(()));
    let report = script.host.endpoint.report(script.host.qpn).unwrap();
    assert_eq!((report.in_flight, report.window < 512), (512, true));
    script.wait(Duration::from_millis(1));
    let next = next_data(&mut script).expect("a full window does not block it");
    assert_eq!((next.psn.get(), next.ack_request), (after[1] + 1, true));
    script.wait(Duration::from_millis(1));
    assert_eq!(next_data(&mut script), None, "an answer is on its way");
    assert_eq!(script.send(next.psn.get(), ack(0), &[]), Ok(()));
    let report = script.host.endpoint.report(script.host.qpn).unwrap();
    assert_eq!((report.in_flight, script.host.endpoint.counters().retransmitted), (0, 0));
}

/// Returns the next packet of a request, skipping telemetry.
fn next_data(script: &mut Script) -> Option<Bth> {
    loop {
        if let (Header::Connected { bth, .. }, _) = script.next_header()? {
            return Some(bth);
        }
    }
}

#[test]
fn a_setup_is_confirmed_each_time_and_a_bad_one_is_refused() {
    let mut script = Script::new(Options::default());
    let good = Setup {
        reverse: Reverse::Window,
        base_rtt: BASE_RTT,
        line_rate: 10_000_000_000,
        min_rate: 1_000_000,
        additive_increase: 1_000_000,
        target_utilisation: (0.95 * f64::from(1u32 << 31)) as u32,
        max_stage: 5,
        reports: ReportKind::Busiest,
    };
    for _ in 0..2 {
        let header = Header::TelemetrySetup { bth: script.bth(0), setup: good, seal: None };
        assert_eq!(script.send_header(&header, &[]), Ok(()));
        let (answer, _) = script.next_header().unwrap();
        let Header::TelemetryNotification { feedback, .. } = answer else { panic!("{answer:?}") };
        assert_eq!(feedback.report, Report::Ready);
        assert!(script.next_header().is_none());
    }
    let bad = Setup { base_rtt: Duration::ZERO, ..good };
    let header = Header::TelemetrySetup { bth: script.bth(0), setup: bad, seal: None };
    assert_eq!(script.send_header(&header, &[]), Err(Discard::Telemetry));
}

/// Feedback about packets that were never sent is refused; an Acknowledge counts even with invalid feedback.
#[test]
fn feedback_is_about_packets_that_were_sent() {
    let mut script = Script::new(hpcc(|congestion| congestion.in_band = EVERY));
    post_write(&mut script, 1000);
    while script.next_header().is_some() {}
    let report = Report::Busiest { path_id: 0, hops: 0, busiest: None };
    let feedback = Feedback { report, seal: None };
    let never = Header::TelemetryNotification { bth: script.bth(PSN + 5), feedback };
    assert_eq!(script.send_header(&never, &[]), Err(Discard::Telemetry));
    let bth = Bth { congestion: Bth::TELEMETRY, ..script.bth(PSN) };
    let header = Header::Connected { service: Service::Rc, bth, operation: ack(1) };
    assert_eq!(script.send_header(&header, &[0xff; 8]), Ok(()));
    assert_eq!(script.discarded(Discard::Telemetry), 2);
    assert_eq!(script.host.sent()[0].status, CompletionStatus::Success);
}

/// Data with telemetry is placed like any data, and its acknowledgement returns the telemetry.
#[test]
fn a_stamped_write_is_placed_and_its_acknowledgement_reports_the_record() {
    let mut script = Script::new(Options::default());
    let bth = Bth { congestion: Bth::TELEMETRY, ..script.bth(PSN) };
    let reth = Reth { length: 5, ..script.reth(0, 0) };
    let header = Header::Connected { service: Service::Rc, bth, operation: Operation::WriteOnly(reth, None) };
    let mut frame = script.frame(&header, b"hello");
    let record = HopRecord::new(Speed::from_code(2).unwrap(), 77, 1280, 800);
    assert!(stamp(&mut frame, 0x123, record));
    assert_eq!(script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame), Ok(()));
    assert_eq!(script.host.bytes(0, 5), b"hello");
    let (answer, payload) = script.next_header().unwrap();
    assert_eq!(answer.bth().congestion, Bth::TELEMETRY);
    let report = Report::Busiest { path_id: 0x123, hops: 1, busiest: Some((0, record)) };
    assert_eq!(Feedback::read(&payload), Ok(Feedback { report, seal: None }));
}

/// Probes and data arrive in one burst: each probe is answered, and the data is acknowledged.
#[test]
fn data_does_not_take_the_place_of_a_probes_answer() {
    let mut script = Script::receiving(hpcc(|_| {}));
    let probe =
        Header::TelemetryRequest { bth: script.bth(5), int: roce::wire::telemetry::IntHeader::with_room(1) };
    let speed = Speed::from_rate(Rate::from_gbps(1)).unwrap();
    for number in 0..3 {
        let mut frame = script.frame(&probe, &[0; 8]);
        stamp(&mut frame, 3, HopRecord::new(speed, number * 9000, 0, 0));
        let taken = script.host.endpoint.on_frame(script.now, &mut script.host.ram, &frame);
        assert_eq!(taken, Ok(()));
        let write = Operation::WriteOnly(script.reth(0, 100), None);
        assert_eq!(script.send(PSN + number as u32, write, &[1; 100]), Ok(()));
    }
    let answers: Vec<_> = std::iter::from_fn(|| script.next_header()).collect();
    let is_response = |(header, _): &&(Header, Vec<u8>)| matches!(header, Header::TelemetryResponse { .. });
    assert_eq!(answers.iter().filter(is_response).count(), 3, "{answers:?}");
}
