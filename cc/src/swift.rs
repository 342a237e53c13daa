//! Delay-based control, as in Swift: a target for the round trip, which depends on hops and on flows (SIGCOMM 2020).

use crate::{Ack, ConfigError, CongestionController, HpccConfig, Instant, Rate, limits};
use core::time::Duration;

/// The parameters of [`Swift`] (Kumar et al., SIGCOMM 2020, sections 3.1, 3.5 and 3.6).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SwiftConfig {
    /// Base RTT. 1 ns to [`crate::HpccConfig::MAX_BASE_RTT`].
    pub base_rtt: Duration,
    /// Initial and highest rate. At most [`crate::HpccConfig::MAX_LINE_RATE`].
    pub line_rate: Rate,
    /// Lowest rate. Above 0, at most the line rate.
    pub min_rate: Rate,
    /// Queueing delay that is allowed to every flow beyond the base RTT. At most 1 s.
    pub hop_delay: Duration,
    /// Further delay that is allowed to a flow of one packet in flight; decreases with the square root of the window to 0 at 100 packets.
    /// At most 1 s.
    pub flow_delay: Duration,
    /// Increase of the rate per round trip below the target. At most the line rate.
    pub additive_increase: Rate,
    /// `beta`: a cut lowers the rate by this part of `(RTT - target) / RTT`. Above 0, at most 1.
    pub gain: f64,
}

/// `max_mdf`: largest part of the rate by which one cut lowers it.
const MAX_DECREASE: f64 = 0.5;
/// Payload bytes of a packet, for windows in packets.
const PACKET: u64 = 1024;
/// Window in packets at which the target's part for flows is 0.
const LARGEST: f64 = 100.0;

impl SwiftConfig {
    /// `beta` of the paper.
    pub const DEFAULT_GAIN: f64 = 0.8;

    /// Returns delays in proportion to the base RTT: a quarter of it for the hops, twice as long as it for a flow of one packet. The
    /// increase is 1024 bytes per base RTT, the lowest rate a thousandth of the line rate.
    #[must_use]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "constants are divided by at least 1; the divisors are constants"
    )]
    pub fn new(line_rate: Rate, base_rtt: Duration) -> Self {
        let increase = u128::from(PACKET) * 8_000_000_000 / base_rtt.as_nanos().max(1);
        Self {
            base_rtt,
            line_rate,
            min_rate: Rate::from_bps((line_rate.as_bps() / 1000).max(1)),
            hop_delay: base_rtt / 4,
            flow_delay: base_rtt.saturating_mul(2).min(HpccConfig::MAX_BASE_RTT),
            additive_increase: Rate::from_bps(u64::try_from(increase).unwrap_or(u64::MAX)).min(line_rate),
            gain: Self::DEFAULT_GAIN,
        }
    }

    /// Returns the bytes that the line rate carries in one base RTT; at least 1.
    #[must_use]
    pub fn initial_window(&self) -> u64 {
        limits::initial_window(self.line_rate, self.base_rtt)
    }

    /// Checks that every parameter is within its limits.
    ///
    /// # Errors
    /// Returns the first parameter that is not, with its limits.
    pub fn validate(&self) -> Result<(), ConfigError> {
        limits::base_rtt(self.base_rtt)?;
        limits::rates(self.line_rate, self.min_rate)?;
        for (what, interval) in [("hop delay", self.hop_delay), ("flow delay", self.flow_delay)] {
            if interval > Duration::from_secs(1) {
                return Err(ConfigError::Delay { what, interval });
            }
        }
        limits::gain(self.gain)?;
        limits::increase(self.additive_increase, self.line_rate)
    }
}

/// A window that grows while round trips are below a target, and otherwise shrinks in proportion to the excess. It needs neither telemetry
/// nor marks.
#[derive(Clone, Copy, Debug)]
pub struct Swift {
    config: SwiftConfig,
    rate: Rate,
    /// Bytes acknowledged since the last measured round trip, because not every acknowledgement measures one.
    acked: u64,
    /// An acknowledgement above this number may cut again: at most one cut per round trip.
    cut_until: u64,
    next: u64,
}

impl Swift {
    /// Creates a flow at line rate.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: SwiftConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, rate: config.line_rate, acked: 0, cut_until: 0, next: 0 })
    }

    /// Returns the parameters of the controller.
    #[must_use]
    pub const fn config(&self) -> &SwiftConfig {
        &self.config
    }

    pub(crate) const fn config_mut(&mut self) -> &mut SwiftConfig {
        &mut self.config
    }

    /// Returns the target for the round trip at the current window: base RTT, delay at hops, and a part that increases as the window
    /// decreases. So the windows of flows converge, and many flows can have one packet each in flight.
    #[must_use]
    pub fn target(&self) -> Duration {
        let window = self.config.initial_window() as f64 * self.rate.as_bps() as f64
            / self.config.line_rate.as_bps() as f64;
        let (root, largest) = (root_of(window / PACKET as f64).max(1.0), root_of(LARGEST));
        let share = ((1.0 / root - 1.0 / largest) / (1.0 - 1.0 / largest)).clamp(0.0, 1.0);
        let flows = limits::nanos(self.config.flow_delay) * share;
        let fixed = self.config.base_rtt.saturating_add(self.config.hop_delay);
        fixed.saturating_add(Duration::from_nanos(flows as u64))
    }

    fn cut(&mut self, by: f64, seq: u64, next: u64) {
        if seq <= self.cut_until && self.cut_until > 0 {
            return;
        }
        self.rate = limits::reduce(self.rate, by.min(MAX_DECREASE), self.config.min_rate);
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
            let more = self.config.additive_increase.as_bps() as f64 * share;
            let rate = self.rate.as_bps().saturating_add(more as u64);
            self.rate = Rate::from_bps(rate).clamp(self.config.min_rate, self.config.line_rate);
        } else {
            let excess = 1.0 - limits::nanos(target) / limits::nanos(rtt).max(1.0);
            self.cut(self.config.gain * excess, ack.seq, ack.next);
        }
    }

    /// Cuts the rate by `max_mdf`, at most once per round trip.
    fn on_loss(&mut self, _now: Instant) {
        self.cut(MAX_DECREASE, self.next, self.next);
    }

    #[inline]
    fn window(&self) -> u64 {
        limits::window(self.config.initial_window(), self.rate, self.config.line_rate)
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_micros(4);

    fn flow() -> Swift {
        Swift::new(SwiftConfig::new(Rate::from_gbps(100), T)).unwrap()
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
        let config =
            SwiftConfig { hop_delay: Duration::from_secs(2), ..SwiftConfig::new(Rate::from_gbps(1), T) };
        let error = Swift::new(config).map(|_| ()).unwrap_err();
        assert!(matches!(error, ConfigError::Delay { what: "hop delay", .. }), "{error}");
        assert!(
            Swift::new(SwiftConfig { gain: f64::NAN, ..SwiftConfig::new(Rate::from_gbps(1), T) }).is_err()
        );
    }
}
