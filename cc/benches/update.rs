//! Measures the time of one update of each controller, in ns.
//!
//! `cargo bench -p ferroce-cc`

use ferroce_cc::{
    Ack, Algorithm, AlgorithmConfig, CongestionController, Counter, DcqcnConfig, DctcpConfig, Hop, Hpcc,
    HpccConfig, Inflight, Instant, PathRecords, PathTelemetry, Rate, ReceiverLink, RxHpcc,
};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

const UPDATES: u64 = 1_000_000;
const HOPS: u8 = 5;
const T: Duration = Duration::from_micros(400);
/// Number of prepared telemetry readings. After one round, the clock (24 bits of ns) and the byte counter (20 bits of 128 B) have their
/// first values again, so that each reading is newer than the one before.
const ROUND: u64 = 256;
const STEP: u64 = (1 << 24) / ROUND;
/// 64 Gb/s.
const SENT: u64 = (1 << 20) / ROUND;

fn path(update: u64) -> PathTelemetry {
    let mut path = PathTelemetry::new(1);
    for index in 0..HOPS {
        path.set(
            index,
            Hop {
                bandwidth: Rate::from_gbps(100),
                time: Counter::of::<24, 1>(update * STEP),
                tx_bytes: Counter::of::<20, 128>(update * SENT),
                queue: 80 * (update % 7),
            },
        );
    }
    path
}

fn ack(update: u64) -> Ack {
    let now = Instant::from_nanos(update * STEP);
    let ce_bytes = if update.is_multiple_of(16) { 1000 } else { 0 };
    Ack { now, seq: update, next: update + 48, acked_bytes: 1000, ce_bytes, rtt: None }
}

/// Prints the best of ten runs; the others were disturbed.
fn measure(name: &str, mut update: impl FnMut(u64)) {
    const STRETCH: u64 = UPDATES / 10;
    let mut stretch = |first: u64| {
        let begin = std::time::Instant::now();
        (first..first + STRETCH).for_each(&mut update);
        begin.elapsed().as_nanos() as f64 / STRETCH as f64
    };
    let best = (0..10).map(|number| stretch(number * STRETCH)).fold(f64::INFINITY, f64::min);
    println!("{name:44} {best:7.1} ns");
}

/// Checks that the telemetry was measured and not discarded: `U` is the links' load.
fn assert_measured(controller: &Algorithm) {
    let utilisation = controller.as_hpcc().map_or(0.0, Hpcc::utilisation);
    assert!((0.63..0.65).contains(&utilisation), "U is {utilisation}: the telemetry says 0.64");
}

fn main() {
    let flows = NonZeroU32::new(16).expect("16 is not 0");
    let hpcc = HpccConfig::new(Rate::from_gbps(100), T, flows);
    let build =
        |config: AlgorithmConfig| -> Algorithm { config.build().expect("defaults are in their limits") };
    let paths: Vec<_> = (0..ROUND).map(path).collect();
    let at = |update: u64| &paths[(update % ROUND) as usize];

    let mut controller = build(AlgorithmConfig::Hpcc(hpcc));
    measure("HPCC++, telemetry of 5 hops", |update| {
        controller.on_telemetry(&ack(update), at(update));
        black_box(controller.window());
    });
    assert_measured(&controller);
    let mut controller = build(AlgorithmConfig::HpccFair(hpcc));
    measure("hpcc-fair, telemetry of 5 hops", |update| {
        controller.on_receiver_link(ReceiverLink { hop: HOPS - 1, flows });
        controller.on_telemetry(&ack(update), at(update));
        black_box(controller.window());
    });
    let share = |update: u64| Inflight { utilisation: (update % 128) as f64 / 128.0, interval: STEP };
    let mut controller = build(AlgorithmConfig::Hpcc(hpcc));
    measure("HPCC++, a share (AECN, ratios only)", |update| {
        controller.on_inflight(&ack(update), black_box(&share(update)));
        black_box(controller.window());
    });
    let mut records = PathRecords::new();
    measure("the busiest of 5 hops, for an answer", |update| {
        black_box(records.busiest(ack(update).now, at(update), T));
    });
    let mut receiver = RxHpcc::new(hpcc).expect("defaults are in their limits");
    measure("HPCC++ at the receiver, telemetry of 5 hops", |update| {
        black_box(receiver.on_telemetry(ack(update).now, at(update), flows));
    });
    let mut receiver = RxHpcc::new(hpcc).expect("defaults are in their limits");
    measure("HPCC++ at the receiver, a share (AECN)", |update| {
        black_box(receiver.on_inflight(ack(update).now, black_box(share(update)), flows));
    });
    let mut controller = build(AlgorithmConfig::HpccReceiver(hpcc));
    measure("HPCC++ at the receiver, the sender's side", |update| {
        controller.on_window(black_box(update & 0xffff));
        black_box(controller.window());
    });
    let mut controller = build(AlgorithmConfig::Dctcp(DctcpConfig::new(Rate::from_gbps(100), T)));
    measure("DCTCP, acknowledgement", |update| {
        controller.on_ack(&ack(update));
        black_box(controller.window());
    });
    let mut controller = build(AlgorithmConfig::Dcqcn(DcqcnConfig::new(Rate::from_gbps(100), Some(T))));
    measure("DCQCN, packet sent, every 16th notified", |update| {
        let Ack { now, ce_bytes, .. } = ack(update);
        controller.on_send(now, update, 1000);
        if ce_bytes > 0 {
            controller.on_congestion_notification(now);
        }
        black_box(controller.pacing_rate());
    });
}
