//! Links that change their rate, fail and return during a run.

use cc::{AlgorithmConfig, Rate};
use ferroce_fabric::sim::{Change, Flow, Hosts, LinkChange, Outcome, Setup, SetupError, Topology, run};
use roce::qp::Congestion;
use std::time::Duration;

const LINE: Rate = Rate::from_gbps(100);
const HOP: Duration = Duration::from_micros(1);
const BYTES: u64 = 25_000_000;
/// A full packet on the wire: 1024 bytes of payload and 58 of headers.
const PACKET: u64 = 1082;
const KINDS: [Hosts; 2] = [Hosts::Model, Hosts::Endpoints];

const fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

fn change(at: u64, links: &[usize], what: LinkChange) -> Change {
    Change { at: micros(at), links: links.to_vec(), what }
}

fn flow(source: u32, destination: u32) -> Flow {
    Flow { source, destination, bytes: BYTES, start: Duration::ZERO, is_incast: false, dscp: 0 }
}

/// Flows with a fixed window of 256 KiB, so that only links limit them.
fn setup(hosts: Hosts, topology: Topology, flows: Vec<Flow>, changes: Vec<Change>) -> Setup {
    let fixed = Congestion::new(AlgorithmConfig::Fixed { window: 256 << 10, rate: None });
    Setup { hosts, changes, limit: Duration::from_millis(200), ..Setup::new(topology, flows, fixed) }
}

fn one_flow(hosts: Hosts, changes: Vec<Change>) -> Setup {
    setup(hosts, Topology::star(2, LINE, HOP), vec![flow(0, 1)], changes)
}

/// Two racks of one host, and two spines; links 2 and 3 lead from the first leaf to the spines, 4 and 5 from the second.
fn two_paths(hosts: Hosts, changes: Vec<Change>) -> Setup {
    let topology = Topology::leaf_spine(2, 2, 1, LINE, LINE, HOP);
    assert_eq!(topology.links()[2].ends, [2, 4]);
    setup(hosts, topology, vec![flow(0, 1)], changes)
}

fn outcome(setup: &Setup) -> Outcome {
    run(setup, &mut ()).unwrap()
}

fn time(outcome: &Outcome) -> Duration {
    outcome.finished[0].time
}

/// In the first ms 12.5 MB are sent, and the rest at half the rate. `sender` and `receiver` are the links' indices.
#[test]
fn a_flow_on_a_link_that_halves_its_rate_takes_the_computed_time() {
    let (sender, receiver) = (0, 1);
    for hosts in KINDS {
        for link in [sender, receiver] {
            let half = LinkChange::Rate(Rate::from_gbps(50));
            let outcome = outcome(&one_flow(hosts, vec![change(1000, &[link], half)]));
            let wire = BYTES.div_ceil(1024) * PACKET;
            let expected = micros(1000) + Rate::from_gbps(50).time_for(wire - 12_500_000);
            let more = time(&outcome).checked_sub(expected).unwrap();
            println!("{hosts:?}, link {link}: {expected:?} and {more:?}");
            // The expected difference is a round trip of 4 µs. The packet in transmission keeps the old rate, which reduces it. Packets
            // that queue when the receiver's link becomes slower increase it.
            assert!(
                (Duration::from_nanos(3800)..micros(8)).contains(&more),
                "{hosts:?}, link {link}: {more:?}"
            );
            assert_eq!((outcome.lost, outcome.retransmitted), (0, 0));
            let waits = outcome.queue_max;
            assert_eq!(waits > 200_000, link == receiver, "{hosts:?}, link {link}: {waits} B wait");
        }
    }
}

/// The data passes one of two spines. If the link to the other fails, at most an acknowledgement is lost.
#[test]
fn a_flow_recovers_over_the_other_path_with_its_retransmissions_counted() {
    for hosts in KINDS {
        let whole = outcome(&two_paths(hosts, Vec::new()));
        let mut failed =
            [2, 3].map(|link| outcome(&two_paths(hosts, vec![change(1000, &[link], LinkChange::Down)])));
        failed.sort_by_key(|outcome| outcome.lost);
        let [other, hit] = &failed;
        println!("{hosts:?}: {:?}, then {:?}, {} lost", time(&whole), time(hit), hit.lost);
        assert!(other.lost <= 2 && other.retransmitted == 0, "{hosts:?}: {other:?}");
        assert_eq!(time(other), time(&whole), "{hosts:?}");
        // A link of 1 µs and its port hold 12.5 kB, or 12 packets. The model acknowledges each packet.
        let on_link = if hosts == Hosts::Model { 20..=28 } else { 10..=16 };
        assert!(on_link.contains(&hit.lost), "{hosts:?}: {} lost", hit.lost);
        assert!(hit.retransmitted >= 10, "{hosts:?}: {} sent again", hit.retransmitted);
        // Go-back-N retransmits at most a window.
        assert!(hit.retransmitted <= hit.lost + 256, "{hosts:?}: {} sent again", hit.retransmitted);
        assert!(time(hit) > time(&whole), "{hosts:?}");
        assert!(time(hit) < time(&whole) + micros(50), "{hosts:?}: {:?}", time(hit));
        assert_eq!(hit.finished[0].alone, whole.finished[0].alone, "{hosts:?}");
    }
}

/// The only path fails for 2 ms. Endpoints then resume after their timeout of 4.2 ms.
#[test]
fn a_flow_without_a_path_goes_on_when_it_returns() {
    for hosts in KINDS {
        let changes =
            |link| vec![change(1000, &[link], LinkChange::Down), change(3000, &[link], LinkChange::Up)];
        let whole = outcome(&one_flow(hosts, Vec::new()));
        for link in [0, 1] {
            let outcome = outcome(&one_flow(hosts, changes(link)));
            let more = time(&outcome) - time(&whole);
            println!(
                "{hosts:?}, link {link}: {more:?} longer, {} lost, {} dropped",
                outcome.lost, outcome.dropped
            );
            let most = if hosts == Hosts::Model { micros(2600) } else { micros(2000 + 8400) };
            assert!((micros(1990)..most).contains(&more), "{hosts:?}, link {link}: {more:?}");
            assert!(outcome.lost > 0 && outcome.retransmitted > 0, "{hosts:?}, link {link}");
        }
    }
}

/// The hash assigns both flows to one spine, or to two. While one spine has failed, both share the other. Afterwards they return to their
/// previous paths.
#[test]
fn paths_over_a_link_that_returned_are_used_again() {
    let topology = Topology::leaf_spine(2, 2, 2, LINE, LINE, HOP);
    let flows = vec![flow(0, 2), flow(1, 3)];
    let last = |seed, changes| {
        let setup = setup(Hosts::Endpoints, topology.clone(), flows.clone(), changes);
        let outcome = outcome(&Setup { seed, ..setup });
        outcome.finished.iter().map(|flow| flow.time).max().unwrap()
    };
    let seed = (1..20).find(|&seed| last(seed, Vec::new()) < micros(2300)).unwrap();
    let apart = last(seed, Vec::new());
    // Link 4 leads from the first leaf to the first spine.
    let down = change(500, &[4], LinkChange::Down);
    let together = last(seed, vec![down.clone()]);
    let for_a_while = last(seed, vec![down, change(1000, &[4], LinkChange::Up)]);
    println!("{apart:?} apart, {together:?} together, {for_a_while:?} together for 0.5 ms");
    // The bytes left after 0.5 ms take twice as long. 0.5 ms of sharing costs half of that time.
    let near = |time: Duration, expected: Duration| time.abs_diff(expected) < micros(100);
    assert!(near(together, 2 * apart - micros(500)), "{together:?}");
    assert!(near(for_a_while, apart + micros(250)), "{for_a_while:?}");
}

#[test]
fn a_run_ends_if_a_link_stays_down() {
    let down = |hosts, link| one_flow(hosts, vec![change(1000, &[link], LinkChange::Down)]);
    for hosts in KINDS {
        assert_eq!(outcome(&down(hosts, 0)).finished.len(), 0, "{hosts:?}");
    }
    assert_eq!(outcome(&down(Hosts::Model, 1)).finished.len(), 0);
    // An endpoint that can send retries seven times.
    let error = run(&down(Hosts::Endpoints, 1), &mut ()).unwrap_err();
    assert!(matches!(error, SetupError::Failed { flow: 0, .. }), "{error}");
}

/// Four senders fill a small buffer, so that the switch pauses them. The link of a paused host fails and returns.
#[test]
fn a_pause_ends_with_its_link() {
    for hosts in KINDS {
        let flows = (0..4).map(|source| flow(source, 4)).collect();
        let changes = vec![change(1000, &[0], LinkChange::Down), change(1010, &[0], LinkChange::Up)];
        let setup = setup(hosts, Topology::star(5, LINE, HOP), flows, changes);
        let outcome = outcome(&Setup { buffer: 400_000, ..setup });
        println!("{hosts:?}: {} pauses, {} lost", outcome.pauses, outcome.lost);
        assert_eq!(outcome.finished.len(), 4, "{hosts:?}");
        assert!(outcome.pauses > 10, "{hosts:?}: {}", outcome.pauses);
    }
}

#[test]
fn equal_runs_with_changes_are_equal() {
    for hosts in KINDS {
        let changes = vec![
            change(300, &[2, 5], LinkChange::Down),
            change(500, &[0], LinkChange::Rate(Rate::from_gbps(40))),
            change(700, &[2], LinkChange::Up),
        ];
        let setup = two_paths(hosts, changes);
        assert_eq!(outcome(&setup), outcome(&setup), "{hosts:?}");
    }
}

#[test]
fn changes_of_unknown_links_or_to_rates_without_a_code_are_refused() {
    let refused = |change| one_flow(Hosts::Endpoints, vec![change]).check().unwrap_err();
    let error = refused(change(1, &[0, 7], LinkChange::Down));
    assert_eq!(error, SetupError::Change { change: 0, link: 7, last: 1 });
    let bps = 1_500_000_000;
    assert_eq!(refused(change(1, &[0], LinkChange::Rate(Rate::from_bps(bps)))), SetupError::Rate { bps });
}
