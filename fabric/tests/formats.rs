//! HPCC++ holds the queue down whatever the telemetry is laid out like, through the very switch, in virtual time.

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Outcome, Scenario, run};
use roce::qp::{Congestion, CongestionAlgorithm, Reverse};
use roce::wire::{Format, Mtu};
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

/// Two hosts write 20 MB each to a third.
fn incast(congestion: Congestion) -> Outcome {
    let flow = |source| Flow { source, destination: 3, bytes: 20_000_000, start: Duration::ZERO };
    let scenario = Scenario {
        hosts: 3,
        rate: Rate::from_gbps(100),
        delay: Duration::from_micros(1),
        queue: 32_000_000,
        ecn_threshold: None,
        mtu: Mtu::M1024,
        congestion,
        flows: vec![flow(1), flow(2)],
        jitter: Duration::ZERO,
        seed: 1,
        limit: Duration::from_secs(1),
    };
    run(&scenario, &mut |_, _, _| {}).unwrap()
}

/// The queue's 99th percentile in bytes; the link was busy until the last flow had ended, nothing was lost.
fn queue(name: &str, congestion: Congestion) -> u64 {
    let outcome = incast(congestion);
    assert_eq!((outcome.completed.len(), outcome.retransmitted), (2, 0), "{name}");
    let port = &outcome.report.ports[2];
    assert!(port.utilisation > 0.85, "{name}: {}", port.utilisation);
    assert!(port.counters.stamped > 100, "{name}: {}", port.counters.stamped);
    println!("{name}: busy {:.3}, queue p99 {} of {}", port.utilisation, port.queue.p99, port.queue.max);
    port.queue.p99
}

#[test]
fn telemetry_in_every_packet_keeps_the_queue_to_some_packets() {
    for (name, format) in Format::ALL {
        let held = queue(name, Congestion { in_band: EVERY, ..sender(format) });
        assert!(held < 10_000, "{name}: {held}");
    }
}

#[test]
fn probes_keep_the_queue_short() {
    for (name, format) in Format::ALL {
        let held = queue(name, sender(format).probing(Some(RTT)));
        assert!(held < 30_000, "{name}: {held}");
    }
}

#[test]
fn the_receiver_computes_from_any_format() {
    for (name, format) in Format::ALL {
        let algorithm = CongestionAlgorithm::HpccReceiver(config());
        let congestion = Congestion { in_band: EVERY, format, ..Congestion::new(algorithm) };
        let held = queue(name, congestion);
        assert!(held < 30_000, "{name}: {held}");
    }
}

#[test]
fn notifications_bring_any_format_back() {
    for (name, format) in Format::ALL {
        let congestion = Congestion { in_band: EVERY, reverse: Reverse::Notification, ..sender(format) };
        let held = queue(name, congestion);
        assert!(held < 10_000, "{name}: {held}");
    }
}
