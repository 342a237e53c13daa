//! Peers and networks other than Ferroce: Linux as an IOAM node, receivers that forge reports, hosts that do not support probes.

use cc::{DcqcnConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Outcome, Sampling, Setup, SetupError, Topology, run, window};
use ferroce_fabric::{Probability, Red};
use roce::qp::{Congestion, CongestionAlgorithm, FeedbackKey, Upgrade, When};
use roce::wire::Format;
use std::num::NonZeroU32;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(10);
const HOP: Duration = Duration::from_micros(20);
const RTT: Duration = Duration::from_micros(90);
const PACKET: u64 = 1126;
const EVERY: Option<NonZeroU32> = Some(NonZeroU32::MIN);

fn config() -> HpccConfig {
    HpccConfig::new(LINE, RTT, NonZeroU32::new(16).unwrap())
}

/// `hosts` hosts write 10 MB each to one other host.
fn incast(hosts: u32, congestion: Congestion) -> Setup {
    let flow = |source| Flow {
        source,
        destination: hosts,
        bytes: 10_000_000,
        start: Duration::ZERO,
        is_incast: false,
        dscp: 0,
    };
    let sampling = Sampling { every: Duration::from_micros(10), host: hosts, flows: hosts as usize };
    let topology = Topology::star(hosts as usize + 1, LINE, HOP);
    Setup { sampling: Some(sampling), ..Setup::new(topology, (0..hosts).map(flow).collect(), congestion) }
}

fn outcome(setup: &Setup) -> Outcome {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), setup.flows.len());
    outcome
}

/// Returns the rate in Gb/s on the wire and the queue's 99th percentile in packets, from 40 round trips on until the first flow ends.
fn settled(name: &str, outcome: &Outcome) -> (f64, f64) {
    let end = outcome.finished.iter().map(|flow| flow.start + flow.time).min().unwrap();
    let (busy, _, [mean, _, p99, _]) = window(&outcome.series, 40 * RTT, end - RTT).unwrap();
    println!("{name}: {busy:.2} Gb/s, queue mean {mean:.0} B, p99 {p99:.0} B");
    (busy, p99 / PACKET as f64)
}

/// A Linux router reports queue and time, but not `txBytes` (cc/README.md, roce/src/wire/format/README.md). With these values, HPCC++ keeps
/// the queue short and the link in use.
#[test]
fn a_linux_ioam_node_is_sufficient_for_a_short_queue() {
    let by_linux = |hosts, congestion| {
        let setup = Setup { linux_ioam: true, ..incast(hosts, congestion) };
        settled(&format!("{hosts} hosts, {}", congestion.algorithm.name()), &outcome(&setup))
    };
    let fixed = Congestion::new(CongestionAlgorithm::Fixed { window: 1 << 19, rate: None });
    let (_, filled) = by_linux(2, Congestion { format: Format::Ioam, ..fixed });
    for (hosts, algorithm) in [
        (1, CongestionAlgorithm::Hpcc(config())),
        (2, CongestionAlgorithm::Hpcc(config())),
        (8, CongestionAlgorithm::Hpcc(config())),
        (2, CongestionAlgorithm::HpccReceiver(config())),
    ] {
        let congestion = Congestion { format: Format::Ioam, in_band: EVERY, ..Congestion::new(algorithm) };
        let (busy, p99) = by_linux(hosts, congestion);
        assert!(busy >= 8.5, "{hosts} hosts: {busy} Gb/s");
        assert!(p99 <= filled / 10.0, "{hosts} hosts: {p99} packets, {filled} with a fixed window");
    }
    let hpcc = Congestion::new(CongestionAlgorithm::Hpcc(config()));
    let refused = run(&Setup { linux_ioam: true, ..incast(1, hpcc) }, &mut ());
    assert_eq!(refused.unwrap_err(), SetupError::LinuxIoam);
}

/// rtgwg-00 9.1: whatever a receiver reports, a sender's rate remains between its lowest rate and the line rate.
#[test]
fn forged_reports_of_a_receiver_keep_rates_in_bounds() {
    for algorithm in [
        CongestionAlgorithm::Hpcc(config()),
        CongestionAlgorithm::HpccFair(config()),
        CongestionAlgorithm::HpccReceiver(config()),
    ] {
        let congestion = Congestion { in_band: EVERY, ..Congestion::new(algorithm) };
        // Flows with such reports do not finish.
        let limit = Duration::from_millis(200);
        let setup = Setup { forgery: Probability::ALWAYS, limit, ..incast(2, congestion) };
        let outcome = run(&setup, &mut ()).unwrap();
        let paces: Vec<u64> =
            outcome.series.iter().flat_map(|row| &row.rates).copied().filter(|rate| *rate > 0).collect();
        let (least, most) = (paces.iter().min().unwrap(), paces.iter().max().unwrap());
        println!("{}: {} forged reports, pace {least} to {most}", algorithm.name(), outcome.forged);
        assert!(outcome.forged > 50, "{}", outcome.forged);
        assert!(*least >= LINE.as_bps() / 1000 && *most <= LINE.as_bps(), "{least} to {most}");
        assert!(*least < LINE.as_bps() / 4, "the forged reports had no effect: {least}");
    }
}

#[test]
fn with_a_key_unsealed_feedback_is_ignored() {
    let congestion = Congestion {
        in_band: EVERY,
        feedback_key: Some(FeedbackKey([7; 16])),
        ..Congestion::new(CongestionAlgorithm::Hpcc(config()))
    };
    let outcome = outcome(&Setup { forgery: Probability::new(0.5).unwrap(), ..incast(2, congestion) });
    assert!(outcome.forged > 1000, "{}", outcome.forged);
    let (busy, p99) = settled("half of the answers forged", &outcome);
    assert!(busy >= 9.0 && p99 <= 3.0, "{busy} Gb/s, {p99} packets");
}

/// A peer that does not support telemetry, and switches whose rate has no code in HPCC INT: no window arrives, so DCQCN takes over, and
/// marks shorten the queue. At the line rate, the four flows' windows fill it for good.
#[test]
fn hpcc_rx_without_telemetry_uses_marks() {
    for (name, drop_vendor_opcodes, line) in
        [("deaf peer", true, LINE), ("no code", false, Rate::from_gbps(30))]
    {
        let config = HpccConfig { line_rate: line, ..config() };
        let congestion = CongestionAlgorithm::HpccReceiver(config);
        let window = config.initial_window() as f64;
        let red = Red { from: 200_000, to: 200_000, most: Probability::ALWAYS };
        let incast = incast(4, Congestion { in_band: EVERY, ..Congestion::new(congestion) });
        let topology = Topology::star(5, line, HOP);
        let outcome = outcome(&Setup { topology, drop_vendor_opcodes, red: Some(red), ..incast });
        let (busy, _, [_, _, p99, _]) =
            self::window(&outcome.series, Duration::from_millis(5), Duration::from_millis(9)).unwrap();
        println!("{name}: {busy:.1} Gb/s, queue p99 {p99:.0} B, {} marked", outcome.marked);
        assert!(busy > 0.0 && p99 < 1.5 * window, "{name}: {p99} B");
    }
}

/// `auto` without any answer sends at most 20 probes, and then uses DCQCN with the switch's marks.
#[test]
fn auto_selects_dcqcn_if_the_peer_answers_no_probes() {
    let fallback = CongestionAlgorithm::Dcqcn(DcqcnConfig::new(LINE, Some(RTT)));
    let upgrade = Some(Upgrade { when: When::TelemetryAnswered, to: CongestionAlgorithm::Hpcc(config()) });
    let auto = Congestion { upgrade, ..Congestion::new(fallback) }.probing(Some(RTT));
    // The limits are for 100 Gb/s; a tenth of them applies here.
    let red = Red { from: 400_000, to: 1_600_000, most: Probability::new(0.2).unwrap() };
    let outcome = outcome(&Setup { drop_vendor_opcodes: true, red: Some(red), ..incast(2, auto) });
    let slowest = outcome.series.iter().flat_map(|row| &row.rates).filter(|rate| **rate > 0).min().unwrap();
    println!("{} probes dropped, {} marked, slowest {slowest}", outcome.vendor_opcodes, outcome.marked);
    // The probes of both hosts; the last probes are far apart.
    assert!((2 * 8..=2 * 20).contains(&outcome.vendor_opcodes), "{}", outcome.vendor_opcodes);
    assert!(outcome.marked > 0 && *slowest < LINE.as_bps() * 3 / 4, "{} {slowest}", outcome.marked);
}
