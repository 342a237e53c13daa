//! Applications that consume messages more slowly than the network delivers them.

use cc::{AlgorithmConfig, Rate};
use ferroce_fabric::sim::{
    Application, Flow, Hosts, Outcome, Requests, Setup, SetupError, Topology, Verb, run,
};
use roce::qp::Congestion;
use std::time::Duration;

const BYTES: u64 = 8_000_000;
const MESSAGE: u32 = 16_000;
const DEPTH: u32 = 4;

/// Hosts 0 and 1 send to host 2, whose application consumes `gbps`.
fn setup(senders: u32, gbps: u64) -> Setup {
    let flow = |source| Flow {
        source,
        destination: 2,
        bytes: BYTES,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let topology = Topology::star(3, Rate::from_gbps(100), Duration::from_micros(1));
    let fixed = Congestion::new(AlgorithmConfig::Fixed { window: 256 << 10, rate: None });
    Setup {
        requests: Requests { verb: Verb::Send, bytes: MESSAGE, depth: DEPTH, selective_repeat: false },
        applications: vec![Application { host: 2, rate: Rate::from_gbps(gbps) }],
        ..Setup::new(topology, (0..senders).map(flow).collect(), fixed)
    }
}

fn outcome(setup: &Setup) -> Outcome {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), setup.flows.len());
    outcome
}

/// All messages, except those for which receives were posted at the start, are consumed before the last one is acknowledged.
#[test]
fn flows_are_as_fast_as_the_application_of_their_receiver() {
    for senders in [1, 2] {
        let outcome = outcome(&setup(senders, 10));
        let before = u64::from(senders) * (BYTES - u64::from(DEPTH * MESSAGE));
        let least = Rate::from_gbps(10).time_for(before);
        println!(
            "{senders} senders: {least:?} at least, {:?}, {} sent again",
            outcome.time, outcome.retransmitted
        );
        assert!(outcome.time >= least, "{senders} senders: {:?}", outcome.time);
        // After an RNR NAK, a sender resumes slightly later than the receiver allows.
        assert!(
            outcome.time.as_secs_f64() < 1.1 * least.as_secs_f64(),
            "{senders} senders: {:?}",
            outcome.time
        );
        assert!(outcome.retransmitted > 100, "{senders} senders: {}", outcome.retransmitted);
    }
}

#[test]
fn an_application_as_fast_as_the_link_changes_nothing() {
    let fast = outcome(&setup(1, 400));
    let none = outcome(&Setup { applications: Vec::new(), ..setup(1, 400) });
    assert_eq!((fast.time, fast.retransmitted), (none.time, 0));
    assert_eq!(outcome(&setup(1, 10)), outcome(&setup(1, 10)));
}

#[test]
fn applications_of_other_hosts_or_verbs_are_refused() {
    let slow = |host| vec![Application { host, rate: Rate::from_gbps(1) }];
    let error = Setup { applications: slow(3), ..setup(1, 1) }.check().unwrap_err();
    assert_eq!(error, SetupError::Application { application: 0, host: 3, last: 2 });
    let writes = Setup { requests: Requests::WRITES, ..setup(1, 1) };
    assert_eq!(writes.check(), Err(SetupError::Unseen { verb: Verb::Write }));
    let model = Setup { hosts: Hosts::Model, ..setup(1, 1) };
    assert_eq!(model.check(), Err(SetupError::Model { what: "slow applications" }));
}
