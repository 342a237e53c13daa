//! Congestion control of one's own in the simulator: a program with all of `ferroce sim`, and one more algorithm.
//!
//! ```sh
//! cargo run --release -p ferroce-example-algorithm -- examples/algorithm/scenario.toml
//! ```

use cc::{Ack, CongestionController, Feedback, HpccConfig, Instant, PathTelemetry, Rate, Registration};
use std::process::ExitCode;
use std::time::Duration;

/// Queueing delay of the path at which a flow keeps its rate, in base RTTs.
const TARGET: f64 = 0.25;

/// Adapts the rate once per round trip to the sum of the queueing delays that the switches report: up by a constant below the target,
/// down in proportion to the excess above it.
#[derive(Debug)]
struct QueueDelay {
    config: HpccConfig,
    rate: Rate,
    /// An acknowledgement above this number ends a round trip.
    round_ends: u64,
}

impl CongestionController for QueueDelay {
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        if ack.seq <= self.round_ends {
            return;
        }
        self.round_ends = ack.next;
        let delay: Duration = path.hops().map(|(_, hop)| hop.bandwidth.time_for(hop.queue)).sum();
        let excess = delay.as_secs_f64() / self.config.base_rtt.as_secs_f64() - TARGET;
        let [rate, increase] = [self.rate, self.config.additive_increase].map(|rate| rate.as_bps() as f64);
        let next = if excess > 0.0 { rate / (1.0 + excess) } else { rate + increase };
        self.rate = Rate::from_bps(next as u64).clamp(self.config.min_rate, self.config.line_rate);
    }

    fn on_loss(&mut self, _: Instant) {
        self.rate = self.config.min_rate;
    }

    fn set_base_rtt(&mut self, base_rtt: Duration) {
        self.config.base_rtt = base_rtt;
    }

    fn window(&self) -> u64 {
        // Twice the bytes of a round trip: the rate is the limit, unless acknowledgements are late.
        2 * self.rate.bytes_in(self.config.base_rtt)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

static QUEUE_DELAY: Registration = Registration {
    name: "queue-delay",
    feedback: Feedback::Telemetry,
    flows: 1,
    keys: &[],
    build: |p| Box::new(QueueDelay { config: p.hpcc, rate: p.hpcc.line_rate, round_ends: 0 }),
};

fn main() -> ExitCode {
    ferroce::sim::main(&[&QUEUE_DELAY])
}
