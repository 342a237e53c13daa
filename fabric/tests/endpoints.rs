//! Endpoints in the simulator, on every topology: equal runs have equal outcomes, all data arrives, congestion control limits queues, and
//! the results agree with the model of hosts.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::SecondClass;
use ferroce_fabric::sim::{
    Flow, Hosts, Incast, Outcome, Pfc, Sampling, Setup, SetupError, SizeDistribution, Steady, Topology,
    poisson, run, window,
};
use roce::qp::Congestion;
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
/// Trace of a run in debug and release builds. It changes only if the behaviour of the protocol changes.
const TRACE: u64 = 15_658_078_390_166_475_856;

fn hpcc(rtt: u64, max_stage: u32) -> Congestion {
    let config = HpccConfig::new(LINE, Duration::from_nanos(rtt), NonZeroU32::new(100).unwrap());
    let algorithm = AlgorithmConfig::Hpcc(HpccConfig { max_stage, ..config });
    Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) }
}

fn fixed(window: u64) -> Congestion {
    Congestion::new(AlgorithmConfig::Fixed { window, rate: None })
}

/// Hosts are numbered from 1.
fn flow(source: u32, destination: u32, bytes: u64, micros: u64) -> Flow {
    let start = Duration::from_micros(micros);
    Flow { source: source - 1, destination: destination - 1, bytes, start, is_incast: false, dscp: 0 }
}

fn incast(senders: u32, bytes: u64) -> Vec<Flow> {
    (1..=senders).map(|source| flow(source, senders + 1, bytes, 0)).collect()
}

fn star(flows: Vec<Flow>, congestion: Congestion) -> Setup {
    let hosts = flows.iter().map(|flow| flow.source.max(flow.destination)).max().unwrap() as usize + 1;
    Setup::new(Topology::star(hosts, LINE, HOP), flows, congestion)
}

fn outcome(setup: &Setup) -> Outcome {
    run(setup, &mut ()).unwrap()
}

fn mean(outcome: &Outcome) -> f64 {
    let times = outcome.finished.iter().map(|flow| flow.time.as_secs_f64() * 1e6);
    times.sum::<f64>() / outcome.finished.len() as f64
}

#[test]
fn a_message_alone_takes_its_transmission_and_propagation_time() {
    let outcome = outcome(&star(incast(1, 1_000_000), fixed(1 << 20)));
    let slowdown = outcome.finished[0].slowdown();
    assert!((0.99..1.01).contains(&slowdown), "{slowdown}: {:?}", outcome.finished);
    assert_eq!((outcome.finished.len(), outcome.retransmitted, outcome.dropped), (1, 0, 0));
}

#[test]
fn runs_are_equal_exactly_if_their_seeds_are() {
    let of =
        |seed| Setup { seed, jitter: Duration::from_nanos(100), ..star(incast(4, 100_000), hpcc(4160, 5)) };
    let (once, again, other) = (outcome(&of(1)), outcome(&of(1)), outcome(&of(2)));
    assert_eq!(once, again);
    assert_ne!(once.trace, other.trace);
    assert_eq!(once.trace, TRACE);
}

#[test]
fn hpcc_keeps_the_queue_short_where_a_window_fills_it() {
    let sampled = |congestion| {
        let setup = star(incast(2, 20_000_000), congestion);
        let sampling = Sampling { every: Duration::from_micros(1), host: 2, flows: 2 };
        outcome(&Setup { sampling: Some(sampling), ..setup })
    };
    let (windowed, paced) = (sampled(fixed(1 << 20)), sampled(hpcc(4160, 5)));
    assert!(windowed.queue_max > 900_000, "a fixed window stands in the queue: {}", windowed.queue_max);
    // Both start at line rate with a window of a base RTT each. This exceeds the path by 52 kB, and by more until the first ACKs arrive.
    assert!(paced.queue_max < 65_000, "{}", paced.queue_max);
    let steady = Steady::of(&paced, 1126).unwrap();
    assert!(steady.queue[2] < 4.0 * 1126.0, "the steady queue is some packets: {steady:?}");
    assert!(steady.jain > 0.9 && steady.utilisation_gbps > 90.0, "{steady:?}");
}

/// Every flow arrives in every topology, and alone it takes as long as the reference computes.
#[test]
fn every_flow_arrives_in_every_topology() {
    let fabric = Rate::from_gbps(400);
    for (name, topology, hosts, rtt) in [
        ("dumbbell", Topology::dumbbell(4, 4, LINE, LINE, HOP), 8, 6300),
        ("parking lot", Topology::parking_lot(3, 2, LINE, HOP), 6, 8400),
        ("leaf-spine", Topology::leaf_spine(4, 2, 4, LINE, fabric, HOP), 16, 8400),
        ("fat tree", Topology::fat_tree(LINE, fabric, HOP), 320, 12_600),
    ] {
        let flows: Vec<_> =
            (1..=hosts).map(|host| flow(host, (host + hosts / 2) % hosts + 1, 30_000, 0)).collect();
        let setup = Setup::new(topology, flows, hpcc(rtt, 0));
        let all = outcome(&setup);
        assert_eq!((all.finished.len(), all.dropped), (hosts as usize, 0), "{name}");
        let alone = Setup { flows: setup.flows[..1].to_vec(), ..setup };
        let slowdown = outcome(&alone).finished[0].slowdown();
        assert!((1.0..1.2).contains(&slowdown), "{name}: {slowdown}");
    }
}

/// Endpoints receive telemetry with acknowledgements, 32 times per window instead of with every packet, and by 16 probes in the first
/// window. Times of single flows differ from the model's; mean and total do not. `bands.rs` compares rates, fairness and queues.
#[test]
fn endpoints_and_the_model_agree() {
    let join = vec![flow(1, 3, 30_000_000, 0), flow(2, 3, 1_000_000, 300)];
    let four = [(1, 85_000_000, 0), (2, 42_000_000, 2000), (3, 20_000_000, 4000), (4, 5_500_000, 6000)];
    let four = four.map(|(source, bytes, start)| flow(source, 5, bytes, start)).to_vec();
    let lot = vec![flow(1, 6, 20_000_000, 0), flow(2, 3, 20_000_000, 200), flow(4, 5, 10_000_000, 400)];
    let time = Duration::from_micros(400);
    let search = poisson(16, LINE, &SizeDistribution::web_search(), 0.4, time, None, 3);
    let line = Topology::parking_lot(3, 2, LINE, HOP);
    let leaves = Topology::leaf_spine(4, 2, 4, LINE, Rate::from_gbps(400), HOP);
    let star = |flows| star(flows, hpcc(4160, 5));
    let mut apart = Vec::new();
    for (name, setup, band) in [
        ("single", star(vec![flow(1, 2, 20_000_000, 0)]), 0.05),
        ("two-to-one", star(incast(2, 20_000_000)), 0.05),
        ("incast-16", star(incast(16, 500_000)), 0.05),
        ("long-short", star(join), 0.05),
        ("fairness", star(four), 0.05),
        ("parking-lot", Setup::new(line, lot, hpcc(8320, 5)), 0.05),
        ("leaf-spine", Setup::new(leaves, search, hpcc(8320, 5)), 0.05),
    ] {
        let model = outcome(&Setup { hosts: Hosts::Model, ..setup.clone() });
        let endpoints = outcome(&setup);
        assert_eq!(endpoints.finished.len(), setup.flows.len(), "{name}");
        let (ours, theirs) = (mean(&endpoints), mean(&model));
        let last = |outcome: &Outcome| {
            outcome
                .finished
                .iter()
                .map(|flow| (flow.start + flow.time).as_secs_f64() * 1e6)
                .fold(0.0, f64::max)
        };
        let (end, their_end) = (last(&endpoints), last(&model));
        println!(
            "{name:<12}endpoints: mean {ours:>7.1} us, all {end:>7.1} us, peak {:>6} B, {} sent again; model: {theirs:>7.1}, {their_end:>7.1}, {:>6}",
            endpoints.queue_max, endpoints.retransmitted, model.queue_max
        );
        if (ours / theirs - 1.0).abs() > band || (end / their_end - 1.0).abs() > 0.05 {
            apart.push(name);
        }
    }
    assert!(apart.is_empty(), "{apart:?}");
}

#[test]
fn all_flows_finish_over_a_full_switch_with_and_without_pfc() {
    let crowd = |pfc| {
        let setup = Setup { buffer: 4_000_000, pfc, ..star(incast(16, 2_000_000), fixed(1_000_000)) };
        outcome(&setup)
    };
    let (paused, dropped) = (crowd(Some(Pfc::default())), crowd(None));
    assert_eq!((paused.dropped, paused.retransmitted, paused.finished.len()), (0, 0, 16));
    assert!(paused.pauses > 16 && !paused.paused.is_zero(), "{}", paused.pauses);
    assert!(dropped.dropped > 100 && dropped.retransmitted > 100, "{}", dropped.dropped);
    assert_eq!((dropped.pauses, dropped.finished.len()), (0, 16));
}

/// For both kinds of hosts: two flows, one of them with DSCP 46, whose class has a guarantee of three quarters of the link.
#[test]
fn classes_share_a_link_by_their_weights() {
    let weights = [1, 3].map(|weight| NonZeroU8::new(weight).unwrap());
    for hosts in [Hosts::Endpoints, Hosts::Model] {
        let mut flows = incast(2, 20_000_000);
        flows[1].dscp = 46;
        let sampling = Sampling { every: Duration::from_micros(10), host: 2, flows: 2 };
        let setup = Setup {
            hosts,
            second_class: Some(SecondClass { dscp: 46, weights }),
            sampling: Some(sampling),
            ..star(flows, fixed(1 << 20))
        };
        let outcome = outcome(&setup);
        let (from, to) = (&outcome.series[20], &outcome.series[120]);
        let [ordinary, second] = [0, 1].map(|flow| (to.acked[flow] - from.acked[flow]) as f64);
        let share = second / (ordinary + second);
        assert!((share - 0.75).abs() < 0.02, "{hosts:?}: {share}");
        let (gbps, _, _) =
            window(&outcome.series, Duration::from_micros(200), Duration::from_micros(1200)).unwrap();
        assert!(gbps > 99.0, "{hosts:?}: {gbps}");
    }
}

/// A host that sends on sixteen connections acknowledges received data before it has served each of them.
#[test]
fn acknowledgements_are_sent_before_data() {
    let mut flows: Vec<_> = (0..16).map(|_| flow(1, 2, 1_000_000, 0)).collect();
    flows.extend((0..20).map(|number| flow(3, 1, 1000, 20 + 5 * number)));
    let setup = star(flows, fixed(1 << 20));
    let outcome = outcome(&setup);
    let small = outcome.finished.iter().filter(|done| done.flow >= 16);
    // The delay is a data packet in transmission, and acknowledgements on the same link.
    let late: Vec<_> = small.map(|done| done.time.saturating_sub(done.alone).as_nanos()).collect();
    assert!(late.len() == 20 && late.iter().all(|&nanos| nanos < 400), "{late:?}");
}

/// A switch sends the packets of one connection over one path, and those of the connections between two hosts over several.
#[test]
fn connections_spread_over_equal_paths() {
    let leaves = Topology::leaf_spine(2, 4, 1, Rate::from_gbps(400), LINE, HOP);
    let flows = vec![flow(1, 2, 2_000_000, 0); 16];
    let setup = Setup::new(leaves, flows, fixed(200_000));
    let longest = |seed| {
        let outcome = outcome(&Setup { seed, ..setup.clone() });
        outcome.finished.iter().map(|flow| flow.time.as_secs_f64() * 1e6).fold(0.0, f64::max)
    };
    // 32 MB over one link of 100 Gb/s take 2.7 ms, over four equal paths 0.7 ms.
    let times: Vec<f64> = (1..=4).map(longest).collect();
    assert!(times.iter().all(|&time| (650.0..2000.0).contains(&time)), "{times:?}");
}

#[test]
fn an_invalid_setup_is_refused_with_its_reason() {
    let refused = |setup: Setup| run(&setup, &mut ()).unwrap_err();
    let good = star(incast(2, 1000), hpcc(4160, 5));
    let mut flows = good.flows.clone();
    flows[1].destination = 9;
    let error = refused(Setup { flows, ..good.clone() });
    assert_eq!(error, SetupError::Hosts { flow: 1, from: 1, to: 9, last: 2 });
    let conventions = ferroce_fabric::sim::Conventions { payload: 1000, ..good.conventions };
    assert_eq!(refused(Setup { conventions, ..good.clone() }), SetupError::Mtu { payload: 1000 });
    let rx = AlgorithmConfig::HpccReceiver(*good.congestion.algorithm.as_hpcc().unwrap());
    let model = Setup { hosts: Hosts::Model, congestion: Congestion::new(rx), ..good.clone() };
    assert!(refused(model).to_string().contains("hpcc-rx"));
    // At the time limit, the flows are unfinished.
    let short = Setup { limit: Duration::from_micros(2), ..good };
    assert_eq!(outcome(&short).finished.len(), 0);
}

/// Setups that in the past ran out of events before all flows had ended.
#[test]
fn setups_that_once_stalled_finish() {
    // A window that became smaller than the bytes in flight, without a request for an acknowledgement.
    let leaves = Topology::leaf_spine(4, 2, 16, LINE, Rate::from_gbps(400), HOP);
    let incast = Incast { senders: 20, bytes: 50_000, load: 0.02 };
    let sizes = SizeDistribution::web_search();
    let flows = poisson(64, LINE, &sizes, 0.4, Duration::from_millis(1), Some(incast), 1);
    let setup = Setup::new(leaves, flows, hpcc(8000, 5));
    assert_eq!(outcome(&setup).finished.len(), setup.flows.len());
}
