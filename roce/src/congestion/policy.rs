//! The policy for computing with telemetry: a state machine, whose table of states is in `docs/transport.md`.
//!
//! It decides which algorithm runs; `algorithm.rs` applies its decisions. Telemetry may end while data is still acknowledged, for example
//! after a switch was restarted without it. An algorithm that computes with telemetry would then keep its last rate permanently. So a
//! substitute runs until telemetry returns: DCQCN, or the algorithm that ran before a better one took over. Telemetry is missing if
//! acknowledgements arrive without it, or if no switch has written into the answers to probes. If a sender sends only READ responses or
//! unreliable packets, and its peer answers no probe, the substitute runs permanently.

use super::settings::{Congestion, CongestionAlgorithm, Upgrade, When};
use crate::CongestionNotice;
use alloc::boxed::Box;
use cc::{DcqcnConfig, Instant, Rate, RxHpcc};
use core::time::Duration;

/// Base round trips after an unanswered request for telemetry: if data sent later is acknowledged, telemetry is missing.
const MISSING_AFTER: u32 = 12;
/// Unanswered requests that are also necessary: a single lost answer and a pause are not sufficient.
const MISSING_REQUESTS: u32 = 3;
/// Least line rate that is accepted from a peer's telemetry. With less, a queue pair would stop.
const MIN_LINE_RATE: Rate = Rate::from_mbps(1);

/// State machine, and whether its last change is unreported.
#[derive(Debug, Default)]
pub(super) struct Policy {
    state: PolicyState,
    is_unreported: bool,
    long_path: LongPath,
}

/// Whether it is reported, once, that data packets have no room for the telemetry of the path.
#[derive(Clone, Copy, Debug, Default)]
enum LongPath {
    #[default]
    Unknown,
    /// Number of switches.
    Unreported(u8),
    Reported,
}

#[derive(Debug, Default)]
enum PolicyState {
    /// The algorithm needs no telemetry, or the path has none.
    #[default]
    Unused,
    /// The first round trip, or telemetry, determines whether the better algorithm of these settings takes over.
    Undecided(Box<Congestion>),
    /// The algorithm computes with telemetry.
    Used(TelemetryMonitor),
    /// Telemetry is missing, and the substitute runs.
    Missing(TelemetryMonitor),
}

#[derive(Clone, Copy, Debug)]
struct TelemetryMonitor {
    /// Algorithm that computes with telemetry.
    preferred: CongestionAlgorithm,
    substitute: CongestionAlgorithm,
    base_rtt: Duration,
    /// Time of the first request for telemetry since telemetry last arrived; `requests` is the number of requests since then.
    requested_at: Option<Instant>,
    requests: u32,
    /// Telemetry has arrived before.
    has_answered: bool,
}

impl PolicyState {
    /// Returns the state of a queue pair that runs this algorithm. The default substitute is DCQCN.
    fn of(preferred: CongestionAlgorithm, substitute: Option<CongestionAlgorithm>) -> Self {
        let Some(hpcc) = preferred.as_hpcc() else { return Self::Unused };
        let dcqcn = || CongestionAlgorithm::Dcqcn(DcqcnConfig::new(hpcc.line_rate, Some(hpcc.base_rtt)));
        let substitute = substitute.unwrap_or_else(dcqcn);
        Self::Used(TelemetryMonitor {
            preferred,
            substitute,
            base_rtt: hpcc.base_rtt,
            requested_at: None,
            requests: 0,
            has_answered: false,
        })
    }
}

impl TelemetryMonitor {
    const fn restart(&mut self) {
        (self.requested_at, self.requests) = (None, 0);
    }

    /// Returns the time without an answer after which telemetry is missing. A receiver that computes windows sends none while queues drain.
    fn longest_silence(&self) -> Duration {
        let drains = self.has_answered && matches!(self.preferred, CongestionAlgorithm::HpccReceiver(_));
        self.base_rtt * (MISSING_AFTER + if drains { RxHpcc::MAX_QUEUE } else { 0 })
    }
}

impl Policy {
    pub(super) fn new(settings: &Congestion) -> Self {
        let state = match settings.upgrade {
            Some(_) => PolicyState::Undecided(Box::new(*settings)),
            None => PolicyState::of(settings.algorithm, None),
        };
        Self { state, is_unreported: false, long_path: LongPath::Unknown }
    }

    pub(super) const fn set_substitute(&mut self, substitute: CongestionAlgorithm) {
        if let Some(monitor) = self.monitor_mut() {
            monitor.substitute = substitute;
        }
    }

    #[inline]
    const fn monitor_mut(&mut self) -> Option<&mut TelemetryMonitor> {
        match &mut self.state {
            PolicyState::Used(monitor) | PolicyState::Missing(monitor) => Some(monitor),
            PolicyState::Unused | PolicyState::Undecided(_) => None,
        }
    }

    pub(super) const fn is_undecided(&self) -> bool {
        matches!(self.state, PolicyState::Undecided(_))
    }

    /// Returns whether the algorithm, or the one that may take over, computes with telemetry at the sender.
    pub(super) fn may_compute(&self) -> bool {
        let computes = |algorithm: &CongestionAlgorithm| algorithm.as_sender_with_telemetry().is_some();
        match &self.state {
            PolicyState::Unused => false,
            PolicyState::Undecided(settings) => {
                computes(&settings.algorithm) || settings.upgrade.is_some_and(|upgrade| computes(&upgrade.to))
            }
            PolicyState::Used(monitor) | PolicyState::Missing(monitor) => computes(&monitor.preferred),
        }
    }

    /// Returns the base round trip of the windows to which the pace of unacknowledged data is adapted; `None` if the algorithm in use has
    /// none. The rate of a registered algorithm may already respond to the growth of the queue, as PowerTCP's does, and would oscillate if the
    /// pace did so, too. A receiver that computes windows answers no probes.
    #[inline]
    pub(super) const fn window_base_rtt(&self) -> Option<Duration> {
        let PolicyState::Used(monitor) = &self.state else { return None };
        match monitor.preferred {
            CongestionAlgorithm::Hpcc(_) | CongestionAlgorithm::HpccFair(_) => Some(monitor.base_rtt),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn on_telemetry_requested(&mut self, now: Instant) {
        if let Some(monitor) = self.monitor_mut() {
            monitor.requested_at.get_or_insert(now);
            monitor.requests = monitor.requests.saturating_add(1);
        }
    }

    /// Restarts the monitor, because the peer has confirmed the setup, and telemetry is requested only from now on.
    pub(super) const fn on_ready(&mut self) {
        if let Some(monitor) = self.monitor_mut() {
            monitor.restart();
        }
    }

    pub(super) const fn on_base_rtt(&mut self, base_rtt: Duration) {
        if let Some(monitor) = self.monitor_mut() {
            monitor.base_rtt = base_rtt;
        }
    }

    /// Handles a measured round trip. Returns the settings whose better algorithm takes over ([`Self::take_over`]), if that depends on a
    /// short round trip.
    #[inline]
    pub(super) fn on_round_trip(&mut self, rtt: Duration) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &self.state else { return None };
        let Some(Upgrade { when: When::RttBelow(limit), .. }) = settings.upgrade else { return None };
        self.decide().filter(|_| rtt < limit)
    }

    /// Handles the answer to a probe with the telemetry of `hops` switches, whose fastest link has this rate. Returns the settings whose
    /// better algorithm takes over ([`Self::take_over`]), if that depends on telemetry.
    pub(super) fn on_probe_answered(&mut self, hops: u8, rate: Option<Rate>) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &mut self.state else { return None };
        let Some(Upgrade { when: When::TelemetryAnswered, .. }) = settings.upgrade else { return None };
        if hops == 0 || !learn_line_rate(settings, rate) {
            return None;
        }
        self.decide()
    }

    /// Keeps the algorithm, because probes found no telemetry.
    pub(super) fn keep_algorithm(&mut self) {
        self.decide();
    }

    /// Ends [`PolicyState::Undecided`]. Returns its settings.
    fn decide(&mut self) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &self.state else { return None };
        let next = PolicyState::of(settings.algorithm, None);
        let PolicyState::Undecided(settings) = core::mem::replace(&mut self.state, next) else { return None };
        Some(settings)
    }

    /// Makes the better algorithm the preferred one, and `before` its substitute.
    pub(super) fn take_over(&mut self, better: CongestionAlgorithm, before: CongestionAlgorithm) {
        self.state = PolicyState::of(better, Some(before));
    }

    /// Returns whether telemetry is missing, given that data or a probe sent at `sent` was acknowledged.
    pub(super) fn is_missing(&self, sent: Instant) -> bool {
        let PolicyState::Used(monitor) = &self.state else { return false };
        monitor.requests >= MISSING_REQUESTS
            && monitor.requested_at.is_some_and(|requests| sent > requests + monitor.longest_silence())
    }

    /// Returns the substitute if it must run from now on, because telemetry is missing.
    pub(super) fn on_missing(&mut self) -> Option<CongestionAlgorithm> {
        let PolicyState::Used(monitor) = self.state else { return None };
        (self.state, self.is_unreported) = (PolicyState::Missing(monitor), true);
        Some(monitor.substitute)
    }

    /// Returns the algorithm that computes with telemetry if it must run again, because telemetry has arrived.
    pub(super) fn on_telemetry(&mut self) -> Option<CongestionAlgorithm> {
        if let Some(monitor) = self.monitor_mut() {
            monitor.restart();
            monitor.has_answered = true;
        }
        let PolicyState::Missing(monitor) = self.state else { return None };
        (self.state, self.is_unreported) = (PolicyState::Used(monitor), true);
        Some(monitor.preferred)
    }

    /// Reports that the path has this many switches, more than packets have room for.
    pub(super) const fn on_long_path(&mut self, switches: u8) {
        if let LongPath::Unknown = self.long_path {
            self.long_path = LongPath::Unreported(switches);
        }
    }

    #[inline]
    pub(super) const fn has_unreported(&self) -> bool {
        self.is_unreported || matches!(self.long_path, LongPath::Unreported(_))
    }

    /// Returns the oldest unreported change, once.
    pub(super) fn take_notice(&mut self) -> Option<CongestionNotice> {
        if let LongPath::Unreported(switches) = self.long_path {
            self.long_path = LongPath::Reported;
            return Some(CongestionNotice::LongPath { switches });
        }
        if !core::mem::replace(&mut self.is_unreported, false) {
            return None;
        }
        match &self.state {
            PolicyState::Used(monitor) => Some(CongestionNotice::TelemetryRestored(monitor.preferred.name())),
            PolicyState::Missing(monitor) => {
                Some(CongestionNotice::TelemetryMissing(monitor.substitute.name()))
            }
            PolicyState::Unused | PolicyState::Undecided(_) => None,
        }
    }
}

/// Uses the rate of a path's link as the line rate if the latter is unknown, or not configured and faster. Ignores a rate that no algorithm
/// can use. Returns whether the line rate is known now.
fn learn_line_rate(settings: &mut Congestion, rate: Option<Rate>) -> bool {
    let is_usable = |rate: &Rate| {
        *rate >= MIN_LINE_RATE
            && settings.upgrade.is_some_and(|upgrade| upgrade.to.at_line_rate(*rate).build().is_ok())
    };
    if let Some(rate) = rate.filter(is_usable) {
        *settings = settings.on_link(rate);
        if let Some(Upgrade { to, .. }) = settings.upgrade.as_mut().filter(|_| settings.unknown.path_rate)
            && to.line_rate().is_some_and(|line_rate| rate < line_rate)
        {
            *to = to.at_line_rate(rate);
        }
    }
    !settings.unknown.line_rate
}

#[cfg(test)]
mod tests {
    use super::*;
    use cc::HpccConfig;
    use core::num::NonZeroU32;

    const RTT: Duration = Duration::from_micros(10);
    const FIXED: CongestionAlgorithm = CongestionAlgorithm::Fixed { window: 1 << 16, rate: None };

    fn hpcc() -> CongestionAlgorithm {
        CongestionAlgorithm::Hpcc(HpccConfig::new(Rate::from_gbps(10), RTT, NonZeroU32::MIN))
    }

    fn policy(algorithm: CongestionAlgorithm, upgrade: Option<When>) -> Policy {
        let upgrade = upgrade.map(|when| Upgrade { when, to: hpcc() });
        Policy::new(&Congestion { upgrade, ..Congestion::new(algorithm) })
    }

    fn at(rounds: u32) -> Instant {
        Instant::ZERO + RTT * rounds
    }

    #[test]
    fn an_algorithm_without_telemetry_never_reports_it_missing() {
        let mut policy = policy(FIXED, None);
        (0..9).for_each(|round| policy.on_telemetry_requested(at(round)));
        assert!(!policy.may_compute() && !policy.is_missing(at(1000)));
        assert_eq!((policy.on_missing(), policy.on_telemetry(), policy.take_notice()), (None, None, None));
    }

    #[test]
    fn telemetry_is_missing_after_three_requests_and_twelve_round_trips() {
        let mut policy = policy(hpcc(), None);
        policy.on_telemetry_requested(at(0));
        policy.on_telemetry_requested(at(1));
        assert!(!policy.is_missing(at(1000)), "two requests");
        policy.on_telemetry_requested(at(2));
        assert!(!policy.is_missing(at(12)) && policy.is_missing(at(13)));
        policy.on_telemetry();
        assert!(!policy.is_missing(at(1000)), "it arrived");
        (20..23).for_each(|round| policy.on_telemetry_requested(at(round)));
        policy.on_ready();
        assert!(
            !policy.is_missing(at(1000)),
            "what was requested before the setup was confirmed does not count"
        );
    }

    /// It sends none for up to 256 base round trips after a window.
    #[test]
    fn windows_of_a_receiver_are_missing_later_once_one_has_arrived() {
        let CongestionAlgorithm::Hpcc(config) = hpcc() else { panic!() };
        let mut policy = policy(CongestionAlgorithm::HpccReceiver(config), None);
        let request = |policy: &mut Policy| (0..3).for_each(|round| policy.on_telemetry_requested(at(round)));
        request(&mut policy);
        assert!(!policy.is_missing(at(12)) && policy.is_missing(at(13)));
        assert_eq!(policy.on_telemetry(), None);
        request(&mut policy);
        assert!(!policy.is_missing(at(268)) && policy.is_missing(at(269)));
        assert_eq!(policy.on_missing().map(|substitute| substitute.name()), Some("dcqcn"));
        assert_eq!(policy.take_notice(), Some(CongestionNotice::TelemetryMissing("dcqcn")));
        assert!(!policy.may_compute(), "direct responses change nothing");
    }

    #[test]
    fn the_substitute_runs_without_telemetry_and_each_change_is_reported() {
        let mut policy = policy(hpcc(), None);
        assert_eq!(policy.on_missing().map(|substitute| substitute.name()), Some("dcqcn"));
        assert_eq!((policy.on_missing(), policy.window_base_rtt()), (None, None));
        assert_eq!(policy.take_notice(), Some(CongestionNotice::TelemetryMissing("dcqcn")));
        assert_eq!(policy.on_telemetry(), Some(hpcc()));
        assert_eq!((policy.on_telemetry(), policy.window_base_rtt()), (None, Some(RTT)));
        assert_eq!(policy.take_notice(), Some(CongestionNotice::TelemetryRestored("hpcc")));
        assert_eq!(policy.take_notice(), None);
    }

    #[test]
    fn telemetry_in_the_answer_to_a_probe_decides_for_the_better_algorithm() {
        let mut policy = policy(FIXED, Some(When::TelemetryAnswered));
        assert!(policy.may_compute() && policy.is_undecided());
        assert_eq!(policy.on_round_trip(Duration::ZERO), None, "a round trip decides nothing");
        assert_eq!(policy.on_probe_answered(0, None), None, "no switch has written");
        let settings = policy.on_probe_answered(1, None).unwrap();
        policy.take_over(hpcc(), settings.algorithm);
        assert_eq!((policy.window_base_rtt(), policy.on_probe_answered(1, None)), (Some(RTT), None));
        assert_eq!(policy.on_missing(), Some(FIXED), "what ran before is the substitute");
    }

    #[test]
    fn a_path_without_telemetry_keeps_its_algorithm() {
        let mut policy = policy(FIXED, Some(When::TelemetryAnswered));
        policy.keep_algorithm();
        assert!(!policy.is_undecided() && !policy.may_compute());
        assert_eq!(policy.on_probe_answered(1, None), None);
    }

    #[test]
    fn the_first_round_trip_decides_once() {
        let when = When::RttBelow(RTT);
        let (mut near, mut far) = (policy(FIXED, Some(when)), policy(FIXED, Some(when)));
        assert!(near.on_round_trip(RTT / 2).is_some() && far.on_round_trip(RTT).is_none());
        assert!(!near.is_undecided() && !far.is_undecided());
        assert_eq!(far.on_round_trip(RTT / 2), None);
    }
}
