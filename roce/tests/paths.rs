//! Path migration (rtgwg-00 9.4): probes report the load of each path, and requests move to a less loaded one.

use crate::harness::{BASE, Options, Pair};
use cc::{HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{CompletionStatus, Congestion, CongestionAlgorithm, PathChoice, Remote, SendRequest};
use roce::wire::format::aecn::Load;
use roce::wire::format::{PortState, Request};
use roce::wire::{Format, Header, Numbers, Operation, parse};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

const EVERY: Duration = Duration::from_micros(10);
const LENGTH: u32 = 400_000;

#[derive(Default)]
struct Seen {
    /// Probes on each port.
    probes: BTreeMap<u16, u64>,
    /// Ports of requests in order, with the number of consecutive packets on each.
    requests: Vec<(u16, u64)>,
    answer_ports: Vec<u16>,
    last_psn: Option<u32>,
    acknowledged: u32,
}

fn paced(paths: u8) -> Options {
    let adjust = match paths {
        1 => |congestion: &mut Congestion| {
            congestion.paths = Some(PathChoice { count: 1, interval: EVERY, spray: false })
        },
        2 => |congestion: &mut Congestion| {
            congestion.paths = Some(PathChoice { count: 2, interval: EVERY, spray: false })
        },
        _ => |congestion: &mut Congestion| {
            congestion.paths = Some(PathChoice { count: 4, interval: EVERY, spray: false })
        },
    };
    // A tenth of the link rate that the switches report.
    let congestion = CongestionAlgorithm::Fixed { window: 32 * 1024, rate: Some(Rate::from_gbps(1)) };
    Options { congestion, ack_timeout: 10, adjust, ..Options::default() }
}

/// Writes 400 kB over paths of 10 Gb/s each. `busy` returns the share of the `index`th observed port that other flows use, after a number
/// of moves.
fn write(options: Options, busy: fn(usize, usize) -> f64) -> (Pair, Seen) {
    let mut pair = Pair::connect(options);
    let seen = Rc::new(RefCell::new(Seen::default()));
    let shared = seen.clone();
    let mut ports: Vec<u16> = Vec::new();
    let (mut time, mut sent) = (0u64, [0.0f64; 8]);
    pair.filter = Some(Box::new(move |from, frame| {
        let packet = parse(frame).unwrap();
        let (port, psn) = (packet.network.udp_source(), packet.header.bth().psn.get());
        let mut seen = shared.borrow_mut();
        if from == 1 {
            seen.answer_ports.push(port);
            if let Header::Connected { operation: Operation::Acknowledge(_), .. } = packet.header {
                seen.acknowledged = psn;
            }
            return true;
        }
        if !ports.contains(&port) {
            ports.push(port);
        }
        match packet.header {
            Header::TelemetryRequest { .. } => *seen.probes.entry(port).or_default() += 1,
            _ => on_request(&mut seen, port, psn),
        }
        // 1 µs for each packet: 1250 bytes at 10 Gb/s.
        time += 1000;
        for (index, sent) in sent.iter_mut().enumerate() {
            *sent += 1250.0 * busy(index, seen.requests.len().saturating_sub(1));
        }
        let index = ports.iter().position(|known| *known == port).unwrap();
        // Two paths through the same switch have the same path id.
        let inflight = Load::share(busy(index, seen.requests.len().saturating_sub(1)));
        let load = Load { inflight, rate: 0, queue: 0, delay: 0, congested: 0 };
        let (rate, tx_bytes) = (Rate::from_gbps(10), sent[index] as u64);
        let port = PortState { switch: 1, port: 0, rate, time, tx_bytes, queue: 0, sojourn: 0, load };
        let mut length = frame.len();
        frame.resize(length + 64, 0);
        if let Some(request) = Request::find(&frame[..length], Numbers::DEFAULT) {
            length = request.stamp(frame, length, &port).unwrap();
        }
        frame.truncate(length);
        true
    }));
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.hosts[0].ram.0[..LENGTH as usize].fill(7);
    pair.post(0, SendRequest::write(1, from, remote));
    pair.run(Duration::from_secs(1));
    assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    assert!(pair.hosts[1].bytes(0, LENGTH as usize).iter().all(|byte| *byte == 7));
    pair.filter = None;
    let seen = Rc::into_inner(seen).unwrap().into_inner();
    (pair, seen)
}

/// Checks that nothing is reordered: the port changes only after all earlier packets were acknowledged, and no packet is sent twice.
fn on_request(seen: &mut Seen, port: u16, psn: u32) {
    assert!(seen.last_psn.is_none_or(|last| psn == last + 1), "{psn} after {:?}", seen.last_psn);
    match seen.requests.last_mut() {
        Some((last, count)) if *last == port => *count += 1,
        before => {
            assert!(before.is_none() || seen.acknowledged + 1 == psn, "{} is still on its way", psn - 1);
            seen.requests.push((port, 1));
        }
    }
    seen.last_psn = Some(psn);
}

fn moves(pair: &Pair) -> u64 {
    pair.hosts[0].endpoint.counters().path_moves
}

#[test]
fn requests_move_to_the_less_loaded_path_once_nothing_is_in_flight() {
    let (pair, seen) = write(paced(2), |index, _| if index == 0 { 0.95 } else { 0.1 });
    assert_eq!((moves(&pair), seen.requests.len()), (1, 2), "{:?}", seen.requests);
    assert_ne!(seen.requests[0].0, seen.requests[1].0);
    // Both are probed equally, in turn.
    let probes: Vec<u64> = seen.probes.values().copied().collect();
    assert!(probes.len() == 2 && probes[0].abs_diff(probes[1]) <= 1 && probes[0] > 10, "{probes:?}");
    // The path changes after some rounds of measurements, without further delay.
    assert!((5..150).contains(&seen.requests[0].1), "{:?}", seen.requests);
    // The peer's responses stay on their path.
    assert!(seen.answer_ports.iter().all(|port| *port == seen.answer_ports[0]));
    assert_eq!(pair.hosts[0].endpoint.counters().retransmitted, 0);
}

/// A peer without telemetry is not affected, and probing it ends.
#[test]
fn a_peer_that_never_answers_gets_twenty_probes() {
    let mut pair = Pair::connect(paced(4));
    pair.filter = Some(Box::new(|_, frame| {
        !matches!(
            parse(frame).unwrap().header,
            Header::TelemetryRequest { .. } | Header::TelemetryResponse { .. }
        )
    }));
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    for id in 0..20 {
        let from = pair.hosts[0].sge(0, LENGTH);
        pair.post(0, SendRequest::write(id, from, remote));
        pair.run(Duration::from_secs(1));
        assert_eq!(pair.hosts[0].sent()[0].status, CompletionStatus::Success);
    }
    assert_eq!(pair.hosts[0].endpoint.counters().probes_sent, 20);
}

/// Probes use any format, and responses may be ratios.
#[test]
fn every_format_reports_the_load_of_paths() {
    const TWO: Option<PathChoice> = Some(PathChoice { count: 2, interval: EVERY, spray: false });
    let ways: [fn(&mut Congestion); 6] = [
        |congestion| (congestion.paths, congestion.format) = (TWO, Format::Ioam),
        |congestion| (congestion.paths, congestion.format) = (TWO, Format::Aecn),
        |congestion| (congestion.paths, congestion.format) = (TWO, Format::IntMd),
        |congestion| (congestion.paths, congestion.format) = (TWO, Format::Ifa),
        |congestion| (congestion.paths, congestion.ratio_only) = (TWO, true),
        |congestion| {
            (congestion.paths, congestion.format, congestion.ratio_only) = (TWO, Format::IntMd, true);
        },
    ];
    for (way, adjust) in ways.into_iter().enumerate() {
        let busy = |index, _| if index == 0 { 0.95 } else { 0.1 };
        // The first two formats need IPv6.
        let options = Options { adjust, v6: way < 2, ..paced(2) };
        let (pair, seen) = write(options, busy);
        assert_eq!((moves(&pair), seen.requests.len()), (1, 2), "way {way}: {:?}", seen.requests);
        let (pair, seen) = write(options, |_, _| 0.5);
        assert_eq!((moves(&pair), seen.requests.len()), (0, 1), "way {way}: equal paths");
    }
}

#[test]
fn a_flow_moves_to_the_least_loaded_of_several_paths() {
    let (pair, seen) = write(paced(4), |index, _| [0.9, 0.6, 0.2, 0.5, 0.0, 0.0, 0.0, 0.0][index]);
    assert_eq!(moves(&pair), 1);
    let ports: Vec<u16> = seen.probes.keys().copied().collect();
    assert_eq!(ports.len(), 4);
    // A move must gain a fifth of a link, so from 0.2 no path qualifies.
    assert!(seen.requests[1].1 > seen.requests[0].1, "{:?}", seen.requests);
}

/// Three paths over the same idle link, each a little better than the others in turn: the first candidate remains the candidate.
#[test]
fn equally_good_paths_do_not_prevent_a_move() {
    thread_local!(static CALLS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) });
    let (pair, seen) = write(paced(4), |index, _| {
        let calls = CALLS.get();
        CALLS.set(calls + 1);
        match index {
            0 => 0.95,
            index => 0.05 + 0.04 * ((calls / 8 / 24 + index) % 3) as f64,
        }
    });
    assert_eq!((moves(&pair), seen.requests.len()), (1, 2), "{:?}", seen.requests);
}

/// The flow's own tenth of a link is added to the load of the other path.
#[test]
fn a_small_difference_of_load_moves_no_flow() {
    for busy in [|_, _| 0.5, |index, _| if index == 0 { 0.7 } else { 0.45 }] as [fn(usize, usize) -> f64; 2] {
        let (pair, seen) = write(paced(2), busy);
        assert_eq!((moves(&pair), seen.requests.len()), (0, 1));
        assert_eq!(seen.probes.len(), 2);
    }
}

/// The load of other flows follows each move: the flow stays for at least 16 rounds of two probes each after every move.
#[test]
fn a_path_that_gets_worse_by_the_move_is_not_left_at_once() {
    let (pair, seen) = write(paced(2), |index, moves| if index == moves % 2 { 0.95 } else { 0.1 });
    assert!((2..=8).contains(&moves(&pair)), "{}", moves(&pair));
    for (_, packets) in &seen.requests[1..seen.requests.len() - 1] {
        // 20 µs for each round, 8.7 µs for each packet at 1 Gb/s.
        assert!(*packets as f64 > 16.0 * 20.0 / 8.7 * 0.9, "{:?}", seen.requests);
    }
}

#[test]
fn a_single_path_is_not_probed() {
    let (pair, seen) = write(paced(1), |_, _| 0.95);
    assert_eq!((moves(&pair), seen.probes.len(), seen.requests.len()), (0, 0, 1));
}

/// The path id is the same, but the links differ: both ends discard the counters of the old path.
#[test]
fn hpcc_keeps_its_rate_on_the_new_path() {
    let mut options = paced(2);
    let config = HpccConfig::new(Rate::from_gbps(1), EVERY, NonZeroU32::new(4).unwrap());
    options.congestion = CongestionAlgorithm::Hpcc(config);
    options.probe_interval = Some(EVERY);
    options.adjust =
        |congestion| congestion.paths = Some(PathChoice { count: 2, interval: EVERY, spray: false });
    let (pair, _) = write(options, |index, _| if index == 0 { 0.94 } else { 0.1 });
    assert_eq!(moves(&pair), 1);
    let rate = pair.reports()[0].unwrap().rate.unwrap();
    assert!(rate > Rate::from_mbps(900), "{rate}");
}
