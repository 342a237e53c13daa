//! The share of a link that telemetry reports to a class: its own bytes and queue, in units of the whole link.

use crate::classes::{ClassId, SecondClass};
use cc::{Instant, Rate};
use std::time::Duration;

/// Bytes that the link carries in the time over which the other class's rate is counted.
const WINDOW: u64 = 256 << 10;
/// Parts of a byte that the scaled counters keep.
const FRACTION: u64 = 1 << 16;

/// The shares of two classes of one link.
///
/// A class can send what deficit round robin guarantees it and what the other leaves: `B_c = max(guarantee, B - the other's rate)`.
/// Telemetry expresses rates by a code that few rates have, so it reports the link's rate, and `txBytes` and queue `B / B_c` times as
/// large: `u' = qlen / (B T) + txRate / B` is then what it is for a link of `B_c` that carries this class alone.
#[derive(Debug)]
pub(crate) struct Shares {
    rate: Rate,
    guarantees: [u64; 2],
    window: Duration,
    since: Instant,
    /// By class: bytes since then.
    sent: [u64; 2],
    /// By class: bit/s in each of the two windows before, the last first.
    used: [[u64; 2]; 2],
    /// By class: bytes since the beginning, scaled, in parts of a byte.
    scaled: [u64; 2],
}

const fn index(class: ClassId) -> usize {
    match class {
        ClassId::Ordinary => 0,
        ClassId::Second => 1,
    }
}

impl Shares {
    /// Of a link of `rate`.
    pub(crate) fn new(rate: Rate, second: SecondClass) -> Self {
        let weights = second.weights.map(|weight| u64::from(weight.get()));
        let guarantee = |weight| rate.as_bps() / (weights[0] + weights[1]) * weight;
        Self {
            rate,
            guarantees: weights.map(guarantee),
            window: rate.time_for(WINDOW),
            since: Instant::ZERO,
            sent: [0; 2],
            used: [[0; 2]; 2],
            scaled: [0; 2],
        }
    }

    /// Returns the rate that the class can send at, bit/s; above 0.
    fn of(&self, class: usize) -> u64 {
        // The more of two windows: what both believe to be free, both would take.
        let other = self.used[1 - class];
        self.guarantees[class].max(self.rate.as_bps().saturating_sub(other[0].max(other[1]))).max(1)
    }

    /// A frame of a class starts to leave behind which so much waits in its class. Returns the scaled `txBytes`, without this frame,
    /// and the scaled queue.
    pub(crate) fn told(&mut self, now: Instant, class: ClassId, queue: u64) -> (u64, u64) {
        self.roll(now);
        let class = index(class);
        let scaled = u128::from(queue) * u128::from(self.rate.as_bps()) / u128::from(self.of(class));
        (self.scaled[class] / FRACTION, u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// A frame of `bytes` leaves.
    pub(crate) fn left(&mut self, now: Instant, class: ClassId, bytes: u64) {
        self.roll(now);
        let class = index(class);
        self.sent[class] += bytes;
        let parts =
            u128::from(bytes * FRACTION) * u128::from(self.rate.as_bps()) / u128::from(self.of(class));
        self.scaled[class] = self.scaled[class].wrapping_add(parts as u64);
    }

    /// A window that has passed shows what each class used; two that passed without a frame, nothing.
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

    /// Sends frames of both classes at these Gb/s for 100 µs, and returns what the last 50 µs of each look like, as a share of B.
    fn carries(shares: &mut Shares, gbps: [u64; 2]) -> [f64; 2] {
        let classes = [ClassId::Ordinary, ClassId::Second];
        let mut middle = [0; 2];
        for micros in 1..=100_u64 {
            let now = Instant::from_nanos(micros * 1000);
            for (class, gbps) in classes.into_iter().zip(gbps).filter(|(_, gbps)| *gbps > 0) {
                shares.left(now, class, gbps * 125);
            }
            if micros == 50 {
                middle = classes.map(|class| shares.told(now, class, 0).0);
            }
        }
        let now = Instant::from_nanos(100_000);
        let end = classes.map(|class| shares.told(now, class, 0).0);
        [0, 1].map(|class| (end[class] - middle[class]) as f64 * 8.0 / 50_000.0 / 100.0)
    }

    #[test]
    fn a_class_alone_has_the_whole_link() {
        let [ordinary, second] = carries(&mut shares(), [80, 0]);
        assert!((ordinary - 0.8).abs() < 0.01 && second == 0.0, "{ordinary} {second}");
    }

    /// 20 of a guaranteed 25 leave 80 to the other, which is full with 80; beside 75, the first has its 25.
    #[test]
    fn a_class_has_its_guarantee_and_what_the_other_leaves() {
        let [ordinary, second] = carries(&mut shares(), [20, 80]);
        assert!((ordinary - 0.8).abs() < 0.02 && (second - 1.0).abs() < 0.02, "{ordinary} {second}");
        // A hog beyond its guarantee does not take from the other's.
        let [hog, held] = carries(&mut shares(), [95, 5]);
        assert!((held - 5.0 / 75.0).abs() < 0.01 && (hog - 1.0).abs() < 0.02, "{hog} {held}");
        let mut shares = shares();
        carries(&mut shares, [95, 5]);
        let (_, queue) = shares.told(Instant::from_nanos(100_000), ClassId::Second, 7500);
        assert_eq!(queue, 10_000, "a queue takes as long to drain as this one before the whole link");
    }
}
