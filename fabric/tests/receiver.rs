//! HPCC++ at the receiver, with endpoints. `cargo test --release -p ferroce-fabric --test receiver -- --nocapture` prints the figures.

use cc::{AlgorithmConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Rival, Sampling, Setup, Topology, Which, run, window};
use roce::qp::Congestion;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);

fn config() -> HpccConfig {
    let config = HpccConfig::new(LINE, Duration::from_nanos(4400), NonZeroU32::new(100).unwrap());
    HpccConfig { min_rate: Rate::from_mbps(20), ..config }
}

fn in_band(algorithm: AlgorithmConfig) -> Congestion {
    Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) }
}

/// `senders` hosts start at the same time and write to one other host without end.
fn incast(senders: u32, congestion: Congestion) -> Setup {
    let flow = |source| Flow {
        source,
        destination: senders,
        bytes: 1 << 30,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let sampling = Sampling { every: Duration::from_micros(5), host: senders, flows: senders as usize };
    let topology = Topology::star(senders as usize + 1, LINE, Duration::from_micros(1));
    let setup = Setup::new(topology, (0..senders).map(flow).collect(), congestion);
    Setup { sampling: Some(sampling), jitter: Duration::from_nanos(100), ..setup }
}

/// Returns the rate in Gb/s on the wire, Jain's index, and the queue's mean, 95th and 99th percentile and maximum, in a part of a run.
fn between(millis: [u64; 2], setup: &Setup) -> (f64, f64, [f64; 4]) {
    let [from, until] = millis.map(Duration::from_millis);
    let outcome = run(&Setup { limit: until, ..setup.clone() }, &mut ()).unwrap();
    window(&outcome.series, from, until).unwrap()
}

/// Line 29 uses the actual round trip. While a queue exists, it is longer than T. With a reference that moved every T, the sender would
/// react several times to the same queue.
#[test]
fn an_incast_of_any_size_stays_busy_and_fair() {
    for (senders, millis) in [(16, [1, 4]), (64, [2, 6]), (256, [5, 15])] {
        let incast = incast(senders, in_band(AlgorithmConfig::HpccReceiver(config())));
        let (busy, jain, queue) = between(millis, &incast);
        println!("{senders}: {busy:.1} Gb/s, Jain {jain:.3}, queue {queue:.0?}");
        assert!(busy >= 90.0 && jain >= 0.97, "{senders} senders: {busy} Gb/s, Jain {jain}");
    }
}

/// The receiver paces half of the flows and the sender the other half, with the same parameters.
#[test]
fn both_ends_algorithms_share_a_link_fairly() {
    for (senders, expected) in [(2, 1), (2, 2), (2, 100), (4, 1), (16, 16)] {
        let config = HpccConfig::new(LINE, Duration::from_nanos(4400), NonZeroU32::new(expected).unwrap());
        let mut incast = incast(senders, in_band(AlgorithmConfig::HpccReceiver(config)));
        for flow in incast.flows.iter_mut().step_by(2) {
            flow.dscp = 1;
        }
        let congestion = in_band(AlgorithmConfig::Hpcc(config));
        incast.rivals = vec![Rival { which: Which::Class(1), congestion }];
        let (busy, jain, _) = between([10, 15], &incast);
        println!("{senders} of both, {expected} expected: {busy:.1} Gb/s, Jain {jain:.3}");
        assert!(
            busy >= 90.0 && jain >= 0.95,
            "{senders} senders, {expected} expected: {busy} Gb/s, Jain {jain}"
        );
    }
}

/// The busiest link is between two switches, where the receiver does not know how many flows share it. With the configured `W_ai`, which is
/// for one flow by default, 16 queue pairs left 46 packets in the queue.
#[test]
fn queue_pairs_that_share_a_link_inside_the_fabric_keep_its_queue_short() {
    let trunk = Rate::from_gbps(50);
    for flows in [1, 4, 16] {
        let rtt = Duration::from_nanos(6500);
        let config = HpccConfig::new(LINE, rtt, NonZeroU32::MIN);
        let config = HpccConfig { min_rate: Rate::from_mbps(1), ..config };
        let congestion = Congestion::new(AlgorithmConfig::HpccReceiver(config)).probing(Some(rtt));
        let flow = Flow {
            source: 0,
            destination: 1,
            bytes: 1 << 30,
            start: Duration::ZERO,
            is_incast: false,
            dscp: 0,
        };
        let topology = Topology::dumbbell(1, 1, LINE, trunk, Duration::from_micros(1));
        let setup = Setup {
            sampled: vec![[2, 3]],
            sampling: Some(Sampling { every: Duration::from_micros(1), host: 1, flows }),
            jitter: Duration::from_nanos(100),
            ..Setup::new(topology, vec![flow; flows], congestion)
        };
        let (busy, jain, queue) = between([2, 5], &setup);
        let packets = queue[2] / 1126.0;
        println!("{flows} flows, 50 Gb/s inside: {busy:.1} Gb/s, Jain {jain:.3}, {packets:.1} packets");
        assert!(busy >= 45.0 && packets <= 12.0, "{flows} flows: {busy} Gb/s, {packets} packets");
    }
}
