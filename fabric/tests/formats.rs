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

/// `flows` hosts write to one more, 40 MB in all. In the steady state its link is so many Gb/s busy at least, and 99 % of the time at
/// most so many packets wait.
fn holds(name: &str, (flows, least, most): (u32, f64, f64), congestion: Congestion) {
    let flow = |source| Flow {
        source,
        destination: flows,
        bytes: 40_000_000 / u64::from(flows),
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let topology = Topology::star(flows as usize + 1, Rate::from_gbps(100), Duration::from_micros(1));
    let sampling = Sampling { every: Duration::from_micros(1), host: flows, flows: flows as usize };
    let list = (0..flows).map(flow).collect();
    let setup = Setup { sampling: Some(sampling), ..Setup::new(topology, list, congestion) };
    let outcome = run(&setup, &mut |_, _, _| {}).unwrap();
    assert_eq!(outcome.finished.len(), flows as usize, "{name}");
    let steady = Steady::of(&outcome, 1126).unwrap();
    let packet = (1126 + congestion.format.longest()) as f64;
    let p99 = steady.queue[2] / packet;
    println!("{name} {flows}: {:.1} Gb/s, queue p99 {p99:.1} packets", steady.utilisation_gbps);
    assert!(steady.utilisation_gbps >= least, "{name}, {flows} flows: {steady:?}");
    assert!(p99 <= most, "{name}, {flows} flows: {p99} packets: {steady:?}");
}

/// One and two flows, and eight from eight hosts, whose packets meet by chance: more than 3 wait 0.8 % of the time even if all keep
/// their pace (N*D/D/1 at 0.95), and none of their links is slow enough to space them.
const BOUNDS: [(u32, f64, f64); 3] = [(1, 90.0, 3.0), (2, 90.0, 3.0), (8, 87.0, 5.0)];

/// Every format, for 1, 2 and 8 flows.
fn all(mode: &str, congestion: impl Fn(Format) -> Congestion) {
    for (name, format) in Format::ALL {
        for bounds in BOUNDS {
            holds(&format!("{mode} {name}"), bounds, congestion(format));
        }
    }
}

#[test]
fn telemetry_in_every_packet_keeps_the_queue_to_some_packets() {
    all("inband", |format| Congestion { in_band: EVERY, ..sender(format) });
}

#[test]
fn telemetry_in_every_second_packet_is_enough() {
    all("inband:2", |format| Congestion { in_band: NonZeroU32::new(2), ..sender(format) });
}

#[test]
fn probes_keep_the_queue_short() {
    all("probe", |format| sender(format).probing(Some(RTT)));
}

#[test]
fn the_receiver_computes_from_any_format() {
    let algorithm = CongestionAlgorithm::HpccReceiver(config());
    let receiver = |format| Congestion { format, ..Congestion::new(algorithm) };
    all("receiver, inband", |format| Congestion { in_band: EVERY, ..receiver(format) });
    all("receiver, probe", |format| receiver(format).probing(Some(RTT)));
}

#[test]
fn notifications_bring_any_format_back() {
    all("notification", |format| Congestion {
        in_band: EVERY,
        reverse: Reverse::Notification,
        ..sender(format)
    });
}
