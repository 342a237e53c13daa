//! The paths of a sender. Each has a UDP source port, from which switches select its links, and a load, from reports.
//!
//! [`PathChoice`] requests several, with one of two policies: [`OneActive`] sends all requests over one path, and moves to a less loaded
//! one (rtgwg-00 9.4). [`Spraying`] sends requests over all of them; the requester chooses the path of each. READ responses and
//! acknowledgements stay on one path.

mod choice;
mod entry;
mod one_active;
mod spraying;

pub use choice::PathChoice;

use crate::source_port::CORE_BITS;
use crate::wire::{Path, Report, Template};
use crate::{Psn, Qpn};
use alloc::vec::Vec;
use cc::{Inflight, Instant, Rate};
use core::time::Duration;
use entry::PathEntry;
use one_active::OneActive;
use spraying::Spraying;

/// Longest time between probes of a path.
const MAX_INTERVAL: Duration = Duration::from_secs(3600);
/// Rounds after which a load is too old to use.
const FRESH_ROUNDS: u32 = 4;

/// Paths of a queue pair. The first is the connection's own.
#[derive(Debug)]
pub(super) struct Paths {
    paths: Vec<PathEntry>,
    policy: PathPolicy,
    interval: Duration,
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "the set is boxed, and few queue pairs have one")]
enum PathPolicy {
    OneActive(OneActive),
    Spraying(Spraying),
}

impl Paths {
    /// Creates the paths of a queue pair, without loads; `None` if there is only one.
    pub(super) fn new(
        choice: Option<PathChoice>,
        path: &Path,
        qpn: Qpn,
        line_rate: Option<Rate>,
    ) -> Option<Self> {
        let choice = choice.filter(|choice| choice.count > 1)?;
        let entry = |index: u16| {
            let port = source_port(path.udp_source, index);
            Some(PathEntry::new(port, Template::new(&Path { udp_source: port, ..*path }).ok()?))
        };
        let count = u16::from(choice.count.min(PathChoice::MAX));
        let seed = u64::from(qpn.get()) << 16 | u64::from(path.udp_source);
        Some(Self {
            paths: (0..count).map(entry).collect::<Option<_>>()?,
            policy: match choice.spray {
                true => PathPolicy::Spraying(Spraying::default()),
                false => PathPolicy::OneActive(OneActive::new(line_rate, seed)),
            },
            interval: choice.interval.clamp(Duration::from_micros(1), MAX_INTERVAL),
        })
    }

    /// Sets the headers of all paths to those of `path`, each with its own UDP source port.
    pub(super) fn set_headers(&mut self, path: &Path) {
        for entry in &mut self.paths {
            if let Ok(template) = Template::new(&Path { udp_source: entry.port, ..*path }) {
                entry.template = template;
            }
        }
    }

    pub(super) fn templates(&mut self) -> impl Iterator<Item = &mut Template> {
        self.paths.iter_mut().map(|entry| &mut entry.template)
    }

    /// Returns the headers of requests: those of `path` with spraying, otherwise of the active path.
    pub(super) fn template(&self, path: Option<u8>) -> &Template {
        let path = match (&self.policy, path) {
            (_, Some(path)) => usize::from(path),
            (PathPolicy::OneActive(policy), None) => policy.active(),
            (PathPolicy::Spraying(_), None) => 0,
        };
        &self.paths[path.min(self.paths.len() - 1)].template
    }

    pub(super) fn answer_template(&self) -> &Template {
        let path = if let PathPolicy::Spraying(policy) = &self.policy { policy.answers() } else { 0 };
        &self.paths[path].template
    }

    pub(super) const fn sprays(&self) -> bool {
        matches!(self.policy, PathPolicy::Spraying(_))
    }

    /// Returns when the next path is probed; `None` with spraying, where the queue pair's own probes alternate between the paths.
    pub(super) const fn due_at(&self) -> Option<Instant> {
        match &self.policy {
            PathPolicy::OneActive(policy) => Some(policy.due_at()),
            PathPolicy::Spraying(_) => None,
        }
    }

    /// Returns the path of the queue pair's own probe `number`, with spraying.
    pub(super) fn of_probe(&self, number: u64) -> Option<u8> {
        self.sprays().then(|| (number % self.paths.len() as u64) as u8)
    }

    /// Records that the next path is probed as number `number`, after `unanswered_so_far` probes to a peer that has never answered one.
    /// Returns the headers of the probe.
    pub(super) fn on_probe(&mut self, now: Instant, number: u64, unanswered_so_far: u64) -> Option<Template> {
        let PathPolicy::OneActive(policy) = &mut self.policy else { return None };
        let path = policy.on_probe(now, (number, unanswered_so_far), self.paths.len(), self.interval);
        Some(self.paths[path].template)
    }

    /// Applies an answer. Returns whether it answers a probe of these paths.
    pub(super) fn on_response(&mut self, now: Instant, psn: Psn, report: Report) -> bool {
        let oldest = self.round() * FRESH_ROUNDS;
        let PathPolicy::OneActive(policy) = &mut self.policy else { return false };
        let Some(path) = policy.on_response(psn) else { return false };
        let is_loaded = self.paths[path].on_smoothed_report(now, report, self.interval);
        if is_loaded && path + 1 == self.paths.len() {
            policy.decide(now, &self.paths, oldest);
        }
        true
    }

    /// Applies a report on `path`, with spraying. Returns the in-flight share of the most loaded path since the last report, because one
    /// window and one rate apply to all paths. Paths are probed in turn, and each probe needs new data, so the age at which a load becomes
    /// invalid depends on the number of paths and on the time between reports.
    pub(super) fn on_sprayed(&mut self, now: Instant, path: u8, report: Report) -> Option<Inflight> {
        let (interval, count) = (self.interval, self.paths.len() as u32);
        let PathPolicy::Spraying(policy) = &mut self.policy else { return None };
        let oldest = policy.spacing(now).max(interval) * count * FRESH_ROUNDS;
        let load = self.paths.get_mut(usize::from(path))?.on_report(now, report, interval)?;
        let loads = self.paths.iter().filter_map(|entry| entry.load(now, oldest));
        let utilisation = loads.map(|load| load.share).fold(load.share, f64::max);
        Some(policy.inflight(now, utilisation, interval))
    }

    /// Handles a request that the peer retransmitted although it had arrived: its answer may have been lost.
    pub(super) fn on_duplicate(&mut self, now: Instant) {
        if let PathPolicy::Spraying(policy) = &mut self.policy {
            policy.on_duplicate(now, self.paths.len(), self.interval);
        }
    }

    pub(super) const fn on_acknowledged(&mut self, bytes: u64) {
        if let PathPolicy::OneActive(policy) = &mut self.policy {
            policy.on_acknowledged(bytes);
        }
    }

    /// Returns whether a move is pending until nothing is in flight.
    pub(super) const fn has_pending_move(&self) -> bool {
        matches!(&self.policy, PathPolicy::OneActive(policy) if policy.has_pending_move())
    }

    /// Moves to the selected path, because nothing is in flight. Returns whether a path was selected.
    pub(super) fn migrate(&mut self, now: Instant) -> bool {
        let round = self.round();
        if let PathPolicy::OneActive(policy) = &mut self.policy { policy.migrate(now, round) } else { false }
    }

    /// Returns the time in which each path is probed once.
    fn round(&self) -> Duration {
        self.interval * self.paths.len() as u32
    }
}

/// Returns the port of path `index`: 0xC000 and above, distinct, and of the same core of the peer.
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
    use crate::wire::Mac;
    use core::net::{IpAddr, Ipv4Addr};

    /// Packets are ten intervals apart, and so are the probes, which alternate between four paths. Only the first path is loaded.
    #[test]
    fn loads_of_sprayed_paths_stay_valid_between_sparse_packets() {
        let end = |host| (Mac([2, 0, 0, 0, 0, host]), IpAddr::V4(Ipv4Addr::new(10, 0, 0, host)));
        let interval = Duration::from_micros(10);
        let choice = PathChoice { count: 4, interval, spray: true };
        let mut paths = Paths::new(Some(choice), &Path::new(end(1), end(2)), Qpn::new(7), None).unwrap();
        let mut report = |micros, path, share: u32| {
            let report = Report::Ratio { path_id: 0, utilisation: share << 20, interval: 10_000 };
            let now = Instant::from_nanos(micros * 1000);
            paths.on_sprayed(now, path, report).unwrap().utilisation
        };
        for round in 1..5 {
            let shares = [(0, 3), (1, 1), (2, 1), (3, 1)]
                .map(|(path, share)| report(400 * round + 100 * u64::from(path), path, share));
            assert_eq!(shares[3], 3.0, "the first path counts until it is probed again");
        }
        assert_eq!(report(1_000_000, 1, 1), 1.0, "loads from before a pause are too old");
        assert_eq!(report(1_000_100, 2, 1), 1.0);
    }

    #[test]
    fn each_path_has_a_port_of_its_own() {
        for own in [0xc000, 0xc123, 0xffff, 4791] {
            let mut ports: Vec<_> =
                (0..u16::from(PathChoice::MAX)).map(|index| source_port(own, index)).collect();
            assert_eq!(ports[0], own);
            assert!(ports[1..].iter().all(|port| *port >= 0xc000 && port & CORE_BITS == own & CORE_BITS));
            ports.sort_unstable();
            ports.dedup();
            assert_eq!(ports.len(), usize::from(PathChoice::MAX), "{own:#x}");
        }
    }
}
