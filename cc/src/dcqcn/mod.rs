//! DCQCN: a rate that decreases with congestion notifications and increases by time and bytes (SIGCOMM 2015).

mod config;

pub use config::DcqcnConfig;

use crate::{Ack, ConfigError, CongestionController, Instant, Rate, limits};
use core::time::Duration;

/// Limit on the overdue cuts and raises that one call performs; further raises are skipped.
const MAX_CATCH_UP: u32 = 1000;

/// DCQCN's reaction point: CNPs lower the rate, time and sent bytes raise it (Zhu et al., SIGCOMM 2015, section 3.1).
#[derive(Clone, Copy, Debug)]
pub struct Dcqcn {
    config: DcqcnConfig,
    /// `R_C`.
    rate: Rate,
    /// `R_T`.
    target: Rate,
    alpha: f64,
    /// `None` before the first CNP.
    clocks: Option<Clocks>,
    /// `T` and `BC`: raises by the timer and by the byte counter since the last cut.
    stages: (u32, u32),
    /// Bytes towards the byte counter's next raise.
    bytes: u64,
}

#[derive(Clone, Copy, Debug)]
struct Clocks {
    alpha_since: Instant,
    /// Whether a CNP arrived in that interval.
    has_alpha_notification: bool,
    /// When to cut the rate for the last CNP; `None` if a cut has followed it.
    cut_at: Option<Instant>,
    /// Time of the last cut, initially of the first CNP. Cuts are whole decrease intervals after it.
    cut_grid: Instant,
    /// The timer's next raise; `None` at line rate.
    raise_at: Option<Instant>,
}

impl Dcqcn {
    /// Creates a flow at line rate.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: DcqcnConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            rate: config.line_rate,
            target: config.line_rate,
            alpha: 1.0,
            clocks: None,
            stages: (0, 0),
            bytes: 0,
        })
    }

    /// Sets current and target rate to `rate`, that of the algorithm used before, clamped to the configured limits.
    pub fn continue_at(&mut self, rate: Rate) {
        self.rate = rate.clamp(self.config.min_rate, self.config.line_rate);
        self.target = self.rate;
    }

    /// Returns the parameters of the controller.
    #[must_use]
    pub const fn config(&self) -> &DcqcnConfig {
        &self.config
    }

    /// Returns `R_C`, the current rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns `R_T`, the target rate.
    #[must_use]
    pub const fn target_rate(&self) -> Rate {
        self.target
    }

    /// Returns alpha, the smoothed share of intervals with a CNP, 0 to 1, as of its last update.
    #[must_use]
    pub const fn alpha(&self) -> f64 {
        self.alpha
    }

    /// Applies the cuts and raises that are due by `now`.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn advance(&mut self, now: Instant) {
        for _ in 0..MAX_CATCH_UP {
            let Some(clocks) = self.clocks else { return };
            match (clocks.cut_at.filter(|&at| at <= now), clocks.raise_at.filter(|&at| at <= now)) {
                (Some(cut), raise) if raise.is_none_or(|raise| cut <= raise) => self.cut(cut),
                (_, Some(raise)) => self.raise_by_timer(raise),
                _ => return,
            }
        }
        if let Some(clocks) = &mut self.clocks {
            clocks.raise_at = clocks.raise_at.map(|_| now + self.config.increase_interval);
        }
    }

    /// Updates alpha for the intervals that ended by `at`. Only the first of them can contain a CNP.
    #[expect(clippy::arithmetic_side_effects, reason = "`ended` is not 0")]
    fn update_alpha(&mut self, at: Instant) {
        let Some(clocks) = &mut self.clocks else { return };
        let (ended, since) = grid(clocks.alpha_since, at, self.config.alpha_interval);
        if ended == 0 {
            return;
        }
        let kept = 1.0 - self.config.gain;
        let received = if clocks.has_alpha_notification { self.config.gain } else { 0.0 };
        self.alpha = (kept * self.alpha + received) * power(kept, ended - 1);
        (clocks.alpha_since, clocks.has_alpha_notification) = (since, false);
    }

    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn cut(&mut self, at: Instant) {
        self.update_alpha(at);
        if self.config.clamp_target || self.stages.0 > 0 {
            self.target = self.rate;
        }
        self.rate = limits::reduce(self.rate, self.alpha / 2.0, self.config.min_rate);
        (self.stages, self.bytes) = ((0, 0), 0);
        if let Some(clocks) = &mut self.clocks {
            clocks.cut_grid = at;
            clocks.cut_at = None;
            clocks.raise_at = Some(at + self.config.increase_interval);
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn raise_by_timer(&mut self, at: Instant) {
        self.raise();
        self.stages.0 = self.stages.0.saturating_add(1);
        let done = self.rate == self.config.line_rate;
        if let Some(clocks) = &mut self.clocks {
            clocks.raise_at = (!done).then(|| at + self.config.increase_interval);
        }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "two rates are at most twice MAX_LINE_RATE")]
    fn raise(&mut self) {
        let (timer, bytes) = self.stages;
        let bytes = if self.config.byte_counter.is_some() { bytes } else { timer };
        let step = if timer.max(bytes) < self.config.fast_recovery {
            0
        } else if timer.min(bytes) > self.config.fast_recovery {
            self.config.hyper_increase.as_bps()
        } else {
            self.config.additive_increase.as_bps()
        };
        let line = self.config.line_rate.as_bps();
        let target = self.target.as_bps().saturating_add(step).min(line);
        self.target = Rate::from_bps(target);
        // Rounded up, so that the rate reaches its target.
        self.rate = Rate::from_bps((self.rate.as_bps() + target).div_ceil(2));
    }
}

impl CongestionController for Dcqcn {
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "byte counts stay far below 2^64; the byte counter is at least 1"
    )]
    fn on_send(&mut self, now: Instant, _pn: u64, bytes: u32) {
        self.advance(now);
        let Some(every) = self.config.byte_counter.filter(|_| self.rate < self.config.line_rate) else {
            return;
        };
        self.bytes += u64::from(bytes);
        if self.bytes >= every {
            self.bytes %= every;
            self.raise();
            self.stages.1 = self.stages.1.saturating_add(1);
        }
    }

    /// Uses only the time: the echoed marks are for DCTCP, and DCQCN's congestion signal is the CNP.
    fn on_ack(&mut self, ack: &Ack) {
        self.advance(ack.now);
    }

    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    fn on_congestion_notification(&mut self, now: Instant) {
        self.advance(now);
        self.update_alpha(now);
        let every = self.config.decrease_interval;
        match &mut self.clocks {
            None => {
                self.clocks = Some(Clocks {
                    alpha_since: now,
                    // Alpha is 1 already.
                    has_alpha_notification: false,
                    cut_at: Some(now + every),
                    cut_grid: now,
                    raise_at: None,
                });
            }
            Some(clocks) => {
                clocks.has_alpha_notification = true;
                if clocks.cut_at.is_none() {
                    clocks.cut_at = Some(grid(clocks.cut_grid, now, every).1 + every);
                }
            }
        }
    }

    /// Leaves the rate unchanged: the paper assumes a lossless network.
    fn on_loss(&mut self, _now: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        let clocks = self.clocks.as_ref()?;
        clocks.cut_at.into_iter().chain(clocks.raise_at).min()
    }

    fn on_timeout(&mut self, now: Instant) {
        self.advance(now);
    }

    /// Returns [`u64::MAX`] without a base RTT.
    fn window(&self) -> u64 {
        let line = self.config.line_rate;
        self.config.base_rtt.map_or(u64::MAX, |base_rtt| {
            limits::window(limits::initial_window(line, base_rtt), self.rate, line)
        })
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

/// Returns the number of whole intervals from `since` to `now`, and when the last of them ended.
#[expect(
    clippy::arithmetic_side_effects,
    reason = "`every` is at least 1 ns; the intervals that ended are no longer than the time; adding to an `Instant` saturates"
)]
fn grid(since: Instant, now: Instant, every: Duration) -> (u64, Instant) {
    // `every` was validated: 1 ns to 1 s.
    let every = every.as_nanos() as u64;
    let ended = now.saturating_since(since).as_nanos() as u64 / every;
    (ended, since + Duration::from_nanos(ended * every))
}

/// Returns `base` to the power of `exponent`; `core` has no `powi`.
fn power(mut base: f64, mut exponent: u64) -> f64 {
    let mut product = 1.0;
    while exponent > 0 {
        if exponent & 1 == 1 {
            product *= base;
        }
        base *= base;
        exponent >>= 1;
    }
    product
}

#[cfg(test)]
mod tests;
