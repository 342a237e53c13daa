//! Spraying over four paths of unequal delay: 100 Gb/s, round trips of 10 to 20 µs.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::Probability;
use ferroce_fabric::sim::{Conventions, Flow, Outcome, Requests, Setup, Topology, Verb, run};
use roce::qp::{Congestion, PathChoice};
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
/// Delay of one of the four links of a path.
const HOP: Duration = Duration::from_nanos(1250);
const BYTES: u64 = 24 << 20;
const BASE_RTT: Duration = Duration::from_nanos(11_500);

fn fixed() -> Congestion {
    Congestion::new(AlgorithmConfig::Fixed { window: 512 << 10, rate: None })
}

fn hpcc() -> Congestion {
    let config = HpccConfig::new(LINE, BASE_RTT, NonZeroU32::new(100).unwrap());
    Congestion { probe_interval: Some(BASE_RTT), ..Congestion::new(AlgorithmConfig::Hpcc(config)) }
}

fn setup(congestion: Congestion, verb: Verb, mtu: u32, spray: bool) -> Setup {
    let flow =
        Flow { source: 0, destination: 1, bytes: BYTES, start: Duration::ZERO, is_incast: false, dscp: 0 };
    let micros = Duration::from_micros;
    let topology = Topology::unequal_paths(LINE, LINE, HOP, &[0, 2, 3, 5].map(micros));
    let paths = PathChoice { count: 4, interval: BASE_RTT, spray: true };
    let congestion = Congestion { paths: spray.then_some(paths), ..congestion };
    Setup {
        conventions: Conventions { payload: mtu, ..Conventions::FERROCE },
        requests: Requests { verb, bytes: 64 << 10, depth: 128, selective_repeat: true },
        ..Setup::new(topology, vec![flow], congestion)
    }
}

fn outcome(setup: &Setup) -> Outcome {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), 1);
    outcome
}

fn share(congestion: Congestion, verb: Verb, mtu: u32) -> f64 {
    let clean = outcome(&setup(congestion, verb, mtu, false));
    let sprayed = outcome(&setup(congestion, verb, mtu, true));
    assert_eq!((sprayed.retransmitted, sprayed.doubled), (0, 0), "{verb:?}, {mtu}");
    let share = clean.time.as_secs_f64() / sprayed.time.as_secs_f64();
    println!("{verb:?}, MTU {mtu}: {share:.3} of {:.1} Gb/s", BYTES as f64 * 8e-9 / clean.time.as_secs_f64());
    share
}

#[test]
fn unequal_paths_cost_no_retransmission_and_little_goodput() {
    for verb in [Verb::Write, Verb::Read, Verb::Send] {
        for mtu in [1024, 4096] {
            let share = share(fixed(), verb, mtu);
            assert!(share > 0.95, "{verb:?}, {mtu}: {share}");
        }
    }
}

/// Four paths of 25 Gb/s each. The switch selects a path by a hash of the ports. With seed 3 all four are in use, with the others two or
/// three. Their queues grow by a dozen round trips within one, without retransmissions.
#[test]
fn narrow_paths_add_up_without_a_retransmission() {
    const PATH: Rate = Rate::from_gbps(25);
    for mtu in [1024, 4096] {
        for (seed, floor) in [(3, 3.0), (1, 1.7), (2, 1.7), (4, 2.4)] {
            let narrow = |spray| {
                let topology = Topology::unequal_paths(LINE, PATH, HOP, &[Duration::ZERO; 4]);
                outcome(&Setup { topology, seed, ..setup(fixed(), Verb::Write, mtu, spray) })
            };
            let (one, four) = (narrow(false), narrow(true));
            let times = one.time.as_secs_f64() / four.time.as_secs_f64();
            println!("MTU {mtu}, seed {seed}: {times:.2} times one path");
            assert_eq!((four.retransmitted, four.doubled), (0, 0), "MTU {mtu}, seed {seed}");
            assert!(times > floor, "MTU {mtu}, seed {seed}: {times:.2} times one path");
        }
    }
}

#[test]
fn hpcc_keeps_nine_tenths_of_the_goodput_over_unequal_paths() {
    for mtu in [1024, 4096] {
        let share = share(hpcc(), Verb::Write, mtu);
        assert!(share > 0.9, "{mtu}: {share}");
    }
}

#[test]
fn a_sprayed_queue_pair_keeps_nine_tenths_at_one_percent_loss() {
    let setup = setup(fixed(), Verb::Write, 4096, true);
    let lossy = Setup { loss: Probability::new(0.01).unwrap(), ..setup.clone() };
    let (clean, lost) = (outcome(&setup), outcome(&lossy));
    let share = clean.time.as_secs_f64() / lost.time.as_secs_f64();
    println!("{share:.3}, {} sent again, {} needless", lost.retransmitted, lost.doubled);
    assert!(share > 0.9, "{share}");
}
