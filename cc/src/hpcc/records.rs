//! Compares successive readings of each hop and finds the busiest (rtgwg-00 4.2, lines 1 to 7), for senders and responders. Readings are
//! from a peer, so any value is possible.

use crate::{Counter, Hop, HopIndex, Instant, MAX_HOPS, PathTelemetry, limits};
use core::time::Duration;

/// The last reading of a hop. Width and unit of its counters are those of the format, and the next reading contains them, so they are not
/// stored. A queue pair has 30 of these, so they are small.
#[derive(Clone, Copy, Debug)]
struct Record {
    time: u64,
    tx_bytes: u64,
    recorded_at: Instant,
    /// Queued bytes, at most 4 GiB.
    queue: u32,
    /// Last measurement, by which links are compared; NaN before the first.
    load: f32,
}

impl Record {
    const NONE: Self = Self { time: 0, tx_bytes: 0, recorded_at: Instant::ZERO, queue: 0, load: f32::NAN };

    fn new(hop: &Hop, recorded_at: Instant, load: f32) -> Self {
        let queue = u32::try_from(hop.queue).unwrap_or(u32::MAX);
        Self { time: hop.time.raw(), tx_bytes: hop.tx_bytes.raw(), recorded_at, queue, load }
    }
}

/// The last telemetry of a hop, for monitoring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordedHop {
    /// Index of the hop on the path; 0 is the first switch.
    pub index: HopIndex,
    /// Bytes in its egress queue, at most 4 GiB.
    pub queue: u32,
    /// In-flight bytes, in thousandths of the link's capacity in a base RTT: 1000 for a full link without a queue. For PowerTCP, its power
    /// in the same unit. `None` until two readings could be compared.
    pub permille: Option<u32>,
    /// When the telemetry arrived.
    pub recorded_at: Instant,
}

/// A measurement of one hop, from two readings.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inflight {
    /// `u'`: in-flight bytes as a share of `B * T`; 0 to [`Self::MAX`].
    pub utilisation: f64,
    /// `ack.L[i].ts - L[i].ts`, in ns; above 0.
    pub interval: u64,
}

impl Inflight {
    /// Largest `u'`: the largest ratio on the wire, rounded up. A real `u'` is near it only on a link that carries less than a packet per
    /// base RTT. Without a bound one forged pair of readings raises `U` to 10^25, and the rate stays at its minimum for thousands of
    /// reports.
    pub const MAX: f64 = 4096.0;
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    /// `u'`, in-flight bytes (line 5).
    Inflight,
    /// `u'`, but links are compared by its average over the base RTT, so that a random collision of packets does not make a link the
    /// busiest.
    Smoothed,
    /// PowerTCP's power: arrival rate times in-flight bytes.
    Power,
}

impl Signal {
    /// Returns the value by which links are compared; `before` is the last one, NaN if there is none.
    #[inline]
    fn share(self, before: f32, measured: Inflight, base_rtt: f64) -> f64 {
        let Inflight { utilisation, interval } = measured;
        if before.is_nan() || !matches!(self, Self::Smoothed) {
            return utilisation;
        }
        let weight = (interval as f64 / base_rtt).min(1.0);
        (1.0 - weight) * f64::from(before) + weight * utilisation
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum PathReading {
    FirstPath,
    /// The path changed; the old records are discarded.
    NewPath,
    /// No hop could be compared with its record.
    Nothing,
    Measured(HopIndex, Inflight),
}

/// The last reading of each hop of a path (`L` in rtgwg-00 4.2), by hop index, since a response may carry the busiest hop only.
///
/// Both ends of a connection have one: the sender to compute its rate, the responder to choose the hop to report.
#[derive(Clone, Copy, Debug)]
pub struct PathRecords {
    /// None before the first telemetry.
    path_id: Option<u16>,
    /// Bit by hop index: the hop has a record.
    recorded: u16,
    records: [Record; MAX_HOPS],
}

impl Default for PathRecords {
    fn default() -> Self {
        Self::new()
    }
}

impl PathRecords {
    /// Creates an empty list.
    #[must_use]
    pub const fn new() -> Self {
        Self { path_id: None, recorded: 0, records: [Record::NONE; MAX_HOPS] }
    }

    /// Records telemetry and returns its busiest hop, which a responder reports (rtgwg-00 7.1).
    ///
    /// The busiest hop has the highest `u'`, smoothed over the base RTT as in line 9. If no hop could be compared with its record, it is the
    /// first of those whose queues take longest to drain. `None` for a path without hops.
    pub fn busiest(
        &mut self,
        now: Instant,
        path: &PathTelemetry,
        base_rtt: Duration,
    ) -> Option<(HopIndex, Hop)> {
        if let PathReading::Measured(index, _) = self.record_as(Signal::Smoothed, now, path, base_rtt) {
            return path.hops().find(|(at, _)| *at == index).map(|(at, hop)| (at, *hop));
        }
        let longest = path.hops().reduce(|most, other| {
            let drains = |hop: &Hop| hop.bandwidth.time_for(hop.queue);
            if drains(other.1) > drains(most.1) { other } else { most }
        });
        longest.map(|(at, hop)| (at, *hop))
    }

    /// Records telemetry and returns the measurement of the busiest hop. A response may disclose nothing else where the network's figures
    /// are confidential (rtgwg-00 9.1). `None` if no hop could be compared with its record.
    pub fn inflight(&mut self, now: Instant, path: &PathTelemetry, base_rtt: Duration) -> Option<Inflight> {
        match self.record(now, path, base_rtt) {
            PathReading::Measured(_, inflight) => Some(inflight),
            PathReading::FirstPath | PathReading::NewPath | PathReading::Nothing => None,
        }
    }

    /// Returns the last telemetry of each hop of the current path, in path order. If the responder reports the busiest hop only, that is
    /// the hop with the latest `recorded_at`.
    pub fn hops(&self) -> impl Iterator<Item = RecordedHop> {
        let recorded = (0u8..).zip(&self.records).filter(|(index, _)| self.recorded & 1 << index != 0);
        recorded.map(|(index, &Record { queue, load, recorded_at, .. })| {
            let permille = (!load.is_nan()).then_some((load * 1e3) as u32);
            RecordedHop { index, queue, permille, recorded_at }
        })
    }

    /// Applies lines 1 to 7, and line 27's `L = ack.L`.
    #[inline]
    pub(super) fn record(&mut self, now: Instant, path: &PathTelemetry, base_rtt: Duration) -> PathReading {
        self.record_as(Signal::Inflight, now, path, base_rtt)
    }

    #[inline]
    pub(crate) fn record_as(
        &mut self,
        signal: Signal,
        now: Instant,
        path: &PathTelemetry,
        base_rtt: Duration,
    ) -> PathReading {
        let before = self.path_id.replace(path.path_id());
        if before != Some(path.path_id()) {
            self.recorded = 0;
        }
        let base_rtt = limits::nanos(base_rtt).max(1.0);
        let mut busiest: Option<(HopIndex, Inflight)> = None;
        let mut most = 0.0;
        for (index, hop) in path.hops() {
            let Some(record) = self.records.get_mut(usize::from(index)) else { continue };
            let last = (self.recorded & 1 << index != 0).then_some(*record);
            let mut load = last.map_or(f32::NAN, |last| last.load);
            match last.map_or(Comparison::Unknown, |last| compare(signal, &last, hop, now, base_rtt)) {
                Comparison::Late => continue,
                Comparison::Unknown => {}
                // Lines 6 and 7.
                Comparison::Measured(inflight) => {
                    let share = signal.share(load, inflight, base_rtt);
                    if busiest.is_none() || share > most {
                        (busiest, most) = (Some((index, inflight)), share);
                    }
                    load = share as f32;
                }
            }
            *record = Record::new(hop, now, load);
            self.recorded |= 1 << index;
        }
        match (before, busiest) {
            (None, _) => PathReading::FirstPath,
            (Some(id), _) if id != path.path_id() => PathReading::NewPath,
            (_, None) => PathReading::Nothing,
            (_, Some((index, inflight))) => PathReading::Measured(index, inflight),
        }
    }
}

enum Comparison {
    /// The reading is older than the record: its packet was reordered.
    Late,
    /// No rate can be computed: no time passed between the two, the link has no capacity, or periods were miscounted.
    Unknown,
    Measured(Inflight),
}

/// Applies lines 4 and 5 to one hop.
#[inline]
fn compare(signal: Signal, last: &Record, hop: &Hop, now: Instant, base_rtt: f64) -> Comparison {
    let elapsed = now.as_nanos().saturating_sub(last.recorded_at.as_nanos());
    // Distances are known modulo the counter's period; the local clock shows whether the byte counter may have wrapped. Computed in floats,
    // because 128-bit arithmetic is slow and the limit, half a period, need not be exact.
    let queue = hop.queue.min(last.queue.into()) as f64;
    let bytes_per_nano = hop.bandwidth.as_bps() as f64 / 8e9;
    if hop.bandwidth.as_bps() as f64 * elapsed as f64 > hop.tx_bytes.period() as f64 * 4e9 {
        let utilisation = (queue / (bytes_per_nano * base_rtt) + UNMEASURED).min(Inflight::MAX);
        return Comparison::Measured(Inflight { utilisation, interval: elapsed });
    }
    let interval = match between(hop.time.with(last.time), hop.time, elapsed) {
        Some(interval) => interval,
        None => return Comparison::Late,
    };
    if interval == 0 || hop.bandwidth.as_bps() == 0 {
        return Comparison::Unknown;
    }
    let tx_rate = hop.tx_bytes.since(hop.tx_bytes.with(last.tx_bytes)) as f64 / interval as f64;
    let may_have_wrapped = elapsed > hop.time.period() / 2;
    if may_have_wrapped && tx_rate > bytes_per_nano * FASTER_THAN_POSSIBLE {
        return Comparison::Unknown;
    }
    let utilisation = match signal {
        Signal::Inflight | Signal::Smoothed => queue / (bytes_per_nano * base_rtt) + tx_rate / bytes_per_nano,
        Signal::Power => {
            let grown = (hop.queue as f64 - f64::from(last.queue)) / interval as f64;
            let arrives = ((tx_rate + grown) / bytes_per_nano).max(LEAST_ARRIVALS);
            arrives * (hop.queue as f64 / (bytes_per_nano * base_rtt) + 1.0)
        }
    };
    Comparison::Measured(Inflight { utilisation: utilisation.min(Inflight::MAX), interval })
}

/// Smallest arrival rate in the simulator of PowerTCP's authors, as a share of the link's rate. Without this limit, a queue that drains at
/// the link's rate would have a power of 0.
pub(crate) const LEAST_ARRIVALS: f64 = 0.5;

/// `txRate / B` assumed for a link whose byte counter may have wrapped: between 0 and 1, since the queue shows whether the link is full. It
/// must be below eta. Otherwise a flow whose packets are too infrequent to be measured would never increase again.
const UNMEASURED: f64 = 0.5;

/// Ratio of measured to nominal rate above which the clock's periods were miscounted.
const FASTER_THAN_POSSIBLE: f64 = 1.25;

/// Returns the ns between two time stamps; `None` if `later` is the older one.
///
/// Of the times that are equal modulo the counter's period, it is the one nearest to `elapsed`, the time between their arrivals by the
/// local clock. It is correct if their delays differ by less than half a period.
#[inline]
fn between(earlier: Counter, later: Counter, elapsed: u64) -> Option<u64> {
    let (period, since) = (later.period(), later.since(earlier));
    if elapsed <= period / 2 {
        return (since <= elapsed.saturating_add(period / 2)).then_some(since);
    }
    let (elapsed, period, since) = (u128::from(elapsed), u128::from(period), u128::from(since));
    let periods = elapsed.saturating_add(period / 2).saturating_sub(since).checked_div(period)?;
    u64::try_from(since.saturating_add(periods.saturating_mul(period))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rate;

    const T: Duration = Duration::from_micros(4);

    fn hop(time: u64, tx_units: u64, queue: u64) -> Hop {
        Hop {
            bandwidth: Rate::from_gbps(100),
            time: Counter::of::<24, 1>(time),
            tx_bytes: Counter::of::<20, 128>(tx_units),
            queue,
        }
    }

    fn path(id: u16, hops: &[Hop]) -> PathTelemetry {
        let mut path = PathTelemetry::new(id);
        for (index, hop) in (0..).zip(hops) {
            assert!(path.set(index, *hop));
        }
        path
    }

    /// rtgwg-00 7.1: the hop with the highest normalised in-flight bytes.
    #[test]
    fn a_responder_reports_the_busiest_hop() {
        let mut records = PathRecords::new();
        let mut busiest = |now, path: PathTelemetry| {
            records.busiest(Instant::from_nanos(now), &path, T).map(|(index, _)| index)
        };
        assert_eq!(busiest(0, path(1, &[])), None);
        assert_eq!(
            busiest(0, path(1, &[hop(0, 0, 9), hop(0, 0, 90), hop(0, 0, 90)])),
            Some(1),
            "longest queue"
        );
        // Hop 0 sent four times as much as hop 2. The queues were once empty, so `min` ignores them.
        assert_eq!(busiest(4000, path(1, &[hop(4000, 400, 9), hop(4000, 0, 0), hop(4000, 100, 0)])), Some(0));
        // The byte counters of another path are not comparable.
        assert_eq!(busiest(8000, path(2, &[hop(8000, 900, 0), hop(8000, 0, 8)])), Some(1));
    }

    /// A random collision of packets does not make a link the busiest.
    #[test]
    fn the_busiest_hop_is_busy_over_the_round_trip() {
        let mut records = PathRecords::new();
        // Hop 0 sends 90 % of its capacity every 100 ns, hop 1 alternately 160 % and 0 %, because of its counter's unit.
        for step in 0..300u64 {
            let (time, sent) = (100 * step, [9 * step, 8 * step.next_multiple_of(2)]);
            let hops = sent.map(|sent| Hop { tx_bytes: Counter::of::<20, 125>(sent), ..hop(time, 0, 0) });
            let busiest = records.busiest(Instant::from_nanos(time), &path(1, &hops), T);
            assert!(step < 200 || busiest.is_some_and(|(index, _)| index == 0), "{step}: {busiest:?}");
        }
    }

    #[test]
    fn records_contain_the_last_reading_of_each_hop() {
        let mut records = PathRecords::new();
        assert_eq!(records.hops().next(), None);
        let mut record = |now, path: PathTelemetry| {
            records.record(Instant::from_nanos(now), &path, T);
            let mut seen = records.hops().map(|hop| (hop.index, hop.queue, hop.permille));
            [seen.next(), seen.next()]
        };
        assert_eq!(
            record(0, path(1, &[hop(0, 0, 9), hop(0, 0, 25_000)])),
            [Some((0, 9, None)), Some((1, 25_000, None))]
        );
        // B * T is 50,000 bytes: hop 0 sent half of that; hop 1 sent all of it, and half of it is queued.
        let second = Some((1, 25_000, Some(1498)));
        let seen = record(4000, path(1, &[hop(4000, 195, 0), hop(4000, 390, 25_000)]));
        assert_eq!(seen, [Some((0, 0, Some(499))), second]);
        // A second reading with the same time measures nothing; the last measurement stays.
        assert_eq!(record(4100, path(1, &[hop(4000, 195, 7)])), [Some((0, 7, Some(499))), second]);
        assert_eq!(record(5000, path(2, &[hop(0, 0, 1)])), [Some((0, 1, None)), None]);
    }

    /// Every narrow clock, over several periods, with every difference between the two delays.
    #[test]
    fn the_time_between_two_stamps_is_found_across_periods() {
        for bits in 2..=6u8 {
            let period = 1u64 << bits;
            let stamp = |time| Counter::new(time, bits, 1).unwrap();
            for (before, passed) in
                (0..period).flat_map(|before| (0..4 * period).map(move |time| (before, time)))
            {
                for elapsed in (passed + 1).saturating_sub(period / 2)..passed + period / 2 {
                    let found = between(stamp(before), stamp(before + passed), elapsed);
                    assert_eq!(
                        found,
                        Some(passed),
                        "{passed} of {period} from {before}, {elapsed} by our clock"
                    );
                }
            }
        }
    }

    /// A peer's setup may contain a `T` of 0, and a hop may contain any value.
    #[test]
    fn measurements_of_any_counters_are_numbers_in_bounds() {
        let forged = |time: u64, sent, queue, bps| Hop {
            bandwidth: Rate::from_bps(bps),
            time: Counter::of::<64, 1>(time),
            tx_bytes: Counter::of::<64, { u32::MAX }>(sent),
            queue,
        };
        for base_rtt in [Duration::ZERO, Duration::from_nanos(1), T, Duration::MAX] {
            for (sent, queue, bps) in
                [(0, 0, 1), (u64::MAX, u64::MAX, 1), (1, 0, u64::MAX), (0, u64::MAX, 8_000_000)]
            {
                let mut records = PathRecords::new();
                let mut measured = None;
                for (time, sent) in [(0, 0), (1, sent)] {
                    let path = path(1, &[forged(time, sent, queue, bps)]);
                    measured = records.inflight(Instant::from_nanos(1000 + time), &path, base_rtt);
                }
                let share = measured.unwrap().utilisation;
                assert!((0.0..=Inflight::MAX).contains(&share), "{share} of {bps} b/s in {base_rtt:?}");
            }
        }
    }
}
