//! The effect of loss and reordering on endpoints at 100 Gb/s with a round trip of 10 µs. `ci/loss` has more checks.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{
    Change, Conventions, Flow, Hosts, Link, LinkChange, Outcome, Requests, Sampling, ScriptedFault, Setup,
    Topology, Verb, run, run_on, window,
};
use ferroce_fabric::{FaultAction, FaultRule, Opcodes, Probability};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_nanos(2500);
const MTU: u32 = 4096;
const BYTES: u64 = 8 << 20;

fn fixed() -> Congestion {
    Congestion::new(AlgorithmConfig::Fixed { window: 512 << 10, rate: None })
}

fn setup(flows: Vec<Flow>, congestion: Congestion, verb: Verb, selective_repeat: bool) -> Setup {
    Setup {
        conventions: Conventions { payload: MTU, ..Conventions::FERROCE },
        requests: Requests { verb, bytes: 64 << 10, depth: 128, selective_repeat },
        ..Setup::new(Topology::star(3, LINE, HOP), flows, congestion)
    }
}

fn flow(source: u32, bytes: u64) -> Flow {
    Flow { source, destination: 2, bytes, start: Duration::ZERO, is_incast: false, dscp: 0 }
}

fn outcome(setup: &Setup) -> Outcome {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), setup.flows.len());
    outcome
}

fn lossy(setup: &Setup, loss: f64, seed: u64) -> Outcome {
    outcome(&Setup { loss: Probability::new(loss).unwrap(), seed, ..setup.clone() })
}

/// The links lose 1 % of all frames: requests, responses and acknowledgements.
#[test]
fn selective_repeat_keeps_nine_tenths_of_the_goodput_at_one_percent_loss() {
    for verb in [Verb::Write, Verb::Read, Verb::Send] {
        let setup = setup(vec![flow(0, BYTES)], fixed(), verb, true);
        let (clean, lost) = (outcome(&setup), lossy(&setup, 0.01, 1));
        assert_eq!(clean.retransmitted, 0);
        assert!(lost.lost > 10, "{lost:?}");
        let share = clean.time.as_secs_f64() / lost.time.as_secs_f64();
        assert!(share > 0.9, "{verb:?}: {share}");
    }
}

#[test]
fn go_back_n_keeps_four_tenths_of_the_goodput_at_one_percent_loss() {
    for verb in [Verb::Write, Verb::Read, Verb::Send] {
        let setup = setup(vec![flow(0, BYTES)], fixed(), verb, false);
        let share = outcome(&setup).time.as_secs_f64() / lossy(&setup, 0.01, 1).time.as_secs_f64();
        assert!(share > 0.4, "{verb:?}: {share}");
    }
}

/// Host 0 sends to host 2, whose link loses 1 % in both directions. Host 1 sends and receives nothing.
#[test]
fn a_link_loses_its_share_of_the_packets_that_it_carries() {
    let with = |lossy: usize, loss: f64| {
        let loss = |host| if host == lossy { Probability::new(loss).unwrap() } else { Probability::NEVER };
        let links = (0..3).map(|host| Link { loss: loss(host), ..Link::new([host, 3], LINE, HOP) }).collect();
        let topology = Topology::graph(3, 1, links).unwrap();
        outcome(&Setup { topology, ..setup(vec![flow(0, 4 * BYTES)], fixed(), Verb::Write, true) })
    };
    let (whole, lost) = (with(2, 0.0), with(2, 0.01));
    let carried = lost.packets as f64;
    println!("{} of {carried} lost, {} sent again", lost.lost, lost.retransmitted);
    assert!((0.007..0.013).contains(&(lost.lost as f64 / carried)), "{} of {carried}", lost.lost);
    assert!(lost.retransmitted > 50 && lost.time > whole.time, "{}", lost.retransmitted);
    let other = with(1, 0.01);
    assert_eq!((other.trace, other.lost), (whole.trace, 0), "a link without packets loses none");
}

/// Four paths, whose longest delay exceeds the shortest by up to a round trip.
#[test]
fn packets_late_by_less_than_a_round_trip_are_not_retransmitted() {
    for verb in [Verb::Write, Verb::Send] {
        for micros in [1, 5, 10] {
            let spread = Duration::from_micros(micros);
            let outcome = outcome(&Setup { spread, ..setup(vec![flow(0, BYTES)], fixed(), verb, true) });
            assert_eq!((outcome.retransmitted, outcome.doubled), (0, 0), "{verb:?}, {micros} µs");
        }
    }
}

const TRIP: Duration = Duration::from_nanos(10_700);

/// Two senders with HPCC++ on one link, with one row per microsecond.
fn shared_link() -> Setup {
    let config = HpccConfig::new(LINE, TRIP, NonZeroU32::new(100).unwrap());
    let congestion = Congestion {
        in_band: Some(NonZeroU32::MIN),
        probe_interval: Some(TRIP),
        ..Congestion::new(AlgorithmConfig::Hpcc(config))
    };
    let flows = vec![flow(0, 4 * BYTES), flow(1, 4 * BYTES)];
    let sampling = Some(Sampling { every: Duration::from_micros(1), host: 2, flows: 2 });
    Setup { sampling, ..setup(flows, congestion, Verb::Write, true) }
}

/// From the time at which both senders have their share until the first has almost finished.
const STEADY: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(4));

/// The links lose 1 % of the senders' data, probes and responses.
#[test]
fn hpcc_keeps_its_queue_while_one_percent_is_lost() {
    let setup = shared_link();
    let (clean, lost) = (lossy(&setup, 0.0, 1), lossy(&setup, 0.01, 1));
    for outcome in [&clean, &lost] {
        let (carried, jain, [_, _, p99, _]) = window(&outcome.series, STEADY.0, STEADY.1).unwrap();
        println!("{carried:.1} Gb/s, Jain {jain:.2}, p99 {p99} B, {} lost", outcome.lost);
        assert!(p99 <= 3.0 * 4200.0, "p99 of the queue: {p99} B");
        assert!(carried > 80.0, "{carried} Gb/s");
    }
}

/// A lost packet, probe or response may reduce the rate, but only for a short time. The sum of both rates is below 90 % of the sum without
/// loss for at most seven round trips (measured: three).
#[test]
fn hpcc_has_its_rate_back_within_seven_round_trips_of_a_loss() {
    let steady = |outcome: &Outcome| -> Vec<u64> {
        let steady = STEADY.0.as_nanos() as u64..STEADY.1.as_nanos() as u64;
        let rows = outcome.series.iter().filter(|row| steady.contains(&row.time));
        rows.map(|row| row.rates.iter().sum()).collect()
    };
    let setup = shared_link();
    let clean = steady(&lossy(&setup, 0.0, 1));
    let usual = clean.iter().sum::<u64>() / clean.len() as u64;
    for seed in 1..=5 {
        let outcome = lossy(&setup, 0.01, seed);
        let rates = steady(&outcome);
        let dips = rates.split(|&rate| rate * 10 >= usual * 9);
        let longest = dips.map(<[u64]>::len).max().unwrap_or_default();
        let mean = rates.iter().sum::<u64>() / rates.len() as u64;
        println!("{usual} b/s, with {} lost {mean} b/s, longest dip {longest} us", outcome.lost);
        assert!(Duration::from_micros(longest as u64) <= 7 * TRIP, "{longest} us");
        assert!(mean * 100 >= usual * 95, "{mean} b/s of {usual}");
    }
}

/// A rule affects the first frames that match, at the host or at the port of a switch.
#[test]
fn a_script_affects_the_frames_of_its_rules() {
    let base = setup(vec![flow(0, BYTES)], fixed(), Verb::Write, true);
    let clean = outcome(&base);
    let scripted = |port, action| {
        let rule = FaultRule {
            name: "some".into(),
            count: Some(3),
            longer_than: Some(1000),
            ..FaultRule::of(action)
        };
        let outcome = outcome(&Setup { faults: vec![ScriptedFault { port, rule }], ..base.clone() });
        let [report] = &outcome.faults[..] else { panic!("{:?}", outcome.faults) };
        assert!(report.fitted > 1000 && report.happened == 3, "{report:?}");
        outcome
    };
    let (at_host, at_switch) = (None, Some([3, 2]));
    for port in [at_host, at_switch] {
        assert_eq!(scripted(port, FaultAction::Drop).lost, 3);
        assert_eq!(scripted(port, FaultAction::Duplicate).doubled, 3);
        assert!(scripted(port, FaultAction::Corrupt { good_icrc: false }).retransmitted >= 3);
        let late = scripted(port, FaultAction::Delay(Duration::from_millis(1)));
        assert!(late.retransmitted >= 3 || late.time > clean.time, "{late:?}");
        let reordered = scripted(port, FaultAction::Reorder(2));
        assert_eq!((reordered.finished.len(), reordered.lost), (1, 0));
        assert_ne!(reordered.trace, clean.trace);
    }
    // The acknowledgements return through another port.
    let rule = FaultRule { longer_than: Some(1000), ..FaultRule::of(FaultAction::Drop) };
    let other = outcome(&Setup { faults: vec![ScriptedFault { port: Some([3, 0]), rule }], ..base.clone() });
    assert_eq!((other.lost, other.trace), (0, clean.trace));
}

/// A held frame continues after 1 ms even if no frame overtakes it, and then still has the link's delay before it.
#[test]
fn a_frame_that_nothing_overtakes_arrives_a_millisecond_later() {
    let base = setup(vec![flow(0, 1000)], fixed(), Verb::Write, true);
    let rule = FaultRule { longer_than: Some(500), ..FaultRule::of(FaultAction::Reorder(60)) };
    let held = Setup { faults: vec![ScriptedFault { port: None, rule }], ..base.clone() };
    assert_eq!(outcome(&held).time - outcome(&base).time, Duration::from_millis(1));
}

/// The script holds the only packet of the flow. The link fails and returns before the hold ends.
#[test]
fn a_held_frame_is_lost_when_its_link_fails() {
    let base = setup(vec![flow(0, 1000)], fixed(), Verb::Write, true);
    let rule =
        FaultRule { longer_than: Some(500), count: Some(1), ..FaultRule::of(FaultAction::Reorder(60)) };
    let change = |micros, what| Change { at: Duration::from_micros(micros), links: vec![0], what };
    let changes = vec![change(100, LinkChange::Down), change(200, LinkChange::Up)];
    let failed = outcome(&Setup { faults: vec![ScriptedFault { port: None, rule }], changes, ..base });
    assert_eq!((failed.lost, failed.doubled), (1, 0));
    assert!(failed.retransmitted >= 1);
}

/// Model hosts go back to a lost packet, after a gap or after 250 µs without progress.
#[test]
fn a_script_affects_the_packets_of_model_hosts() {
    let base = Setup {
        hosts: Hosts::Model,
        ..setup(vec![flow(0, BYTES), flow(1, BYTES)], fixed(), Verb::Write, false)
    };
    let clean = outcome(&base);
    let until = Some(Duration::from_micros(300));
    let scripted = |action, count, port| {
        let data = Some(1000);
        let rule =
            FaultRule { name: "some".into(), count, longer_than: data, until, ..FaultRule::of(action) };
        Setup { faults: vec![ScriptedFault { port, rule }], ..base.clone() }
    };
    let at_switch = Some([3, 2]);
    let lost = outcome(&scripted(FaultAction::Drop, Some(3), at_switch));
    assert_eq!((lost.lost, lost.faults[0].happened), (3, 3));
    assert!(lost.retransmitted >= 3 && lost.time > clean.time, "{lost:?}");
    let everywhere = outcome(&scripted(FaultAction::Drop, Some(3), None));
    assert_eq!((everywhere.lost, everywhere.faults.len()), (6, 1), "each host counts its own packets");
    for action in [FaultAction::Duplicate, FaultAction::Reorder(2), FaultAction::Delay(HOP)] {
        let changed = outcome(&scripted(action, Some(3), at_switch));
        assert_eq!((changed.lost, changed.faults[0].happened), (0, 3), "{action:?}");
        assert_ne!(changed.trace, clean.trace, "{action:?}");
    }
    // 300 µs in which nothing arrives, or a fifth of the link's rate.
    let pause = outcome(&scripted(FaultAction::Pause, None, at_switch));
    let slow = outcome(&scripted(FaultAction::Rate(Rate::from_gbps(20)), None, at_switch));
    let micros = |outcome: &Outcome| outcome.time.as_micros() as i64 - clean.time.as_micros() as i64;
    // The frames that waited arrive at once, instead of one after the other.
    assert!((200..300).contains(&micros(&pause)), "{}", micros(&pause));
    assert_eq!(pause.retransmitted, 0, "frames that waited arrive in order");
    assert!((200..600).contains(&micros(&slow)), "{}", micros(&slow));
    // The counts are those of one thread, on any number.
    let two = run_on(2, &scripted(FaultAction::Drop, Some(3), None), &mut ()).unwrap();
    assert_eq!((two.trace, &two.faults), (everywhere.trace, &everywhere.faults));
}

#[test]
fn a_rule_about_headers_is_refused_for_model_hosts_by_its_name() {
    let base = Setup { hosts: Hosts::Model, ..setup(vec![flow(0, BYTES)], fixed(), Verb::Write, false) };
    let any = FaultRule { name: "some".into(), ..FaultRule::of(FaultAction::Drop) };
    for (rule, key) in [
        (FaultRule { opcodes: Some(Opcodes::of(|_| true)), ..any.clone() }, "opcode"),
        (FaultRule { psns: Some(1..=2), ..any.clone() }, "psn"),
        (FaultRule { action: FaultAction::Corrupt { good_icrc: false }, ..any }, "action = \"corrupt\""),
    ] {
        let faults = vec![ScriptedFault { port: None, rule: rule.clone() }];
        let error = Setup { faults: faults.clone(), ..base.clone() }.check().unwrap_err().to_string();
        assert!(error.starts_with(&format!("fault some: {key} is about bytes")), "{error}");
        assert!(Setup { faults, hosts: Hosts::Endpoints, ..base.clone() }.check().is_ok(), "{key}");
    }
}
