//! Deficit round robin guarantees the share of a class that uses HPCC++, regardless of the other class.
//! `cargo test --release -p ferroce-fabric --test classes -- --nocapture` prints the figures.

use cc::{AlgorithmConfig, DcqcnConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Rival, Sampling, Setup, Topology, Which, run, window};
use ferroce_fabric::{Probability, Red, SecondClass};
use roce::qp::Congestion;
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const T: Duration = Duration::from_nanos(4400);

fn hpcc(expected: u32) -> Congestion {
    let config = HpccConfig::new(LINE, T, NonZeroU32::new(expected).unwrap());
    Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(AlgorithmConfig::Hpcc(config)) }
}

/// Returns the payload rates of both classes in Gb/s. The second class has a guarantee of 75 of 100 Gb/s, and its two flows use HPCC++ for
/// `expected` flows. The other class has `others` flows, with the congestion control `other` or the same.
fn carried(expected: u32, other: Option<Congestion>, others: u32) -> [f64; 2] {
    let host = 2 + others;
    let flow = |source| Flow {
        source,
        destination: host,
        bytes: 1 << 30,
        start: Duration::ZERO,
        is_incast: false,
        dscp: if source < 2 { 46 } else { 0 },
    };
    let flows: Vec<_> = (0..host).map(flow).collect();
    let weights = [1, 3].map(|weight| NonZeroU8::new(weight).unwrap());
    let [from, until] = [2, 5].map(Duration::from_millis);
    let topology = Topology::star(host as usize + 1, LINE, Duration::from_micros(1));
    let setup = Setup {
        rivals: vec![Rival { which: Which::Class(46), congestion: hpcc(expected) }],
        second_class: Some(SecondClass { dscp: 46, weights }),
        red: Some(Red { from: 100_000, to: 400_000, most: Probability::new(0.2).unwrap() }),
        sampling: Some(Sampling { every: Duration::from_micros(5), host, flows: flows.len() }),
        limit: until,
        ..Setup::new(topology, flows, other.unwrap_or_else(|| hpcc(expected)))
    };
    let outcome = run(&setup, &mut ()).unwrap();
    assert!(window(&outcome.series, from, until).is_some());
    let at = |time: Duration| {
        outcome.series.iter().find(|row| row.time >= time.as_nanos() as u64 - 5_000).unwrap()
    };
    let (first, last) = (at(from), at(until));
    let gbps = |flows: std::ops::Range<usize>| {
        let bytes: u64 = flows.map(|flow| last.acked[flow] - first.acked[flow]).sum();
        bytes as f64 * 8.0 / (last.time - first.time) as f64
    };
    [gbps(0..2), gbps(2..host as usize)]
}

#[test]
fn a_class_gets_its_guarantee_with_any_algorithm_in_the_other() {
    let fixed = Congestion::new(AlgorithmConfig::Fixed { window: 1 << 18, rate: None });
    let dcqcn = Congestion::new(AlgorithmConfig::Dcqcn(DcqcnConfig::new(LINE, Some(T))));
    for (name, other) in [("a fixed window", Some(fixed)), ("DCQCN", Some(dcqcn)), ("HPCC++", None)] {
        // With a small W_ai, a class carries eta of its share, and slightly less while its share varies.
        for (expected, others, least) in [(2, 1, 0.95), (2, 4, 0.95), (100, 1, 0.93), (100, 4, 0.93)] {
            let [ours, theirs] = carried(expected, other, others);
            // 1024 of 1126 bytes are payload.
            let share = ours / (75.0 * 1024.0 / 1126.0);
            println!(
                "N = {expected}: {ours:.1} Gb/s, {share:.3} of it, beside {others} of {name} with {theirs:.1}"
            );
            assert!(share >= least, "N = {expected}: {ours} Gb/s beside {others} of {name}");
        }
    }
    let [ours, _] = carried(2, None, 0);
    println!("{ours:.1} Gb/s alone");
    assert!(ours >= 82.0, "{ours} Gb/s alone");
}
