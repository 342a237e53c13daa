//! From any state and any rate, a flow again fills an idle path within 250 round trips.

use core::time::Duration;
use ferroce_cc::{
    Ack, AlgorithmConfig, CongestionController, Counter, Hop, HpccConfig, Instant, PathTelemetry, Rate,
    RxHpcc,
};
use proptest::prelude::*;
use std::num::NonZeroU32;

const PACKET: u64 = 4200;
/// Sufficient for a rate that doubles every sixth round trip, as in the slowest configuration here, from 1 kb/s to 400 Gb/s.
const ROUNDS: u32 = 250;

/// A link that carries this flow and, at first, other traffic; telemetry has the counters of Figure 4.
struct Path {
    rate: Rate,
    now: u64,
    sent: u64,
}

impl Path {
    /// Returns a packet's telemetry `nanos` after the last: the link has sent `others` other bytes since, and `queue` bytes are queued.
    fn packet(&mut self, nanos: u64, others: u64, queue: u64) -> (Instant, PathTelemetry) {
        self.now += nanos;
        self.sent += others + PACKET;
        let mut path = PathTelemetry::new(1);
        path.set(
            0,
            Hop {
                bandwidth: self.rate,
                time: Counter::of::<24, 1>(self.now),
                tx_bytes: Counter::of::<20, 128>(self.sent / 128),
                queue,
            },
        );
        (Instant::from_nanos(self.now), path)
    }
}

fn config() -> impl Strategy<Value = HpccConfig> {
    let parts = (1u64..=400, 1u64..=1_000, 0u64..=1000, 0.85f64..=1.0, 0u32..=5, 1u64..=1_000_000);
    parts.prop_map(|(gbps, micros, increase, eta, max_stage, least)| HpccConfig {
        base_rtt: Duration::from_micros(micros),
        line_rate: Rate::from_gbps(gbps),
        min_rate: Rate::from_bps(least * 1000),
        target_utilisation: eta,
        max_stage,
        additive_increase: Rate::from_bps(increase),
    })
}

/// Returns the ns until the next packet is acknowledged: a base RTT, or the pacing interval if longer.
fn spacing(config: &HpccConfig, rate: Rate) -> u64 {
    (config.base_rtt.max(rate.time_for(PACKET))).as_nanos() as u64
}

proptest! {
    #[test]
    fn a_flow_fills_an_idle_path_again(config in config(), busy in prop::collection::vec((1u64..4, 0u64..5000), 0..40)) {
        for algorithm in [AlgorithmConfig::Hpcc(config), AlgorithmConfig::HpccFair(config)] {
            let mut flow = algorithm.build().unwrap();
            let mut path = Path { rate: config.line_rate, now: 1, sent: 0 };
            let full = config.initial_window();
            let mut seq = 0;
            let mut answer = |flow: &mut ferroce_cc::Algorithm, (now, path): (Instant, PathTelemetry)| {
                seq += 1;
                flow.on_telemetry(&Ack { now, seq, next: seq + 1, acked_bytes: 4096, ce_bytes: 0, rtt: None }, &path);
            };
            for &(rounds, queues) in &busy {
                let nanos = rounds * spacing(&config, config.line_rate);
                answer(&mut flow, path.packet(nanos, full * rounds, full * queues));
            }
            let goal = config.line_rate.as_bps() as f64 * config.target_utilisation * 0.9;
            let mut rounds = 0;
            while (flow.pacing_rate().unwrap().as_bps() as f64) < goal {
                let rate = flow.pacing_rate().unwrap();
                let nanos = spacing(&config, rate);
                // The flow uses its rate completely.
                let own = rate.bytes_in(Duration::from_nanos(nanos)).saturating_sub(PACKET);
                answer(&mut flow, path.packet(nanos, own, 0));
                rounds += 1;
                prop_assert!(rounds <= ROUNDS, "{} stays at {rate}", flow.name());
            }
        }
    }

    #[test]
    fn a_receiver_lets_a_flow_fill_an_idle_path_again(config in config(), busy in prop::collection::vec((1u64..4, 0u64..5000), 0..40)) {
        let mut receiver = RxHpcc::new(config).unwrap();
        let mut path = Path { rate: config.line_rate, now: 1, sent: 0 };
        let full = config.initial_window();
        for &(rounds, queues) in &busy {
            let nanos = rounds * spacing(&config, config.line_rate);
            let (now, path) = path.packet(nanos, full * rounds, full * queues);
            receiver.on_telemetry(now, &path, NonZeroU32::MIN);
        }
        let goal = config.line_rate.as_bps() as f64 * config.target_utilisation * 0.9;
        let mut rounds = 0;
        while (receiver.hpcc().rate().as_bps() as f64) < goal {
            let rate = receiver.hpcc().rate();
            let nanos = spacing(&config, rate) + 1;
            let own = rate.bytes_in(Duration::from_nanos(nanos)).saturating_sub(PACKET);
            let (now, path) = path.packet(nanos, own, 0);
            receiver.on_telemetry(now, &path, NonZeroU32::MIN);
            rounds += 1;
            // 256 more rounds in which the queue drains.
            prop_assert!(rounds <= ROUNDS + 256, "it stays at {rate}");
        }
    }
}
