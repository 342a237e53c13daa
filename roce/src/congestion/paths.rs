//! Path migration (rtgwg-00 9.4): a requester knows several paths by their UDP source ports, has each of them probed, and
//! moves to a less loaded one once nothing that it sent is on its way any more.
//!
//! Packets that answer the peer, READ responses and acknowledgements, stay on the path of the connection.

use super::prober::later;
use crate::source_port::CORE_BITS;
use crate::wire::{Path, Report, Template};
use crate::{Psn, Qpn};
use alloc::vec::Vec;
use cc::{Inflight, Instant, PathRecords, Rate};
use core::time::Duration;

/// Which paths a queue pair may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PathChoice {
    /// The number of paths, 2 to [`PathChoice::MOST`], the connection's own included.
    pub count: u8,
    /// One of them after the other is probed this often while data is in flight: about a base round trip.
    pub interval: Duration,
    /// Packets are sprayed over all of them, which needs selective repeat. Then data measures them, and
    /// the queue pair's own probes take turns; `interval` is that over which loads are counted.
    pub spray: bool,
}

impl PathChoice {
    /// The most paths of one queue pair.
    pub const MOST: u8 = 8;
}

/// The path elsewhere must be less loaded by this share of a link, with our own load on it.
const MARGIN: f64 = 0.2;
/// Rounds in which the same path must have been better one after the other; up to as many more by chance, so that queue
/// pairs that see the same do not all move at once.
const PATIENCE: u64 = 4;
/// Rounds after a move until the next; up to as many more by chance.
const REST: u64 = 16;
/// A path is probed this often at least.
const LONGEST_INTERVAL: Duration = Duration::from_secs(3600);
/// Rounds after which a load is too old to go by.
const FRESH: u32 = 4;

/// One way to the peer.
#[derive(Debug)]
struct Way {
    port: u16,
    template: Template,
    /// Of the probes that took it, and of data with spraying.
    records: PathRecords,
    /// Its busiest link, and when that was heard.
    load: Option<(Load, Instant)>,
    /// The number of the probe whose answer is awaited.
    awaited: Option<u64>,
}

/// The load of a way's busiest link, as far as it is known.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// In-flight share, smoothed.
    share: f64,
    /// The link's rate, if it is reported.
    capacity: Option<Rate>,
    /// It is the last of several: the receiver's own link, which every way leads over. What we send is in its share already.
    is_last: bool,
}

/// The ways of one queue pair.
#[derive(Debug)]
pub(super) struct Paths {
    ways: Vec<Way>,
    current: usize,
    /// The way of answers.
    answers: usize,
    interval: Duration,
    sprays: bool,
    /// The rate of our own link, if it is known.
    line_rate: Option<Rate>,
    /// Which way the next probe takes, and when.
    next: usize,
    due_at: Instant,
    /// Payload bytes acknowledged, all and at the last decision, which was then.
    acknowledged: u64,
    decided: (u64, Instant),
    /// The way that was best in the last rounds, and the number of those rounds.
    leading: Option<(usize, u64)>,
    wanted: Option<usize>,
    rest_until: Instant,
    random: u64,
}

impl Paths {
    /// All ways begin unheard. `None` for a single one.
    pub(super) fn new(
        choice: Option<PathChoice>,
        path: &Path,
        qpn: Qpn,
        line_rate: Option<Rate>,
    ) -> Option<Self> {
        let choice = choice.filter(|choice| choice.count > 1)?;
        let way = |index: u16| {
            let port = source_port(path.udp_source, index);
            let template = Template::new(&Path { udp_source: port, ..*path }).ok()?;
            Some(Way { port, template, records: PathRecords::new(), load: None, awaited: None })
        };
        let ways = (0..u16::from(choice.count.min(PathChoice::MOST))).map(way).collect::<Option<Vec<_>>>()?;
        Some(Self {
            ways,
            current: 0,
            answers: 0,
            interval: choice.interval.clamp(Duration::from_micros(1), LONGEST_INTERVAL),
            sprays: choice.spray,
            line_rate,
            next: 0,
            due_at: Instant::ZERO,
            acknowledged: 0,
            decided: (0, Instant::ZERO),
            leading: None,
            wanted: None,
            rest_until: Instant::ZERO,
            random: u64::from(qpn.get()) << 16 | u64::from(path.udp_source),
        })
    }

    /// The same ways with another traffic class.
    pub(super) fn mark(&mut self, path: &Path) {
        for way in &mut self.ways {
            if let Ok(template) = Template::new(&Path { udp_source: way.port, ..*path }) {
                way.template = template;
            }
        }
    }

    pub(super) fn templates(&mut self) -> impl Iterator<Item = &mut Template> {
        self.ways.iter_mut().map(|way| &mut way.template)
    }

    /// Returns the headers of requests: those of path `way`, or of the path that all take.
    pub(super) fn template(&self, way: Option<u8>) -> &Template {
        let way = way.map_or(self.current, usize::from);
        &self.ways[way.min(self.ways.len() - 1)].template
    }

    /// Returns when the next path is probed. With spraying no path is chosen for all.
    pub(super) const fn due_at(&self) -> Option<Instant> {
        if self.sprays { None } else { Some(self.due_at) }
    }

    /// Returns the path that probe `number` takes, with spraying.
    pub(super) fn of_probe(&self, number: u64) -> Option<u8> {
        self.sprays.then(|| (number % self.ways.len() as u64) as u8)
    }

    /// A probe leaves as number `number`, after `unheard` to a peer that has never answered one. Returns the headers of its way.
    pub(super) fn on_probe(&mut self, now: Instant, number: u64, unheard: u64) -> Template {
        let at = self.next;
        self.next = (at + 1) % self.ways.len();
        self.due_at = now + later(self.interval, unheard);
        let way = &mut self.ways[at];
        way.awaited = Some(number);
        way.template
    }

    pub(super) const fn sprays(&self) -> bool {
        self.sprays
    }

    /// Returns the headers of answers.
    pub(super) fn answer_template(&self) -> &Template {
        &self.ways[self.answers].template
    }

    /// The peer sent something again that had arrived: its answer may have been lost. With spraying answers take the next path.
    pub(super) fn on_duplicate(&mut self, now: Instant) {
        if self.sprays && now >= self.due_at {
            self.answers = (self.answers + 1) % self.ways.len();
            self.due_at = now + self.interval;
        }
    }

    /// Records a report on path `way`, with spraying. Returns the in-flight share of the most loaded path since the last answer: one window
    /// and one rate serve all paths.
    pub(super) fn on_sprayed(&mut self, now: Instant, way: u8, report: Report) -> Option<Inflight> {
        let (interval, oldest) = (self.interval, self.round() * FRESH);
        let way = self.ways.get_mut(usize::from(way))?;
        let load = way.measure(now, report, interval)?;
        way.load = Some((load, now));
        let loads = self.ways.iter().filter_map(|way| way.load);
        let fresh = loads.filter(|(_, heard)| now.saturating_since(*heard) <= oldest);
        let utilisation = fresh.map(|(load, _)| load.share).fold(load.share, f64::max);
        let since = now.saturating_since(self.decided.1).clamp(Duration::from_nanos(1), interval);
        self.decided.1 = now;
        Some(Inflight { utilisation, interval: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX) })
    }

    /// Payload was acknowledged.
    pub(super) const fn on_acknowledged(&mut self, bytes: u64) {
        self.acknowledged += bytes;
    }

    /// An answer came. Tells whether it answers a probe of these ways.
    pub(super) fn on_response(&mut self, now: Instant, psn: Psn, report: Report) -> bool {
        let answers = |awaited: u64| (awaited & (Psn::CIRCLE as u64 - 1)) as u32 == psn.get();
        let Some(at) = self.ways.iter().position(|way| way.awaited.is_some_and(answers)) else {
            return false;
        };
        let interval = self.interval;
        let way = &mut self.ways[at];
        way.awaited = None;
        let Some(load) = way.measure(now, report, interval) else { return true };
        let share = way.load.map_or(load.share, |(before, _)| (before.share + load.share) / 2.0);
        way.load = Some((Load { share, ..load }, now));
        if at + 1 == self.ways.len() {
            self.decide(now);
        }
        true
    }

    /// Once a round: whether another way has been better for long enough.
    fn decide(&mut self, now: Instant) {
        let (bytes, then) = core::mem::replace(&mut self.decided, (self.acknowledged, now));
        let nanos = now.saturating_since(then).as_nanos() as f64;
        let ours = (self.acknowledged - bytes) as f64 * 8e9 / nanos.max(1.0);
        let oldest = self.round() * FRESH;
        let fresh = |way: &Way| way.load.filter(|(_, heard)| now.saturating_since(*heard) < oldest);
        let Some((here, _)) = fresh(&self.ways[self.current]) else { return };
        let before = self.leading;
        let mut best: Option<(usize, f64)> = None;
        for (at, way) in self.ways.iter().enumerate().filter(|(at, _)| *at != self.current) {
            let Some((load, _)) = fresh(way) else { continue };
            // If only ratios are reported, the links are assumed to be like our own.
            let capacity = load.capacity.or(here.capacity).or(self.line_rate);
            let capacity = capacity.map_or(f64::INFINITY, |rate| rate.as_bps() as f64);
            let there = load.share + if load.is_last { 0.0 } else { ours / capacity.max(1.0) };
            if here.share - there <= MARGIN {
                continue;
            }
            // The way that led before stays in the lead: several ways over one idle link are equally good, and would take turns.
            if before.is_some_and(|(led, _)| led == at) {
                best = Some((at, there));
                break;
            }
            if best.is_none_or(|(_, least)| there < least) {
                best = Some((at, there));
            }
        }
        self.leading = best.map(|(at, _)| match before {
            Some((led, rounds)) if led == at => (at, rounds + 1),
            _ => (at, 1),
        });
        self.wanted = None;
        if now >= self.rest_until
            && let Some((at, rounds)) = self.leading
            && rounds >= PATIENCE + self.random % PATIENCE
        {
            self.wanted = Some(at);
        }
    }

    fn round(&self) -> Duration {
        self.interval * self.ways.len() as u32
    }

    /// Returns true if a move waits until nothing is on its way.
    pub(super) const fn wants_to_move(&self) -> bool {
        self.wanted.is_some()
    }

    /// Nothing is on its way: goes over to the wanted way.
    pub(super) fn go_over(&mut self, now: Instant) -> bool {
        let Some(to) = self.wanted.take() else { return false };
        self.current = to;
        self.leading = None;
        // Constants of Knuth's MMIX generator.
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.random ^= self.random >> 33;
        self.rest_until = now + self.round() * (REST + self.random % REST) as u32;
        true
    }
}

impl Way {
    /// Measures the busiest link since the last probe that took this way.
    fn measure(&mut self, now: Instant, report: Report, interval: Duration) -> Option<Load> {
        let is_last = |index| report.hops().is_some_and(|hops| hops > 1 && index + 1 == hops);
        let (capacity, is_last) = match report {
            Report::Busiest { busiest: Some((index, record)), .. } => {
                (Some(record.speed().rate()), is_last(index))
            }
            Report::Hop { index, hop, .. } | Report::Shared { index, hop, .. } => {
                (Some(hop.bandwidth), is_last(index))
            }
            Report::All { records, .. } => (records.iter().map(|record| record.speed().rate()).min(), false),
            Report::Ratio { utilisation, .. } => {
                let share = f64::from(utilisation) / super::collector::RATIO_ONE;
                return Some(Load { share, capacity: None, is_last: false });
            }
            Report::Busiest { .. } | Report::Window(_) | Report::Ready => return None,
        };
        let share = self.records.inflight(now, &report.path()?, interval)?.utilisation;
        Some(Load { share, capacity, is_last })
    }
}

/// Of the path's `index`th way: 0xC000 and up, all different, and to the same core of the peer.
const fn source_port(own: u16, index: u16) -> u16 {
    let spread = !(0xc000 | CORE_BITS);
    match index {
        0 => own,
        _ => 0xc000 | own & CORE_BITS | own.wrapping_add(index.wrapping_mul(0x0ccd)) & spread,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_port_of_its_own() {
        for own in [0xc000, 0xc123, 0xffff, 4791] {
            let mut ports: Vec<_> =
                (0..u16::from(PathChoice::MOST)).map(|way| source_port(own, way)).collect();
            assert_eq!(ports[0], own);
            assert!(ports[1..].iter().all(|port| *port >= 0xc000 && port & CORE_BITS == own & CORE_BITS));
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), usize::from(PathChoice::MOST), "{own:#x}");
        }
    }
}
