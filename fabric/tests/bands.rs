//! Endpoints with HPCC++ stay within the bands of the model of hosts: the bottleneck's rate, fairness and queue.
//! `cargo test --release -p ferroce-fabric --test bands -- --nocapture` prints the figures of both.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Conventions, Flow, Hosts, Sampling, Setup, Topology, run, window};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
/// Bytes of a full packet with telemetry on the wire.
const PACKET: f64 = 1126.0;
const SEEDS: u64 = 6;

/// Hosts are numbered from 1.
fn flow(source: u32, destination: u32, bytes: u64, micros: u64) -> Flow {
    let start = Duration::from_micros(micros);
    Flow { source: source - 1, destination: destination - 1, bytes, start, is_incast: false, dscp: 0 }
}

/// Returns the rate in Gb/s of the link to the first flow's destination, Jain's index of the flows, and the queue's 99th percentile in
/// bytes. All are means over the seeds, from `begin` (µs) to the end of the first flow.
fn figures(flows: &[Flow], begin: u64, max_stage: u32, hosts: Hosts) -> [f64; 3] {
    let is_lot = flows.iter().any(|flow| flow.destination != flows[0].destination);
    let base_rtt = Duration::from_nanos(if is_lot { 8320 } else { 4160 });
    let config = HpccConfig::new(LINE, base_rtt, NonZeroU32::new(100).unwrap());
    let config = HpccConfig { min_rate: Rate::from_mbps(100), max_stage, ..config };
    let congestion =
        Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(AlgorithmConfig::Hpcc(config)) };
    let topology = match is_lot {
        true => Topology::parking_lot(3, 2, LINE, HOP),
        false => Topology::star(flows[0].destination as usize + 1, LINE, HOP),
    };
    let mut sums = [0.0; 3];
    for seed in 1..=SEEDS {
        let setup = Setup {
            conventions: Conventions::FERROCE,
            hosts,
            jitter: Duration::from_nanos(100),
            seed,
            sampling: Some(Sampling {
                every: Duration::from_micros(1),
                host: flows[0].destination,
                flows: flows.len(),
            }),
            ..Setup::new(topology.clone(), flows.to_vec(), congestion)
        };
        let outcome = run(&setup, &mut ()).unwrap();
        let end = outcome.finished.iter().map(|flow| flow.start + flow.time).min().unwrap();
        let part = (Duration::from_micros(begin), end - Duration::from_micros(5));
        let (carried, jain, queue) = window(&outcome.series, part.0, part.1).unwrap();
        for (sum, value) in sums.iter_mut().zip([carried, jain, queue[2]]) {
            *sum += value / SEEDS as f64;
        }
    }
    sums
}

#[test]
fn results_of_endpoints_are_in_the_bands_of_the_model() {
    let together = |count: u32, bytes| (1..=count).map(|source| flow(source, count + 1, bytes, 0)).collect();
    let four = [(1, 85_000_000, 0), (2, 42_000_000, 2000), (3, 20_000_000, 4000), (4, 5_500_000, 6000)];
    let four = four.map(|(source, bytes, start)| flow(source, 5, bytes, start)).to_vec();
    let lot = vec![flow(1, 6, 20_000_000, 0), flow(2, 3, 20_000_000, 200), flow(4, 5, 10_000_000, 400)];
    let mut outside = Vec::new();
    for (name, flows, begin, max_stage) in [
        ("single", vec![flow(1, 2, 20_000_000, 0)], 100, 5),
        ("two-to-one", together(2, 20_000_000), 100, 5),
        ("incast-16", together(16, 500_000), 100, 5),
        // A window is three packets. With a pause that ignores the new rate, endpoints carry 90.6 Gb/s.
        ("16, maxStage 0", together(16, 2_500_000), 1000, 0),
        ("long-short", vec![flow(1, 3, 30_000_000, 0), flow(2, 3, 1_000_000, 300)], 310, 5),
        ("four join", four, 6500, 5),
        ("parking lot", lot, 500, 5),
    ] {
        let [model, endpoints] =
            [Hosts::Model, Hosts::Endpoints].map(|hosts| figures(&flows, begin, max_stage, hosts));
        println!("{name:<14} Gb/s, Jain, queue p99: endpoints {endpoints:8.3?}, model {model:8.3?}");
        let least = [model[0] - 2.0, model[1] - 0.03];
        let longest = 1.3 * model[2] + 2.0 * PACKET;
        if endpoints[0] < least[0] || endpoints[1] < least[1] || endpoints[2] > longest {
            outside.push(name);
        }
    }
    assert!(outside.is_empty(), "out of the model's bands: {outside:?}");
}
