//! The causes of a queue pair's waits, each with its duration, evidence and remedy.

use super::difference::{Difference, rate, time};
use crate::installed;
use cc::{BUILT_IN, Feedback};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The least share of time without a CPU for which `cpu-starved` is a cause.
const STARVED: f64 = 0.4;
const STARVATION: &str = "cpu-starved";

pub struct Cause {
    /// A name of [`Waiting::name`](verbs::observe::Waiting::name), `congested-path`, `path-mtu` or `cpu-starved`.
    pub name: String,
    /// The duration, ns.
    pub nanos: u64,
    /// The share of the observed time: 0 to 1.
    pub share: f64,
    /// The cause as a sentence.
    pub says: String,
    pub evidence: Vec<String>,
    pub remedy: String,
}

/// The causes of a queue pair, the longest first.
pub struct Causes {
    pub all: Vec<Cause>,
    /// The share of the observed time in states that `all` omits, because each had less than 1 %: 0 to 1.
    pub rest: f64,
}

impl Cause {
    /// Returns true if the cause's time also counts for other causes.
    pub fn overlaps(&self) -> bool {
        self.name == STARVATION
    }

    /// Returns the cause as JSON.
    pub fn json(&self) -> Value {
        json!({
            "cause": self.name, "nanoseconds": self.nanos, "share": self.share, "overlaps": self.overlaps(), "says": self.says,
            "evidence": self.evidence, "remedy": self.remedy,
        })
    }
}

/// Returns the name of the cause for a state. On a full link, the pacing or the window of congestion control limits a queue pair. A path
/// that loses large packets causes loss recovery first, and then silence.
fn named<'a>(state: &'a str, difference: &Difference<'_>) -> &'a str {
    match state {
        "silence" | "loss-recovery" if difference.is_path_mtu() => "path-mtu",
        "pacing" | "window" if difference.is_congested() => "congested-path",
        state => state,
    }
}

/// Returns the causes, the longest first. Omits causes below 1 %, unless all are. The shares and the rest add up to 1, except starvation,
/// which overlaps the others.
pub fn ranked(difference: &Difference<'_>) -> Causes {
    let mut times = BTreeMap::new();
    for (state, nanos) in difference.waited.iter().filter(|(_, nanos)| **nanos > 0) {
        *times.entry(named(state, difference)).or_insert(0) += nanos;
    }
    let mut causes: Vec<Cause> =
        times.into_iter().map(|(name, nanos)| cause(name, nanos, difference)).collect();
    causes.sort_by_key(|cause| std::cmp::Reverse(cause.nanos));
    let worth: usize = causes.iter().filter(|cause| cause.share >= 0.01).count();
    let rest = causes.split_off(worth.max(1).min(causes.len())).iter().map(|cause| cause.share).sum();
    let starved = difference.starved as f64 / difference.elapsed as f64;
    let first = causes.first().map_or("idle", |cause| cause.name.as_str());
    if starved >= STARVED && (first != "idle" || causes.len() > 1) {
        let starved = cause(STARVATION, difference.starved.min(difference.elapsed), difference);
        // A core without a CPU delays acknowledgements and turns, and a program without one delays its posts. The other causes do not
        // depend on the CPU, so they precede starvation if they lasted longer.
        let is_longer = |other: &Cause| other.nanos > starved.nanos;
        let place = match first {
            "answer" | "turn" | "idle" => 0,
            _ => causes.iter().take_while(|cause| is_longer(cause)).count(),
        };
        causes.insert(place, starved);
    }
    Causes { all: causes, rest }
}

fn cause(name: &str, nanos: u64, difference: &Difference<'_>) -> Cause {
    let (says, evidence, remedy) = words(name, difference);
    Cause {
        name: name.into(),
        nanos,
        share: nanos as f64 / difference.elapsed as f64,
        says,
        evidence: evidence.into_iter().flatten().collect(),
        remedy,
    }
}

type Words = (String, Vec<Option<String>>, String);

fn words(name: &str, difference: &Difference<'_>) -> Words {
    match name {
        "congested-path" | "pacing" | "window" | "read-limit" | "fence" => allowed(name, difference),
        "receiver-not-ready" | "loss-recovery" | "silence" | "path-mtu" | "answer" => peer(name, difference),
        _ => host(name, difference),
    }
}

fn counted(difference: &Difference<'_>, name: &str, words: &str) -> Option<String> {
    Some(difference.counted(name))
        .filter(|count| *count > 0)
        .map(|count| format!("{count} {words} on this device"))
}

fn allowed(name: &str, difference: &Difference<'_>) -> Words {
    let pair = difference.pair;
    match name {
        "congested-path" => (
            format!("A link of the path was busy: with {}, it sent {}.", pair.algorithm, difference.sent()),
            vec![
                difference.busiest_hop(),
                Some(format!("window {} B", pair.window)),
                pair.rate_bps.map(|bps| format!("pacing rate {}", rate(bps as f64))),
                difference.round_trips(),
            ],
            "find out which other hosts send through that switch port; send less over it, or use a faster link"
                .into(),
        ),
        "pacing" => pacing(difference),
        "window" => window(difference),
        "read-limit" => (
            "It had as many READs and atomics outstanding as the peer allows.".into(),
            vec![Some(format!("{} requests are posted", pair.outstanding)), difference.round_trips()],
            "raise max_rd_atomic here and max_dest_rd_atomic at the peer (up to 16), or read more at once"
                .into(),
        ),
        _ => (
            "A fenced request waited for the READs and atomics before it.".into(),
            vec![difference.round_trips()],
            "fence only requests that use the result of a READ".into(),
        ),
    }
}

fn pacing(difference: &Difference<'_>) -> Words {
    let pair = difference.pair;
    let algorithm = &pair.algorithm;
    let full = pair.utilisation.map(|part| format!("the path's busiest link is {:.0} % full", part * 100.0));
    let evidence = vec![
        full,
        difference.busiest_hop(),
        counted(difference, "cnps_received", "CNPs"),
        counted(difference, "rx_marked", "CE marks"),
    ];
    let pace = pair.rate_bps.map_or("its rate".into(), |bps| rate(bps as f64));
    if pair.rate_bps.zip(pair.line_rate_bps).is_some_and(|(rate, line_rate)| rate >= line_rate) {
        return (
            format!("It sent at the line rate of {algorithm}, {pace}."),
            evidence,
            "the line rate is the limit; if the link is faster, add line_rate=RATE to --cc".into(),
        );
    }
    let remedy = match algorithm.as_str() {
        "dctcp" | "dcqcn" => {
            "find the switch port that marks packets, and what else it sends; send less over it"
        }
        name if is_by_delay(name) => {
            "find the queue that lengthens the round trip, and what else fills it; send less over it"
        }
        _ => {
            "find out which other hosts send over the path's busiest link; send less over it, or use a faster one"
        }
    };
    (
        format!("It was paced by {algorithm} at {pace}: it sent {}.", difference.sent()),
        evidence,
        remedy.into(),
    )
}

/// Returns whether this algorithm computes with round trips.
fn is_by_delay(name: &str) -> bool {
    BUILT_IN.iter().any(|algorithm| algorithm.name == name && algorithm.feedback == Feedback::Delay)
}

/// Describes the wait for the window. A window that the algorithm computes is at most line rate x base RTT.
fn window(difference: &Difference<'_>) -> Words {
    let pair = difference.pair;
    let (algorithm, window) = (&pair.algorithm, pair.window);
    let bound = pair.round_trip.zip(difference.window_rate());
    let bound = bound.map(|(trip, bound)| format!("{window} B each {} are {}", time(trip), rate(bound)));
    let remedy = match algorithm.as_str() {
        "fixed" => "raise the window to link rate x round trip: --cc fixed,window=BYTES".into(),
        _ => "if no link of the path is full, add its rate and its idle round trip to --cc: line_rate=RATE,base_rtt=TIME"
            .into(),
    };
    (
        format!("It waited for room in the window of {algorithm}: {window} B may be in flight."),
        vec![Some(format!("{} B are in flight", pair.in_flight)), bound, difference.busiest_hop()],
        remedy,
    )
}

/// Describes waits for the peer and the path. The remedy of a suspected cause replaces the general one.
fn peer(name: &str, difference: &Difference<'_>) -> Words {
    let pair = difference.pair;
    let peer = pair.peer.as_ref().map_or("the peer".into(), |peer| peer.address.clone());
    let acknowledged = format!(
        "the last acknowledged PSN is {}, the next to send is {}",
        pair.acknowledged_psn, pair.send_psn
    );
    let suspected = pair.suspected.as_ref().filter(|_| matches!(name, "silence" | "path-mtu"));
    let likely = suspected.map(|diagnosis| format!("likely reason: {}", diagnosis.reason));
    match name {
        "receiver-not-ready" => (
            format!("{peer} had no receive request posted and asked it to wait."),
            vec![counted(difference, "rnr_naks_received", "RNR NAKs"), Some(acknowledged)],
            format!("post receives earlier and more of them at {peer}; lower its min_rnr_timer"),
        ),
        "loss-recovery" => (
            "It resent packets that were lost.".into(),
            vec![
                counted(difference, "retransmitted", "packets sent again"),
                counted(difference, "naks_received", "NAKs"),
                counted(difference, "timeouts", "acknowledgement timeouts"),
                difference.busiest_hop(),
            ],
            "find the drops: ethtool -S and tc -s qdisc on both hosts, counters of the switches".into(),
        ),
        "silence" | "path-mtu" => (
            match name {
                "silence" => format!("{peer} has answered nothing since an acknowledgement timeout."),
                _ => format!("Packets to {peer} are longer than a link of the path carries."),
            },
            vec![
                likely,
                counted(difference, "timeouts", "acknowledgement timeouts"),
                Some(acknowledged),
                difference.busiest_hop(),
            ],
            suspected.map_or_else(
                || format!("check that the process at {peer} runs, and the path: ping -M do -s MTU {peer}"),
                |diagnosis| diagnosis.remedy.clone(),
            ),
        ),
        _ => (
            format!("All posted requests had been sent, and the answer of {peer} was on its way."),
            vec![difference.round_trips(), Some(format!("{} requests are outstanding", pair.outstanding))],
            "keep more requests outstanding; if the round trip is long, look at the peer's CPU and the path"
                .into(),
        ),
    }
}

fn host(name: &str, difference: &Difference<'_>) -> Words {
    let pair = difference.pair;
    match name {
        "idle" => (
            "The program had posted nothing.".into(),
            vec![Some(format!("{} receives are posted", pair.receives))],
            "post the next requests before the last ones are done".into(),
        ),
        "completions-unpolled" => (
            "Its completions waited for the program to poll.".into(),
            vec![Some(format!("{} completions of sends are not polled", pair.unpolled))],
            "poll the completion queue more often, or in a thread of its own".into(),
        ),
        STARVATION => (
            format!("A thread of the process was ready and had no CPU for {}.", time(difference.starved)),
            vec![Some("schedstat in /proc/PID/task; this time is part of the other causes' time".into())],
            "give the core a CPU of its own: progress = \"dedicated:CPU\", taskset for the others".into(),
        ),
        "turn" => (
            "It could send, but the core was busy with other work.".into(),
            vec![Some(format!(
                "core {}: {} busy turns, {} idle ones",
                pair.core,
                difference.counted_by_core("busy_turns"),
                difference.counted_by_core("idle_turns")
            ))],
            "the core is the limit: use larger requests, or spread queue pairs over cores: cores = N".into(),
        ),
        "port-full" => (
            "The port accepted no more frames.".into(),
            vec![],
            "the port is the limit: check its speed with ferroce info, and that its peer receives frames"
                .into(),
        ),
        "pool-dry" => (
            "The port had no free packet buffer.".into(),
            vec![counted(difference, "pool_dry", "times without a buffer")],
            "raise buffers in ferroce.toml".into(),
        ),
        other => (
            format!("It waited for {other}."),
            vec![],
            installed::with_paths("see /usr/share/ferroce/book/observing.md (in a clone, docs/observing.md)"),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use verbs::observe::{DeviceStatus, Diagnosis, HopStatus, QueuePairStatus};

    /// Returns a device whose only queue pair has waited the given times, ms, in each state.
    fn device(waited: &[(&str, u64)]) -> DeviceStatus {
        let waited: serde_json::Map<String, Value> =
            waited.iter().map(|(state, millis)| ((*state).into(), (millis * 1_000_000).into())).collect();
        serde_json::from_value(json!({
            "port": "p", "driver": "d", "addresses": [], "speed_mbps": null, "stopped": null, "now": 0,
            "counters": {"rnr_naks_received": 12}, "discards": {}, "core": {}, "waited": {}, "cores": [],
            "queue_pairs": [{
                "qpn": 5, "core": 0, "service": "RC", "state": "ReadyToSend", "peer": {"address": "10.0.0.2", "qpn": 6}, "algorithm": "fixed",
                "window": 4096, "in_flight": 0, "rate_bps": null, "utilisation": null, "round_trip": null,
                "shortest_round_trip": null, "send_psn": 9, "acknowledged_psn": 7, "outstanding": 1, "receives": 0, "unpolled": 0,
                "waiting": "window", "waited": waited, "hops": [], "busiest": null, "suspected": null,
            }],
        }))
        .unwrap()
    }

    fn names(before: &[(&str, u64)], after: &[(&str, u64)], starved: Duration) -> Vec<String> {
        let (before, after) = (device(before), device(after));
        let pair: &QueuePairStatus = &after.queue_pairs[0];
        let difference = Difference::new(Some(&before), &after, pair, starved);
        ranked(&difference).all.into_iter().map(|cause| cause.name).collect()
    }

    #[test]
    fn the_longest_of_the_time_watched_comes_first() {
        let (before, after) =
            ([("idle", 5000), ("window", 10)], [("idle", 5100), ("window", 910), ("turn", 5)]);
        assert_eq!(names(&before, &after, Duration::ZERO), ["window", "idle"]);
    }

    #[test]
    fn cpu_starvation_is_first_if_answers_are_late_or_nothing_took_longer() {
        let starved = Duration::from_millis(600);
        assert_eq!(names(&[], &[("answer", 1000)], starved), ["cpu-starved", "answer"]);
        assert_eq!(names(&[], &[("window", 1000)], starved), ["window", "cpu-starved"]);
        assert_eq!(
            names(&[], &[("window", 550), ("fence", 450)], starved),
            ["cpu-starved", "window", "fence"]
        );
        let shares = [("window", 700), ("fence", 650), ("turn", 10)];
        assert_eq!(names(&[], &shares, Duration::from_millis(660)), ["window", "cpu-starved", "fence"]);
        assert_eq!(names(&[], &[("idle", 1000)], starved), ["idle"]);
        assert_eq!(names(&[], &[("idle", 900), ("answer", 100)], starved), ["cpu-starved", "idle", "answer"]);
    }

    #[test]
    fn a_full_hop_is_the_cause_of_pacing_and_window_alike() {
        let hop = |index, queue, part, age| HopStatus { index, queue, utilisation: Some(part), age };
        let mut after = device(&[("pacing", 300), ("window", 300), ("answer", 400)]);
        after.queue_pairs[0].hops = vec![hop(0, 0, 0.2, 5_000), hop(1, 90_000, 1.7, 4_000)];
        let ranked_by = |after: &DeviceStatus| {
            ranked(&Difference::new(None, after, &after.queue_pairs[0], Duration::ZERO)).all.swap_remove(0)
        };
        after.queue_pairs[0].busiest = Some(0);
        assert_eq!(ranked_by(&after).name, "answer");
        after.queue_pairs[0].busiest = Some(1);
        // 4096 bytes per ms are 32.8 Mb/s at any higher pacing rate.
        let pair = &mut after.queue_pairs[0];
        (pair.rate_bps, pair.line_rate_bps, pair.round_trip) =
            (Some(200_000_000), Some(200_000_000), Some(1_000_000));
        let says = ranked_by(&after).says;
        assert_eq!(says, "A link of the path was busy: with fixed, it sent 32.8 of 200.0 Mb/s.");
        after.queue_pairs[0].rate_bps = Some(20_000_000);
        let says = ranked_by(&after).says;
        assert_eq!(says, "A link of the path was busy: with fixed, it sent 20.0 of 200.0 Mb/s.");
        // The payload that the peer acknowledged in the observed second is measured, and precedes the allowed rate.
        after.queue_pairs[0].acknowledged_bytes = 3_500_000;
        let says = ranked_by(&after).says;
        assert_eq!(says, "A link of the path was busy: with fixed, it sent 28.0 of 200.0 Mb/s.");
        let first = ranked_by(&after);
        assert_eq!((first.name.as_str(), first.nanos), ("congested-path", 600_000_000));
        assert_eq!(first.evidence[0], "hop 1 of the path: 90000 B queued, its link 170 % full, 4.0 us ago");
        after.queue_pairs[0].hops[1].age = 2_000_000_000;
        assert_eq!(ranked_by(&after).name, "answer", "telemetry from before the observed time");
        // A lower reading does not replace the higher one.
        let mut before = device(&[]);
        before.queue_pairs[0].hops = vec![hop(0, 0, 0.2, 5_000), hop(1, 70_000, 0.9, 4_000)];
        before.queue_pairs[0].busiest = Some(1);
        after.queue_pairs[0].hops[1] = hop(1, 0, 0.4, 4_000);
        let difference = Difference::new(Some(&before), &after, &after.queue_pairs[0], Duration::ZERO);
        let first = ranked(&difference).all.swap_remove(0);
        assert_eq!(first.name, "congested-path");
        assert_eq!(first.evidence[0], "hop 1 of the path: 70000 B queued, its link 90 % full, 1.00 s ago");
    }

    #[test]
    fn a_queue_pair_at_its_line_rate_is_not_slowed_down() {
        let mut after = device(&[("pacing", 1000)]);
        let pair = &mut after.queue_pairs[0];
        (pair.algorithm, pair.line_rate_bps, pair.rate_bps) =
            ("hpcc".into(), Some(200_000_000), Some(200_000_000));
        let first = |after: &DeviceStatus| {
            ranked(&Difference::new(None, after, &after.queue_pairs[0], Duration::ZERO)).all.swap_remove(0)
        };
        assert_eq!(first(&after).says, "It sent at the line rate of hpcc, 200.0 Mb/s.");
        after.queue_pairs[0].rate_bps = Some(50_000_000);
        after.queue_pairs[0].acknowledged_bytes = 5_000_000;
        let cause = first(&after);
        assert_eq!(cause.says, "It was paced by hpcc at 50.0 Mb/s: it sent 40.0 of 200.0 Mb/s.");
    }

    #[test]
    fn no_remedy_recommends_a_fixed_window() {
        let mut after = device(&[("pacing", 500), ("window", 500)]);
        for algorithm in ["hpcc", "hpcc-fair", "hpcc-rx", "powertcp", "dctcp", "dcqcn", "swift"] {
            after.queue_pairs[0].algorithm = algorithm.into();
            for cause in ranked(&Difference::new(None, &after, &after.queue_pairs[0], Duration::ZERO)).all {
                assert!(!cause.remedy.contains("fixed"), "{algorithm}, {}: {}", cause.name, cause.remedy);
            }
        }
    }

    #[test]
    fn shares_and_the_rest_add_up_and_starvation_overlaps() {
        let after = device(&[("answer", 880), ("turn", 100), ("idle", 9), ("fence", 8), ("window", 3)]);
        let starved = Duration::from_millis(500);
        let causes = ranked(&Difference::new(None, &after, &after.queue_pairs[0], starved));
        let (over, own): (Vec<_>, Vec<_>) = causes.all.iter().partition(|cause| cause.overlaps());
        assert_eq!(over.iter().map(|cause| cause.name.as_str()).collect::<Vec<_>>(), ["cpu-starved"]);
        assert!(over[0].evidence[0].contains("part of the other causes' time"), "{:?}", over[0].evidence);
        assert!((own.iter().map(|cause| cause.share).sum::<f64>() + causes.rest - 1.0).abs() < 1e-9);
        assert!((causes.rest - 0.02).abs() < 1e-9, "{}", causes.rest);
    }

    #[test]
    fn a_suspected_reason_of_silence_has_its_own_remedy() {
        let mut after = device(&[("silence", 500)]);
        let diagnosis = Diagnosis { reason: "no route".into(), remedy: "add one".into(), is_path_mtu: false };
        after.queue_pairs[0].suspected = Some(diagnosis);
        let difference = Difference::new(None, &after, &after.queue_pairs[0], Duration::ZERO);
        let cause = ranked(&difference).all.swap_remove(0);
        assert_eq!(
            (cause.evidence[0].as_str(), cause.remedy.as_str()),
            ("likely reason: no route", "add one")
        );
    }

    #[test]
    fn a_path_mtu_is_the_cause_of_recovery_and_silence_alike() {
        let mut after = device(&[("loss-recovery", 400), ("silence", 500), ("answer", 100)]);
        let diagnosis =
            Diagnosis { reason: "too small".into(), remedy: "raise it".into(), is_path_mtu: true };
        after.queue_pairs[0].suspected = Some(diagnosis);
        let difference = Difference::new(None, &after, &after.queue_pairs[0], Duration::ZERO);
        let cause = ranked(&difference).all.swap_remove(0);
        assert_eq!((cause.name.as_str(), cause.nanos), ("path-mtu", 900_000_000));
        assert_eq!(
            (cause.evidence[0].as_str(), cause.remedy.as_str()),
            ("likely reason: too small", "raise it")
        );
    }

    #[test]
    fn every_state_has_a_sentence_and_a_remedy() {
        let after = device(&[("window", 1)]);
        let difference = Difference::new(None, &after, &after.queue_pairs[0], Duration::ZERO);
        for state in verbs::observe::Waiting::ALL {
            let cause = cause(state.name(), 1, &difference);
            assert!(
                cause.says.ends_with('.') && cause.says != format!("It waited for {}.", cause.name),
                "{}",
                cause.says
            );
            assert!(!cause.remedy.contains("docs/"), "{}: {}", cause.name, cause.remedy);
        }
        let (says, evidence, _) = words("receiver-not-ready", &difference);
        assert!(says.starts_with("10.0.0.2 had no receive request posted"), "{says}");
        assert_eq!(evidence[0].as_deref(), Some("12 RNR NAKs on this device"));
    }
}
