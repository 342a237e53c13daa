//! DCTCP and DCQCN at scale beside the authors' single runs: mean completion times within 10 %.

use cc::{AlgorithmConfig, DcqcnConfig, DctcpConfig, Rate};
use ferroce_fabric::scale::{Conventions, Flow, Pfc, Red, Setup, Topology, run};
use std::time::Duration;

const RTT: Duration = Duration::from_nanos(4160);
const SEEDS: u64 = 6;

fn flow(source: u32, destination: u32, bytes: u64, micros: u64) -> Flow {
    let start = Duration::from_micros(micros);
    Flow { source: source - 1, destination: destination - 1, bytes, start, is_incast: false }
}

/// The mean completion time of all flows and seeds, µs.
fn mean(flows: &[Flow], algorithm: AlgorithmConfig, red: Red) -> f64 {
    let one = |seed| {
        let setup = Setup {
            topology: Topology::star(
                flows[0].destination as usize + 1,
                Rate::from_gbps(100),
                Duration::from_micros(1),
            ),
            conventions: Conventions::HPCC_NS3,
            algorithm,
            fair_floor: None,
            red: Some(red),
            buffer: 32_000_000,
            pfc: Some(Pfc::default()),
            flows: flows.to_vec(),
            jitter: Duration::ZERO,
            seed,
            limit: Duration::from_secs(1),
            sampling: None,
        };
        let outcome = run(&setup, &mut |_, _, _| {}).unwrap();
        assert_eq!((outcome.pauses, outcome.dropped), (0, 0));
        let sum: f64 = outcome.finished.iter().map(|flow| flow.time.as_nanos() as f64 / 1e3).sum();
        sum / flows.len() as f64
    };
    (1..=SEEDS).map(one).sum::<f64>() / SEEDS as f64
}

#[test]
fn marks_slow_senders_down_as_with_the_authors() {
    let two = [flow(1, 3, 20_000_000, 0), flow(2, 3, 20_000_000, 0)];
    let join = [flow(1, 3, 30_000_000, 0), flow(2, 3, 1_000_000, 300)];
    let sixteen: Vec<_> = (1..=16).map(|source| flow(source, 17, 500_000, 0)).collect();
    let dctcp = (
        AlgorithmConfig::Dctcp(DctcpConfig::simulator(RTT)),
        Red { min: 300_000, max: 300_000, probability: 1.0 },
    );
    let dcqcn = |window| {
        let red = Red { min: 400_000, max: 1_600_000, probability: 0.2 };
        (AlgorithmConfig::Dcqcn(DcqcnConfig::simulator(window)), red)
    };
    let (open, windowed) = (dcqcn(None), dcqcn(Some(RTT)));
    for (name, flows, (algorithm, red), reference) in [
        ("dctcp, two", &two[..], dctcp, 3324.05),
        ("dctcp, join", &join[..], dctcp, 1373.572),
        ("dctcp, sixteen", &sixteen[..], dctcp, 667.468),
        ("dcqcn, two", &two[..], open, 3888.51),
        ("dcqcn, join", &join[..], open, 1752.189),
        ("dcqcn, sixteen", &sixteen[..], open, 910.382),
        ("dcqcn with a window, two", &two[..], windowed, 3324.05),
        ("dcqcn with a window, join", &join[..], windowed, 1373.572),
        ("dcqcn with a window, sixteen", &sixteen[..], windowed, 561.28),
    ] {
        let ours = mean(flows, algorithm, red);
        println!("{name:<30}{ours:>10.1}{reference:>10.1} µs");
        assert!((ours / reference - 1.0).abs() < 0.1, "{name}: {ours} µs against {reference}");
    }
}
