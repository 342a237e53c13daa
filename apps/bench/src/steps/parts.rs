//! Timers, doorbells, window release, congestion control and the MAC of feedback.

use super::{Meter, Step};
use cc::{
    Ack, AlgorithmConfig, CongestionController, Counter, Hop, HpccConfig, Instant, PathTelemetry, Rate,
};
use datapath::engine::Doorbells;
use roce::qp::FeedbackKey;
use roce::{Access, Binding, PdId, Qpn, RegionTable, TimingWheel, WindowKind};
use std::hint::black_box;
use std::num::NonZeroU32;
use std::time::Duration;

pub const STEPS: &[Step] = &[
    Step { name: "wheel-insert", what: "a timer set, among 100,000", budget: 120, run: insert },
    Step { name: "wheel-expire", what: "a timer fired, among 100,000", budget: 230, run: expire },
    Step {
        name: "doorbell-1",
        what: "a bell rung and found, of 1",
        budget: 75,
        run: |meter| doorbell(meter, 1),
    },
    Step {
        name: "doorbell-1k",
        what: "a bell rung and found, of 1,000",
        budget: 75,
        run: |meter| doorbell(meter, 1000),
    },
    Step {
        name: "doorbell-100k",
        what: "a bell rung and found, of 100,000",
        budget: 90,
        run: |meter| doorbell(meter, 100_000),
    },
    Step {
        name: "window-release",
        what: "a destroyed queue pair's window released, among 100,000",
        budget: 2000,
        run: release_windows,
    },
    Step { name: "hpcc-1", what: "HPCC++ update with 1 hop", budget: 635, run: |meter| hpcc(meter, 1) },
    Step { name: "hpcc-5", what: "HPCC++ update with 5 hops", budget: 1340, run: |meter| hpcc(meter, 5) },
    Step { name: "feedback-mac", what: "the MAC of feedback, 12 bytes of content", budget: 365, run: mac },
];

const TIMERS: u32 = 100_000;
const BATCH: u32 = 1000;
/// The distance between two timers, ns; all of them together cover 1 ms.
const STEP: u64 = 10;

/// Returns a wheel with all timers set, each to its own time, in an order other than that of their times.
fn wheel() -> TimingWheel {
    let mut wheel = TimingWheel::new(TIMERS, Duration::from_nanos(256));
    (0..TIMERS).for_each(|token| wheel.set(token, due(token, 0)));
    wheel
}

fn due(token: u32, round: u64) -> Instant {
    let place = u64::from(token) * 7919 % u64::from(TIMERS);
    Instant::from_nanos(1 + (round * u64::from(TIMERS) + place) * STEP)
}

fn insert(meter: &mut Meter) {
    let mut wheel = wheel();
    for round in 0..meter.rounds {
        let first = round * BATCH % TIMERS;
        meter.part(BATCH as usize, &mut || {
            (first..first + BATCH).for_each(|token| wheel.set(token, due(token, 1)));
        });
    }
}

/// Sets each expired timer again, one period of all timers later, as a paced queue pair does. The cost includes this.
fn expire(meter: &mut Meter) {
    let mut wheel = wheel();
    let mut now = 0;
    for _ in 0..meter.rounds {
        let mut fired = 0;
        meter.part(BATCH as usize, &mut || {
            now += u64::from(BATCH) * STEP;
            while let Some(token) = wheel.pop(Instant::from_nanos(now)) {
                wheel.set(token, Instant::from_nanos(now + u64::from(TIMERS) * STEP));
                fired += 1;
            }
        });
        black_box(fired);
    }
}

fn doorbell(meter: &mut Meter, slots: usize) {
    let doorbells = Doorbells::new(slots);
    for round in 0..meter.rounds as usize {
        let mut served = 0;
        meter.part(BATCH as usize, &mut || {
            for n in 0..BATCH as usize {
                doorbells.ring((round + n * 97) % slots);
                doorbells.take(|slot| served += usize::from(slot < slots));
            }
        });
        assert_eq!(served, BATCH as usize);
    }
}

/// Releases memory windows; each queue pair has bound one.
fn release_windows(meter: &mut Meter) {
    const WINDOWS: u32 = 100_000;
    const PD: PdId = PdId(0);
    let mut table = RegionTable::new(WINDOWS, &[7; 32]);
    let region = table.register(PD, 4096, 4096, Access::ALL | Access::WINDOWS).expect("the table is empty");
    let create = |_| table.create_window(PD, WindowKind::Two).expect("the table has room");
    let windows: Vec<_> = (0..WINDOWS).map(create).collect();
    let bind = |table: &mut RegionTable, place: u32| {
        let window = windows[place as usize];
        let lkey = region.lkey;
        let access = Access::REMOTE_READ;
        let binding =
            Binding { window, rkey: window, lkey, address: 4096, length: 64, access, zero_based: false };
        table.bind(PD, Qpn::new(place), &binding).expect("the window is bound to nothing");
    };
    (0..WINDOWS).for_each(|place| bind(&mut table, place));
    for round in 0..meter.rounds {
        let first = round * BATCH % WINDOWS;
        meter.part(BATCH as usize, &mut || {
            (first..first + BATCH).for_each(|place| table.release_queue_pair(Qpn::new(place)));
        });
        (first..first + BATCH).for_each(|place| bind(&mut table, place));
    }
}

fn hpcc(meter: &mut Meter, hops: u8) {
    const T: Duration = Duration::from_nanos(4160);
    let flows = NonZeroU32::new(16).expect("16 is not 0");
    let config = AlgorithmConfig::Hpcc(HpccConfig::new(Rate::from_gbps(100), T, flows));
    let mut controller = config.build().expect("defaults are in their limits");
    let mut update = 0_u64;
    for _ in 0..meter.rounds {
        let paths: Vec<_> =
            (update..update + u64::from(BATCH)).map(|update| telemetry(update, hops)).collect();
        meter.part(BATCH as usize, &mut || {
            for path in &paths {
                let now = Instant::from_nanos(update * 87);
                let ack =
                    Ack { now, seq: update, next: update + 48, acked_bytes: 1000, ce_bytes: 0, rtt: None };
                controller.on_telemetry(&ack, path);
                black_box(controller.window());
                update += 1;
            }
        });
    }
}

/// Computes MACs. Opcode, queue pairs, PSNs and counter occupy 25 bytes before the content.
fn mac(meter: &mut Meter) {
    let key = FeedbackKey([7; 16]);
    let mut bytes = [1_u8; 25 + 12];
    for _ in 0..meter.rounds {
        meter.part(BATCH as usize, &mut || {
            for update in 0..BATCH {
                bytes[17..21].copy_from_slice(&update.to_be_bytes());
                black_box(key.tag(black_box(&bytes)));
            }
        });
    }
}

fn telemetry(update: u64, hops: u8) -> PathTelemetry {
    let mut path = PathTelemetry::new(1);
    for index in 0..hops {
        let hop = Hop {
            bandwidth: Rate::from_gbps(100),
            time: Counter::of::<24, 1>(update * 87),
            tx_bytes: Counter::of::<20, 128>(update * 1090 / 128),
            queue: 80 * (update % 7),
        };
        path.set(index, hop);
    }
    path
}
