//! Tests that the outcome of a run does not depend on the number of threads.

use cc::{AlgorithmConfig, DcqcnConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{
    Application, Change, Conventions, Flow, Hosts, LinkChange, Outcome, Requests, Sampling, Setup,
    SizeDistribution, Topology, Verb, poisson, run_on,
};
use ferroce_fabric::{Probability, Red};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
const RTT: Duration = Duration::from_nanos(8_500);

fn hpcc() -> AlgorithmConfig {
    AlgorithmConfig::HpccFair(HpccConfig::new(LINE, RTT, NonZeroU32::MIN))
}

/// Four leaves with four hosts each; random flows for 100 µs, and a series of a leaf's port.
fn setup(algorithm: AlgorithmConfig, seed: u64) -> Setup {
    let topology = Topology::leaf_spine(4, 2, 4, LINE, LINE, HOP);
    let flows =
        poisson(16, LINE, &SizeDistribution::web_search(), 0.4, Duration::from_micros(100), None, seed);
    let host = flows[0].destination;
    Setup {
        hosts: Hosts::Model,
        sampling: Some(Sampling { every: HOP * 3, host, flows: flows.len().min(20) }),
        sampled: vec![[16, 20], [21, 19]],
        seed,
        ..Setup::new(topology, flows, Congestion::new(algorithm))
    }
}

/// Checks that 1 to 4 threads have the same outcome, and returns it.
fn same_on_any_number_of_threads(setup: &Setup) -> Outcome {
    let outcome = |threads| {
        let mut outcome = run_on(threads, setup, &mut ()).unwrap();
        outcome.packets_most = 0;
        outcome
    };
    let one = outcome(1);
    for threads in 2..=4 {
        assert_eq!(outcome(threads), one, "{threads} threads");
    }
    one
}

#[test]
fn random_flows_have_the_same_outcome_on_any_number_of_threads() {
    for seed in 1..4 {
        let setup = setup(hpcc(), seed);
        let outcome = same_on_any_number_of_threads(&setup);
        assert_eq!(outcome.finished.len(), setup.flows.len());
        assert!(outcome.series.iter().any(|row| row.rates.iter().any(|rate| *rate > 0)));
        let whole = Setup { conventions: Conventions::HPCC_NS3, ..setup };
        assert_ne!(same_on_any_number_of_threads(&whole).trace, outcome.trace);
    }
}

/// Fifteen flows of DCQCN to one host, at switches that mark and pause.
fn incast() -> Setup {
    let dcqcn = AlgorithmConfig::Dcqcn(DcqcnConfig::new(LINE, Some(RTT)));
    let flow = |source| Flow {
        source,
        destination: 0,
        bytes: 300_000,
        start: Duration::ZERO,
        is_incast: true,
        dscp: 0,
    };
    let red = Some(Red { from: 20_000, to: 100_000, most: Probability::ALWAYS });
    let flows = (1..16).map(flow).collect();
    let dcqcn = setup(dcqcn, 5);
    Setup { flows, red, buffer: 600_000, ..dcqcn }
}

/// Pauses, marks and timers of DCQCN.
#[test]
fn an_incast_with_pauses_and_marks_has_the_same_outcome_on_any_number_of_threads() {
    let setup = Setup { jitter: HOP, ..incast() };
    let outcome = same_on_any_number_of_threads(&setup);
    assert!(outcome.pauses > 0 && outcome.marked > 0, "{} pauses, {} marks", outcome.pauses, outcome.marked);
    let without = Setup { pfc: None, ..setup };
    let outcome = same_on_any_number_of_threads(&without);
    assert!(outcome.dropped > 0 && outcome.retransmitted > 0, "{} drops", outcome.dropped);
}

#[test]
fn links_that_fail_and_return_have_the_same_outcome_on_any_number_of_threads() {
    let change = |micros, what| Change { at: Duration::from_micros(micros), links: vec![16, 21], what };
    let changes = vec![
        change(20, LinkChange::Rate(Rate::from_gbps(25))),
        change(50, LinkChange::Down),
        change(90, LinkChange::Up),
    ];
    let outcome = same_on_any_number_of_threads(&Setup { changes, ..setup(hpcc(), 7) });
    assert!(outcome.lost > 0, "packets were on the links");
}

/// As [`setup`], between endpoints.
fn endpoints(algorithm: AlgorithmConfig, seed: u64) -> Setup {
    Setup { hosts: Hosts::Endpoints, ..setup(algorithm, seed) }
}

#[test]
fn endpoints_have_the_same_outcome_on_any_number_of_threads() {
    let in_band = Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(hpcc()) };
    for seed in 1..4 {
        let setup = endpoints(hpcc(), seed);
        let outcome = same_on_any_number_of_threads(&setup);
        assert_eq!((outcome.finished.len(), outcome.latencies.len()), (setup.flows.len(), setup.flows.len()));
        assert!(outcome.series.iter().any(|row| row.rates.iter().any(|rate| *rate > 0)));
        let in_band = Setup { congestion: in_band, cores: 2, jitter: HOP, ..setup };
        assert_ne!(same_on_any_number_of_threads(&in_band).trace, outcome.trace);
    }
}

/// Pauses, marks, drops and retransmissions, and a slow application that posts receives.
#[test]
fn an_incast_between_endpoints_has_the_same_outcome_on_any_number_of_threads() {
    let setup = Setup { hosts: Hosts::Endpoints, ..incast() };
    let outcome = same_on_any_number_of_threads(&setup);
    assert!(outcome.pauses > 0 && outcome.marked > 0, "{} pauses, {} marks", outcome.pauses, outcome.marked);
    let without = Setup { pfc: None, ..setup };
    let outcome = same_on_any_number_of_threads(&without);
    assert!(outcome.dropped > 0 && outcome.retransmitted > 0, "{} drops", outcome.dropped);
    let requests = Requests { verb: Verb::Send, bytes: 16_000, depth: 2, selective_repeat: true };
    let applications = vec![Application { host: 0, rate: Rate::from_gbps(20) }];
    let outcome = same_on_any_number_of_threads(&Setup { requests, applications, ..without });
    assert!(outcome.retransmitted > 0, "the application is slow");
}

#[test]
fn links_that_fail_between_endpoints_have_the_same_outcome_on_any_number_of_threads() {
    // All links of a spine.
    let links = vec![16, 18, 20, 22];
    let change = |micros, what| Change { at: Duration::from_micros(micros), links: links.clone(), what };
    let changes = vec![change(120, LinkChange::Down), change(200, LinkChange::Up)];
    let outcome = same_on_any_number_of_threads(&Setup { changes, ..endpoints(hpcc(), 7) });
    assert!(outcome.lost > 0, "packets were on the links");
}

/// The flows to a host whose link fails exceed their retries.
#[test]
fn a_run_that_fails_has_the_same_error_on_any_number_of_threads() {
    let changes = vec![Change { at: Duration::from_micros(20), links: vec![5], what: LinkChange::Down }];
    let setup = Setup { changes, sampling: None, sampled: Vec::new(), ..endpoints(hpcc(), 7) };
    let error = |threads| run_on(threads, &setup, &mut ()).unwrap_err().to_string();
    let one = error(1);
    println!("{one}");
    assert!((2..=4).all(|threads| error(threads) == one), "{one}");
}

#[test]
fn a_run_that_its_limit_ends_has_the_same_outcome_on_any_number_of_threads() {
    let limit = Duration::from_micros(60);
    let outcome = same_on_any_number_of_threads(&Setup { limit, ..setup(hpcc(), 9) });
    assert_eq!(outcome.time, limit);
}
