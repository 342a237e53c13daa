//! The ports of a time series.

use cc::{AlgorithmConfig, Rate};
use ferroce_fabric::sim::{
    Flow, Hosts, Observer, PortRow, RunState, Sampling, Setup, SetupError, Topology, run, run_on,
};
use roce::qp::Congestion;
use std::ops::ControlFlow;
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
    let outcome = run(&setup(ports), &mut ()).unwrap();
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
    let [named, not] = [vec![[5, 2]], Vec::new()].map(|ports| run(&setup(ports), &mut ()).unwrap());
    assert_eq!(named, not);
    let error = setup(vec![[4, 5], [4, 3]]).check().unwrap_err();
    assert_eq!(error, SetupError::Port { what: "sampled", port: 1, from: 4, to: 3 });
}

/// Collects what a run reports: finished flows, events, ns, and queues. If `ends`, ends the run at the first report.
#[derive(Default, PartialEq, Eq, Debug)]
struct States {
    all: Vec<(usize, u64, u128, Vec<u64>)>,
    ends: bool,
}

impl Observer for States {
    fn state(&mut self, state: &RunState<'_>) -> ControlFlow<()> {
        let &RunState { finished, events, time, queues } = state;
        self.all.push((finished, events, time.as_nanos(), queues.to_vec()));
        if self.ends { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

#[test]
fn a_run_reports_the_same_states_on_any_number_of_threads() {
    let mut setup = setup(vec![[4, 5], [5, 2]]);
    setup.flows.iter_mut().for_each(|flow| flow.bytes *= 40);
    let reported = |threads| {
        let mut states = States::default();
        (run_on(threads, &setup, &mut states).unwrap().trace, states)
    };
    let one = reported(1);
    let States { all: states, .. } = &one.1;
    assert!(states.len() > 1 && states.is_sorted_by_key(|state| state.1), "{states:?}");
    assert!(states.iter().all(|state| state.3.len() == 2 && state.3[0] > 40_000), "{states:?}");
    assert_eq!(reported(2), one);
    assert_eq!(run(&setup, &mut ()).unwrap().trace, one.0);
    for threads in 1..3 {
        let mut states = States { ends: true, ..States::default() };
        assert_eq!(run_on(threads, &setup, &mut states), Err(SetupError::Observer));
        assert_eq!(states.all[..], one.1.all[..1]);
    }
}
