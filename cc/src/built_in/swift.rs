//! Delay-based control, as in Swift: a target for the round trip, which depends on hops and on flows (SIGCOMM 2020).

use crate::{
    Ack, CongestionController, Feedback, HpccConfig, Instant, Parameters, Rate, Registration, limits,
};
use alloc::boxed::Box;
use core::time::Duration;

/// Delay-based control (Kumar et al., SIGCOMM 2020, sections 3.1, 3.5 and 3.6). Its delays and its increase are in proportion to the base
/// RTT, unless they are configured.
pub static SWIFT: Registration = Registration {
    name: "swift",
    feedback: Feedback::Delay,
    flows: 1,
    keys: &[
        ("gain", "0.8"),
        ("additive_increase", "1 KiB in base_rtt"),
        ("hop_delay", "base_rtt / 4"),
        ("flow_delay", "2 base_rtt"),
    ],
    build: |parameters| Box::new(Swift::new(*parameters)),
};

/// `beta` of the paper.
const DEFAULT_GAIN: f64 = 0.8;
/// `max_mdf`: largest part of the rate by which one cut lowers it.
const MAX_DECREASE: f64 = 0.5;
/// Payload bytes of a packet, for windows in packets.
const PACKET: u64 = 1024;
/// Window in packets at which the target's part for flows is 0.
const LARGEST: f64 = 100.0;

/// A window that grows while round trips are below a target, and otherwise shrinks in proportion to the excess. It needs neither telemetry
/// nor marks.
#[derive(Clone, Copy, Debug)]
struct Swift {
    parameters: Parameters,
    /// Queueing delay that is allowed to every flow beyond the base RTT.
    hop_delay: Duration,
    /// Further delay that is allowed to a flow of one packet in flight; decreases with the square root of the window to 0 at 100 packets.
    flow_delay: Duration,
    /// Increase of the rate per round trip below the target.
    additive_increase: Rate,
    /// `beta`: a cut lowers the rate by this part of `(RTT - target) / RTT`.
    gain: f64,
    rate: Rate,
    /// Bytes acknowledged since the last measured round trip, because not every acknowledgement measures one.
    acked: u64,
    /// An acknowledgement above this number may cut again: at most one cut per round trip.
    cut_until: u64,
    next: u64,
}

impl Swift {
    /// Creates a flow at line rate.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "constants are divided by at least 1; the divisors are constants"
    )]
    fn new(parameters: Parameters) -> Self {
        let HpccConfig { base_rtt, line_rate, .. } = parameters.hpcc;
        let increase = u128::from(PACKET) * 8_000_000_000 / base_rtt.as_nanos().max(1);
        let increase = Rate::from_bps(u64::try_from(increase).unwrap_or(u64::MAX)).min(line_rate);
        let flow_delay = base_rtt.saturating_mul(2).min(HpccConfig::MAX_BASE_RTT);
        Self {
            parameters,
            hop_delay: parameters.hop_delay.unwrap_or(base_rtt / 4),
            flow_delay: parameters.flow_delay.unwrap_or(flow_delay),
            additive_increase: parameters.additive_increase.unwrap_or(increase),
            gain: parameters.gain.unwrap_or(DEFAULT_GAIN),
            rate: line_rate,
            acked: 0,
            cut_until: 0,
            next: 0,
        }
    }

    /// Returns the target for the round trip at the current window: base RTT, delay at hops, and a part that increases as the window
    /// decreases. So the windows of flows converge, and many flows can have one packet each in flight.
    fn target(&self) -> Duration {
        let hpcc = &self.parameters.hpcc;
        let window =
            hpcc.initial_window() as f64 * self.rate.as_bps() as f64 / hpcc.line_rate.as_bps() as f64;
        let (root, largest) = (root_of(window / PACKET as f64).max(1.0), root_of(LARGEST));
        let share = ((1.0 / root - 1.0 / largest) / (1.0 - 1.0 / largest)).clamp(0.0, 1.0);
        let flows = limits::nanos(self.flow_delay) * share;
        let fixed = hpcc.base_rtt.saturating_add(self.hop_delay);
        fixed.saturating_add(Duration::from_nanos(flows as u64))
    }

    fn cut(&mut self, by: f64, seq: u64, next: u64) {
        if seq <= self.cut_until && self.cut_until > 0 {
            return;
        }
        self.rate = limits::reduce(self.rate, by.min(MAX_DECREASE), self.parameters.hpcc.min_rate);
        self.cut_until = next;
    }
}

/// Returns the square root of a number from 0 to 2^40, with an error of at most 0.001.
fn root_of(number: f64) -> f64 {
    ((number * 1e6) as u64).isqrt() as f64 / 1000.0
}

impl CongestionController for Swift {
    fn on_ack(&mut self, ack: &Ack) {
        self.next = ack.next;
        self.acked = self.acked.saturating_add(u64::from(ack.acked_bytes));
        let Some(rtt) = ack.rtt else { return };
        let acked = core::mem::take(&mut self.acked);
        let target = self.target();
        if rtt < target {
            // The shares of the acknowledgements of one window add up to one increase.
            let share = acked as f64 / self.window() as f64;
            let more = self.additive_increase.as_bps() as f64 * share;
            let rate = self.rate.as_bps().saturating_add(more as u64);
            let HpccConfig { min_rate, line_rate, .. } = self.parameters.hpcc;
            self.rate = Rate::from_bps(rate).clamp(min_rate, line_rate);
        } else {
            let excess = 1.0 - limits::nanos(target) / limits::nanos(rtt).max(1.0);
            self.cut(self.gain * excess, ack.seq, ack.next);
        }
    }

    /// Cuts the rate by `max_mdf`, at most once per round trip.
    fn on_loss(&mut self, _now: Instant) {
        self.cut(MAX_DECREASE, self.next, self.next);
    }

    fn set_base_rtt(&mut self, base_rtt: Duration) {
        let hpcc = HpccConfig { base_rtt, ..self.parameters.hpcc };
        let Self { rate, acked, cut_until, next, .. } = *self;
        let renewed = Self::new(Parameters { hpcc, ..self.parameters });
        *self = Self { rate, acked, cut_until, next, ..renewed };
    }

    #[inline]
    fn window(&self) -> u64 {
        self.parameters.hpcc.window_at(self.rate)
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AlgorithmConfig, ConfigError};
    use core::num::NonZeroU32;

    const T: Duration = Duration::from_micros(4);

    fn flow() -> Swift {
        Swift::new(HpccConfig::new(Rate::from_gbps(100), T, NonZeroU32::MIN).into())
    }

    fn answer(flow: &mut Swift, seq: u64, rtt: Duration) {
        let now = Instant::from_nanos(seq * 100);
        flow.on_ack(&Ack { now, seq, next: seq + 50, acked_bytes: 1024, ce_bytes: 0, rtt: Some(rtt) });
    }

    #[test]
    fn a_late_answer_cuts_once_a_round_trip_and_at_most_by_half() {
        let mut flow = flow();
        let target = flow.target();
        answer(&mut flow, 1, 2 * target);
        assert_eq!(flow.pacing_rate(), Some(Rate::from_gbps(60)), "0.8 of the half that is too much");
        answer(&mut flow, 51, 2 * target);
        assert_eq!(flow.pacing_rate(), Some(Rate::from_gbps(60)), "sent before the cut");
        answer(&mut flow, 52, 100 * target);
        assert_eq!(flow.pacing_rate(), Some(Rate::from_gbps(30)));
    }

    #[test]
    fn a_window_of_answers_in_time_adds_a_packet() {
        let mut flow = flow();
        (0..3).for_each(|round| answer(&mut flow, 100 * round + 1, Duration::from_millis(1)));
        let before = flow.window();
        let packets = before.div_ceil(1024);
        (0..packets).for_each(|packet| answer(&mut flow, 400 + packet, T));
        assert!((flow.window() - before).abs_diff(1024) < 200, "{before} B, then {}", flow.window());
    }

    #[test]
    fn acknowledgements_without_an_rtt_sample_count_with_the_next_sample() {
        let (mut each, mut seldom) = (flow(), flow());
        for flow in [&mut each, &mut seldom] {
            (0..3).for_each(|round| answer(flow, 100 * round + 1, Duration::from_millis(1)));
        }
        for packet in 0..8 {
            answer(&mut each, 400 + packet, T);
            let ack = Ack {
                now: Instant::from_nanos(1),
                seq: 400 + packet,
                next: 450 + packet,
                acked_bytes: 1024,
                ce_bytes: 0,
                rtt: None,
            };
            seldom.on_ack(&Ack { rtt: (packet == 7).then_some(T), ..ack });
        }
        assert!(
            seldom.window().abs_diff(each.window()) < 200,
            "{} B and {} B",
            seldom.window(),
            each.window()
        );
    }

    #[test]
    fn the_target_grows_as_the_window_shrinks() {
        let mut flow = flow();
        let mut before = flow.target();
        assert!(before > T + T / 4 && before < T + T / 2, "{before:?}");
        for round in 0..6 {
            answer(&mut flow, 1000 * round + 1, Duration::from_millis(1));
            assert!(flow.target() > before, "{before:?}");
            before = flow.target();
        }
        (6..20).for_each(|round| answer(&mut flow, 1000 * round + 1, Duration::from_secs(1)));
        assert_eq!(flow.target(), T + T / 4 + 2 * T, "a packet or less");
        assert_eq!(flow.pacing_rate(), Some(Rate::from_mbps(100)), "and no lower");
    }

    #[test]
    fn a_parameter_out_of_its_limits_is_named() {
        let usual = Parameters::from(HpccConfig::new(Rate::from_gbps(1), T, NonZeroU32::MIN));
        let wrong = |parameters| AlgorithmConfig::Registered(&SWIFT, parameters).build().unwrap_err();
        let error = wrong(Parameters { hop_delay: Some(Duration::from_secs(2)), ..usual });
        assert!(matches!(error, ConfigError::Delay { what: "hop delay", .. }), "{error}");
        let error = wrong(Parameters { gain: Some(f64::NAN), ..usual });
        assert!(matches!(error, ConfigError::Gain(_)), "{error}");
    }

    #[test]
    fn configured_delays_stay_when_the_base_rtt_changes() {
        let usual = Parameters::from(HpccConfig::new(Rate::from_gbps(100), T, NonZeroU32::MIN));
        for (hop_delay, expected) in [(None, T), (Some(T / 4), T / 4)] {
            let mut flow = Swift::new(Parameters { hop_delay, ..usual });
            answer(&mut flow, 1, Duration::from_millis(1));
            let rate = flow.pacing_rate();
            flow.set_base_rtt(4 * T);
            assert_eq!((flow.hop_delay, flow.flow_delay, flow.pacing_rate()), (expected, 8 * T, rate));
        }
    }
}
