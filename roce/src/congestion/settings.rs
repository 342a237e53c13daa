//! The settings of a queue pair's congestion control.

use super::{FeedbackKey, PathChoice};
use crate::wire::{Format, Reverse};
use cc::{DcqcnConfig, HpccConfig, Rate};
use core::num::NonZeroU32;
use core::time::Duration;

pub use cc::AlgorithmConfig as CongestionAlgorithm;

/// A queue pair's congestion control.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Congestion {
    /// The algorithm that computes window and rate.
    pub algorithm: CongestionAlgorithm,
    /// Send telemetry requests this often while data is in flight (rtgwg-00 6.2.1: once a round trip); 1 µs at least. With HPCC++,
    /// READ responses and unreliable connections are probed once a base round trip if this is `None`.
    pub probe_interval: Option<Duration>,
    /// Every how many data packets carry telemetry (HPCC++ only). They take [`MAX_IN_BAND`](crate::wire::MAX_IN_BAND)
    /// bytes more on the wire, or what [`Format::longest`] says, and only towards a peer that said that it knows them.
    pub in_band: Option<NonZeroU32>,
    /// Data packets that bring no telemetry ask switches to tell us of congestion at once (pan-01 6.3). They take
    /// [`SUBSCRIPTION_LENGTH`](crate::wire::SUBSCRIPTION_LENGTH) bytes more, towards a peer that knows telemetry (HPCC++ only).
    pub subscribe: bool,
    /// The layout of telemetry in probes and data.
    pub format: Format,
    /// The kind of answer that the peer gives to telemetry; [`CongestionAlgorithm::HpccReceiver`] always receives windows.
    pub reverse: Reverse,
    /// Answers report all links of the path, not only the busiest: each is then compared with its own last record, whichever
    /// was the busiest in between. Answers of more than [`Records::MOST`](crate::wire::Records::MOST) links, of links whose rate
    /// HPCC INT has no code for, and in AECN, report the busiest ([`CongestionAlgorithm::Hpcc`] only).
    pub all_hops: bool,
    /// The least time between two congestion notification packets that answer the peer's marked packets.
    pub notification_interval: Duration,
    /// Tell the peer no more of its path than how busy its busiest link is (rtgwg-00 9.1).
    pub ratio_only: bool,
    /// A better algorithm for paths that turn out to be fit for it.
    pub upgrade: Option<Upgrade>,
    /// Several paths to choose from (rtgwg-00 9.4); one for none.
    pub paths: Option<PathChoice>,
    /// Seal telemetry's answers, and take none that are not sealed with the same key (rtgwg-00 9.1).
    pub feedback_key: Option<FeedbackKey>,
    /// The values for what the algorithms' parameters leave open.
    pub unknown: Unknown,
}

/// Parameters that are not configured. The algorithms have a placeholder for each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unknown {
    /// The rate of this host's link is the port's ([`Congestion::on_link`]).
    pub line_rate: bool,
    /// The line rate is the port's, which knows nothing of the path: once telemetry reports a slower link, that counts.
    pub path_rate: bool,
    /// The base round trip is measured. Until the first measurement the placeholder counts.
    pub base_rtt: bool,
}

/// Which algorithm a queue pair goes over to, and when.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Upgrade {
    /// The condition.
    pub when: When,
    /// The algorithm.
    pub to: CongestionAlgorithm,
}

/// When a queue pair goes over to a better algorithm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// The first round trip measured is shorter (draft-bensley-tcpm-dctcp-01, section 4: 10 ms).
    RttBelow(Duration),
    /// A probe comes back with the telemetry of a switch. After 20 probes without one, probing ends. Until then, and without telemetry,
    /// packets ask for marks, and once the peer answers a mark, DCQCN takes the place of a fixed window.
    TelemetryAnswered,
}

impl Congestion {
    /// The base round trip before the first one is measured, if none is configured.
    pub const FIRST_BASE_RTT: Duration = Duration::from_micros(100);

    /// One notification in 50 µs, as the authors of DCQCN have it.
    pub const NOTIFICATION_INTERVAL: Duration = Duration::from_micros(50);

    /// `algorithm` without telemetry.
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
            notification_interval: Self::NOTIFICATION_INTERVAL,
            ratio_only: false,
            upgrade: None,
            paths: None,
            feedback_key: None,
            unknown: Unknown { line_rate: false, path_rate: false, base_rtt: false },
        }
    }

    /// The same on a port whose link has this rate, which counts if none is configured.
    #[must_use]
    pub fn on_link(self, rate: Rate) -> Self {
        if !self.unknown.line_rate || rate.as_bps() == 0 {
            return self;
        }
        let upgrade = self.upgrade.map(|upgrade| Upgrade { to: upgrade.to.at_line_rate(rate), ..upgrade });
        let unknown = Unknown { line_rate: false, path_rate: true, ..self.unknown };
        Self { algorithm: self.algorithm.at_line_rate(rate), upgrade, unknown, ..self }
    }

    /// Checks whether a queue pair can spray, if these settings ask for it. Otherwise returns why not, and the remedy.
    pub(crate) fn check_spray(&self, is_reliable: bool, is_selective: bool) -> Result<(), &'static str> {
        let Some(PathChoice { count, spray: true, .. }) = self.paths else { return Ok(()) };
        let algorithms = [Some(self.algorithm), self.upgrade.map(|upgrade| upgrade.to)];
        let by_receiver = |one: &CongestionAlgorithm| matches!(one, CongestionAlgorithm::HpccReceiver(_));
        if !(2..=PathChoice::MOST).contains(&count) {
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

    /// Returns the parameters of the algorithm if the sender computes with telemetry in its data. It then shares links the better, the more
    /// answers come in a round trip.
    pub(crate) const fn computed_by_data(&self) -> Option<&HpccConfig> {
        match &self.algorithm {
            CongestionAlgorithm::Hpcc(config)
            | CongestionAlgorithm::HpccFair(config)
            | CongestionAlgorithm::PowerTcp(config)
                if self.in_band.is_some() =>
            {
                Some(config)
            }
            _ => None,
        }
    }

    /// The same for a service without acknowledgements, behind which feedback on telemetry in data would come: probes tell all.
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

    /// Checks whether a queue pair can pace datagrams by these settings.
    ///
    /// # Errors
    /// Returns why not, and the remedy.
    pub fn check_datagrams(&self) -> Result<(), &'static str> {
        let by_probes = |algorithm: &CongestionAlgorithm| {
            use CongestionAlgorithm::{Fixed, Hpcc, HpccFair, PowerTcp};
            matches!(algorithm, Hpcc(_) | HpccFair(_) | PowerTcp(_) | Fixed { .. })
        };
        let algorithms = [Some(self.algorithm), self.upgrade.map(|upgrade| upgrade.to)];
        if !algorithms.iter().flatten().all(by_probes) {
            Err(
                "only fixed, hpcc, hpcc-fair, powertcp and auto can pace datagrams, which have no acknowledgements and no CNPs; choose auto",
            )
        } else if self.format.tells_load() && self.computes() {
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

    /// The same for all datagrams of a queue pair together, and for those to one destination, if these are paced by themselves. Together
    /// they leave at the line rate at most.
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

    /// Returns whether packets are to be marked rather than dropped: the algorithm reacts to marks, or would if it learnt that the peer
    /// answers them.
    pub(crate) fn wants_ecn(&self) -> bool {
        self.algorithm.wants_ecn() || self.by_marks().is_some()
    }

    /// Returns the algorithm that replaces a fixed window once the peer answers marks, if the settings provide for one.
    pub(super) fn by_marks(&self) -> Option<DcqcnConfig> {
        let Upgrade { when: When::TelemetryAnswered, to } = self.upgrade? else { return None };
        let hpcc = to.as_hpcc().filter(|_| matches!(self.algorithm, CongestionAlgorithm::Fixed { .. }))?;
        Some(DcqcnConfig { min_rate: hpcc.min_rate, ..DcqcnConfig::new(hpcc.line_rate, Some(hpcc.base_rtt)) })
    }

    /// Returns the rate of this host's link, if it is known.
    pub(super) fn line_rate(&self) -> Option<Rate> {
        let of_upgrade = || self.upgrade?.to.line_rate();
        self.algorithm.line_rate().or_else(of_upgrade).filter(|_| !self.unknown.line_rate)
    }

    /// With a telemetry request this often while data is in flight.
    #[must_use]
    pub const fn probing(self, every: Option<Duration>) -> Self {
        Self { probe_interval: every, ..self }
    }
}
