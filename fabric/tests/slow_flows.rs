//! Flows of a large incast send a packet in many round trips: `cargo test -p ferroce-fabric --test slow_flows -- --nocapture` prints how
//! long they take.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Conventions, Flow, Hosts, Setup, Topology, run};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);

/// Settings for so many flows, with the lowest rate that rules have by default.
fn config(expected: u32) -> HpccConfig {
    let config = HpccConfig::new(LINE, Duration::from_nanos(4400), NonZeroU32::new(expected).unwrap());
    HpccConfig { min_rate: Rate::from_mbps(1), ..config }
}

/// So many hosts write 500 kB each to one more in packets of `payload` bytes. Returns how many ended, and how many times longer than
/// their bytes take on the link all took.
fn incast(hosts: Hosts, senders: u32, payload: u32, algorithm: AlgorithmConfig) -> (usize, f64) {
    const BYTES: u64 = 500_000;
    let flow = |source| Flow {
        source,
        destination: senders,
        bytes: BYTES,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let congestion = Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) };
    let topology = Topology::star(senders as usize + 1, LINE, Duration::from_micros(1));
    let conventions = Conventions { payload, ..Conventions::FERROCE };
    let setup = Setup::new(topology, (0..senders).map(flow).collect(), congestion);
    let limit = Duration::from_secs(3);
    let setup = Setup { hosts, conventions, jitter: Duration::from_nanos(100), limit, ..setup };
    let outcome = run(&setup, &mut |_, _, _| {}).unwrap();
    let packets = BYTES.div_ceil(payload.into());
    let ideal = LINE.time_for(u64::from(senders) * (BYTES + packets * 102));
    (outcome.finished.len(), outcome.time.as_secs_f64() / ideal.as_secs_f64())
}

#[test]
fn an_incast_of_a_thousand_ends_within_1_2_times_the_ideal() {
    for expected in [1, 100, 1000] {
        let (ended, times) = incast(Hosts::Model, 1000, 1024, AlgorithmConfig::Hpcc(config(expected)));
        println!("1000 senders, {expected} expected: {ended} ended, in {times:.2} times the ideal");
        assert!(
            ended == 1000 && times <= 1.2,
            "{expected} expected: {ended} ended in {times} times the ideal"
        );
    }
}

/// Each sender's share is 790 Mb/s, in packets of 4 KiB. `W_ai` of an eighth of the headroom was 4.9 Mb/s a flow, a packet in 6.7 ms:
/// the byte counter wraps in 10.7 ms, and nothing was computed any more.
#[test]
fn no_flow_that_its_receiver_paces_stalls() {
    let (ended, times) = incast(Hosts::Endpoints, 127, 4096, AlgorithmConfig::HpccReceiver(config(1)));
    println!("127 senders, hpcc-rx: {ended} ended, in {times:.2} times the ideal");
    assert!(ended == 127 && times <= 1.6, "{ended} ended in {times} times the ideal");
}
