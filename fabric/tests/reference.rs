//! Compares the model of hosts with the simulator of HPCC's authors, with its conventions, and tests the simulator itself.
//!
//! `data/jitter_bands.csv` has the authors' figures for up to 20 seeds, with starts delayed by up to 100 ns.

use cc::{AlgorithmConfig, DctcpConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{
    Conventions, Flow, Hosts, Outcome, Pfc, Sampling, Setup, Steady, Topology, run, window,
};
use ferroce_fabric::{Probability, Red};
use roce::qp::Congestion;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
const RTT: Duration = Duration::from_nanos(4160);
/// Trace of a run. It changes only if the model changes.
const TRACE: u64 = 3_031_766_316_151_595_968;
const BANDS: &str = include_str!("data/jitter_bands.csv");
const F14: &str = include_str!("data/f14.csv");

fn hpcc(max_stage: u32) -> AlgorithmConfig {
    AlgorithmConfig::Hpcc(HpccConfig {
        base_rtt: RTT,
        line_rate: LINE,
        min_rate: Rate::from_mbps(100),
        target_utilisation: 0.95,
        max_stage,
        additive_increase: Rate::from_mbps(50),
    })
}

/// Hosts are numbered from 1, as in the reference.
fn flow(source: u32, destination: u32, bytes: u64, micros: u64) -> Flow {
    let start = Duration::from_micros(micros);
    Flow { source: source - 1, destination: destination - 1, bytes, start, is_incast: false, dscp: 0 }
}

fn flows(scenario: &str) -> Vec<Flow> {
    match scenario {
        "a_single" => vec![flow(1, 2, 20_000_000, 0)],
        "b_2to1" => vec![flow(1, 3, 20_000_000, 0), flow(2, 3, 20_000_000, 0)],
        "c_16to1" => (1..=16).map(|source| flow(source, 17, 500_000, 0)).collect(),
        "d_long_short" => vec![flow(1, 3, 30_000_000, 0), flow(2, 3, 1_000_000, 300)],
        other => panic!("{other}"),
    }
}

fn setup(flows: Vec<Flow>, algorithm: AlgorithmConfig) -> Setup {
    let hosts = flows.iter().map(|flow| flow.source.max(flow.destination)).max().unwrap() as usize + 1;
    Setup {
        conventions: Conventions::HPCC_NS3,
        hosts: Hosts::Model,
        ..Setup::new(Topology::star(hosts, LINE, HOP), flows, Congestion::new(algorithm))
    }
}

fn outcome(setup: &Setup) -> Outcome {
    run(setup, &mut ()).unwrap()
}

/// Returns completion times in ns, in the order of the flows' numbers.
fn times(outcome: &Outcome) -> Vec<u128> {
    let mut times: Vec<_> = outcome.finished.iter().map(|flow| (flow.flow, flow.time.as_nanos())).collect();
    times.sort_unstable();
    times.into_iter().map(|(_, time)| time).collect()
}

/// If neither random numbers nor two packets in the same ns affect a run, its times are equal to those of the authors' simulator.
#[test]
fn completion_times_are_the_authors_to_the_nanosecond() {
    let red = Red { from: 300_000, to: 300_000, most: Probability::ALWAYS };
    let dctcp = AlgorithmConfig::Dctcp(DctcpConfig::simulator(RTT));
    for (scenario, algorithm, expected) in [
        ("a_single", hpcc(0), vec![1_838_431]),
        ("a_single", hpcc(5), vec![1_841_012]),
        ("d_long_short", hpcc(0), vec![2_851_729, 190_038]),
        ("d_long_short", hpcc(5), vec![2_865_825, 189_060]),
        ("a_single", dctcp, vec![1_664_091]),
        ("b_2to1", dctcp, vec![3_324_008, 3_324_091]),
        ("d_long_short", dctcp, vec![2_577_091, 170_053]),
    ] {
        let setup = Setup { red: Some(red), ..setup(flows(scenario), algorithm) };
        assert_eq!(times(&outcome(&setup)), expected, "{scenario}, {}", algorithm.name());
    }
}

/// Returns mean and standard deviation of the reference's figures, in the order of [`Steady::NAMES`].
fn band(scenario: &str, variant: &str) -> Vec<(f64, f64)> {
    let rows = BANDS.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let rows: Vec<_> = rows.filter(|row| row[0] == scenario && row[1] == variant).collect();
    let statistics = |column: usize| {
        let values: Vec<f64> = rows.iter().map(|row| row[3 + column].parse().unwrap()).collect();
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let variance = values.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64;
        (mean, variance.sqrt())
    };
    (0..Steady::NAMES.len()).map(statistics).collect()
}

/// The mean of twelve seeds is within 3 standard deviations of the reference's mean.
#[test]
fn figures_lie_in_the_bands_of_the_authors() {
    let mut outside = Vec::new();
    for scenario in ["b_2to1", "c_16to1", "d_long_short"] {
        for (variant, stages) in [("hpcc_ms5", 5), ("hpcc_ms0", 0)] {
            let mut sums = [0.0; 11];
            for seed in 1..=12 {
                let flows = flows(scenario);
                let host = flows[0].destination;
                let sampling = Some(Sampling { every: Duration::from_micros(1), host, flows: flows.len() });
                let jitter = Duration::from_nanos(100);
                let setup = Setup { sampling, jitter, seed, ..setup(flows, hpcc(stages)) };
                let steady = Steady::of(&outcome(&setup), 1090).unwrap();
                // The reference has four decimal places.
                let values = steady.values().map(|value| (value * 1e4).round() / 1e4);
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value / 12.0);
            }
            for ((name, ours), (mean, deviation)) in
                Steady::NAMES.iter().zip(sums).zip(band(scenario, variant))
            {
                let inside = (ours - mean).abs() <= 3.0 * deviation + 1e-9;
                let mark = if inside { "" } else { "  OUT" };
                println!(
                    "{scenario:<13}{variant:<9}{name:<17}{ours:>12.3}{mean:>12.3} ± {:<9.3}{mark}",
                    3.0 * deviation
                );
                if !inside {
                    outside.push((scenario, variant, *name));
                }
            }
        }
    }
    assert_eq!(outside, [], "out of the band");
}

/// The paper's variation of W_ai: 16 flows to one host for 10 ms; rate, fairness and queue from 100 µs on.
#[test]
fn sixteen_to_one_for_ten_milliseconds_matches_the_authors_results() {
    let rows = F14.lines().skip(1).map(|line| line.split(',').map(|word| word.parse::<f64>().unwrap()));
    for row in rows.map(Iterator::collect::<Vec<_>>).filter(|row| row[2] == 100.0) {
        let AlgorithmConfig::Hpcc(config) = hpcc(row[1] as u32) else { unreachable!() };
        // The reference has W_ai in bytes per 4 µs.
        let additive_increase = Rate::from_mbps(row[0] as u64 * 2);
        let config = HpccConfig { additive_increase, ..config };
        let flows = (1..=16).map(|source| flow(source, 17, 40_000_000, 0)).collect();
        let sampling = Some(Sampling { every: Duration::from_micros(1), host: 16, flows: 16 });
        let limit = Duration::from_micros(10_100);
        let outcome = outcome(&Setup { sampling, limit, ..setup(flows, AlgorithmConfig::Hpcc(config)) });
        let begin = Duration::from_micros(100);
        let (gbps, fairness, [mean, p95, p99, _]) = window(&outcome.series, begin, limit).unwrap();
        println!(
            "W_ai {:>3} B, maxStage {}: {gbps:.3} Gb/s against {:.3}, Jain {fairness:.4} against {:.4}, queue {mean:.0} {p95} \
             {p99} against {:?}",
            row[0],
            row[1],
            row[3],
            row[7],
            [row[8], row[10], row[11]]
        );
        assert!((gbps / row[3] - 1.0).abs() < 0.01, "{gbps}: {row:?}");
        // Each is one run of a chaotic system. With the smallest W_ai, 10 ms are too short for equal shares.
        assert!((fairness - row[7]).abs() < if row[0] < 25.0 { 0.15 } else { 0.05 }, "{fairness}: {row:?}");
        // Sampling may cause a difference of one packet.
        for (ours, theirs) in [mean, p95, p99].into_iter().zip([row[8], row[10], row[11]]) {
            assert!((ours - theirs * 1e3).abs() <= 1090.5, "{ours}: {row:?}");
        }
    }
}

/// Three switches in a line. The third flow (host 6 to 7) shares the second link between them only with the first flow. Of the authors' run
/// only 30,000 acknowledgements are known: the end of the third flow, and the packets of the others acknowledged by then. Packets arrive in
/// the same ns here. The test therefore only checks that the authors' values lie in the range of our seeds, with starts delayed by up to
/// 100 ns.
#[test]
fn the_authors_parking_lot_results_are_in_the_range_of_our_seeds() {
    for (stages, end, until, acked) in
        [(0, 1262.841, 1_868_424, [7514.0, 12_486.0]), (5, 1388.747, 1_883_608, [8362.0, 11_638.0])]
    {
        let AlgorithmConfig::Hpcc(config) = hpcc(stages) else { unreachable!() };
        let config = HpccConfig { base_rtt: 2 * RTT, ..config };
        // The authors' hosts 3 and 4 are 1 and 2 here, and so on.
        let flows = vec![flow(1, 6, 20_000_000, 0), flow(2, 3, 20_000_000, 200), flow(4, 5, 10_000_000, 400)];
        let one = |seed| {
            let sampling = Sampling { every: Duration::from_nanos(until), host: 5, flows: 3 };
            let setup = Setup {
                topology: Topology::parking_lot(3, 2, LINE, HOP),
                sampling: Some(sampling),
                jitter: Duration::from_nanos(100),
                seed,
                ..setup(flows.clone(), AlgorithmConfig::Hpcc(config))
            };
            let outcome = outcome(&setup);
            let had = |flow: usize| outcome.series[1].acked[flow] as f64 / 1e3;
            [times(&outcome)[2] as f64 / 1e3, had(0), had(1)]
        };
        let seeds: Vec<[f64; 3]> = (1..=24).map(one).collect();
        for (place, theirs) in [end, acked[0], acked[1]].into_iter().enumerate() {
            let values = seeds.iter().map(|seed| seed[place]);
            let (least, most) = (values.clone().fold(f64::MAX, f64::min), values.clone().fold(0.0, f64::max));
            println!("maxStage {stages}: {least:.0} to {most:.0}, theirs {theirs}");
            assert!((least..=most).contains(&theirs), "maxStage {stages}: {least} to {most}, {theirs}");
        }
    }
}

#[test]
fn runs_are_equal_exactly_if_their_seeds_are() {
    let of = |seed| Setup { seed, jitter: Duration::from_nanos(100), ..setup(flows("c_16to1"), hpcc(5)) };
    let (once, again, other) = (outcome(&of(1)), outcome(&of(1)), outcome(&of(2)));
    assert_eq!(once, again);
    assert_ne!(once.trace, other.trace);
    assert_eq!(once.trace, TRACE);
}

/// 16 senders with a fixed window of 1 MB each share a buffer of 4 MB.
fn crowd(pfc: Option<Pfc>) -> Outcome {
    let fixed = AlgorithmConfig::Fixed { window: 1_000_000, rate: None };
    let flows = (1..=16).map(|source| flow(source, 17, 2_000_000, 0)).collect();
    outcome(&Setup { buffer: 4_000_000, pfc, ..setup(flows, fixed) })
}

#[test]
fn pauses_keep_a_full_switch_from_dropping() {
    let paused = crowd(Some(Pfc::default()));
    assert_eq!((paused.dropped, paused.finished.len()), (0, 16));
    assert!(paused.pauses > 16 && !paused.paused.is_zero(), "{}", paused.pauses);
    assert!(paused.queue_max < 4_000_000, "{}", paused.queue_max);
}

#[test]
fn without_pauses_dropped_packets_are_retransmitted() {
    let dropped = crowd(None);
    assert!(dropped.dropped > 100, "{}", dropped.dropped);
    assert_eq!((dropped.pauses, dropped.finished.len()), (0, 16));
}

/// Every flow arrives in every topology, and alone it takes as long as the reference computes.
#[test]
fn every_flow_arrives_in_every_topology() {
    for (topology, hosts) in [
        (Topology::dumbbell(4, 4, LINE, LINE, HOP), 8),
        (Topology::parking_lot(3, 2, LINE, HOP), 6),
        (Topology::leaf_spine(4, 2, 4, LINE, LINE, HOP), 16),
        (Topology::fat_tree(LINE, Rate::from_gbps(400), HOP), 320),
    ] {
        let flows: Vec<_> =
            (1..=hosts).map(|host| flow(host, (host + hosts / 2) % hosts + 1, 3000, 0)).collect();
        let setup = Setup { topology, flows: flows.clone(), ..setup(flows, hpcc(0)) };
        assert_eq!(outcome(&setup).finished.len(), hosts as usize);
        let alone = Setup { flows: setup.flows[..1].to_vec(), ..setup };
        let slowdown = outcome(&alone).finished[0].slowdown();
        assert!((1.0..1.1).contains(&slowdown), "{slowdown}");
    }
}
