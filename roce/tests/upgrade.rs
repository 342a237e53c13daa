//! Queue pairs that choose their algorithm by measurements of the path.

use crate::harness::{BASE, Options, Pair};
use cc::{DcqcnConfig, DctcpConfig, HpccConfig, Instant, Rate};
use core::cell::Cell;
use core::num::NonZeroU32;
use core::time::Duration;
use roce::Discard;
use roce::qp::{CompletionStatus, Congestion, CongestionAlgorithm, Remote, SendRequest, Upgrade, When};
use roce::wire::telemetry::{HopRecord, Speed, stamp};
use roce::wire::{Ecn, Header, ecn, mark_ce, parse};
use std::rc::Rc;

const RTT: Duration = Duration::from_micros(10);

fn line() -> Rate {
    Rate::from_gbps(10)
}

fn auto() -> Options {
    let adjust = |congestion: &mut Congestion| {
        let config = HpccConfig::new(line(), RTT, NonZeroU32::MIN);
        congestion.upgrade =
            Some(Upgrade { when: When::TelemetryAnswered, to: CongestionAlgorithm::Hpcc(config) });
        congestion.probe_interval = Some(RTT);
    };
    let congestion = CongestionAlgorithm::Dcqcn(DcqcnConfig::new(line(), None));
    Options { congestion, ack_timeout: 10, adjust, ..Options::default() }
}

fn below(limit: Duration) -> Options {
    let adjust = match limit.as_micros() {
        1_000 => |congestion: &mut Congestion| congestion.upgrade = Some(dctcp_below(1_000)),
        _ => |congestion: &mut Congestion| congestion.upgrade = Some(dctcp_below(1)),
    };
    Options { adjust, ..Options::default() }
}

fn dctcp_below(micros: u64) -> Upgrade {
    let to = CongestionAlgorithm::Dctcp(DctcpConfig::new(line(), RTT));
    Upgrade { when: When::RttBelow(Duration::from_micros(micros)), to }
}

/// Writes 400 kB and returns the algorithm in use at the end.
fn algorithm_after(pair: &mut Pair) -> &'static str {
    let from = pair.hosts[0].sge(0, 400_000);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    pair.reports()[0].unwrap().algorithm
}

#[test]
fn telemetry_of_switches_selects_hpcc() {
    let mut pair = Pair::connect(auto());
    let mut time = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        if from == 0 {
            time += 1000;
            stamp(frame, 1, HopRecord::new(Speed::from_code(12).unwrap(), time, time, 0));
        }
        true
    }));
    assert_eq!(pair.reports()[0].unwrap().algorithm, "dcqcn");
    assert_eq!(algorithm_after(&mut pair), "hpcc");
}

/// The port does not report its rate, so the line rate is that of the switch's link.
#[test]
fn an_unknown_line_rate_is_learned_from_telemetry() {
    at_the_switchs_rate(|congestion| {
        fast(congestion);
        congestion.unknown.line_rate = true;
    });
    // The line rate is that of the port, but the path may be slower.
    at_the_switchs_rate(|congestion| {
        fast(congestion);
        congestion.unknown.path_rate = true;
    });
}

/// Upgrades to HPCC++ at 400 Gb/s when telemetry arrives.
fn fast(congestion: &mut Congestion) {
    let to = CongestionAlgorithm::Hpcc(HpccConfig::new(Rate::from_gbps(400), RTT, NonZeroU32::MIN));
    congestion.upgrade = Some(Upgrade { when: When::TelemetryAnswered, to });
    congestion.probe_interval = Some(RTT);
}

fn at_the_switchs_rate(adjust: fn(&mut Congestion)) {
    let congestion = CongestionAlgorithm::Fixed { window: 1 << 20, rate: None };
    let open = Options { congestion, adjust, ..auto() };
    let mut pair = Pair::connect(open);
    let mut time = 0;
    let link = Speed::from_code(12).unwrap();
    pair.filter = Some(Box::new(move |from, frame| {
        if from == 0 {
            time += 1000;
            stamp(frame, 1, HopRecord::new(link, time, time, 0));
        }
        true
    }));
    assert_eq!(algorithm_after(&mut pair), "hpcc");
    let rate = pair.reports()[0].unwrap().rate.unwrap();
    assert!(rate <= link.rate(), "{rate}");
}

/// A peer that answers probes over a path whose switches write no telemetry, and a peer without telemetry.
#[test]
fn without_telemetry_dcqcn_stays_and_probing_ends() {
    for answers in [true, false] {
        let mut pair = Pair::connect(auto());
        pair.filter = Some(Box::new(move |_, frame| {
            answers || !matches!(parse(frame).unwrap().header, Header::TelemetryRequest { .. })
        }));
        assert_eq!(algorithm_after(&mut pair), "dcqcn");
        // The first eight are sent without a back-off, and there are at most 20.
        let probes = pair.hosts[0].endpoint.counters().probes_sent;
        assert!((8..=20).contains(&probes), "{probes}");
    }
}

/// Returns a fixed window that is replaced by any better algorithm.
fn window() -> Options {
    Options { congestion: CongestionAlgorithm::Fixed { window: 64 << 10, rate: None }, ..auto() }
}

/// The default of queue pairs: the window stays, and probing leaves no state.
#[test]
fn without_telemetry_a_fixed_window_stays_and_no_answer_is_dropped() {
    for answers in [true, false] {
        let mut pair = Pair::connect(window());
        pair.filter = Some(Box::new(move |_, frame| {
            answers || !matches!(parse(frame).unwrap().header, Header::TelemetryRequest { .. })
        }));
        for _ in 0..3 {
            assert_eq!(algorithm_after(&mut pair), "fixed");
        }
        let report = pair.reports()[0].unwrap();
        assert_eq!((report.window, report.rate), (64 << 10, None));
        let counters = pair.hosts[0].endpoint.counters();
        assert!((8..=20).contains(&counters.probes_sent), "{}", counters.probes_sent);
        let answered = if answers { counters.probes_sent } else { 0 };
        assert_eq!((counters.probe_responses, counters.discarded(Discard::Telemetry)), (answered, 0));
    }
}

/// Many flows that start together each send this much before any feedback arrives. The window grows by the bytes acknowledged after the
/// first answer to a probe without telemetry, or after the third unanswered probe. If it were 512 KiB at once, marks would arrive too late.
#[test]
fn at_most_64_kib_leave_before_the_path_is_known() {
    for answers in [true, false] {
        let congestion = CongestionAlgorithm::Fixed { window: 512 << 10, rate: None };
        let mut pair = Pair::connect(Options { congestion, ..auto() });
        let sent = Rc::new(Cell::new((0, false)));
        let seen = Rc::clone(&sent);
        pair.filter = Some(Box::new(move |from, frame| {
            let is_probe = matches!(parse(frame).unwrap().header, Header::TelemetryRequest { .. });
            let (bytes, is_answered) = seen.get();
            let payload = if is_probe { 0 } else { 1024 };
            seen.set(if from == 1 || is_answered { (bytes, true) } else { (bytes + payload, false) });
            answers || !is_probe
        }));
        assert_eq!(pair.reports()[0].unwrap().window, 64 << 10);
        assert_eq!(algorithm_after(&mut pair), "fixed");
        assert_eq!(sent.get(), (64 << 10, true), "probes are answered: {answers}");
        let grown = pair.reports()[0].unwrap().window;
        assert!((65 << 10..512 << 10).contains(&grown), "{grown}");
        assert_eq!(algorithm_after(&mut pair), "fixed");
        assert_eq!(pair.reports()[0].unwrap().window, 512 << 10);
    }
}

#[test]
fn marks_bring_dcqcn_in_place_of_a_fixed_window() {
    let mut pair = Pair::connect(window());
    let mut frames = 0;
    pair.filter = Some(Box::new(move |from, frame| {
        assert_eq!(ecn(frame), Some(Ecn::Ect0));
        frames += 1;
        assert!(from == 1 || frames < 100 || mark_ce(frame));
        true
    }));
    assert_eq!(algorithm_after(&mut pair), "dcqcn");
    let (window, least) = (64 << 10, Duration::from_micros(10));
    let rate = pair.reports()[0].unwrap().rate.unwrap();
    assert!(rate < Rate::of(window, least), "{rate}");
}

/// draft-bensley-tcpm-dctcp-01, section 4: the estimated round trip determines the algorithm.
#[test]
fn a_short_round_trip_selects_dctcp() {
    let mut near = Pair::connect(below(Duration::from_millis(1)));
    assert_eq!(algorithm_after(&mut near), "dctcp");
    let from = near.hosts[0].sge(0, 100);
    let remote = Remote { address: BASE, rkey: near.hosts[1].region.rkey };
    near.filter = Some(Box::new(|from, frame| {
        assert!(from == 1 || ecn(frame) == Some(Ecn::Ect0));
        true
    }));
    near.post(0, SendRequest::write(2, from, remote));
    near.run(Duration::from_millis(1));
    let mut far = Pair::connect(below(Duration::from_micros(1)));
    assert_eq!(algorithm_after(&mut far), "fixed");
}

fn write_until(pair: &mut Pair, end: Instant) -> &'static str {
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    while pair.now < end {
        let from = pair.hosts[0].sge(0, 4_000);
        pair.post(0, SendRequest::write(1, from, remote));
        pair.step();
        pair.run_until((pair.now + RTT).min(end));
        pair.hosts[0].sent();
    }
    pair.reports()[0].unwrap().algorithm
}

/// A switch restarts without telemetry, and later with it: HPCC++ does not keep its last rate permanently, and runs again afterwards.
#[test]
fn missing_and_restored_telemetry_changes_the_algorithm() {
    type Adjust = fn(&mut Congestion);
    let in_band: Adjust = |congestion| congestion.in_band = NonZeroU32::new(2);
    for (name, probe_interval, adjust) in
        [("probes", Some(RTT), (|_| {}) as Adjust), ("in band", None, in_band)]
    {
        let config = HpccConfig::new(line(), RTT, NonZeroU32::MIN);
        let congestion = CongestionAlgorithm::Hpcc(config);
        let options = Options { congestion, probe_interval, adjust, ack_timeout: 14, ..Options::default() };
        let mut pair = Pair::connect(options);
        let stamps = Rc::new(Cell::new(true));
        let (asked, mut time) = (Rc::clone(&stamps), 0);
        pair.filter = Some(Box::new(move |from, frame| {
            time += 1000;
            if from == 0 && asked.get() {
                stamp(frame, 1, HopRecord::new(Speed::from_code(12).unwrap(), time, time, 0));
            }
            true
        }));
        let mut now = Instant::ZERO;
        let mut after = |pair: &mut Pair, round_trips: u32, with: bool| {
            stamps.set(with);
            now = now + RTT * round_trips;
            write_until(pair, now)
        };
        // Including the setup and the first telemetry.
        assert_eq!(after(&mut pair, 100, true), "hpcc", "{name}");
        assert_eq!(after(&mut pair, 20, false), "dcqcn", "{name}");
        assert_eq!(after(&mut pair, 500, false), "dcqcn", "{name}");
        assert_eq!(after(&mut pair, 20, true), "hpcc", "{name}");
        assert_eq!(after(&mut pair, 500, true), "hpcc", "{name}");
        let told: Vec<_> = std::iter::from_fn(|| pair.hosts[0].endpoint.poll_congestion_change())
            .map(|told| told.to_string())
            .collect();
        assert_eq!(told.len(), 2, "{told:?}");
        assert!(
            told[0].ends_with("no telemetry comes back, congestion control is dcqcn from now on"),
            "{told:?}"
        );
        assert!(
            told[1].ends_with("telemetry comes back again, congestion control is hpcc from now on"),
            "{told:?}"
        );
    }
}

/// A base round-trip time that differs from that of the empty path is reported once; a correct one is not.
#[test]
fn a_wrong_base_rtt_is_reported_once() {
    let told = |base_rtt| {
        let congestion = CongestionAlgorithm::Hpcc(HpccConfig::new(line(), base_rtt, NonZeroU32::MIN));
        let options =
            Options { congestion, probe_interval: Some(RTT), ack_timeout: 14, ..Options::default() };
        let mut pair = Pair::connect(options);
        let mut time = 0;
        pair.filter = Some(Box::new(move |from, frame| {
            if from == 0 {
                time += 1000;
                stamp(frame, 1, HopRecord::new(Speed::from_code(12).unwrap(), time, time, 0));
            }
            true
        }));
        for _ in 0..4 {
            algorithm_after(&mut pair);
        }
        let (_, least) = pair.reports()[0].unwrap().round_trip.unwrap();
        let told = std::iter::from_fn(|| pair.hosts[0].endpoint.poll_congestion_change());
        (least, told.map(|told| told.to_string()).collect::<Vec<_>>())
    };
    let (empty, _) = told(RTT);
    for (base_rtt, said) in [(empty / 10, Some("too short")), (empty, None), (empty * 10, Some("too long"))] {
        let (_, told) = told(base_rtt);
        assert_eq!(told.len(), usize::from(said.is_some()), "{base_rtt:?}: {told:?}");
        assert!(said.is_none_or(|said| told[0].contains(said)), "{base_rtt:?}: {told:?}");
    }
}

/// The response to a message's last probe is lost, and nothing is sent for a second. This does not count as missing telemetry.
#[test]
fn an_answer_lost_before_an_idle_time_is_not_missing_telemetry() {
    let congestion = CongestionAlgorithm::Hpcc(HpccConfig::new(line(), RTT, NonZeroU32::MIN));
    let options = Options { congestion, probe_interval: Some(RTT), ack_timeout: 14, ..Options::default() };
    let mut pair = Pair::connect(options);
    let mut time = 0;
    let answers = Rc::new(Cell::new(true));
    let answered = Rc::clone(&answers);
    pair.filter = Some(Box::new(move |from, frame| {
        time += 1000;
        if from == 0 {
            stamp(frame, 1, HopRecord::new(Speed::from_code(12).unwrap(), time, time, 0));
        }
        answered.get() || !matches!(parse(frame).unwrap().header, Header::TelemetryResponse { .. })
    }));
    let end = Instant::ZERO + RTT * 100;
    assert_eq!(write_until(&mut pair, end), "hpcc");
    answers.set(false);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    for pause in 0..3 {
        let from = pair.hosts[0].sge(0, 100);
        pair.post(0, SendRequest::write(pause, from, remote));
        pair.run(Duration::from_secs(1));
        answers.set(true);
        pair.now = pair.now + Duration::from_secs(1);
        assert_eq!(pair.reports()[0].unwrap().algorithm, "hpcc", "after {pause} pauses");
    }
}
