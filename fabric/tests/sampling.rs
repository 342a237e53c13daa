//! The ports of a time series.

use cc::{AlgorithmConfig, Rate};
use ferroce_fabric::sim::{Flow, Hosts, PortRow, Sampling, Setup, SetupError, Topology, run};
use roce::qp::Congestion;
use std::time::Duration;

/// Hosts 0 and 1 send 1 MB each over the link between the switches 4 and 5 to hosts 2 and 3.
fn setup(sampled: Vec<[usize; 2]>) -> Setup {
    let flow = |source| Flow {
        source,
        destination: source + 2,
        bytes: 1_024_000,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let line = Rate::from_gbps(100);
    let topology = Topology::dumbbell(2, 2, line, line, Duration::from_micros(1));
    let fixed = Congestion::new(AlgorithmConfig::Fixed { window: 64 << 10, rate: None });
    let sampling = Some(Sampling { every: Duration::from_micros(1), host: 2, flows: 2 });
    Setup { sampling, sampled, hosts: Hosts::Model, ..Setup::new(topology, vec![flow(0), flow(1)], fixed) }
}

/// 1000 packets of 1082 bytes in each direction, and the same number of acknowledgements of 62 bytes in the other.
#[test]
fn each_sampled_port_has_its_own_queue_and_bytes() {
    let ports = vec![[4, 5], [5, 2], [5, 4], [0, 4]];
    let outcome = run(&setup(ports), &mut |_, _, _| {}).unwrap();
    let last = outcome.series.last().unwrap();
    let bytes: Vec<u64> = last.others.iter().map(|port| port.tx_bytes).collect();
    let near =
        |bytes: u64, expected: u64| assert!(bytes.abs_diff(expected) < 20_000, "{bytes}, not {expected}");
    near(last.tx_bytes, 2 * 1_082_000);
    near(bytes[0], 1_082_000);
    near(bytes[1], 2 * 62_000);
    near(bytes[2], 1_082_000);
    let most = |of: &dyn Fn(&[PortRow]) -> u64| outcome.series.iter().map(|row| of(&row.others)).max();
    let waits = outcome.series.iter().map(|row| row.queue).max();
    assert!(
        waits > Some(40_000),
        "two links as fast as the one between the switches fill its queue: {waits:?}"
    );
    assert!(most(&|others| others[0].queue) < Some(2_000), "the next link is as fast");
    assert_eq!(most(&|others| others[2].queue), Some(0), "a host's packets wait in the host");
}

#[test]
fn sampling_a_port_does_not_change_the_run() {
    let [named, not] = [vec![[5, 2]], Vec::new()].map(|ports| run(&setup(ports), &mut |_, _, _| {}).unwrap());
    assert_eq!(named, not);
    let error = setup(vec![[4, 5], [4, 3]]).check().unwrap_err();
    assert_eq!(error, SetupError::Sampled { port: 1, from: 4, to: 3 });
}
