//! Tests the choices of a queue pair in virtual time: `auto`, DCTCP on a short round trip, several paths. Also tests the contents of
//! reports: ratios only, all hops, sojourn time, direct responses.

use cc::{DcqcnConfig, DctcpConfig, HpccConfig, Rate};
use ferroce_fabric::sim::{Flow, Outcome, Sampling, Setup, Steady, Topology, run, window};
use ferroce_fabric::{Direct, Probability, Red, SecondClass};
use roce::qp::{Congestion, CongestionAlgorithm, PathChoice, Upgrade, When};
use roce::wire::Format;
use std::num::{NonZeroU8, NonZeroU32};
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
const RTT: Duration = Duration::from_nanos(4_400);
const PACKET: u64 = 1126;

fn config(line: Rate, rtt: Duration) -> HpccConfig {
    HpccConfig::new(line, rtt, NonZeroU32::new(100).unwrap())
}

fn hpcc(rtt: Duration) -> Congestion {
    let algorithm = CongestionAlgorithm::Hpcc(config(LINE, rtt));
    Congestion { in_band: Some(NonZeroU32::MIN), ..Congestion::new(algorithm) }
}

/// Hosts are numbered from 0.
const fn flow(source: u32, destination: u32, bytes: u64, micros: u64) -> Flow {
    let start = Duration::from_micros(micros);
    Flow { source, destination, bytes, start, is_incast: false, dscp: 0 }
}

/// Two hosts write 20 MB each to a third, over links of rate `line`.
fn two_to_one(line: Rate, congestion: Congestion) -> Setup {
    let sampling = Sampling { every: Duration::from_micros(1), host: 2, flows: 2 };
    let flows = vec![flow(0, 2, 20_000_000, 0), flow(1, 2, 20_000_000, 0)];
    Setup { sampling: Some(sampling), ..Setup::new(Topology::star(3, line, HOP), flows, congestion) }
}

fn outcome(setup: &Setup) -> Outcome {
    let outcome = run(setup, &mut ()).unwrap();
    assert_eq!(outcome.finished.len(), setup.flows.len());
    outcome
}

fn longest(outcome: &Outcome) -> f64 {
    outcome.finished.iter().map(|flow| flow.time.as_secs_f64() * 1e6).fold(0.0, f64::max)
}

/// Checks that the bottleneck carries at least 90 Gb/s, and that at most 3 packets wait for 99 % of the time.
fn keeps_the_promise(name: &str, outcome: &Outcome) {
    let steady = Steady::of(outcome, PACKET).unwrap();
    println!("{name}: {steady:?}");
    assert!(steady.utilisation_gbps >= 90.0, "{name}: {steady:?}");
    assert!(steady.queue[2] <= 3.0 * PACKET as f64, "{name}: {steady:?}");
}

#[test]
fn auto_selects_hpcc_with_telemetry_and_dcqcn_without() {
    let auto = |line| {
        let fallback = CongestionAlgorithm::Dcqcn(DcqcnConfig::new(line, Some(RTT)));
        let to = CongestionAlgorithm::Hpcc(config(line, RTT));
        let upgrade = Some(Upgrade { when: When::TelemetryAnswered, to });
        Congestion { upgrade, ..Congestion::new(fallback) }.probing(Some(RTT))
    };
    keeps_the_promise("auto", &outcome(&two_to_one(LINE, auto(LINE))));
    // HPCC INT has no code for 30 Gb/s, so switches write no telemetry. ECN marks reduce the rates.
    let line = Rate::from_gbps(30);
    let red = Red { from: 40_000, to: 160_000, most: Probability::new(0.2).unwrap() };
    let marked = outcome(&Setup { red: Some(red), ..two_to_one(line, auto(line)) });
    let slowest = marked.series.iter().skip(20).flat_map(|row| &row.rates).filter(|rate| **rate > 0).min();
    println!("auto without telemetry: {} marked, slowest {slowest:?}", marked.marked);
    assert!(marked.marked > 20, "{}", marked.marked);
    assert!(slowest.is_some_and(|rate| *rate < 20_000_000_000), "{slowest:?}");
}

#[test]
fn dctcp_is_selected_where_the_round_trip_is_short() {
    let red = Red { from: 60_000, to: 60_000, most: Probability::ALWAYS };
    let below = |limit| {
        let to = CongestionAlgorithm::Dctcp(DctcpConfig::new(LINE, RTT));
        let upgrade = Some(Upgrade { when: When::RttBelow(limit), to });
        let fixed = CongestionAlgorithm::Fixed { window: 1 << 20, rate: None };
        let setup = two_to_one(LINE, Congestion { upgrade, ..Congestion::new(fixed) });
        Steady::of(&outcome(&Setup { red: Some(red), ..setup }), PACKET).unwrap()
    };
    let (near, far) = (below(Duration::from_millis(10)), below(Duration::from_micros(1)));
    println!("near {near:?}\nfar {far:?}");
    assert!(near.utilisation_gbps > 90.0 && near.queue[2] < 120_000.0, "{near:?}");
    assert!(far.queue[2] > 900_000.0, "{far:?}");
}

#[test]
fn ratio_reports_keep_the_queue_short() {
    for format in [Format::Hpcc, Format::Ioam] {
        let congestion = Congestion { ratio_only: true, format, ..hpcc(RTT) };
        keeps_the_promise(&format!("ratios by {format}"), &outcome(&two_to_one(LINE, congestion)));
    }
}

#[test]
fn reports_of_all_hops_keep_the_queue_short() {
    for format in [Format::Hpcc, Format::IntMd, Format::Ioam, Format::Ifa] {
        let congestion = Congestion { all_hops: true, format, ..hpcc(RTT) };
        keeps_the_promise(&format!("all hops by {format}"), &outcome(&two_to_one(LINE, congestion)));
    }
}

/// rtgwg-00 6.2.1: sixteen flows meet in their first round trip. Whatever brings the telemetry, all of them have slowed down before 13 µs,
/// after a round trip and the queue that delays the first answers.
#[test]
fn every_flow_of_an_incast_slows_down_in_the_first_round_trips() {
    for algorithm in
        [CongestionAlgorithm::Hpcc, CongestionAlgorithm::HpccFair, CongestionAlgorithm::HpccReceiver]
    {
        let algorithm = algorithm(config(LINE, RTT));
        for (name, in_band, probe_interval) in
            [("in-band", Some(NonZeroU32::MIN), None), ("probes", None, Some(RTT))]
        {
            let congestion = Congestion { in_band, probe_interval, ..Congestion::new(algorithm) };
            let flows = (0..16).map(|source| flow(source, 16, 500_000, 0)).collect();
            let sampling = Sampling { every: Duration::from_nanos(500), host: 16, flows: 16 };
            let jitter = Duration::from_nanos(100);
            let setup = Setup::new(Topology::star(17, LINE, HOP), flows, congestion);
            let outcome = outcome(&Setup { sampling: Some(sampling), jitter, ..setup });
            let is_slower = |rate: &u64| *rate > 0 && *rate < LINE.as_bps() / 2;
            let slower = outcome.series.iter().find(|row| row.rates.iter().all(is_slower)).unwrap();
            println!("{}, {name}: below half of the line rate after {} ns", algorithm.name(), slower.time);
            assert!(slower.time <= 13_000, "{}, {name}: {} ns", algorithm.name(), slower.time);
        }
    }
}

/// The increase of rtgwg-00 5 for N = 1 leaves a round trip's bytes in the queue of 16 flows.
#[test]
fn reported_flows_leave_a_short_queue_to_any_number_of_flows() {
    for flows in [1, 16, 64] {
        let [one, reported] = [false, true].map(|reported_flows| {
            let algorithm = CongestionAlgorithm::Hpcc(HpccConfig::new(LINE, RTT, NonZeroU32::MIN));
            let congestion = Congestion { reported_flows, ..Congestion::new(algorithm) }.probing(Some(RTT));
            let list = (0..flows).map(|source| flow(source, flows, 40_000_000 / u64::from(flows), 0));
            let sampling = Sampling { every: Duration::from_micros(1), host: flows, flows: flows as usize };
            let topology = Topology::star(flows as usize + 1, LINE, HOP);
            let jitter = Duration::from_nanos(100);
            let setup = Setup::new(topology, list.collect(), congestion);
            let outcome = outcome(&Setup { sampling: Some(sampling), jitter, ..setup });
            let end = outcome.finished.iter().map(|flow| flow.start + flow.time).min().unwrap();
            let (busy, _, queue) = window(&outcome.series, Duration::from_millis(1), end).unwrap();
            (busy, queue[2] / PACKET as f64)
        });
        println!("{flows} flows: N = 1 {one:.1?}, reported {reported:.1?}");
        assert!(reported.0 >= 94.0 && reported.1 <= 13.0, "{flows} flows: {reported:?}");
        assert!(flows == 1 || one.1 > 4.0 * reported.1, "{flows} flows: {one:?}, {reported:?}");
    }
}

/// Two flows between two leaves and two spines, with links of the hosts' rate. If the hash assigns both to one spine, each has half a link
/// until it changes its path.
#[test]
fn flows_move_to_the_other_spine() {
    let rtt = Duration::from_nanos(8_800);
    let times = |format: Format, paths: u8| -> Vec<f64> {
        let paths = (paths > 1).then_some(PathChoice { count: paths, interval: rtt, spray: false });
        let congestion = Congestion { paths, format, ..hpcc(rtt) };
        let topology = Topology::leaf_spine(2, 2, 2, LINE, LINE, HOP);
        let flows = vec![flow(0, 2, 20_000_000, 0), flow(1, 3, 20_000_000, 0)];
        let setup = Setup::new(topology, flows, congestion);
        // With seed 6 all four source ports lead to the same spine.
        [1, 2, 3, 4, 5, 7].map(|seed| longest(&outcome(&Setup { seed, ..setup.clone() }))).to_vec()
    };
    // AECN and CSIG do not identify the link. If the receiver's link is the busiest, the flow's own rate there counts twice.
    for (name, format) in Format::ALL.into_iter().filter(|(_, format)| !format.reports_load()) {
        let (one, four) = (times(format, 1), times(format, 4));
        println!("{name}: one path {one:.0?}, four {four:.0?}");
        assert!(one.iter().any(|time| *time > 3000.0), "{name}: none shares a link: {one:?}");
        assert!(four.iter().all(|time| *time < 3400.0), "{name}: {four:?}");
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        assert!(sum(&four) < 0.9 * sum(&one), "{name}: {one:?}, {four:?}");
    }
}

/// With spines of half the rate of the hosts' links, AECN suffices too. The flow's own rate counts twice at the receiver's link, but the
/// other spine is still the better one.
#[test]
fn flows_move_off_slow_spines_by_every_format() {
    let rtt = Duration::from_nanos(8_800);
    let longest_of = |format: Format, paths: u8| -> Vec<f64> {
        let paths = (paths > 1).then_some(PathChoice { count: paths, interval: rtt, spray: false });
        let congestion = Congestion { paths, format, ..hpcc(rtt) };
        let topology = Topology::leaf_spine(2, 2, 2, LINE, Rate::from_gbps(50), HOP);
        let setup =
            Setup::new(topology, vec![flow(0, 2, 20_000_000, 0), flow(1, 3, 20_000_000, 0)], congestion);
        (1..=4).map(|seed| longest(&outcome(&Setup { seed, ..setup.clone() }))).collect()
    };
    for (name, format) in Format::ALL {
        let (one, four) = (longest_of(format, 1), longest_of(format, 4));
        println!("{name}: one path {one:.0?}, four {four:.0?}");
        let sum = |times: &[f64]| times.iter().sum::<f64>();
        assert!(one.iter().any(|time| *time > 6000.0), "{name}: none shares a link: {one:?}");
        assert!(sum(&four) < 0.95 * sum(&one), "{name}: {one:?}, {four:?}");
    }
}

/// HPCC++ in two classes with the sojourn time in place of the queue length (rtgwg-00 9.3): both queues remain short.
#[test]
fn telemetry_with_sojourn_times_keeps_both_queues_short() {
    let weights = [1, 3].map(|weight| NonZeroU8::new(weight).unwrap());
    let mut setup = two_to_one(LINE, hpcc(RTT));
    setup.flows[1].dscp = 46;
    (setup.second_class, setup.tell_sojourn) = (Some(SecondClass { dscp: 46, weights }), true);
    keeps_the_promise("two classes", &outcome(&setup));
}

/// pan-01 6.3: a flow starts while another one is running. One packet in 256 has telemetry, so the flows react late to each other. Direct
/// responses of the switch shorten the queue.
#[test]
fn direct_responses_of_a_congested_switch_shorten_the_queue() {
    let queue = |subscribe, threshold| {
        let congestion = Congestion { in_band: NonZeroU32::new(256), subscribe, ..hpcc(RTT) };
        let mut setup = two_to_one(LINE, congestion);
        setup.flows[1].start = Duration::from_micros(300);
        setup.direct = Some(Direct::new(threshold, RTT));
        let outcome = outcome(&setup);
        let times = [300, 500].map(Duration::from_micros);
        let (_, _, [mean, ..]) = window(&outcome.series, times[0], times[1]).unwrap();
        println!(
            "subscribed {subscribe}, above {threshold} B: {} direct responses, mean queue {mean:.0} B",
            outcome.direct_responses
        );
        (outcome.direct_responses, mean)
    };
    let (responses, short) = queue(true, 20_000);
    let (none, long) = queue(false, 20_000);
    assert_eq!((none, queue(true, 10_000_000).0), (0, 0), "without a subscription, and without congestion");
    assert!(
        responses > 2 && short < 0.85 * long,
        "{responses} responses: mean queue {short} B, {long} B without"
    );
}
