//! Compares two readings of a hop, and reports on the time between them (rtgwg-00 4.2, lines 1 to 7). Senders and responders use it; the
//! readings are a peer's, so any value may come.

use crate::{Counter, Hop, HopIndex, Instant, MAX_HOPS, PathTelemetry, limits};
use core::time::Duration;

/// The last reading of a hop, and its time of arrival. The next reading brings the width of its counters and the unit of a count: both are
/// its format's. There are two lists of these per queue pair, so they are small.
#[derive(Clone, Copy, Debug)]
struct Record {
    time: u64,
    tx_bytes: u64,
    heard: Instant,
    /// At most 4 GiB.
    queue: u32,
    /// The last measurement, for observers and, smoothed, for comparisons of links; NaN before.
    load: f32,
}

impl Record {
    const NONE: Self = Self { time: 0, tx_bytes: 0, heard: Instant::ZERO, queue: 0, load: f32::NAN };

    fn new(hop: &Hop, heard: Instant, load: f32) -> Self {
        let queue = u32::try_from(hop.queue).unwrap_or(u32::MAX);
        Self { time: hop.time.raw(), tx_bytes: hop.tx_bytes.raw(), heard, queue, load }
    }
}

/// The last telemetry of a hop, for observers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeardHop {
    /// The hop's place on the path, 0 the first switch.
    pub index: HopIndex,
    /// Bytes that waited in its egress queue, at most 4 GiB.
    pub queue: u32,
    /// The bytes of link and queue, in thousandths of the link's capacity in a base round trip: 1000 for a full link without a queue.
    /// PowerTCP's power in the same unit. `None` until two readings could be compared.
    pub permille: Option<u32>,
    /// When it arrived.
    pub heard: Instant,
}

/// The difference between two readings of one hop.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Inflight {
    /// `u'`: in-flight bytes as a share of the capacity of the link and the base round trip; 0 to [`Self::MOST`].
    pub utilisation: f64,
    /// `ack.L[i].ts - L[i].ts` in ns; above 0.
    pub interval: u64,
}

impl Inflight {
    /// The largest `u'` that counts: the largest that a ratio can carry on the wire, rounded up. A real one comes near it only on a link
    /// whose capacity is less than a packet. Without a bound one forged pair of readings raises `U` to 10^25, and the rate stays at its
    /// lowest for thousands of reports.
    pub const MOST: f64 = 4096.0;
}

/// The quantity that is measured of a link.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Signal {
    /// `u'`: the bytes in link and queue (line 5).
    Inflight,
    /// The same, but links are compared by their averages over the base round trip: packets that meet by chance do not make a link the
    /// busiest.
    Smoothed,
    /// PowerTCP's: the bytes that arrive in a second, times the bytes in link and queue.
    Power,
}

impl Signal {
    /// Returns the share by which a link is compared; it was `before`, NaN if that is not known.
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

/// The result of telemetry beside the records.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Heard {
    /// No record came before.
    FirstPath,
    /// The path changed: the old records are gone.
    NewPath,
    /// No hop could be compared with its record.
    Nothing,
    /// The busiest of the hops that could.
    Measured(HopIndex, Inflight),
}

/// The last record of each hop of a path (`L` in rtgwg-00 4.2), by hop index, since a response may carry the busiest
/// hop only.
///
/// Both ends keep one per queue pair: the sender to compute its rate, the responder to choose which hop to report.
#[derive(Clone, Copy, Debug)]
pub struct PathRecords {
    /// None before the first telemetry.
    path_id: Option<u16>,
    /// A bit for each hop that has reported.
    heard: u16,
    records: [Record; MAX_HOPS],
}

impl Default for PathRecords {
    fn default() -> Self {
        Self::new()
    }
}

impl PathRecords {
    /// No record yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { path_id: None, heard: 0, records: [Record::NONE; MAX_HOPS] }
    }

    /// Takes telemetry in and returns its busiest hop: the one a responder reports (rtgwg-00 7.1).
    ///
    /// Busiest is the highest `u'`, smoothed over the base round trip as in line 9. If no hop can be compared with its record yet, it is the
    /// one whose queue takes longest to drain, of equal ones the first. `None` for a path without hops.
    pub fn busiest(
        &mut self,
        now: Instant,
        path: &PathTelemetry,
        base_rtt: Duration,
    ) -> Option<(HopIndex, Hop)> {
        if let Heard::Measured(index, _) = self.hear_as(Signal::Smoothed, now, path, base_rtt) {
            return path.hops().find(|(at, _)| *at == index).map(|(at, hop)| (at, *hop));
        }
        let longest = path.hops().reduce(|most, other| {
            let drains = |hop: &Hop| hop.bandwidth.time_for(hop.queue);
            if drains(other.1) > drains(most.1) { other } else { most }
        });
        longest.map(|(at, hop)| (at, *hop))
    }

    /// Takes telemetry in and returns the share of its busiest hop: all that a response may say if the network's figures are not for
    /// everyone (rtgwg-00 9.1). `None` if no hop could be compared with its record.
    pub fn inflight(&mut self, now: Instant, path: &PathTelemetry, base_rtt: Duration) -> Option<Inflight> {
        match self.hear(now, path, base_rtt) {
            Heard::Measured(_, inflight) => Some(inflight),
            Heard::FirstPath | Heard::NewPath | Heard::Nothing => None,
        }
    }

    /// Returns the last report of each hop of the present path, in path order. If a responder reports the busiest hop only, the busiest is
    /// the one that was reported last.
    pub fn hops(&self) -> impl Iterator<Item = HeardHop> {
        let heard = (0u8..).zip(&self.records).filter(|(index, _)| self.heard & 1 << index != 0);
        heard.map(|(index, &Record { queue, load, heard, .. })| {
            let permille = (!load.is_nan()).then_some((load * 1e3) as u32);
            HeardHop { index, queue, permille, heard }
        })
    }

    /// Lines 1 to 7, and line 27's `L = ack.L`.
    #[inline]
    pub(super) fn hear(&mut self, now: Instant, path: &PathTelemetry, base_rtt: Duration) -> Heard {
        self.hear_as(Signal::Inflight, now, path, base_rtt)
    }

    /// The same, by another signal.
    #[inline]
    pub(crate) fn hear_as(
        &mut self,
        signal: Signal,
        now: Instant,
        path: &PathTelemetry,
        base_rtt: Duration,
    ) -> Heard {
        let before = self.path_id.replace(path.path_id());
        if before != Some(path.path_id()) {
            self.heard = 0;
        }
        let base_rtt = limits::nanos(base_rtt).max(1.0);
        let mut busiest: Option<(HopIndex, Inflight)> = None;
        let mut most = 0.0;
        for (index, hop) in path.hops() {
            let Some(record) = self.records.get_mut(usize::from(index)) else { continue };
            let last = (self.heard & 1 << index != 0).then_some(*record);
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
            self.heard |= 1 << index;
        }
        match (before, busiest) {
            (None, _) => Heard::FirstPath,
            (Some(id), _) if id != path.path_id() => Heard::NewPath,
            (_, None) => Heard::Nothing,
            (_, Some((index, inflight))) => Heard::Measured(index, inflight),
        }
    }
}

/// The result of a new reading of a hop beside its record.
enum Comparison {
    /// It was stamped before the record, and overtaken on its way.
    Late,
    /// They cannot be distinguished: no time lies between, or the link has no capacity.
    Unknown,
    Measured(Inflight),
}

/// Lines 4 and 5 for one hop.
#[inline]
fn compare(signal: Signal, last: &Record, hop: &Hop, now: Instant, base_rtt: f64) -> Comparison {
    let elapsed = now.as_nanos().saturating_sub(last.heard.as_nanos());
    // The counter shows a distance modulo its period: our own clock says whether that is the true one. In floats, since 128 bits are
    // slow and a rounding of half a period is none that matters.
    let queue = hop.queue.min(last.queue.into()) as f64;
    let bytes_per_nano = hop.bandwidth.as_bps() as f64 / 8e9;
    if hop.bandwidth.as_bps() as f64 * elapsed as f64 > hop.tx_bytes.period() as f64 * 4e9 {
        let utilisation = (queue / (bytes_per_nano * base_rtt) + UNMEASURED).min(Inflight::MOST);
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
            let arrives = (tx_rate + grown).max(0.0) / bytes_per_nano;
            arrives * (hop.queue as f64 / (bytes_per_nano * base_rtt) + 1.0)
        }
    };
    Comparison::Measured(Inflight { utilisation: utilisation.min(Inflight::MOST), interval })
}

/// `txRate / B` of a link whose byte counter may have gone round: between 0 and 1, and its queue shows if it is full. It must be below eta:
/// a flow whose packets are so far apart that none of them can be measured would never grow again.
const UNMEASURED: f64 = 0.5;

/// A link that seems to send so many times what it can was measured over another number of the clock's periods.
const FASTER_THAN_POSSIBLE: f64 = 1.25;

/// The time in ns between two stamps, `None` if the later was stamped before the earlier.
///
/// A stamp says it modulo the counter's period. Of the times that fit, it is the one nearest to `elapsed`, what passed by
/// our own clock between their arrivals: right as long as one took less than half a period longer on its way than the other.
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
        // Hop 0 sent four times what hop 2 did; the queues were short once, so they don't count.
        assert_eq!(busiest(4000, path(1, &[hop(4000, 400, 9), hop(4000, 0, 0), hop(4000, 100, 0)])), Some(0));
        // The byte counters are those of other switches now.
        assert_eq!(busiest(8000, path(2, &[hop(8000, 900, 0), hop(8000, 0, 8)])), Some(1));
    }

    /// A link that two packets passed at once is no busier for that than one that is busy all the time.
    #[test]
    fn the_busiest_hop_is_busy_over_the_round_trip() {
        let mut records = PathRecords::new();
        // Every 100 ns, hop 0 sends 90 % of what it can; hop 1 sends 160 % and nothing in turns, as the counters round.
        for step in 0..300u64 {
            let (time, sent) = (100 * step, [9 * step, 8 * step.next_multiple_of(2)]);
            let hops = sent.map(|sent| Hop { tx_bytes: Counter::of::<20, 125>(sent), ..hop(time, 0, 0) });
            let busiest = records.busiest(Instant::from_nanos(time), &path(1, &hops), T);
            assert!(step < 200 || busiest.is_some_and(|(index, _)| index == 0), "{step}: {busiest:?}");
        }
    }

    /// Observers see queue and share of each hop that has reported, and nothing of another path's.
    #[test]
    fn records_show_each_hop_as_it_was_last() {
        let mut records = PathRecords::new();
        assert_eq!(records.hops().next(), None);
        let mut hear = |now, path: PathTelemetry| {
            records.hear(Instant::from_nanos(now), &path, T);
            let mut seen = records.hops().map(|hop| (hop.index, hop.queue, hop.permille));
            [seen.next(), seen.next()]
        };
        assert_eq!(
            hear(0, path(1, &[hop(0, 0, 9), hop(0, 0, 25_000)])),
            [Some((0, 9, None)), Some((1, 25_000, None))]
        );
        // 4 us at 100 Gb/s are 50,000 B: hop 0 sent half of them, hop 1 all, and half of them wait there.
        let second = Some((1, 25_000, Some(1498)));
        let seen = hear(4000, path(1, &[hop(4000, 195, 0), hop(4000, 390, 25_000)]));
        assert_eq!(seen, [Some((0, 0, Some(499))), second]);
        // Another stamp of the same moment measures nothing; what was measured before stays.
        assert_eq!(hear(4100, path(1, &[hop(4000, 195, 7)])), [Some((0, 7, Some(499))), second]);
        assert_eq!(hear(5000, path(2, &[hop(0, 0, 1)])), [Some((0, 1, None)), None]);
    }

    /// The time between two stamps of every narrow clock, over some periods of it, for all that one may have taken longer on its way
    /// than the other.
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

    /// A peer's setup may say a `T` of 0, and a hop anything.
    #[test]
    fn what_is_measured_is_a_number_in_its_bounds() {
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
                assert!((0.0..=Inflight::MOST).contains(&share), "{share} of {bps} b/s in {base_rtt:?}");
            }
        }
    }
}
