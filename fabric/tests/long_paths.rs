//! Paths of more switches than data packets have room for: the queue of the last link stays short.
//! `cargo test -p ferroce-fabric --test long_paths -- --nocapture` prints the figures.

use cc::{HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Link, Sampling, Setup, Topology, run, window};
use roce::qp::{Congestion, CongestionAlgorithm, Unknown, Upgrade, When};
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
const SENDERS: usize = 4;
const PACKET: f64 = 1126.0;

/// Returns the topology of a chain of `switches` switches, whose links have 400 Gb/s. The senders are at its first switch, and the receiver
/// is at its last.
fn chain(switches: usize) -> Topology {
    let hosts = SENDERS + 1;
    let last = hosts + switches - 1;
    let mut links: Vec<_> = (0..SENDERS).map(|host| Link::new([host, hosts], LINE, HOP)).collect();
    links.push(Link::new([SENDERS, last], LINE, HOP));
    links.extend((hosts..last).map(|switch| Link::new([switch, switch + 1], Rate::from_gbps(400), HOP)));
    Topology::graph(hosts, switches, links).unwrap()
}

/// Returns the rate (Gb/s) of the receiver's link and the 99th percentile of its queue (packets), from 1 ms on.
fn steady(switches: usize, congestion: Congestion) -> (f64, f64) {
    let flow = |source| Flow {
        source,
        destination: SENDERS as u32,
        bytes: 10_000_000,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let sampling = Sampling { every: HOP, host: SENDERS as u32, flows: SENDERS };
    let setup = Setup {
        sampling: Some(sampling),
        jitter: Duration::from_nanos(100),
        ..Setup::new(chain(switches), (0..SENDERS as u32).map(flow).collect(), congestion)
    };
    let outcome = run(&setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), SENDERS);
    let end = outcome.finished.iter().map(|flow| flow.start + flow.time).min().unwrap();
    let (busy, _, queue) = window(&outcome.series, Duration::from_millis(1), end - 5 * HOP).unwrap();
    (busy, queue[2] / PACKET)
}

/// Telemetry in data has room for 5 switches, in probes for 15. The links behind the fifth were once not seen: 590 packets were queued at
/// six switches, with `auto` 7,700.
#[test]
fn the_last_link_of_a_long_path_is_measured() {
    for switches in [5, 6, 9, 15] {
        let rtt = Duration::from_nanos(2200) * (switches as u32 + 1);
        let config = HpccConfig::new(LINE, rtt, NonZeroU32::new(16).unwrap());
        let fair = CongestionAlgorithm::HpccFair(HpccConfig {
            target_utilisation: 0.97,
            max_stage: 0,
            additive_increase: Rate::from_bps(0),
            base_rtt: Congestion::FIRST_BASE_RTT,
            ..config
        });
        let every = |algorithm| Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) };
        let auto = Congestion {
            upgrade: Some(Upgrade { when: When::TelemetryAnswered, to: fair }),
            in_band: NonZeroU32::new(4),
            probe_interval: Some(Congestion::FIRST_BASE_RTT),
            unknown: Unknown { base_rtt: true, path_rate: true, line_rate: false },
            ..Congestion::new(CongestionAlgorithm::Fixed { window: 512 << 10, rate: None })
        };
        for (name, congestion) in [
            ("hpcc, in-band", every(CongestionAlgorithm::Hpcc(config))),
            ("hpcc-rx, in-band", every(CongestionAlgorithm::HpccReceiver(config))),
            ("hpcc, probes", Congestion::new(CongestionAlgorithm::Hpcc(config)).probing(Some(rtt))),
            ("auto", auto),
        ] {
            let (busy, p99) = steady(switches, congestion);
            println!("{switches:>2} switches, {name}: {busy:.1} Gb/s, {p99:.1} packets");
            assert!(busy >= 94.0 && p99 <= 10.0, "{switches} switches, {name}: {busy} Gb/s, {p99} packets");
        }
    }
}
