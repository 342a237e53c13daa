//! The round trip as a requester measures it, and how long it waits before it asks whether something was lost (RFC 6298).

use core::num::NonZeroU32;
use core::time::Duration;

/// The shortest wait: round trips of paths without delay are as long as a poll loop's pauses.
const SHORTEST: Duration = Duration::from_micros(20);

/// The lateness that a packet may have on any path.
const SLACK: Duration = Duration::from_micros(5);

/// Measurements after which the shortest of them begins anew: a path may have become longer.
const WINDOW: u8 = 64;

/// A smoothed round trip and its variation, in ns: up to 4 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RoundTrip {
    smoothed: u32,
    variation: u32,
    /// Of the last measurements up to [`WINDOW`], and of as many before them.
    shortest: [NonZeroU32; 2],
    count: u8,
}

const fn nanos(nanos: u32) -> Duration {
    Duration::from_nanos(nanos as u64)
}

impl RoundTrip {
    /// Takes in a measurement (RFC 6298 2.2, 2.3).
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "averages are of 32-bit numbers, and the part removed makes room for the part added; `count` is below WINDOW"
    )]
    pub(super) fn measured(before: Option<Self>, rtt: Duration) -> Self {
        let rtt = u32::try_from(rtt.as_nanos()).unwrap_or(u32::MAX);
        let rounded = NonZeroU32::new(rtt).unwrap_or(NonZeroU32::MIN);
        let Some(Self { smoothed, variation, shortest: [new, old], count }) = before else {
            return Self { smoothed: rtt, variation: rtt / 2, shortest: [rounded; 2], count: 1 };
        };
        let is_full = count == WINDOW;
        let off = smoothed.abs_diff(rtt);
        Self {
            smoothed: smoothed - smoothed / 8 + rtt / 8,
            variation: variation - variation / 4 + off / 4,
            shortest: if is_full { [rounded, new] } else { [new.min(rounded), old] },
            count: if is_full { 1 } else { count + 1 },
        }
    }

    pub(super) const fn smoothed(&self) -> Duration {
        nanos(self.smoothed)
    }

    /// Returns the shortest of the last 64 to 128 measurements.
    pub(super) fn shortest(&self) -> Duration {
        let [new, old] = self.shortest;
        nanos(new.min(old).get())
    }

    /// Returns the longest that a round trip takes according to the measurements.
    #[expect(clippy::arithmetic_side_effects, reason = "the result is at most a minute")]
    pub(super) fn latest(&self) -> Duration {
        self.smoothed() + self.slack()
    }

    /// Returns how much longer than usual that is.
    #[expect(clippy::arithmetic_side_effects, reason = "the result is at most 20 s")]
    pub(super) fn slack(&self) -> Duration {
        (self.smoothed() / 2).max(nanos(self.variation) * 4).max(SLACK)
    }

    /// Returns the time without an answer after which something is requested again: at least two round trips, as RFC 8985 7.2 has it for a
    /// probe, and 20 µs.
    #[expect(clippy::arithmetic_side_effects, reason = "the result is at most a minute")]
    pub(super) fn patience(&self) -> Duration {
        (self.smoothed() + self.smoothed().max(nanos(self.variation) * 4)).max(SHORTEST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6298 2.2 and 2.3 by hand.
    #[test]
    fn it_follows_what_is_measured() {
        let micros = Duration::from_micros;
        let first = RoundTrip::measured(None, micros(80));
        assert_eq!((first.smoothed(), first.patience()), (micros(80), micros(240)));
        let second = RoundTrip::measured(Some(first), micros(160));
        assert_eq!((second.smoothed(), second.patience()), (micros(90), micros(290)));
        let near = (0..100).fold(None, |before, _| Some(RoundTrip::measured(before, micros(1)))).unwrap();
        assert_eq!((near.patience(), near.shortest()), (SHORTEST, micros(1)));
        let far = (0..100).fold(None, |before, _| Some(RoundTrip::measured(before, micros(100)))).unwrap();
        assert!((micros(200)..micros(201)).contains(&far.patience()), "{far:?}");
    }

    #[test]
    fn the_shortest_is_forgotten() {
        let micros = Duration::from_micros;
        let follow =
            |from, count| (0..count).fold(from, |before, _| RoundTrip::measured(Some(before), micros(90)));
        let short = RoundTrip::measured(None, micros(10));
        assert_eq!(follow(short, WINDOW).shortest(), micros(10));
        assert_eq!(follow(short, 2 * WINDOW).shortest(), micros(90));
        assert_eq!(RoundTrip::measured(Some(follow(short, 200)), micros(80)).shortest(), micros(80));
    }
}
