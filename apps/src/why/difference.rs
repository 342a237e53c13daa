//! The changes between two reports of a queue pair.

use std::collections::BTreeMap;
use std::time::Duration;
use verbs::observe::{DeviceStatus, HopStatus, QueuePairStatus};

/// A link that is filled to this part or more limits the queue pairs that its telemetry paces: HPCC++ aims at 0.95, and one reading of a
/// link that several flows fill is often well below.
const BUSY: f64 = 0.5;

/// The changes of a queue pair and its device while they were watched.
pub struct Difference<'a> {
    /// The queue pair at the end.
    pub pair: &'a QueuePairStatus,
    /// The queue pair at the beginning, if it existed.
    earlier: Option<&'a QueuePairStatus>,
    /// ns watched.
    pub elapsed: u64,
    /// ns in each state.
    pub waited: BTreeMap<String, u64>,
    /// ns that the process's most unlucky thread had no CPU.
    pub starved: u64,
    /// Counters of the device.
    counters: BTreeMap<String, u64>,
    core: BTreeMap<String, u64>,
    /// Counters of the queue pair's own core.
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
        // A queue pair that is new is watched from its creation on.
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

    /// Returns by how much a counter of the device grew.
    pub fn counted(&self, name: &str) -> u64 {
        self.counters.get(name).or_else(|| self.core.get(name)).copied().unwrap_or(0)
    }

    /// Returns by how much a counter of the queue pair's core grew.
    pub fn counted_by_core(&self, name: &str) -> u64 {
        self.own_core.get(name).copied().unwrap_or(0)
    }

    /// Returns a reading of the path's busiest hop and its age in ns: the fuller one of the two at the ends of the time watched, since one
    /// reading of a link that several flows fill may be low.
    fn reading(&self) -> Option<(&HopStatus, u64)> {
        let last = self.pair.busiest_hop().map(|hop| (hop, hop.age));
        let first = self.earlier.and_then(QueuePairStatus::busiest_hop).filter(|hop| hop.age <= self.elapsed);
        let first = first.map(|hop| (hop, hop.age.saturating_add(self.elapsed)));
        match (last, first) {
            (Some((last, _)), Some(first)) if first.0.utilisation > last.utilisation => Some(first),
            (last, first) => last.or(first),
        }
    }

    /// Returns what telemetry said of the path's busiest hop, as text.
    pub fn busiest_hop(&self) -> Option<String> {
        let (hop, age) = self.reading()?;
        let part =
            hop.utilisation.map_or(String::new(), |part| format!(", its link {:.0} % full", part * 100.0));
        Some(format!("hop {} of the path: {} B queued{part}, {} ago", hop.index, hop.queue, time(age)))
    }

    /// Returns whether a reading that was fresh at its end of the time watched shows that the link of the busiest hop is what limits the
    /// queue pair.
    pub fn is_congested(&self) -> bool {
        let is_busy = |part: Option<f64>| part.is_some_and(|part| part >= BUSY);
        self.reading().is_some_and(|(hop, _)| hop.age <= self.elapsed && is_busy(hop.utilisation))
    }

    /// Returns whether the path most likely loses packets for their length.
    pub fn is_path_mtu(&self) -> bool {
        self.pair.suspected.as_ref().is_some_and(|suspicion| suspicion.is_path_mtu)
    }

    /// Returns the last round trip and the shortest, as text.
    pub fn round_trips(&self) -> Option<String> {
        let (last, shortest) = (self.pair.round_trip?, self.pair.shortest_round_trip?);
        Some(format!("the last round trip took {}, the shortest {}", time(last), time(shortest)))
    }
}

fn minus(after: &BTreeMap<String, u64>, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let earlier = |name: &String| before.get(name).copied().unwrap_or(0);
    after.iter().map(|(name, value)| (name.clone(), value.saturating_sub(earlier(name)))).collect()
}

/// Returns a time as people read it.
pub fn time(nanos: u64) -> String {
    match nanos {
        0..1_000 => format!("{nanos} ns"),
        1_000..1_000_000 => format!("{:.1} us", nanos as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", nanos as f64 / 1e6),
        _ => format!("{:.2} s", nanos as f64 / 1e9),
    }
}

/// Returns a rate as people read it.
pub fn rate(bps: f64) -> String {
    match bps {
        ..1e6 => format!("{:.1} kb/s", bps / 1e3),
        ..1e9 => format!("{:.1} Mb/s", bps / 1e6),
        _ => format!("{:.2} Gb/s", bps / 1e9),
    }
}
