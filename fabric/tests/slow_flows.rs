//! Flows of a large incast send less than a packet per round trip. `cargo test -p ferroce-fabric --test slow_flows -- --nocapture` prints
//! their completion times.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Conventions, Flow, Hosts, Sampling, Setup, Topology, run, window};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);

/// Returns the parameters for `expected` flows, with the default lowest rate of rules.
fn config(expected: u32) -> HpccConfig {
    let config = HpccConfig::new(LINE, Duration::from_nanos(4400), NonZeroU32::new(expected).unwrap());
    HpccConfig { min_rate: Rate::from_mbps(1), ..config }
}

const BYTES: u64 = 500_000;

/// `senders` hosts write [`BYTES`] each to one other host, in packets of `payload` bytes.
fn many(hosts: Hosts, senders: u32, payload: u32, algorithm: AlgorithmConfig) -> Setup {
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
    Setup { hosts, conventions, jitter: Duration::from_nanos(100), limit, ..setup }
}

/// Returns the number of flows that ended, and the ratio of the total time to that of all bytes on the link.
fn incast(hosts: Hosts, senders: u32, payload: u32, algorithm: AlgorithmConfig) -> (usize, f64) {
    let outcome = run(&many(hosts, senders, payload, algorithm), &mut ()).unwrap();
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

/// Each sender's share is 790 Mb/s, in packets of 4 KiB. With `W_ai` as an eighth of the headroom, a flow had 4.9 Mb/s, or one packet in
/// 6.7 ms. This is more than half of the byte counter's period of 10.7 ms, after which telemetry was not used.
#[test]
fn no_flow_that_its_receiver_paces_stalls() {
    let (ended, times) = incast(Hosts::Endpoints, 127, 4096, AlgorithmConfig::HpccReceiver(config(1)));
    println!("127 senders, hpcc-rx: {ended} ended, in {times:.2} times the ideal");
    assert!(ended == 127 && times <= 1.6, "{ended} ended in {times} times the ideal");
}

/// A thousand flows have windows of a tenth of a packet. Their first burst drains within 5 ms. Afterwards the queue is often empty.
#[test]
fn a_thousand_flows_have_no_standing_queue() {
    // The values of rules.
    let config = HpccConfig {
        min_rate: Rate::from_mbps(5),
        target_utilisation: 0.97,
        max_stage: 0,
        additive_increase: Rate::from_bps(0),
        ..config(1)
    };
    let setup = many(Hosts::Endpoints, 1000, 1024, AlgorithmConfig::HpccFair(config));
    let sampling = Some(Sampling { every: Duration::from_micros(20), host: 1000, flows: 1 });
    let setup = Setup { sampling, limit: Duration::from_millis(20), ..setup };
    let outcome = run(&setup, &mut ()).unwrap();
    let [begin, end] = [10, 20].map(Duration::from_millis);
    let (carried, _, [mean, _, p99, _]) = window(&outcome.series, begin, end).unwrap();
    let settled = outcome.series.iter().filter(|row| row.time >= begin.as_nanos() as u64);
    let (all, empty) =
        settled.fold((0, 0), |(all, empty), row| (all + 1, empty + usize::from(row.queue == 0)));
    println!(
        "1000 senders, hpcc-fair: {carried:.1} Gb/s, queue mean {mean:.0} B, p99 {p99:.0} B, {empty} of {all} times empty"
    );
    assert!(
        carried >= 85.0 && mean <= 100e3 && empty * 10 >= all,
        "{carried} Gb/s, {mean} B, {empty} of {all}"
    );
}

/// Each of 256 flows has a window of a fifth of a packet, and probes the path by itself. With a probe in each base round trip, the flows
/// sent 2.5 probes per packet. Together with the data, these exceeded the link's rate, and the flows of `hpcc-fair` took 2.4 times the
/// ideal time.
#[test]
fn probes_of_slow_flows_leave_the_link_to_their_data() {
    let (fair, receiver) = (AlgorithmConfig::HpccFair(config(1)), AlgorithmConfig::HpccReceiver(config(100)));
    for (algorithm, most) in [(fair, 1.15), (receiver, 1.35)] {
        let name = algorithm.name();
        let congestion = Congestion::new(algorithm).probing(Some(Duration::from_nanos(4400)));
        let setup =
            Setup { congestion, ..many(Hosts::Endpoints, 256, 1024, AlgorithmConfig::Hpcc(config(1))) };
        let outcome = run(&setup, &mut ()).unwrap();
        let ideal = LINE.time_for(256 * (BYTES + BYTES.div_ceil(1024) * 58));
        let times = outcome.time.as_secs_f64() / ideal.as_secs_f64();
        println!("256 senders, {name}, probes: {times:.2} times the ideal");
        assert!(times <= most, "{name}: {times} times the ideal");
    }
}

/// RFC 9002 6.2.1: a tail loss probe is due only after the longest round trip to expect. The first burst of an incast drains in 1 ms with
/// 256 flows and in 4 ms with 1000, and until then only the round trip of the first packets has been measured. Later, hundreds of flows
/// send a packet each at the same time. The windows of 1000 flows shrink while packets without AckReq are in flight.
#[test]
fn an_incast_without_a_loss_retransmits_nothing() {
    let (sender, receiver) = (AlgorithmConfig::Hpcc(config(100)), AlgorithmConfig::HpccReceiver(config(100)));
    let probing = |algorithm| Congestion::new(algorithm).probing(Some(Duration::from_nanos(4400)));
    let in_band = Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(sender) };
    for (senders, congestion, millis, selective_repeat) in [
        (256, in_band, 20, true),
        (256, probing(receiver), 20, true),
        (1000, probing(sender), 5, true),
        (1000, probing(sender), 5, false),
        (1000, probing(receiver), 7, true),
    ] {
        let mut setup =
            Setup { congestion, ..many(Hosts::Endpoints, senders, 1024, AlgorithmConfig::Hpcc(config(1))) };
        setup.requests.selective_repeat = selective_repeat;
        setup.limit = Duration::from_millis(millis);
        let outcome = run(&setup, &mut ()).unwrap();
        assert_eq!(
            (outcome.dropped, outcome.retransmitted, outcome.doubled),
            (0, 0, 0),
            "{senders} senders, {}, selective repeat: {selective_repeat}",
            congestion.algorithm.name()
        );
    }
}

/// A thousand flows are slow after their first burst, and all but one have little left to send. If a window of `hpcc-rx` did not count as
/// the answer to probes, no probe would be sent between two packets, and a flow would learn of the free link only from its next packet, up
/// to 9 ms later.
#[test]
fn slow_flows_notice_that_their_link_has_become_free() {
    let config = config(100);
    for algorithm in [AlgorithmConfig::Hpcc(config), AlgorithmConfig::HpccReceiver(config)] {
        let congestion = Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) };
        let mut setup =
            Setup { congestion, ..many(Hosts::Endpoints, 1000, 1024, AlgorithmConfig::Hpcc(config)) };
        for (index, flow) in setup.flows.iter_mut().enumerate() {
            flow.bytes = if index == 0 { 20_000_000 } else { 60_000 };
        }
        let bytes: u64 = setup.flows.iter().map(|flow| flow.bytes + flow.bytes.div_ceil(1024) * 102).sum();
        let outcome = run(&setup, &mut ()).unwrap();
        let times = outcome.time.as_secs_f64() / LINE.time_for(bytes).as_secs_f64();
        let name = algorithm.name();
        println!("999 short flows and a long one, {name}: {times:.2} times the ideal");
        assert!(outcome.finished.len() == 1000 && times <= 1.4, "{name}: {times} times the ideal");
    }
}
