//! PowerTCP: a link's arrival rate times its in-flight bytes controls the rate (Addanki et al., NSDI 2022).

use crate::hpcc::{LEAST_ARRIVALS, PathReading, Signal};
use crate::{
    Ack, CongestionController, Feedback, HpccConfig, Inflight, PathRecords, PathTelemetry, Rate,
    Registration, limits,
};
use alloc::boxed::Box;
use core::time::Duration;

/// PowerTCP with in-band telemetry (section 3.3, algorithm 1) and HPCC++'s parameters, except `max_stage`. With 33 flows, HPCC++'s rule of
/// thumb results in the authors' `beta`: 150 Mb/s at 100 Gb/s.
pub static POWERTCP: Registration = Registration {
    name: "powertcp",
    feedback: Feedback::Telemetry,
    flows: 33,
    keys: &[],
    build: |parameters| Box::new(PowerTcp::new(parameters.hpcc)),
};

/// The window is stored as a rate: the number of bytes that the rate carries in a base RTT.
#[derive(Clone, Copy, Debug)]
struct PowerTcp {
    config: HpccConfig,
    records: PathRecords,
    /// Smoothed power of the busiest link; 1 for a full link without a queue.
    power: f64,
    rate: Rate,
    /// Rate at the end of the last round trip, at which the packets that are acknowledged now were sent.
    before: Rate,
    /// An acknowledgement above this number ends a round trip.
    round_ends: u64,
}

/// `gamma`: weight of a new window against that of a round trip ago, as in the authors' simulator. In the paper the other weight is that of
/// the last window.
const GAMMA: f64 = 0.9;

impl PowerTcp {
    /// Creates a flow at line rate, without telemetry.
    const fn new(config: HpccConfig) -> Self {
        let (rate, before) = (config.line_rate, config.line_rate);
        Self { config, records: PathRecords::new(), power: 1.0, rate, before, round_ends: 0 }
    }

    /// Applies the smoothing of `norm_power`, then `update_window` and `update_old`.
    fn react(&mut self, ack: &Ack, busiest: Inflight) {
        let HpccConfig { base_rtt, line_rate, min_rate, target_utilisation, additive_increase, .. } =
            self.config;
        let weight = (busiest.interval as f64 / limits::nanos(base_rtt)).min(1.0);
        self.power = (1.0 - weight) * self.power + weight * busiest.utilisation;
        let [before, increase] = [self.before, additive_increase].map(|rate| rate.as_bps() as f64);
        let computed = before / (self.power / target_utilisation) + increase;
        let rate = GAMMA * computed + (1.0 - GAMMA) * before;
        self.rate = Rate::from_bps(rate as u64).clamp(min_rate, line_rate);
        if ack.seq > self.round_ends {
            (self.before, self.round_ends) = (self.rate, ack.next);
        }
    }
}

impl CongestionController for PowerTcp {
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        match self.records.record_as(Signal::Power, ack.now, path, self.config.base_rtt) {
            PathReading::FirstPath => self.round_ends = ack.next,
            PathReading::NewPath | PathReading::Nothing => {}
            PathReading::Measured(_, busiest) => self.react(ack, busiest),
        }
    }

    /// Uses the in-flight share, at least half, in place of the power. They are equal while the queue's length does not change.
    ///
    /// The authors discard the first telemetry, because a rate needs two readings of a counter. A share is already a rate, so the flow
    /// reacts to the first share too. Until the first window ends, it reacts relative to the line rate. A share measured over 0 ns is
    /// ignored.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        if self.round_ends == 0 {
            self.round_ends = ack.next;
        }
        if busiest.interval > 0 {
            self.react(ack, Inflight { utilisation: busiest.utilisation.max(LEAST_ARRIVALS), ..*busiest });
        }
    }

    fn on_path_change(&mut self) {
        self.records = PathRecords::new();
    }

    fn set_base_rtt(&mut self, base_rtt: Duration) {
        self.config.base_rtt = base_rtt;
    }

    fn records(&self) -> Option<&PathRecords> {
        Some(&self.records)
    }

    #[inline]
    fn window(&self) -> u64 {
        self.config.window_at(self.rate)
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Hop, Instant};
    use core::num::NonZeroU32;

    const LINE: Rate = Rate::from_gbps(100);
    const T: u64 = 4160;

    fn record(flow: &mut PowerTcp, nanos: u64, sent: u64, queue: u64) {
        let mut path = PathTelemetry::new(1);
        let (time, tx_bytes) = (Counter::of::<64, 1>(nanos), Counter::of::<64, 1>(sent));
        path.set(0, Hop { bandwidth: LINE, time, tx_bytes, queue });
        let (now, seq) = (Instant::from_nanos(nanos), nanos);
        let ack = Ack { now, seq, next: seq + T, acked_bytes: 1000, ce_bytes: 0, rtt: None };
        flow.on_telemetry(&ack, &path);
    }

    fn flow() -> PowerTcp {
        PowerTcp::new(HpccConfig::new(LINE, Duration::from_nanos(T), NonZeroU32::new(100).unwrap()))
    }

    /// Power is (dq/dt + txRate) (q + B T) / (B^2 T).
    #[test]
    fn power_rises_with_the_growth_of_the_queue() {
        let power = |before: u64, after: u64| {
            let mut flow = flow();
            record(&mut flow, 10_000, 0, before);
            record(&mut flow, 10_000 + T, 52_000, after);
            flow.power
        };
        assert!((power(0, 0) - 1.0).abs() < 1e-9);
        assert!((power(52_000, 52_000) - 2.0).abs() < 1e-9);
        assert!(
            (power(0, 52_000) - 4.0).abs() < 1e-9,
            "twice the link's rate arrives, and twice what it holds is there"
        );
        assert!((power(52_000, 0) - 0.5).abs() < 1e-9, "at least half of the link's rate counts");
    }

    fn report(flow: &mut PowerTcp, seq: u64, utilisation: f64, interval: u64) {
        let now = Instant::from_nanos(seq);
        let ack = Ack { now, seq, next: seq + T, acked_bytes: 1000, ce_bytes: 0, rtt: None };
        flow.on_inflight(&ack, &Inflight { utilisation, interval });
    }

    #[test]
    fn a_reported_share_counts_as_half_at_least() {
        let mut flow = flow();
        for seq in [T, 2 * T, 3 * T] {
            report(&mut flow, seq, 0.0, T);
        }
        assert!((flow.power - 0.5).abs() < 1e-9);
    }

    #[test]
    fn a_flow_reacts_to_the_first_reported_share() {
        let mut flow = flow();
        report(&mut flow, 1, 4.0, 0);
        assert_eq!((flow.power, flow.pacing_rate()), (1.0, Some(LINE)), "a share over 0 ns");
        for mut flow in [flow, self::flow()] {
            // Both are of the first window, so the second is relative to the line rate, too.
            for seq in [1, T] {
                report(&mut flow, seq, 2.0, T);
                let rate = 0.9 * (100e9 / (2.0 / 0.95) + 50e6) + 0.1 * 100e9;
                assert!((flow.pacing_rate().unwrap().as_bps() as f64 - rate).abs() < 2.0, "{flow:?}");
            }
            report(&mut flow, 3 * T, 4.0, 0);
            assert_eq!(flow.before, LINE, "a share over 0 ns ends no window");
        }
    }

    #[test]
    fn the_window_follows_the_power_from_that_of_a_round_trip_ago() {
        let mut flow = flow();
        record(&mut flow, 10_000, 0, 52_000);
        record(&mut flow, 10_000 + T, 52_000, 52_000);
        let once = 0.9 * (100e9 / (2.0 / 0.95) + 50e6) + 0.1 * 100e9;
        assert!((flow.pacing_rate().unwrap().as_bps() as f64 - once).abs() < 2.0);
        // Half a round trip later the same reference applies.
        record(&mut flow, 10_000 + T + T / 2, 78_000, 52_000);
        assert!((flow.pacing_rate().unwrap().as_bps() as f64 - once).abs() < 2.0);
        record(&mut flow, 10_000 + 2 * T, 104_000, 52_000);
        let next = 0.9 * (once / (2.0 / 0.95) + 50e6) + 0.1 * once;
        assert!((flow.pacing_rate().unwrap().as_bps() as f64 - next).abs() < 2.0);
    }
}
