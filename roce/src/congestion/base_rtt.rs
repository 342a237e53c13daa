//! Measures the base round trip, for algorithms without a configured one, or to verify a configured one.
//!
//! While telemetry shows no queue, each round trip is that of an empty path. The base round trip is then the value that 8 in 9 of them do
//! not exceed, which includes the delays of the hosts. A minimum over 10 to 20 s shows when the path has changed. Before that, and without
//! telemetry, the base round trip is the minimum of all round trips of the connection. So the queue of a delay-based algorithm does not
//! become part of it. The queues that telemetry shows are subtracted from the round trip, because flows that start together may never have
//! an empty path.

use crate::CongestionNotice;
use cc::{Instant, PathTelemetry};
use core::time::Duration;

/// A queue that drains within this fraction of the round trip counts as none.
const EMPTY: u32 = 32;
/// Least part of a round trip that remains after the queues are subtracted. If a queue grows while a packet is in it, the queueing delay in
/// the telemetry exceeds the delay of the packet.
const MIN_REMAINDER: u32 = 8;
/// Period of the minimum, which is discarded after one to two periods if there is no queue.
const PERIOD: Duration = Duration::from_secs(10);
/// Round trips that differ by less than this fraction count as equal.
const EQUAL_WITHIN: u32 = 16;
/// Round trips on an empty path after which a configured value is verified.
const VERIFIED_AFTER: u32 = 32;
/// Allowance of delay-based algorithms beyond the minimum round trip. The delay of a software peer's poller is often as long.
const POLLING: Duration = Duration::from_micros(100);

#[derive(Clone, Copy, Debug)]
pub(super) struct BaseRtt {
    effective: Duration,
    is_configured: bool,
    /// Time in which the path's queues drain, from the last telemetry and from the one before.
    queueing_delays: [Option<Duration>; 2],
    /// No round trip was measured since the last telemetry.
    is_new: bool,
    /// Round trip that 8 in 9 on the empty path do not exceed.
    percentile: Option<Duration>,
    samples: u32,
    /// Minimum of this period, and of the one before.
    least: [Duration; 2],
    period_ends: Instant,
    notice: Option<CongestionNotice>,
}

impl BaseRtt {
    pub(super) const fn new(effective: Duration, is_configured: bool) -> Self {
        Self {
            effective,
            is_configured,
            queueing_delays: [None; 2],
            is_new: false,
            percentile: None,
            samples: 0,
            least: [Duration::MAX; 2],
            period_ends: Instant::ZERO,
            notice: None,
        }
    }

    /// Returns whether the value is measured because none is configured.
    pub(super) const fn is_learned(&self) -> bool {
        !self.is_configured
    }

    /// Returns the base round trip to compute with. Delay-based algorithms get an allowance.
    pub(super) fn effective(&self, by_delay: bool) -> Duration {
        if by_delay { self.effective + POLLING } else { self.effective }
    }

    /// Discards all measurements, because the path has changed.
    pub(super) const fn restart(&mut self) {
        *self = Self::new(self.effective, self.is_configured);
    }

    /// Records the queues of new telemetry.
    pub(super) fn on_telemetry(&mut self, path: &PathTelemetry) {
        let drain =
            |wait: Option<Duration>, queue: Duration| Some(wait.unwrap_or_default().saturating_add(queue));
        let wait = path.hops().map(|(_, hop)| hop.bandwidth.time_for(hop.queue)).fold(None, drain);
        (self.queueing_delays, self.is_new) = ([wait, self.queueing_delays[0]], true);
    }

    /// Adds a round trip. Returns the base round trip to compute with if it has changed.
    pub(super) fn measure(&mut self, now: Instant, rtt: Duration) -> Option<Duration> {
        // The last packet of a long queue leaves the queue empty, so the packet before must have found it empty, too.
        let is_empty =
            self.queueing_delays.iter().all(|wait| wait.is_some_and(|wait| wait <= self.effective / EMPTY));
        // While there may be a queue, the minimum is kept, because it is the nearest to the empty path.
        if is_empty && now >= self.period_ends {
            self.least = [Duration::MAX, self.least[0]];
            self.period_ends = now + PERIOD;
        }
        // A later packet may have found other queues, and a configured value is compared with unchanged round trips.
        let is_measured = core::mem::take(&mut self.is_new) && !self.is_configured;
        let waited = self.queueing_delays[0].filter(|_| is_measured).unwrap_or_default();
        self.least[0] = self.least[0].min(rtt.saturating_sub(waited).max(rtt / MIN_REMAINDER));
        let least = self.least[0].min(self.least[1]);
        // A value below all round trips belongs to an earlier path.
        self.percentile = self.percentile.filter(|percentile| *percentile >= least);
        if is_empty {
            self.percentile = Some(self.percentile.map_or(rtt, |percentile| towards(percentile, rtt)));
            self.samples = self.samples.saturating_add(1);
            self.verify(least);
        }
        let measured = self.percentile.unwrap_or(least).max(Duration::from_nanos(1));
        if self.is_configured {
            return None;
        }
        let (more, less) = (measured.max(self.effective), measured.min(self.effective));
        if more - less <= less / EQUAL_WITHIN {
            return None;
        }
        self.effective = measured;
        Some(measured)
    }

    /// Compares the configured value with the measured one, once.
    fn verify(&mut self, least: Duration) {
        let is_due = self.is_configured && self.samples == VERIFIED_AFTER;
        let Some(percentile) = self.percentile.filter(|_| is_due) else { return };
        let configured = self.effective;
        if least > configured + configured / 4 || percentile < configured / 2 {
            self.notice = Some(CongestionNotice::WrongBaseRtt { configured, measured: percentile });
        }
    }

    pub(super) const fn has_notice(&self) -> bool {
        self.notice.is_some()
    }

    /// Returns, once, that the configured value is wrong.
    pub(super) const fn take_notice(&mut self) -> Option<CongestionNotice> {
        self.notice.take()
    }
}

/// Returns `percentile` moved towards `rtt`: eight times as fast up as down. It is at most doubled, so that one pause of a host does not
/// dominate it.
fn towards(percentile: Duration, rtt: Duration) -> Duration {
    if rtt > percentile {
        percentile + (rtt.min(percentile * 2) - percentile) / 4
    } else {
        percentile - (percentile - rtt) / 32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::{Counter, Hop, Rate};

    fn micros(micros: u64) -> Duration {
        Duration::from_micros(micros)
    }

    /// Returns the telemetry of a link at 8 Gb/s with `queue` bytes queued: 1 ns each.
    fn path(queue: u64) -> PathTelemetry {
        let counter = Counter::of::<24, 1>(0);
        let mut path = PathTelemetry::new(1);
        path.set(0, Hop { bandwidth: Rate::from_gbps(8), time: counter, tx_bytes: counter, queue });
        path
    }

    /// Telemetry of two packets shows no queue.
    fn empty(base: &mut BaseRtt) {
        base.on_telemetry(&path(0));
        base.on_telemetry(&path(0));
    }

    #[test]
    fn without_telemetry_the_minimum_is_kept_during_a_standing_queue() {
        let mut base = BaseRtt::new(micros(100), false);
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        assert_eq!(base.measure(at(1), micros(50)), Some(micros(50)));
        assert_eq!(base.measure(at(2), micros(20)), Some(micros(20)));
        assert_eq!(base.measure(at(3), micros(90)), None, "a queue, for all that is known");
        for second in 4..60 {
            assert_eq!(base.measure(at(second), micros(90)), None, "it still stands");
        }
        base.on_telemetry(&path(0));
        assert_eq!(base.measure(at(61), micros(80)), None, "this packet may have been the last of a queue");
        base.on_telemetry(&path(0));
        assert_eq!(base.measure(at(62), micros(80)), Some(micros(80)), "none stands: the path is another");
    }

    #[test]
    fn queues_in_telemetry_are_subtracted() {
        let mut base = BaseRtt::new(micros(100), false);
        base.on_telemetry(&path(30_000));
        assert_eq!(base.measure(Instant::ZERO, micros(50)), Some(micros(20)), "30 of 50 us are the queue's");
        assert_eq!(base.measure(Instant::ZERO, micros(60)), None, "a queue");
        empty(&mut base);
        assert_eq!(base.measure(Instant::ZERO, micros(20)), None, "none, and the same path");
        for _ in 0..100 {
            base.measure(Instant::ZERO, micros(24));
        }
        assert!(base.effective > micros(22) && base.effective <= micros(24), "{:?}", base.effective);
        base.measure(Instant::ZERO, micros(10_000));
        assert!(base.effective < micros(31), "one pause is not the path: {:?}", base.effective);
    }

    /// The packet waited for 80 of 100 µs, in which the queue grew to 90 µs.
    #[test]
    fn a_queue_that_grew_leaves_an_eighth_of_the_round_trip() {
        let mut base = BaseRtt::new(micros(1000), false);
        base.on_telemetry(&path(90_000));
        assert_eq!(base.measure(Instant::ZERO, micros(100)), Some(micros(100) / 8));
        empty(&mut base);
        assert_eq!(base.measure(Instant::ZERO, micros(20)), Some(micros(20)), "an empty path corrects it");
    }

    #[test]
    fn a_queue_is_subtracted_from_the_round_trip_that_showed_it_alone() {
        let mut base = BaseRtt::new(micros(100), false);
        base.on_telemetry(&path(9_000));
        assert_eq!(base.measure(Instant::ZERO, micros(19)), Some(micros(10)));
        assert_eq!(base.measure(Instant::ZERO, micros(10)), None, "the queue may be gone");
    }

    #[test]
    fn a_wrong_configured_value_is_reported_once() {
        for (configured, is_wrong) in
            [(2, true), (15, true), (17, false), (20, false), (30, false), (60, true)]
        {
            let mut base = BaseRtt::new(micros(configured), true);
            empty(&mut base);
            for _ in 0..100 {
                assert_eq!(base.measure(Instant::ZERO, micros(20)), None, "it stays as configured");
            }
            let expected =
                CongestionNotice::WrongBaseRtt { configured: micros(configured), measured: micros(20) };
            assert_eq!(base.notice.take(), is_wrong.then_some(expected));
            base.measure(Instant::ZERO, micros(20));
            assert_eq!(base.notice, None);
            // A queue directly after the round trip that verified the value.
            let mut base = BaseRtt::new(micros(configured), true);
            empty(&mut base);
            (0..VERIFIED_AFTER).for_each(|_| _ = base.measure(Instant::ZERO, micros(20)));
            base.notice = None;
            base.on_telemetry(&path(30_000));
            base.measure(Instant::ZERO, micros(50));
            assert_eq!(base.notice, None);
        }
    }
}
