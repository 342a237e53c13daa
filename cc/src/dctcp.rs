//! DCTCP: a window that shrinks with the share of marked bytes (draft-bensley-tcpm-dctcp-01).

use crate::{Ack, ConfigError, CongestionController, Instant, Rate, limits};
use core::time::Duration;

/// The parameters of DCTCP (draft-bensley-tcpm-dctcp-01).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DctcpConfig {
    /// Base RTT, 1 ns to [`crate::HpccConfig::MAX_BASE_RTT`]. The initial window is the number of bytes that the line rate carries in it.
    pub base_rtt: Duration,
    /// Initial and highest rate. At most [`crate::HpccConfig::MAX_LINE_RATE`].
    pub line_rate: Rate,
    /// Lowest rate. Above 0, at most the line rate.
    pub min_rate: Rate,
    /// `g`: weight of the newest observation window in alpha. Above 0, at most 1.
    pub gain: f64,
    /// Increase of the rate after a window without marks. At most the line rate.
    pub additive_increase: Rate,
}

impl DctcpConfig {
    /// `g` of section 4.
    pub const DEFAULT_GAIN: f64 = 1.0 / 16.0;

    /// Returns section 4's gain, an increase of 1024 bytes per base RTT, and a thousandth of the line rate as the lowest rate.
    #[must_use]
    #[expect(clippy::arithmetic_side_effects, reason = "a constant is divided by at least 1")]
    pub fn new(line_rate: Rate, base_rtt: Duration) -> Self {
        let per_round = 1024 * 8 * 1_000_000_000 / base_rtt.as_nanos().max(1);
        let increase = Rate::from_bps(u64::try_from(per_round).unwrap_or(u64::MAX));
        Self {
            base_rtt,
            line_rate,
            min_rate: Rate::from_bps((line_rate.as_bps() / 1000).max(1)),
            gain: Self::DEFAULT_GAIN,
            additive_increase: increase.min(line_rate),
        }
    }

    /// Returns the parameters with which the authors of HPCC simulate DCTCP at 100 Gb/s: an increase of 615 Mb/s, a lowest rate of 100 Mb/s.
    #[must_use]
    pub fn simulator(base_rtt: Duration) -> Self {
        Self {
            min_rate: Rate::from_mbps(100),
            additive_increase: Rate::from_mbps(615),
            ..Self::new(Rate::from_gbps(100), base_rtt)
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
        let Self { base_rtt, line_rate, min_rate, gain, additive_increase } = *self;
        limits::base_rtt(base_rtt)?;
        limits::rates(line_rate, min_rate)?;
        limits::gain(gain)?;
        limits::increase(additive_increase, line_rate)
    }
}

/// DCTCP's sender (draft-bensley-tcpm-dctcp-01, section 3.3).
///
/// The window is stored as a rate, which is also the pacing rate. The receiver must echo marks exactly (section 3.2), because
/// [`Ack::ce_bytes`] counts bytes.
#[derive(Clone, Copy, Debug)]
pub struct Dctcp {
    config: DctcpConfig,
    /// `DCTCP.Alpha`.
    alpha: f64,
    /// `cwnd` as a rate.
    rate: Rate,
    /// `DCTCP.WindowEnd`, in the unit of [`Ack::seq`].
    window_end: u64,
    /// `DCTCP.BytesSent`.
    bytes: u64,
    /// `DCTCP.BytesMarked`.
    marked: u64,
    /// Number after the newest sent packet.
    next: u64,
    /// No acknowledgement up to this number reduces the window again.
    reduced_until: Option<u64>,
}

impl Dctcp {
    /// Creates a flow at line rate with alpha at 1 (section 3.3).
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: DctcpConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            alpha: 1.0,
            rate: config.line_rate,
            window_end: 0,
            bytes: 0,
            marked: 0,
            next: 0,
            reduced_until: None,
        })
    }

    /// Returns the parameters of the controller.
    #[must_use]
    pub const fn config(&self) -> &DctcpConfig {
        &self.config
    }

    pub(crate) const fn config_mut(&mut self) -> &mut DctcpConfig {
        &mut self.config
    }

    /// Returns `DCTCP.Alpha`, the smoothed share of marked bytes, 0 to 1.
    #[must_use]
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Returns the window as a rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Ends the observation window (steps 5 to 8).
    fn observe(&mut self, next: u64) {
        if self.bytes > 0 {
            let share = self.marked as f64 / self.bytes as f64;
            self.alpha = self.alpha * (1.0 - self.config.gain) + self.config.gain * share;
        }
        self.window_end = next;
        (self.bytes, self.marked) = (0, 0);
    }

    /// Sets `cwnd * (1 - cut)`, at most once per window of data.
    fn reduce(&mut self, cut: f64, next: u64) {
        if self.reduced_until.is_none() {
            self.rate = limits::reduce(self.rate, cut, self.config.min_rate);
            self.reduced_until = Some(next);
        }
    }
}

impl CongestionController for Dctcp {
    fn on_send(&mut self, _now: Instant, pn: u64, _bytes: u32) {
        self.next = self.next.max(pn.saturating_add(1));
    }

    /// Applies steps 1 to 8, then the reduction or the increase.
    #[expect(clippy::arithmetic_side_effects, reason = "byte counts stay far below 2^64")]
    fn on_ack(&mut self, ack: &Ack) {
        self.bytes += u64::from(ack.acked_bytes);
        self.marked += u64::from(ack.ce_bytes.min(ack.acked_bytes));
        let ends_window = ack.seq > self.window_end;
        if ends_window {
            self.observe(ack.next);
        }
        self.reduced_until = self.reduced_until.filter(|&end| ack.seq <= end);
        if ack.ce_bytes > 0 {
            self.reduce(self.alpha / 2.0, ack.next);
        }
        if ends_window && self.reduced_until.is_none() {
            let rate = self.rate.as_bps().saturating_add(self.config.additive_increase.as_bps());
            self.rate = Rate::from_bps(rate).min(self.config.line_rate);
        }
    }

    /// Halves the rate, as TCP does, unless no packet was sent since the last reduction. "The loss of a retransmission" is a separate
    /// indication of congestion (RFC 5681 4.3).
    fn on_loss(&mut self, _now: Instant) {
        self.reduced_until = self.reduced_until.filter(|&end| self.next <= end);
        self.reduce(0.5, self.next);
    }

    fn window(&self) -> u64 {
        limits::window(self.config.initial_window(), self.rate, self.config.line_rate)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `W_init` is 25,000 bytes.
    fn config() -> DctcpConfig {
        DctcpConfig {
            base_rtt: Duration::from_micros(200),
            line_rate: Rate::from_gbps(1),
            min_rate: Rate::from_mbps(10),
            gain: 1.0 / 16.0,
            additive_increase: Rate::from_mbps(40),
        }
    }

    fn ack(seq: u64, next: u64, acked_bytes: u32, ce_bytes: u32) -> Ack {
        Ack { now: Instant::ZERO, seq, next, acked_bytes, ce_bytes, rtt: None }
    }

    /// Section 3.3: Alpha starts at 1 and WindowEnd at SND.UNA, so the first acknowledgement ends a window.
    #[test]
    fn alpha_is_smoothed_once_a_window_over_bytes() {
        let mut dctcp = Dctcp::new(config()).unwrap();
        assert_eq!((dctcp.alpha(), dctcp.window()), (1.0, 25_000));
        dctcp.on_ack(&ack(1, 25, 1000, 0));
        assert_eq!(dctcp.alpha(), 15.0 / 16.0);
        for seq in 2..=25 {
            dctcp.on_ack(&ack(seq, seq + 25, 1000, if seq % 4 == 0 { 1000 } else { 0 }));
        }
        assert_eq!(dctcp.alpha(), 15.0 / 16.0, "25 is not beyond WindowEnd");
        dctcp.on_ack(&ack(26, 51, 1000, 0));
        // 6 of 25 packets were marked.
        assert_eq!(dctcp.alpha(), 15.0 / 16.0 * 15.0 / 16.0 + 6.0 / 25.0 / 16.0);
    }

    #[test]
    fn the_window_shrinks_by_half_of_alpha_and_once_a_window() {
        let mut dctcp = Dctcp::new(config()).unwrap();
        dctcp.on_ack(&ack(1, 25, 1000, 1000));
        // All bytes were marked: alpha stays 1 and the window is halved (section 3.3).
        assert_eq!((dctcp.alpha(), dctcp.rate()), (1.0, Rate::from_mbps(500)));
        assert_eq!(dctcp.window(), 12_500);
        for seq in 2..=25 {
            dctcp.on_ack(&ack(seq, 25, 1000, 1000));
        }
        assert_eq!(dctcp.rate(), Rate::from_mbps(500), "no more than once every window of data");
        dctcp.on_ack(&ack(26, 38, 1000, 1000));
        assert_eq!(dctcp.rate(), Rate::from_mbps(250));
    }

    #[test]
    fn without_marks_the_window_grows_by_a_step_a_window() {
        let mut dctcp = Dctcp::new(config()).unwrap();
        dctcp.on_ack(&ack(1, 25, 1000, 1000));
        for seq in 2..=26 {
            dctcp.on_ack(&ack(seq, seq + 12, 1000, 0));
        }
        assert_eq!(dctcp.rate(), Rate::from_mbps(540));
        for seq in 27..=2000 {
            dctcp.on_ack(&ack(seq, seq + 12, 1000, 0));
        }
        assert_eq!(dctcp.rate(), Rate::from_gbps(1), "up to the line rate");
        assert!(dctcp.alpha() < 0.01);
    }

    #[test]
    fn loss_halves_and_once_a_window() {
        let mut dctcp = Dctcp::new(config()).unwrap();
        dctcp.on_send(Instant::ZERO, 24, 1000);
        dctcp.on_loss(Instant::ZERO);
        dctcp.on_loss(Instant::ZERO);
        assert_eq!(dctcp.rate(), Rate::from_mbps(500));
        dctcp.on_ack(&ack(26, 40, 1000, 0));
        dctcp.on_loss(Instant::ZERO);
        assert_eq!(dctcp.rate(), Rate::from_mbps(270));
    }

    #[test]
    fn parameters_are_checked() {
        assert_eq!(DctcpConfig::new(Rate::from_gbps(100), Duration::from_nanos(4160)).validate(), Ok(()));
        assert_eq!(DctcpConfig::simulator(Duration::from_nanos(4160)).validate(), Ok(()));
        for gain in [0.0, 1.1, f64::NAN] {
            let refused = Dctcp::new(DctcpConfig { gain, ..config() }).unwrap_err();
            assert!(matches!(refused, ConfigError::Gain(_)));
        }
    }
}
