//! Measures the simulator's events per second: two flows on a star, and a fat tree at 50 % load, with models and with endpoints.
//! `cargo bench -p ferroce-fabric --bench sim`.

use cc::{AlgorithmConfig, DctcpConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{
    Conventions, Flow, Hosts, Outcome, Setup, SizeDistribution, Topology, poisson, run,
};
use ferroce_fabric::{Probability, Red};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::{Duration, Instant};

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);

fn hpcc(nanos: u64) -> AlgorithmConfig {
    AlgorithmConfig::Hpcc(HpccConfig {
        base_rtt: Duration::from_nanos(nanos),
        line_rate: LINE,
        min_rate: Rate::from_mbps(100),
        target_utilisation: 0.95,
        max_stage: 0,
        additive_increase: Rate::from_mbps(50),
    })
}

fn setup(topology: Topology, flows: Vec<Flow>, algorithm: AlgorithmConfig) -> Setup {
    let marks = matches!(algorithm, AlgorithmConfig::Dctcp(_));
    Setup {
        conventions: Conventions::HPCC_NS3,
        hosts: Hosts::Model,
        red: marks.then_some(Red { from: 300_000, to: 300_000, most: Probability::ALWAYS }),
        ..Setup::new(topology, flows, Congestion::new(algorithm))
    }
}

/// Returns the CPU time of the main thread, which other work does not lengthen; elapsed time if it cannot be read.
fn cpu(begin: Instant) -> Duration {
    let stat = std::fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let nanos = stat.split(' ').next().and_then(|word| word.parse().ok());
    nanos.map_or_else(|| begin.elapsed(), Duration::from_nanos)
}

fn measure(name: &str, setup: &Setup) {
    let clock = Instant::now();
    let mut best: Option<(f64, Outcome)> = None;
    for _ in 0..5 {
        let begin = cpu(clock);
        let outcome = run(setup, &mut ()).expect("the setups of this bench can run");
        let seconds = (cpu(clock) - begin).as_secs_f64();
        if best.as_ref().is_none_or(|best| seconds < best.0) {
            best = Some((seconds, outcome));
        }
    }
    let Some((seconds, outcome)) = best else { return };
    let rate = outcome.events as f64 / seconds / 1e6;
    let packets = outcome.packets as f64 / seconds / 1e6;
    println!(
        "{name:<24} {rate:>7.2} M events/s  {packets:>6.2} M packets/s  {:>9} events  {} B a flow  {} B a host",
        outcome.events, outcome.memory[0], outcome.memory[1]
    );
}

fn main() {
    let flow = |source| Flow {
        source,
        destination: 2,
        bytes: 20_000_000,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let star = || Topology::star(3, LINE, HOP);
    let dctcp = AlgorithmConfig::Dctcp(DctcpConfig::simulator(Duration::from_nanos(4160)));
    measure("star, hpcc", &setup(star(), vec![flow(0), flow(1)], hpcc(4160)));
    measure("star, dctcp", &setup(star(), vec![flow(0), flow(1)], dctcp));
    let time = Duration::from_micros(200);
    let flows = poisson(320, LINE, &SizeDistribution::fb_hadoop(), 0.5, time, None, 1);
    let tree = Topology::fat_tree(LINE, Rate::from_gbps(400), HOP);
    measure("fat tree, hpcc", &setup(tree.clone(), flows.clone(), hpcc(12_240)));
    measure("fat tree, dctcp", &setup(tree.clone(), flows.clone(), dctcp));
    let shipped = |topology, flows, algorithm| {
        let in_band = Some(NonZeroU32::MIN);
        Setup::new(topology, flows, Congestion { in_band, ..Congestion::new(algorithm) })
    };
    measure("star, endpoints", &shipped(star(), vec![flow(0), flow(1)], hpcc(4160)));
    measure("fat tree, endpoints", &shipped(tree, flows, hpcc(12_600)));
}
