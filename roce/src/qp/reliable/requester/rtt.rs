//! The RTT estimator, and the timeouts that it determines (RFC 6298).

use super::limits::MAX_PROBE_BACKOFF;
use cc::Instant;
use core::num::NonZeroU32;
use core::time::Duration;

/// Shortest timeout, ns: on a path without delay, the pauses of a poll loop dominate the round trip.
const MIN_WAIT: u64 = 20_000;

/// Least extra delay that is allowed on any path.
const SLACK: Duration = Duration::from_micros(5);

/// Measurements after which the minimum restarts, because a path may have become longer.
const WINDOW: u8 = 64;

/// Smoothed round trip and its variation, ns, at most 4 s.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RttEstimate {
    smoothed: u32,
    variation: u32,
    /// Minimum of up to [`WINDOW`] measurements, and of the [`WINDOW`] before them.
    shortest: [NonZeroU32; 2],
    count: u8,
}

const fn nanos(nanos: u32) -> Duration {
    Duration::from_nanos(nanos as u64)
}

impl RttEstimate {
    /// Adds a measurement (RFC 6298 2.2, 2.3).
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

    /// Returns the longest round trip to expect.
    #[expect(clippy::arithmetic_side_effects, reason = "the result is at most a minute")]
    pub(super) fn latest(&self) -> Duration {
        self.smoothed() + self.slack()
    }

    /// Returns the margin of [`Self::latest`] over the smoothed round trip.
    #[expect(clippy::arithmetic_side_effects, reason = "the result is at most 20 s")]
    pub(super) fn slack(&self) -> Duration {
        (self.smoothed() / 2).max(nanos(self.variation) * 4).max(SLACK)
    }

    /// Returns the time without an answer after which a probe is sent, ns: at least two round trips, as in RFC 8985 7.2, and 20 µs.
    #[expect(clippy::arithmetic_side_effects, reason = "the sums are of a few 32-bit numbers")]
    fn probe_timeout(&self) -> u64 {
        let (smoothed, variation) = (u64::from(self.smoothed), u64::from(self.variation));
        (smoothed + smoothed.max(variation * 4)).max(MIN_WAIT)
    }
}

/// RTT estimator that measures one packet at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RttEstimator {
    /// The measured packet, and when it was sent.
    sample: Option<(u64, Instant)>,
    estimate: Option<RttEstimate>,
    /// Tail loss probes since the last measurement, at most [`MAX_PROBE_BACKOFF`]. Each doubles the timeout.
    probes: u8,
}

impl RttEstimator {
    pub(super) const fn new() -> Self {
        Self { sample: None, estimate: None, probes: 0 }
    }

    #[inline]
    pub(super) const fn estimate(&self) -> Option<RttEstimate> {
        self.estimate
    }

    pub(super) fn shortest(&self) -> Option<Duration> {
        self.estimate.map(|estimate| estimate.shortest())
    }

    /// Measures packet `number`, sent for the first time, unless a measurement is in progress.
    #[inline]
    pub(super) fn on_sent(&mut self, number: u64, now: Instant) {
        if self.sample.is_none() {
            self.sample = Some((number, now));
        }
    }

    #[inline]
    pub(super) fn sampled(&self) -> Option<u64> {
        self.sample.map(|(number, _)| number)
    }

    /// Returns when the packet that is being measured was sent.
    #[inline]
    pub(super) fn sampled_at(&self) -> Option<Instant> {
        self.sample.map(|(_, since)| since)
    }

    /// Stops measuring a packet that is retransmitted: its acknowledgement may be of either transmission (Karn).
    #[inline]
    pub(super) const fn cancel(&mut self) {
        self.sample = None;
    }

    /// Returns the round trip of the measured packet, which has arrived.
    pub(super) fn on_arrival(&mut self, now: Instant) -> Option<Duration> {
        let (_, since) = self.sample.take()?;
        let rtt = now.saturating_since(since);
        self.estimate = Some(RttEstimate::measured(self.estimate, rtt));
        self.probes = 0;
        Some(rtt)
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the sum is at most MAX_PROBE_BACKOFF + 1")]
    pub(super) fn on_probe(&mut self) {
        self.probes = (self.probes + 1).min(MAX_PROBE_BACKOFF);
    }

    #[inline]
    pub(super) const fn is_probing(&self) -> bool {
        self.probes > 0
    }

    /// Returns the time without an answer until the next probe, doubled `more` times. `slowest` is the longest time of an answer over the
    /// slowest path.
    ///
    /// Computes in ns, because this runs for each acknowledgement, and arithmetic of `Duration` takes four times as long.
    #[expect(clippy::arithmetic_side_effects, reason = "minutes times 128 are far below 2^64 ns")]
    pub(super) fn probe_wait(&self, slowest: Duration, more: u8) -> Option<Duration> {
        let longest = self.estimate?.probe_timeout().max(slowest.as_nanos() as u64);
        Some(Duration::from_nanos(longest << (self.probes + more)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_packet_at_a_time_is_measured() {
        let at = |micros: u64| Instant::from_nanos(micros * 1000);
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.on_arrival(at(1)), None);
        rtt.on_sent(3, at(10));
        rtt.on_sent(4, at(20));
        assert_eq!((rtt.sampled(), rtt.on_arrival(at(90))), (Some(3), Some(Duration::from_micros(80))));
        assert_eq!((rtt.sampled(), rtt.shortest()), (None, Some(Duration::from_micros(80))));
        rtt.on_sent(5, at(100));
        rtt.cancel();
        assert_eq!(rtt.on_arrival(at(101)), None);
    }

    #[test]
    fn each_probe_doubles_the_wait_64_times_at_most_until_an_rtt_sample() {
        let mut rtt = RttEstimator::new();
        assert_eq!(rtt.probe_wait(Duration::ZERO, 0), None);
        let measure = |rtt: &mut RttEstimator| {
            rtt.on_sent(0, Instant::ZERO);
            rtt.on_arrival(Instant::from_nanos(80_000));
        };
        measure(&mut rtt);
        let first = Duration::from_micros(240);
        for doublings in [0, 1, 2, 3, 4, 5, 6, 6] {
            assert_eq!(rtt.probe_wait(Duration::ZERO, 0), Some(first * (1 << doublings)));
            assert_eq!(rtt.is_probing(), doublings > 0);
            rtt.on_probe();
        }
        measure(&mut rtt);
        assert!(!rtt.is_probing());
        assert_eq!(rtt.probe_wait(first, 1), Some(first * 2), "the slowest path");
    }

    /// RFC 6298 2.2 and 2.3 by hand.
    #[test]
    fn the_estimate_follows_the_measurements() {
        let micros = Duration::from_micros;
        let first = RttEstimate::measured(None, micros(80));
        assert_eq!((first.smoothed(), first.probe_timeout()), (micros(80), 240_000));
        let second = RttEstimate::measured(Some(first), micros(160));
        assert_eq!((second.smoothed(), second.probe_timeout()), (micros(90), 290_000));
        let near = (0..100).fold(None, |before, _| Some(RttEstimate::measured(before, micros(1)))).unwrap();
        assert_eq!((near.probe_timeout(), near.shortest()), (MIN_WAIT, micros(1)));
        let far = (0..100).fold(None, |before, _| Some(RttEstimate::measured(before, micros(100)))).unwrap();
        assert!((200_000..201_000).contains(&far.probe_timeout()), "{far:?}");
    }

    #[test]
    fn the_shortest_round_trip_expires_after_two_windows() {
        let micros = Duration::from_micros;
        let follow =
            |from, count| (0..count).fold(from, |before, _| RttEstimate::measured(Some(before), micros(90)));
        let short = RttEstimate::measured(None, micros(10));
        assert_eq!(follow(short, WINDOW).shortest(), micros(10));
        assert_eq!(follow(short, 2 * WINDOW).shortest(), micros(90));
        assert_eq!(RttEstimate::measured(Some(follow(short, 200)), micros(80)).shortest(), micros(80));
    }
}
