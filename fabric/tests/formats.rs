//! HPCC++ holds the queue down whatever the telemetry is laid out like, in virtual time, by the telemetry writer of the very switch.

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Sampling, Setup, Steady, Topology, run};
use roce::qp::{Congestion, CongestionAlgorithm, Reverse};
use roce::wire::Format;
use std::num::NonZeroU32;
use std::time::Duration;

const RTT: Duration = Duration::from_nanos(4_400);
const EVERY: Option<NonZeroU32> = Some(NonZeroU32::MIN);

fn config() -> HpccConfig {
    HpccConfig::new(Rate::from_gbps(100), RTT, NonZeroU32::new(100).unwrap())
}

fn sender(format: Format) -> Congestion {
    Congestion { format, ..Congestion::new(CongestionAlgorithm::Hpcc(config())) }
}

/// The queue's 99th percentile in the steady state, in bytes, of two hosts that write 20 MB each to a third; the link was busy,
/// nothing was lost.
fn queue(name: &str, congestion: Congestion) -> f64 {
    let flow = |source| Flow {
        source,
        destination: 2,
        bytes: 20_000_000,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let topology = Topology::star(3, Rate::from_gbps(100), Duration::from_micros(1));
    let sampling = Sampling { every: Duration::from_micros(1), host: 2, flows: 2 };
    let setup =
        Setup { sampling: Some(sampling), ..Setup::new(topology, vec![flow(0), flow(1)], congestion) };
    let outcome = run(&setup, &mut |_, _, _| {}).unwrap();
    assert_eq!((outcome.finished.len(), outcome.retransmitted), (2, 0), "{name}");
    let steady = Steady::of(&outcome, 1126).unwrap();
    println!("{name}: {:.1} Gb/s, queue p99 {} of {}", steady.utilisation_gbps, steady.queue[2], steady.peak);
    assert!(steady.utilisation_gbps > 85.0, "{name}: {steady:?}");
    steady.queue[2]
}

#[test]
fn telemetry_in_every_packet_keeps_the_queue_to_some_packets() {
    for (name, format) in Format::ALL {
        let held = queue(name, Congestion { in_band: EVERY, ..sender(format) });
        assert!(held < 10_000.0, "{name}: {held}");
    }
}

#[test]
fn probes_keep_the_queue_short() {
    for (name, format) in Format::ALL {
        let held = queue(name, sender(format).probing(Some(RTT)));
        assert!(held < 30_000.0, "{name}: {held}");
    }
}

#[test]
fn the_receiver_computes_from_any_format() {
    for (name, format) in Format::ALL {
        let algorithm = CongestionAlgorithm::HpccReceiver(config());
        let congestion = Congestion { in_band: EVERY, format, ..Congestion::new(algorithm) };
        let held = queue(name, congestion);
        assert!(held < 30_000.0, "{name}: {held}");
    }
}

#[test]
fn notifications_bring_any_format_back() {
    for (name, format) in Format::ALL {
        let congestion = Congestion { in_band: EVERY, reverse: Reverse::Notification, ..sender(format) };
        let held = queue(name, congestion);
        assert!(held < 10_000.0, "{name}: {held}");
    }
}
