//! The settings of a queue pair's congestion control.

use super::{FeedbackKey, PathChoice};
use crate::wire::{Format, Reverse};
use cc::{DcqcnConfig, HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;

pub use cc::AlgorithmConfig as CongestionAlgorithm;

/// Congestion control of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Congestion {
    /// Algorithm that computes window and rate.
    pub algorithm: CongestionAlgorithm,
    /// Least time between telemetry requests while data is in flight (rtgwg-00 6.2.1: once a round trip), at least 1 µs. A request also
    /// needs data sent since the previous one. If it is `None`, HPCC++ still probes READ responses and unreliable connections once a base
    /// round trip.
    pub probe_interval: Option<Duration>,
    /// One in this many data packets carries telemetry (HPCC++ only). It adds [`MAX_IN_BAND`](crate::wire::MAX_IN_BAND) bytes to the
    /// packet, or [`Format::longest`]; packets carry it only to a peer that has confirmed that it supports it.
    pub in_band: Option<NonZeroU32>,
    /// Whether data packets without telemetry subscribe to direct reports of switches about congestion (pan-01 6.3; HPCC++ only). It adds
    /// [`SUBSCRIPTION_LENGTH`](crate::wire::SUBSCRIPTION_LENGTH) bytes to the packet, to a peer that supports telemetry.
    pub subscribe: bool,
    /// Layout of telemetry in probes and data.
    pub format: Format,
    /// Kind of answer that the peer gives to telemetry; [`CongestionAlgorithm::HpccReceiver`] always receives windows.
    pub reverse: Reverse,
    /// Whether answers report all links of the path instead of only the busiest ([`CongestionAlgorithm::Hpcc`] only). Each is then compared
    /// with its own last record, whichever was the busiest in between. Only the busiest is reported with AECN, with more than
    /// [`Records::MAX`](crate::wire::Records::MAX) links, and with links whose rate has no code in HPCC INT.
    pub all_hops: bool,
    /// Whether receivers report the number of flows on their link, for which `W_ai` is then computed while that link is the busiest
    /// ([`CongestionAlgorithm::Hpcc`] without `all_hops` only; [`CongestionAlgorithm::HpccFair`] always uses the number).
    pub reported_flows: bool,
    /// Least time between two CNPs that answer the peer's marked packets.
    pub notification_interval: Duration,
    /// Whether the peer receives only the utilisation of the busiest link (rtgwg-00 9.1).
    pub ratio_only: bool,
    /// Better algorithm, for paths that meet its condition.
    pub upgrade: Option<Upgrade>,
    /// Several paths to choose from (rtgwg-00 9.4); `None` for one path.
    pub paths: Option<PathChoice>,
    /// Key that authenticates feedback in both directions; feedback without it is dropped (rtgwg-00 9.1).
    pub feedback_key: Option<FeedbackKey>,
    /// Parameters of the algorithms that are not configured.
    pub unknown: Unknown,
}

/// Parameters that are not configured. The algorithms have a provisional value for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// The line rate is that of the port ([`Congestion::on_link`]).
    pub line_rate: bool,
    /// The line rate is that of the port, but the path may be slower: a slower link in telemetry replaces it.
    pub path_rate: bool,
    /// The base round trip is measured. Until the first measurement the provisional value applies.
    pub base_rtt: bool,
}

/// Change to a better algorithm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upgrade {
    /// Condition of the change.
    pub when: When,
    /// Algorithm to change to.
    pub to: CongestionAlgorithm,
}

/// Condition of a change to a better algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The first measured round trip is shorter than this (draft-bensley-tcpm-dctcp-01, section 4: 10 ms).
    RttBelow(Duration),
    /// A probe returns with the telemetry of a switch. After 20 probes without it, probing ends. Until then, and without telemetry, packets
    /// are ECN-capable, and DCQCN replaces a fixed window once the peer answers a mark.
    TelemetryAnswered,
}

impl Congestion {
    /// Base round trip until the first is measured, if none is configured: 100 µs.
    pub const FIRST_BASE_RTT: Duration = Duration::from_micros(100);

    /// Least time between two CNPs: 50 µs, as in the DCQCN paper.
    pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

    /// Creates the settings of `algorithm` without telemetry.
    #[must_use]
    pub const fn new(algorithm: CongestionAlgorithm) -> Self {
        Self {
            algorithm,
            probe_interval: None,
            in_band: None,
            subscribe: false,
            format: Format::Hpcc,
            reverse: Reverse::Ack,
            all_hops: false,
            reported_flows: false,
            notification_interval: Self::NOTIFICATION_INTERVAL,
            ratio_only: false,
            upgrade: None,
            paths: None,
            feedback_key: None,
            unknown: Unknown { line_rate: false, path_rate: false, base_rtt: false },
        }
    }

    /// Returns the settings for a port whose link has this rate, which is used if none is configured.
    #[must_use]
    pub fn on_link(self, rate: Rate) -> Self {
        if !self.unknown.line_rate || rate.as_bps() == 0 {
            return self;
        }
        let upgrade = self.upgrade.map(|upgrade| Upgrade { to: upgrade.to.at_line_rate(rate), ..upgrade });
        let unknown = Unknown { line_rate: false, path_rate: true, ..self.unknown };
        Self { algorithm: self.algorithm.at_line_rate(rate), upgrade, unknown, ..self }
    }

    /// Returns the reason and the remedy if these settings request spraying, but the queue pair cannot spray.
    pub(crate) fn check_spray(&self, is_reliable: bool, is_selective: bool) -> Result<(), &'static str> {
        let Some(PathChoice { count, spray: true, .. }) = self.paths else { return Ok(()) };
        let algorithms = [Some(self.algorithm), self.upgrade.map(|upgrade| upgrade.to)];
        let by_receiver = |one: &CongestionAlgorithm| matches!(one, CongestionAlgorithm::HpccReceiver(_));
        if !(2..=PathChoice::MAX).contains(&count) {
            Err("the number of paths is not 2 to 8; choose one of these")
        } else if !is_reliable {
            Err("only reliable connections can spray; leave spray out for UC and UD")
        } else if !is_selective {
            Err("the peer has not agreed on selective repeat; turn it on at both ends, or leave spray out")
        } else if self.reverse == Reverse::Window || algorithms.iter().flatten().any(by_receiver) {
            Err(
                "a window that the receiver computes is that of one path; choose an algorithm that the sender computes, as Hpcc",
            )
        } else if self.in_band.is_some() && self.reverse != Reverse::Notification {
            Err(
                "acknowledgements credit telemetry in data to the wrong path; choose Reverse::Notification, or probes without in_band",
            )
        } else {
            Ok(())
        }
    }

    /// Returns the parameters of the algorithm if the sender computes with telemetry in its data. Such senders share links more fairly with
    /// more answers per round trip.
    pub(crate) const fn computed_by_data(&self) -> Option<&HpccConfig> {
        match self.in_band {
            Some(_) => self.algorithm.as_sender_with_telemetry(),
            None => None,
        }
    }

    /// Returns the parameters of the algorithm if probes are sent among the data of its first window: it computes with telemetry, and does
    /// so from the start.
    pub(super) fn probed_first_window(&self) -> Option<&HpccConfig> {
        let has_telemetry = self.in_band.is_some() || self.probe_interval.is_some();
        let is_discovery = self.upgrade.is_some_and(|upgrade| upgrade.when == When::TelemetryAnswered);
        self.algorithm.as_hpcc().filter(|_| has_telemetry && !is_discovery)
    }

    /// Returns the settings for a service without acknowledgements. Feedback cannot arrive in them, so only probes measure the path.
    pub(crate) fn for_unacknowledged_data(&self) -> Self {
        let base_rtt = self.algorithm.as_hpcc().map(|hpcc| hpcc.base_rtt);
        Self {
            probe_interval: self.probe_interval.or(base_rtt),
            in_band: None,
            subscribe: false,
            paths: None,
            ..*self
        }
    }

    /// Checks whether these settings can pace datagrams.
    ///
    /// # Errors
    /// Returns the reason and the remedy if they cannot.
    pub fn check_datagrams(&self) -> Result<(), &'static str> {
        let by_probes = |algorithm: &CongestionAlgorithm| {
            matches!(algorithm, CongestionAlgorithm::Fixed { .. })
                || algorithm.as_sender_with_telemetry().is_some()
        };
        let algorithms = [Some(self.algorithm), self.upgrade.map(|upgrade| upgrade.to)];
        if !algorithms.iter().flatten().all(by_probes) {
            Err(
                "only fixed, auto and algorithms that compute with telemetry at the sender can pace datagrams, which have no acknowledgements and no CNPs; choose auto",
            )
        } else if self.format.reports_load() && self.computes() {
            Err(
                "answers about datagrams carry records of links, so only hpcc, int-md, ioam and ifa fit; choose the format hpcc",
            )
        } else {
            Ok(())
        }
    }

    /// Returns whether the algorithm computes, or one that computes may take over.
    fn computes(&self) -> bool {
        !matches!(self.algorithm, CongestionAlgorithm::Fixed { .. }) || self.upgrade.is_some()
    }

    /// Returns the settings for all datagrams of a queue pair together and, if destinations are paced separately, for each destination.
    /// Together they are sent at most at the line rate.
    pub(crate) fn for_datagrams(&self) -> (Self, Option<Self>) {
        if !self.computes() {
            return (self.for_unacknowledged_data(), None);
        }
        let all = match self.algorithm {
            fixed @ CongestionAlgorithm::Fixed { .. } => fixed,
            _ => CongestionAlgorithm::Fixed { window: u64::MAX, rate: self.line_rate() },
        };
        (Self::new(all), Some(self.for_unacknowledged_data()))
    }

    /// Returns whether packets must be ECN-capable: the algorithm reacts to marks, or may be replaced by one that does.
    pub(crate) fn wants_ecn(&self) -> bool {
        self.algorithm.wants_ecn() || self.by_marks().is_some()
    }

    /// Returns the algorithm that replaces a fixed window once the peer answers marks, if the settings provide one. Its gain is DCTCP's
    /// (dctcp-01 4): with the paper's 1/256, alpha stays near 1 for 14 ms, and cuts that are too deep leave the link idle.
    pub(super) fn by_marks(&self) -> Option<DcqcnConfig> {
        let Upgrade { when: When::TelemetryAnswered, to } = self.upgrade? else { return None };
        let hpcc = to.as_hpcc().filter(|_| matches!(self.algorithm, CongestionAlgorithm::Fixed { .. }))?;
        let usual = DcqcnConfig::new(hpcc.line_rate, Some(hpcc.base_rtt));
        Some(DcqcnConfig { min_rate: hpcc.min_rate, gain: 1.0 / 16.0, ..usual })
    }

    /// Returns the rate of this host's link, if known.
    pub(super) fn line_rate(&self) -> Option<Rate> {
        let of_upgrade = || self.upgrade?.to.line_rate();
        self.algorithm.line_rate().or_else(of_upgrade).filter(|_| !self.unknown.line_rate)
    }

    /// Returns the settings with a telemetry request once an interval while data is in flight.
    #[must_use]
    pub const fn probing(self, every: Option<Duration>) -> Self {
        Self { probe_interval: every, ..self }
    }
}
