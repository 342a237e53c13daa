//! Flows that begin when others have ended, and collective operations, which consist of such flows.

use cc::{AlgorithmConfig, Rate};
use ferroce_fabric::sim::{
    Collective, Dependency, Finished, Flow, Hosts, Outcome, Setup, SetupError, Topology, run,
};
use roce::qp::Congestion;
use std::time::Duration;

const KINDS: [Hosts; 2] = [Hosts::Model, Hosts::Endpoints];

fn flow(source: u32, destination: u32, start: u64) -> Flow {
    let start = Duration::from_micros(start);
    Flow { source, destination, bytes: 1_000_000, start, is_incast: false, dscp: 0 }
}

/// Four hosts around a switch; only the links limit their flows.
fn setup(hosts: Hosts, (flows, dependencies): (Vec<Flow>, Vec<Dependency>)) -> Setup {
    let topology = Topology::star(4, Rate::from_gbps(100), Duration::from_micros(1));
    let fixed = Congestion::new(AlgorithmConfig::Fixed { window: 256 << 10, rate: None });
    Setup { hosts, dependencies, ..Setup::new(topology, flows, fixed) }
}

/// Returns the outcome, and its flows in the order of their numbers.
fn outcome(setup: &Setup) -> (Outcome, Vec<Finished>) {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), setup.flows.len());
    let mut finished = outcome.finished.clone();
    finished.sort_by_key(|flow| flow.flow);
    (outcome, finished)
}

/// Returns whether a flow began `micros` after another's end, both rounded to ns.
fn follows(flow: Finished, other: Finished, micros: u64) -> bool {
    flow.start.abs_diff(other.start + other.time + Duration::from_micros(micros)) <= Duration::from_nanos(1)
}

#[test]
fn a_flow_begins_when_the_last_of_those_before_it_has_ended() {
    let after = |flow, after| Dependency { flow, after };
    for hosts in KINDS {
        let flows = vec![flow(0, 1, 0), flow(2, 3, 30), flow(1, 2, 7), flow(3, 0, 0)];
        let (_, flows) = outcome(&setup(hosts, (flows, vec![after(2, 0), after(2, 1), after(3, 2)])));
        assert!(follows(flows[2], flows[1], 7), "{hosts:?}: {flows:?}");
        assert!(follows(flows[3], flows[2], 0), "{hosts:?}: {flows:?}");
    }
}

/// Each step uses every link once in each direction, so no flow delays another.
#[test]
fn a_step_of_a_collective_takes_as_long_as_a_flow_alone() {
    for hosts in KINDS {
        let (alone, _) = outcome(&setup(hosts, (vec![flow(0, 1, 0)], Vec::new())));
        for (kind, bytes, steps) in [(Collective::Ring, 4_000_000, 6), (Collective::AllToAll, 1_000_000, 3)] {
            let flows = kind.of(&[0, 1, 2, 3], bytes, Duration::ZERO, 0);
            let dependencies = flows.1.clone();
            let setup = setup(hosts, flows);
            let (whole, flows) = outcome(&setup);
            let share = whole.time.as_secs_f64() / (steps * alone.time).as_secs_f64();
            println!("{hosts:?}, {kind:?}: {:?}, {share:.3} of {steps} flows", whole.time);
            // Acknowledgements share the links with data.
            assert!((1.0..1.1).contains(&share), "{hosts:?}, {kind:?}: {share}");
            for Dependency { flow, after } in dependencies {
                assert!(
                    follows(flows[flow as usize], flows[after as usize], 0),
                    "{hosts:?}: {flow} after {after}"
                );
            }
            assert_eq!(whole, outcome(&setup).0, "{hosts:?}, {kind:?}");
        }
    }
}

#[test]
fn flows_that_never_begin_are_refused() {
    let refused = |pairs: &[(u32, u32)]| {
        let dependencies = pairs.iter().map(|&(flow, after)| Dependency { flow, after }).collect();
        setup(Hosts::Model, (vec![flow(0, 1, 0), flow(1, 2, 0), flow(2, 3, 0)], dependencies)).check()
    };
    assert_eq!(refused(&[(1, 0), (2, 1)]), Ok(()));
    assert_eq!(refused(&[(1, 2), (2, 1)]), Err(SetupError::Circle { flow: 1 }));
    assert_eq!(refused(&[(1, 1)]), Err(SetupError::Dependency { flow: 1, after: 1, last: 2 }));
    assert_eq!(refused(&[(1, 3)]), Err(SetupError::Dependency { flow: 1, after: 3, last: 2 }));
}
