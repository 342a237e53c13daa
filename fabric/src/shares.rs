//! The share of a link that telemetry reports to a class of service: its bytes and queue, scaled to the whole link.

use crate::classes::{ClassId, SecondClass};
use cc::{Instant, Rate};
use std::time::Duration;

/// Bytes that the link carries in a window over which the rate of a class is measured.
const WINDOW: u64 = 256 << 10;
/// Scaled counters count in units of 2^-16 bytes.
const FRACTION: u64 = 1 << 16;

/// The shares of two classes of one link.
///
/// A class can send at its guarantee or at the rate that the other class leaves: `B_c = max(guarantee, B - other's rate)`.
/// Telemetry has codes for only a few rates. It therefore reports the link's rate, with `txBytes` and queue scaled by `B / B_c`.
/// Then `u' = qlen / (B T) + txRate / B` equals that of a link of rate `B_c` that carries only this class.
#[derive(Debug)]
pub(crate) struct Shares {
    rate: Rate,
    guarantees: [u64; 2],
    window: Duration,
    since: Instant,
    /// Per class: bytes since `since`.
    sent: [u64; 2],
    /// Per class: bit/s in the last two windows, newer first.
    used: [[u64; 2]; 2],
    /// Per class: scaled bytes, in 1/[`FRACTION`] bytes.
    scaled: [u64; 2],
}

const fn index(class: ClassId) -> usize {
    match class {
        ClassId::Ordinary => 0,
        ClassId::Second => 1,
    }
}

/// Returns the guaranteed bit/s of both classes.
fn guarantees(rate: Rate, second: SecondClass) -> [u64; 2] {
    let weights = second.weights.map(|weight| u64::from(weight.get()));
    weights.map(|weight| rate.as_bps() / (weights[0] + weights[1]) * weight)
}

impl Shares {
    pub(crate) fn new(rate: Rate, second: SecondClass) -> Self {
        Self {
            rate,
            guarantees: guarantees(rate, second),
            window: rate.time_for(WINDOW),
            since: Instant::ZERO,
            sent: [0; 2],
            used: [[0; 2]; 2],
            scaled: [0; 2],
        }
    }

    pub(crate) fn change_rate(&mut self, rate: Rate, second: SecondClass) {
        (self.rate, self.guarantees, self.window) = (rate, guarantees(rate, second), rate.time_for(WINDOW));
    }

    /// Returns the rate at which the class can send, in bit/s; above 0.
    fn of(&self, class: usize) -> u64 {
        // The maximum of two windows, because one window could show the same bandwidth as free to both classes.
        let other = self.used[1 - class];
        self.guarantees[class].max(self.rate.as_bps().saturating_sub(other[0].max(other[1]))).max(1)
    }

    /// Returns the scaled `txBytes` and queue for a frame that starts to leave, with `queue` bytes queued behind it in its class.
    pub(crate) fn reported(&mut self, now: Instant, class: ClassId, queue: u64) -> (u64, u64) {
        self.roll(now);
        let class = index(class);
        let scaled = u128::from(queue) * u128::from(self.rate.as_bps()) / u128::from(self.of(class));
        (self.scaled[class] / FRACTION, u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    pub(crate) fn left(&mut self, now: Instant, class: ClassId, bytes: u64) {
        self.roll(now);
        let class = index(class);
        self.sent[class] += bytes;
        let parts =
            u128::from(bytes * FRACTION) * u128::from(self.rate.as_bps()) / u128::from(self.of(class));
        self.scaled[class] = self.scaled[class].wrapping_add(parts as u64);
    }

    /// Ends a window whose time has passed. A class's rate falls to 0 after two windows without a frame.
    fn roll(&mut self, now: Instant) {
        let elapsed = now.saturating_since(self.since);
        if elapsed < self.window {
            return;
        }
        let nanos = elapsed.as_nanos().max(1);
        for (used, bytes) in self.used.iter_mut().zip(self.sent) {
            *used = [(u128::from(bytes) * 8_000_000_000 / nanos) as u64, used[0]];
        }
        (self.sent, self.since) = ([0; 2], now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::num::NonZeroU8;

    const LINE: Rate = Rate::from_gbps(100);

    fn shares() -> Shares {
        let weights = [1, 3].map(|weight| NonZeroU8::new(weight).unwrap());
        Shares::new(LINE, SecondClass { dscp: 46, weights })
    }

    /// Sends frames of both classes at these Gb/s for 100 µs. Returns the rates of the last 50 µs that telemetry reports, as shares of B.
    fn carries(shares: &mut Shares, gbps: [u64; 2]) -> [f64; 2] {
        let classes = [ClassId::Ordinary, ClassId::Second];
        let mut middle = [0; 2];
        for micros in 1..=100_u64 {
            let now = Instant::from_nanos(micros * 1000);
            for (class, gbps) in classes.into_iter().zip(gbps).filter(|(_, gbps)| *gbps > 0) {
                shares.left(now, class, gbps * 125);
            }
            if micros == 50 {
                middle = classes.map(|class| shares.reported(now, class, 0).0);
            }
        }
        let now = Instant::from_nanos(100_000);
        let end = classes.map(|class| shares.reported(now, class, 0).0);
        [0, 1].map(|class| (end[class] - middle[class]) as f64 * 8.0 / 50_000.0 / 100.0)
    }

    #[test]
    fn a_class_alone_has_the_whole_link() {
        let [ordinary, second] = carries(&mut shares(), [80, 0]);
        assert!((ordinary - 0.8).abs() < 0.01 && second == 0.0, "{ordinary} {second}");
    }

    /// With 20 of its guaranteed 25 Gb/s used, the first class leaves 80 to the other, which uses all 80. Against 75 it has its 25.
    #[test]
    fn a_class_gets_its_guarantee_and_the_unused_share_of_the_other() {
        let [ordinary, second] = carries(&mut shares(), [20, 80]);
        assert!((ordinary - 0.8).abs() < 0.02 && (second - 1.0).abs() < 0.02, "{ordinary} {second}");
        let [hog, held] = carries(&mut shares(), [95, 5]);
        assert!((held - 5.0 / 75.0).abs() < 0.01 && (hog - 1.0).abs() < 0.02, "{hog} {held}");
        let mut shares = shares();
        carries(&mut shares, [95, 5]);
        let (_, queue) = shares.reported(Instant::from_nanos(100_000), ClassId::Second, 7500);
        assert_eq!(queue, 10_000, "a queue takes as long to drain as this one before the whole link");
    }
}
