//! Rates stay between the minimum and the line rate, and windows between 1 byte and the bandwidth-delay product of the line rate. This
//! holds for any telemetry, in any format and with any kind of response. Switches write arbitrary values, bits outside the ICRC flip, and
//! clocks and counters stop, jump and wrap. The tests cover codec, records, responses and algorithm together.

use crate::harness::{BASE, Options, Pair, Random};
use cc::{DcqcnConfig, DctcpConfig, HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;
use roce::qp::{Congestion, CongestionAlgorithm, Remote, Reverse, SendRequest};
use roce::wire::format::aecn::Load;
use roce::wire::format::{PortState, Request};
use roce::wire::telemetry::Speed;
use roce::wire::{Format, Numbers, mark_ce, verify};
use std::cell::Cell;

const RTT: Duration = Duration::from_micros(10);
const LINE: Rate = Rate::from_gbps(10);
const LEAST: Rate = Rate::from_mbps(20);
const EVERY: Option<NonZeroU32> = Some(NonZeroU32::MIN);
const LENGTH: u32 = 300_000;

thread_local! {
    /// The congestion control of the sender, in a cell because `Options::adjust` is a function without state.
    static CHOSEN: Cell<Option<Congestion>> = const { Cell::new(None) };
}

/// Returns a configuration whose W_AI is far below the minimum rate, so that the minimum rate is the limit.
fn config() -> HpccConfig {
    HpccConfig { min_rate: LEAST, ..HpccConfig::new(LINE, RTT, NonZeroU32::new(1000).unwrap()) }
}

/// Returns a random number, often an extreme value.
fn any(random: &mut Random) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        3 => (1 << random.below(64)) - 1,
        _ => random.next() >> random.below(64),
    }
}

/// Returns an arbitrary switch state; often its clock and counter continue from their previous values.
fn any_port(random: &mut Random, before: &mut PortState) -> PortState {
    let known = Speed::all().count() as u64;
    let rate = match random.below(4) {
        0 => Rate::from_bps(any(random)),
        _ => Speed::all().nth(random.below(known) as usize).unwrap().rate(),
    };
    let goes_on = |random: &mut Random, last: u64| match random.below(4) {
        0 => last,
        1 => any(random),
        _ => last.wrapping_add(random.below(100_000)),
    };
    let byte = |random: &mut Random| any(random) as u8;
    let load = Load {
        inflight: byte(random),
        rate: byte(random),
        queue: byte(random),
        delay: byte(random),
        congested: byte(random),
    };
    let switch = if random.chance(50) { random.below(4096) as u16 } else { before.switch };
    let time = goes_on(random, before.time);
    let tx_bytes = goes_on(random, before.tx_bytes);
    let queue = if random.chance(300) { any(random) } else { random.below(200_000) };
    *before = PortState { switch, port: 0, rate, time, tx_bytes, queue, sojourn: any(random), load };
    *before
}

/// Overwrites up to seven bytes that the ICRC does not cover.
fn scribble(random: &mut Random, frame: &mut [u8]) {
    for _ in 0..random.below(8) {
        let at = 14 + random.below(frame.len() as u64 - 14) as usize;
        let before = core::mem::replace(&mut frame[at], random.next() as u8);
        if verify(frame).is_err() {
            frame[at] = before;
        }
    }
}

/// Changes a frame as a network would.
fn cross(random: &mut Random, ports: &mut [PortState; 3], frame: &mut Vec<u8>) {
    if random.chance(100) {
        mark_ce(frame);
    }
    let mut length = frame.len();
    frame.resize(length + 128, 0);
    let hops = random.below(4) as usize;
    for before in &mut ports[..hops] {
        let Some(request) = Request::find(&frame[..length], Numbers::DEFAULT) else { break };
        let port = any_port(random, before);
        if random.chance(200) {
            request.stamp_as_linux(&mut frame[..length], &port);
        } else if let Some(longer) = request.stamp(frame, length, &port) {
            length = longer;
        }
    }
    frame.truncate(length);
    if random.chance(100) {
        scribble(random, frame);
    }
}

/// Runs a transfer for about 200 round trips and checks the bounds after each step. Returns the number of responses at the sender, and its
/// minimum rate.
fn transfer(congestion: Congestion, v6: bool, seed: u64) -> (u64, Rate) {
    CHOSEN.set(Some(congestion));
    let adjust = |congestion: &mut Congestion| *congestion = CHOSEN.get().expect("it was chosen");
    let mut pair = Pair::connect(Options { adjust, v6, ack_timeout: 8, ..Options::default() });
    let mut random = Random(seed);
    let quiet = PortState {
        switch: 1,
        port: 0,
        rate: LINE,
        time: any(&mut random),
        tx_bytes: any(&mut random),
        queue: 0,
        sojourn: 0,
        load: Load::default(),
    };
    let mut ports = [quiet; 3];
    pair.filter = Some(Box::new(move |from, frame| {
        if from == 0 {
            cross(&mut random, &mut ports, frame);
        }
        true
    }));
    let from = pair.hosts[0].sge(0, LENGTH);
    let remote = Remote { address: BASE, rkey: pair.hosts[1].region.rkey };
    pair.post(0, SendRequest::write(1, from, remote));
    let (end, most, mut slowest) = (pair.now + 200 * RTT, LINE.bytes_in(RTT), LINE);
    while pair.now < end && pair.step() {
        let report = pair.reports()[0].unwrap();
        let (rate, window) = (report.rate.unwrap(), report.window);
        assert!((LEAST..=LINE).contains(&rate), "{rate}: {congestion:?}, seed {seed}");
        assert!((1..=most).contains(&window), "{window} B: {congestion:?}, seed {seed}");
        slowest = slowest.min(rate);
    }
    let counters = pair.hosts[0].endpoint.counters();
    (counters.feedback_received + counters.probe_responses, slowest)
}

/// Checks the bounds for every seed; some telemetry must reach the algorithm.
fn holds(congestion: Congestion) {
    let v6 = congestion.format == Format::Ioam || congestion.format == Format::Aecn;
    let runs: Vec<_> = (0..6).map(|seed| transfer(congestion, v6, seed)).collect();
    let heard: u64 = runs.iter().map(|run| run.0).sum();
    assert!(heard >= 6, "{heard} answers were received: {congestion:?}");
    assert!(runs.iter().any(|run| run.1 < LINE), "they had no effect: {congestion:?}");
}

#[test]
fn any_telemetry_keeps_a_sender_in_bounds() {
    for algorithm in [CongestionAlgorithm::Hpcc(config()), CongestionAlgorithm::HpccFair(config())] {
        for (_, format) in Format::ALL {
            let plain = Congestion { format, ..Congestion::new(algorithm) };
            holds(Congestion { in_band: EVERY, ..plain });
            holds(Congestion { in_band: EVERY, reverse: Reverse::Notification, ..plain });
            holds(plain.probing(Some(RTT)));
        }
    }
}

#[test]
fn reports_of_all_hops_or_ratios_keep_a_sender_in_bounds() {
    for (_, format) in Format::ALL {
        let plain =
            Congestion { format, in_band: EVERY, ..Congestion::new(CongestionAlgorithm::Hpcc(config())) };
        holds(Congestion { all_hops: true, ..plain });
        // Both sides have the same settings, so the receiver reports ratios.
        holds(Congestion { ratio_only: true, ..plain });
    }
}

#[test]
fn windows_of_the_receiver_keep_a_sender_in_bounds() {
    for (_, format) in Format::ALL {
        let plain = Congestion { format, ..Congestion::new(CongestionAlgorithm::HpccReceiver(config())) };
        holds(Congestion { in_band: EVERY, ..plain });
        holds(plain.probing(Some(RTT)));
    }
}

/// These algorithms use marks, and telemetry that also arrives (`paths`, `auto`) does not change that.
#[test]
fn telemetry_keeps_a_sender_that_uses_marks_in_bounds() {
    let dctcp = CongestionAlgorithm::Dctcp(DctcpConfig { min_rate: LEAST, ..DctcpConfig::new(LINE, RTT) });
    let dcqcn = DcqcnConfig { min_rate: LEAST, ..DcqcnConfig::new(LINE, Some(RTT)) };
    for algorithm in [dctcp, CongestionAlgorithm::Dcqcn(dcqcn)] {
        for (_, format) in Format::ALL {
            holds(Congestion { format, ..Congestion::new(algorithm) }.probing(Some(RTT)));
        }
    }
}
