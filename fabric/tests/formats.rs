//! HPCC++ keeps the queue short with every telemetry format that the switch writes.

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Sampling, Setup, Topology, run, window};
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

/// Runs `flows` flows from `hosts` hosts to one other host, 60 MB in total. Checks that in the steady state the link carries at least
/// `least` Gb/s, and that at most `most` packets are queued for 99 % of the time.
fn holds(name: &str, (hosts, flows, least, most): (u32, u32, f64, f64), congestion: Congestion) {
    let flow = |number| Flow {
        source: number % hosts,
        destination: hosts,
        bytes: 60_000_000 / u64::from(flows),
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let topology = Topology::star(hosts as usize + 1, Rate::from_gbps(100), Duration::from_micros(1));
    let sampling = Sampling { every: Duration::from_micros(1), host: hosts, flows: flows as usize };
    let list = (0..flows).map(flow).collect();
    let setup = Setup { sampling: Some(sampling), ..Setup::new(topology, list, congestion) };
    let outcome = run(&setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), flows as usize, "{name}");
    let end = outcome.finished.iter().map(|flow| flow.start + flow.time).min().unwrap();
    let (busy, _, queue) = window(&outcome.series, SETTLED, end - Duration::from_micros(5)).unwrap();
    let p99 = queue[2] / (1126 + congestion.format.longest()) as f64;
    println!("{name}, {flows} flows of {hosts} hosts: {busy:.1} Gb/s, queue p99 {p99:.1} packets");
    assert!(busy >= least, "{name}, {flows} flows of {hosts} hosts: {busy} Gb/s");
    assert!(p99 <= most, "{name}, {flows} flows of {hosts} hosts: {p99} packets");
}

/// Time after which flows that start together have settled. Eight flows that start at line rate with a window of a round trip each cause a
/// queue of seven round trips. All of them then reduce their windows, in the receiver's algorithm once per `T`. This takes about 100 `T`.
const SETTLED: Duration = Duration::from_micros(800);

/// One and two flows; eight flows from two hosts, whose links space their packets, as in `ci/congestion`; and eight flows from eight hosts,
/// whose packets arrive together by chance. Eight exactly periodic sources at 94 % load have more than 3 packets queued for 0.77 % of the
/// time, and more than 4 for 0.05 % (N*D/D/1). Each flow's rate varies slightly, so the 99th percentile is 4.
const BOUNDS: [(u32, u32, f64, f64); 4] =
    [(1, 1, 90.0, 3.0), (2, 2, 90.0, 3.0), (2, 8, 90.0, 3.0), (8, 8, 90.0, 4.1)];

fn all(mode: &str, congestion: impl Fn(Format) -> Congestion) {
    // The wide CSIG tag has the fields of the compact tag at another resolution.
    for (name, format) in Format::ALL.into_iter().filter(|(name, _)| mode == "inband" || *name != "csig-wide")
    {
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
fn notifications_return_telemetry_of_any_format() {
    all("notification", |format| Congestion {
        in_band: EVERY,
        reverse: Reverse::Notification,
        ..sender(format)
    });
}
