//! Coverage of rare paths.

use roce::qp::CompletionStatus;
use roce::{Counters, Discard};
use std::collections::BTreeMap;

/// The number of times that each rare path was taken, by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reached {
    paths: BTreeMap<String, u64>,
}

impl Reached {
    /// Returns the paths that a long soak must take and that this one did not.
    #[must_use]
    pub fn missing(&self) -> Vec<&'static str> {
        MUST.iter().copied().filter(|path| !self.paths.contains_key(*path)).collect()
    }

    /// Returns each path with its count, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, u64)> {
        self.paths.iter().map(|(path, &count)| (path.as_str(), count))
    }

    /// Adds the counts of another run.
    pub fn add(&mut self, other: &Self) {
        for (path, count) in &other.paths {
            self.count(path, *count);
        }
    }

    pub(super) fn once(&mut self, path: &str) {
        self.count(path, 1);
    }

    pub(super) fn count(&mut self, path: &str, count: u64) {
        if count == 0 {
            return;
        }
        match self.paths.get_mut(path) {
            Some(so_far) => *so_far += count,
            None => {
                self.paths.insert(path.into(), count);
            }
        }
    }

    pub(super) fn ended(&mut self, status: CompletionStatus) {
        match status {
            CompletionStatus::Success => {}
            status => self.once(&format!("ended: {status:?}")),
        }
    }

    pub(super) fn counters(&mut self, counters: &Counters) {
        for (path, count) in [
            ("sent again", counters.retransmitted),
            ("timeout", counters.timeouts),
            ("NAK for a gap", counters.naks_received),
            ("held early", counters.held_early),
            ("evicted early", counters.evicted_early),
            ("RNR NAK", counters.rnr_naks_received),
            ("probe answered", counters.probe_responses),
            ("marked", counters.rx_marked),
            ("CNP", counters.notifications_received),
            ("feedback", counters.feedback_received),
        ] {
            self.count(path, count);
        }
        for &discard in Discard::ALL {
            self.count(&format!("dropped: {discard:?}"), counters.discarded(discard));
        }
    }
}

/// Paths that 10,000 seeds take at least dozens of times, by name.
const MUST: &[&str] = &[
    "CNP",
    "CQ overflowed",
    "NAK for a gap",
    "RNR NAK",
    "ATOMIC WRITE",
    "FLUSH",
    "XRC receives",
    "dropped: Duplicate",
    "dropped: Icrc",
    "dropped: IpHeader",
    "dropped: LocalProtection",
    "dropped: NotRoce",
    "dropped: PsnGap",
    "dropped: QpState",
    "dropped: ReceiverNotReady",
    "dropped: RemoteKey",
    "dropped: StaleAcknowledge",
    "dropped: StaleFeedback",
    "dropped: Telemetry",
    "dropped: Truncated",
    "dropped: UdpHeader",
    "dropped: UnknownQp",
    "ended: Flushed",
    "ended: LocalProtection",
    "ended: RemoteAccess",
    "ended: RemoteOperation",
    "ended: RetryExceeded",
    "ended: RnrRetryExceeded",
    "fate: Cut",
    "fate: Deregistered",
    "fate: Destroyed",
    "fate: Drained",
    "fate: Failed",
    "fate: HostDies",
    "fate: Reset",
    "feedback",
    "held early",
    "hole: in a READ",
    "hole: lost again",
    "hole: only late",
    "hole: reported",
    "hole: reported beyond a gap",
    "hole: sent again",
    "hole: tail asked for",
    "host: core paused",
    "host: pool dry",
    "host: ring full",
    "link: dark",
    "link: flipped",
    "link: late",
    "link: lost",
    "link: twice",
    "marked",
    "offer: accepted",
    "probe answered",
    "sent again",
    "shared receives",
    "sprayed",
    "switch: dropped",
    "switch: marked",
    "timeout",
    "window: bound",
    "window: given back",
    "window: taken back",
];
