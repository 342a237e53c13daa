//! The simulator: equal runs are equal, and congestion control does in virtual time what it is for.

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Outcome, Scenario, ScenarioError, run};
use roce::qp::{Congestion, CongestionAlgorithm};
use roce::wire::Mtu;
use std::num::NonZeroU32;
use std::time::Duration;

const RTT: Duration = Duration::from_nanos(4160);

fn hpcc() -> Congestion {
    let config = HpccConfig::new(Rate::from_gbps(100), RTT, NonZeroU32::new(100).unwrap());
    Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(CongestionAlgorithm::Hpcc(config)) }
}

fn fixed(window: u64) -> Congestion {
    Congestion::new(CongestionAlgorithm::Fixed { window, rate: None })
}

/// `senders` hosts write `bytes` each to one more.
fn incast(senders: u32, bytes: u32, congestion: Congestion) -> Scenario {
    let flow = |source| Flow { source, destination: senders + 1, bytes, start: Duration::ZERO };
    Scenario {
        hosts: senders + 1,
        rate: Rate::from_gbps(100),
        delay: Duration::from_micros(1),
        queue: 32_000_000,
        ecn_threshold: None,
        mtu: Mtu::M1024,
        congestion,
        flows: (1..=senders).map(flow).collect(),
        jitter: Duration::ZERO,
        seed: 1,
        limit: Duration::from_secs(1),
    }
}

fn outcome(scenario: &Scenario) -> Outcome {
    run(scenario, &mut |_, _, _| {}).unwrap()
}

fn queue_max(outcome: &Outcome) -> u64 {
    outcome.report.ports.iter().map(|port| port.queue.max).max().unwrap()
}

#[test]
fn a_message_alone_takes_as_long_as_its_bytes_and_the_way() {
    let outcome = outcome(&incast(1, 1_000_000, fixed(1 << 20)));
    let slowdown = outcome.slowdowns()[0];
    assert!((0.999..1.001).contains(&slowdown), "{slowdown}: {:?}", outcome.completed);
    assert_eq!((outcome.completed.len(), outcome.retransmitted), (1, 0));
    assert_eq!(outcome.report.ports.iter().map(|port| port.counters.drops.total()).sum::<u64>(), 0);
}

#[test]
fn the_same_seed_gives_the_same_run_and_another_seed_another() {
    let scenario = Scenario { jitter: Duration::from_nanos(100), ..incast(4, 100_000, hpcc()) };
    let (once, again) = (outcome(&scenario), outcome(&scenario));
    assert_eq!((once.trace, once.events, &once.completed), (again.trace, again.events, &again.completed));
    let other = outcome(&Scenario { seed: 2, ..scenario });
    assert_ne!(once.trace, other.trace);
}

#[test]
fn hpcc_keeps_the_queue_short_where_a_window_fills_it() {
    let (window, paced) =
        (outcome(&incast(2, 20_000_000, fixed(1 << 20))), outcome(&incast(2, 20_000_000, hpcc())));
    let (long, short) = (queue_max(&window), queue_max(&paced));
    assert!(long > 900_000, "a fixed window stands in the queue: {long}");
    // Both begin at line rate with a window of a round trip each: 52 kB too many, and what of the first ACKs is late.
    assert!(short < 65_000, "{short}");
    let p99 = paced.report.ports[2].queue.p99;
    assert!(p99 < 4 * 1100, "the steady queue is some packets: {p99}");
    let last = |outcome: &Outcome| outcome.completed.iter().map(|flow| flow.time).max().unwrap();
    let cost = last(&paced).as_secs_f64() / last(&window).as_secs_f64();
    assert!(cost < 1.12, "at 95 % of the link: {cost}");
}

#[test]
fn sixteen_senders_share_a_port() {
    let outcome = outcome(&incast(16, 500_000, hpcc()));
    assert_eq!(outcome.completed.len(), 16);
    let times: Vec<f64> = outcome.completed.iter().map(|flow| flow.time.as_secs_f64()).collect();
    let (sum, squares) = times.iter().fold((0.0, 0.0), |(s, q), t| (s + t, q + t * t));
    let jain = sum * sum / (squares * 16.0);
    assert!(jain > 0.95, "{jain}: {times:?}");
}

#[test]
fn what_can_not_be_is_named() {
    let mut scenario = incast(2, 1000, hpcc());
    scenario.flows[1].destination = 9;
    let refused = run(&scenario, &mut |_, _, _| {}).unwrap_err();
    assert_eq!(refused, ScenarioError::Flow { flow: 1, source_host: 2, destination: 9, hosts: 3 });
    let endless = Scenario { limit: Duration::from_micros(2), ..incast(1, 1000, hpcc()) };
    let refused = run(&endless, &mut |_, _, _| {}).unwrap_err();
    assert_eq!(refused, ScenarioError::Unfinished { left: 1, seconds: 0 });
}
