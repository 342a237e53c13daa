//! The effect of loss and reordering on endpoints at 100 Gb/s with a round trip of 10 µs. `ci/loss` has more checks.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::Probability;
use ferroce_fabric::sim::{
    Conventions, Flow, Link, Outcome, Requests, Sampling, Setup, Topology, Verb, run, window,
};
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
    let outcome = run(setup, &mut |_, _, _| {}).unwrap();
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
