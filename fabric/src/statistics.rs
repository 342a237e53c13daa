//! Statistics of a queue, weighted by time.

use crate::report::QueueReport;
use cc::Instant;
use hdrhistogram::Histogram;
use std::time::Duration;

/// If the queue is empty for longer than this, no flow sends. Queue and utilisation exclude that time.
pub(crate) const IDLE: Duration = Duration::from_millis(100);

pub(crate) struct Statistics {
    queue: Histogram<u64>,
    /// Integral of the queue length over `active`, in byte-nanoseconds.
    area: u128,
    active: Duration,
    busy: Duration,
    max: u64,
    since: Instant,
    /// Current interval of a [`Series`](crate::Series), if there is one.
    interval: Option<Interval>,
}

struct Interval {
    queue: Histogram<u64>,
    since: Instant,
}

impl Interval {
    fn held(&mut self, bytes: u64, until: Instant) {
        let time = until.saturating_since(self.since);
        self.queue.saturating_record_n(bytes, u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        self.since = self.since.max(until);
    }
}

impl Statistics {
    pub(crate) fn new(limit: u64, now: Instant) -> Self {
        let queue =
            Histogram::new_with_bounds(1, limit.max(2), 3).expect("1 < limit, and three digits are few");
        Self {
            queue,
            area: 0,
            active: Duration::ZERO,
            busy: Duration::ZERO,
            max: 0,
            since: now,
            interval: None,
        }
    }

    /// Returns the bytes and nanoseconds at each queue length since the last call; empty the first time. `waiting` is the current length.
    pub(crate) fn take_interval(&mut self, waiting: u64, now: Instant) -> Vec<(u64, u64)> {
        let Some(interval) = &mut self.interval else {
            self.interval = Some(Interval { queue: Histogram::new_from(&self.queue), since: now });
            return Vec::new();
        };
        interval.held(waiting, now);
        let times = interval.queue.iter_recorded();
        let times = times.map(|at| (at.value_iterated_to(), at.count_since_last_iteration())).collect();
        interval.queue.reset();
        times
    }

    /// Records a queue of `bytes` until `until`. Time that was already recorded does not count again.
    pub(crate) fn held(&mut self, bytes: u64, until: Instant) {
        if let Some(interval) = &mut self.interval {
            interval.held(bytes, until);
        }
        let time = until.saturating_since(self.since);
        self.max = self.max.max(bytes);
        if time.is_zero() {
            return;
        }
        self.since = until;
        if bytes == 0 && time > IDLE {
            return;
        }
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.queue.saturating_record_n(bytes, nanos);
        self.area += u128::from(bytes) * u128::from(nanos);
        self.active += time;
    }

    pub(crate) fn busy(&mut self, time: Duration) {
        self.busy += time;
    }

    pub(crate) fn reset(&mut self, now: Instant) {
        self.queue.reset();
        self.area = 0;
        self.active = Duration::ZERO;
        self.busy = Duration::ZERO;
        self.max = 0;
        self.since = now;
    }

    pub(crate) const fn active(&self) -> Duration {
        self.active
    }

    pub(crate) const fn busy_time(&self) -> Duration {
        self.busy
    }

    pub(crate) fn queue(&self, bytes_now: u64) -> QueueReport {
        let at = |quantile: f64| self.queue.value_at_quantile(quantile).min(self.max);
        let nanos = self.active.as_nanos();
        QueueReport {
            bytes_now,
            mean: if nanos == 0 { 0.0 } else { self.area as f64 / nanos as f64 },
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            max: self.max,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1000)
    }

    #[test]
    fn queue_lengths_are_weighted_by_their_duration() {
        let mut statistics = Statistics::new(100_000, at(0));
        statistics.held(0, at(60));
        statistics.held(1000, at(98));
        statistics.held(50_000, at(100));
        statistics.held(7, at(50));
        let queue = statistics.queue(0);
        assert_eq!((queue.p50, queue.p90, queue.max), (0, 1000, 50_000));
        assert!((49_900..=50_000).contains(&queue.p99), "{}", queue.p99);
        assert!((queue.mean - 1380.0).abs() < 1e-9, "{}", queue.mean);
        assert_eq!(statistics.active(), Duration::from_micros(100));
    }

    #[test]
    fn long_idle_time_is_not_counted() {
        let mut statistics = Statistics::new(1000, at(0));
        statistics.held(0, at(5_000_000));
        statistics.held(500, at(5_000_010));
        assert_eq!(statistics.active(), Duration::from_micros(10));
        assert_eq!(statistics.queue(0).p50, 500);
        statistics.reset(at(6_000_000));
        assert_eq!(statistics.queue(0).max, 0);
    }
}
