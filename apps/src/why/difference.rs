//! The changes between two reports of a queue pair.

use std::collections::BTreeMap;
use std::time::Duration;
use verbs::observe::{DeviceStatus, HopStatus, QueuePairStatus};

/// The least utilisation at which a link limits the queue pairs that use its telemetry. HPCC++ targets 0.95, but single readings of a link
/// that several flows fill are often much lower.
const BUSY: f64 = 0.5;

/// The changes of a queue pair and its device in the observed time.
pub struct Difference<'a> {
    pub pair: &'a QueuePairStatus,
    /// The queue pair at the start; `None` if it was created later.
    earlier: Option<&'a QueuePairStatus>,
    /// Observed time, ns.
    pub elapsed: u64,
    /// Time in each state, ns.
    pub waited: BTreeMap<String, u64>,
    /// Time that the most delayed thread of the process waited for a CPU, ns.
    pub starved: u64,
    counters: BTreeMap<String, u64>,
    core: BTreeMap<String, u64>,
    own_core: BTreeMap<String, u64>,
}

impl<'a> Difference<'a> {
    pub fn new(
        before: Option<&'a DeviceStatus>,
        after: &DeviceStatus,
        pair: &'a QueuePairStatus,
        starved: Duration,
    ) -> Self {
        let nothing = BTreeMap::new();
        // A new queue pair is observed from its creation on.
        let earlier = before.and_then(|device| device.queue_pair(pair.qpn));
        let waited = minus(&pair.waited, earlier.map_or(&nothing, |earlier| &earlier.waited));
        let core_of = |device: &DeviceStatus| {
            device.cores.get(pair.core).map(|core| core.counters.clone()).unwrap_or_default()
        };
        Self {
            pair,
            earlier,
            elapsed: waited.values().sum::<u64>().max(1),
            waited,
            starved: starved.as_nanos() as u64,
            counters: minus(&after.counters, before.map_or(&nothing, |device| &device.counters)),
            core: minus(&after.core, before.map_or(&nothing, |device| &device.core)),
            own_core: minus(&core_of(after), &before.map(core_of).unwrap_or_default()),
        }
    }

    /// Returns the increase of a counter of the device.
    pub fn counted(&self, name: &str) -> u64 {
        self.counters.get(name).or_else(|| self.core.get(name)).copied().unwrap_or(0)
    }

    /// Returns the increase of a counter of the queue pair's core.
    pub fn counted_by_core(&self, name: &str) -> u64 {
        self.own_core.get(name).copied().unwrap_or(0)
    }

    /// Returns a reading of the path's busiest hop and its age in ns. Of the readings at the start and the end, it has the higher
    /// utilisation. A single reading of a link that several flows fill may be low.
    fn reading(&self) -> Option<(&HopStatus, u64)> {
        let last = self.pair.busiest_hop().map(|hop| (hop, hop.age));
        let first = self.earlier.and_then(QueuePairStatus::busiest_hop).filter(|hop| hop.age <= self.elapsed);
        let first = first.map(|hop| (hop, hop.age.saturating_add(self.elapsed)));
        match (last, first) {
            (Some((last, _)), Some(first)) if first.0.utilisation > last.utilisation => Some(first),
            (last, first) => last.or(first),
        }
    }

    /// Returns the payload that the peer acknowledged, bit/s; `None` if it acknowledged none, as with READs and datagrams.
    fn goodput(&self) -> Option<f64> {
        let before = self.earlier.map_or(0, |earlier| earlier.acknowledged_bytes);
        let bytes = self.pair.acknowledged_bytes.saturating_sub(before);
        (bytes > 0).then(|| bytes as f64 * 8e9 / self.elapsed as f64)
    }

    /// Returns the rate that the window allows, bit/s; `None` without a measured round trip.
    pub fn window_rate(&self) -> Option<f64> {
        self.pair.round_trip.map(|trip| self.pair.window as f64 * 8e9 / trip.max(1) as f64)
    }

    /// Returns the rate at which the queue pair sent as text: the acknowledged payload if there is any, otherwise the rate that window and
    /// pacing allow.
    pub fn sent(&self) -> String {
        let paced = self.pair.rate_bps.map(|bps| bps as f64);
        let allowed = || [self.window_rate(), paced].into_iter().flatten().reduce(f64::min);
        match (self.goodput().or_else(allowed), self.pair.line_rate_bps) {
            (Some(sent), Some(line)) => rate_of(sent, line as f64),
            (Some(sent), None) => rate(sent),
            (None, Some(line)) => format!("less than {}", rate(line as f64)),
            (None, None) => "less than it could".into(),
        }
    }

    /// Returns the telemetry of the path's busiest hop as text.
    pub fn busiest_hop(&self) -> Option<String> {
        let (hop, age) = self.reading()?;
        let part =
            hop.utilisation.map_or(String::new(), |part| format!(", its link {:.0} % full", part * 100.0));
        Some(format!("hop {} of the path: {} B queued{part}, {} ago", hop.index, hop.queue, time(age)))
    }

    /// Returns true if a reading within the observed time shows that the link of the busiest hop limits the queue pair.
    pub fn is_congested(&self) -> bool {
        let is_busy = |part: Option<f64>| part.is_some_and(|part| part >= BUSY);
        self.reading().is_some_and(|(hop, _)| hop.age <= self.elapsed && is_busy(hop.utilisation))
    }

    /// Returns true if the path probably loses packets because of their length.
    pub fn is_path_mtu(&self) -> bool {
        self.pair.suspected.as_ref().is_some_and(|diagnosis| diagnosis.is_path_mtu)
    }

    /// Returns the last and the shortest round trip as text.
    pub fn round_trips(&self) -> Option<String> {
        let (last, shortest) = (self.pair.round_trip?, self.pair.shortest_round_trip?);
        Some(format!("the last round trip took {}, the shortest {}", time(last), time(shortest)))
    }
}

fn minus(after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(earlier(name)))).collect()
}

/// Formats a time in ns with a suitable unit.
pub fn time(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}

/// Formats a rate in bit/s with a suitable unit.
pub fn rate(bps: f64) -> String {
    let (unit, name, decimals) = unit(bps);
    format!("{:.decimals$} {name}", bps / unit)
}

/// Formats a part of a rate and the rate, both in bit/s, in the unit of the rate.
fn rate_of(part: f64, whole: f64) -> String {
    let (unit, name, decimals) = unit(whole);
    format!("{:.decimals$} of {:.decimals$} {name}", part / unit, whole / unit)
}

/// Returns the unit for a rate in bit/s: its size in bit/s, its name, and the decimals to show.
fn unit(bps: f64) -> (f64, &'static str, usize) {
    match bps {
        ..1e6 => (1e3, "kb/s", 1),
        ..1e9 => (1e6, "Mb/s", 1),
        _ => (1e9, "Gb/s", 2),
    }
}
