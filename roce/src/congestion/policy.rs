//! Whether a queue pair computes with telemetry: a state machine, whose table of states is in `docs/transport.md`.
//!
//! It decides which algorithm runs; `algorithm.rs` applies its decisions. If telemetry ends while data is still acknowledged, as behind a
//! switch that was restarted without it, an algorithm that computes with it would keep its last rate permanently. A substitute runs until
//! telemetry returns: DCQCN, or the algorithm that ran before a better one took over. Acknowledgements show that telemetry is missing, and
//! so do answers to probes in which no switch has written. A sender of only READ responses or unreliable packets, whose peer answers no
//! probe at all, keeps the substitute.

use super::settings::{Congestion, CongestionAlgorithm, Upgrade, When};
use crate::CongestionNews;
use alloc::boxed::Box;
use cc::{DcqcnConfig, Instant, Rate};
use core::time::Duration;

/// Telemetry is missing once data was acknowledged that was sent this many base round trips after an unanswered request for telemetry.
const MISSING_AFTER: u32 = 12;
/// The number of unanswered requests that are necessary too: a single lost answer and a pause are no proof.
const MISSING_REQUESTS: u32 = 3;
/// The slowest link that a peer's telemetry may report: with less, a queue pair would stand still.
const LEAST_LINE_RATE: Rate = Rate::from_mbps(1);

/// The state machine, and whether its last change was not reported yet.
#[derive(Debug, Default)]
pub(super) struct Policy {
    state: PolicyState,
    is_news: bool,
}

#[derive(Debug, Default)]
enum PolicyState {
    /// The algorithm needs no telemetry, or the path has none.
    #[default]
    Unused,
    /// The first round trip, or telemetry, decides whether the better algorithm of these settings takes over.
    Undecided(Box<Congestion>),
    /// The algorithm computes with telemetry.
    Used(Watch),
    /// Telemetry is missing, and the substitute runs.
    Missing(Watch),
}

/// The watch on whether an algorithm receives the telemetry that it computes with.
#[derive(Clone, Copy, Debug)]
struct Watch {
    /// The algorithm that computes with telemetry.
    preferred: CongestionAlgorithm,
    /// The algorithm that replaces it.
    substitute: CongestionAlgorithm,
    base_rtt: Duration,
    /// The time of the first request for telemetry since the last arrived, and the number of requests.
    asked_at: Option<Instant>,
    asked: u32,
}

impl PolicyState {
    /// Returns the state of a queue pair that runs this algorithm. The substitute is DCQCN if none is given. A receiver that computes is
    /// silent while the queue drains that it has seen, so its answers are not missing.
    fn of(preferred: CongestionAlgorithm, substitute: Option<CongestionAlgorithm>) -> Self {
        let (CongestionAlgorithm::Hpcc(hpcc)
        | CongestionAlgorithm::HpccFair(hpcc)
        | CongestionAlgorithm::PowerTcp(hpcc)) = preferred
        else {
            return Self::Unused;
        };
        let dcqcn = || CongestionAlgorithm::Dcqcn(DcqcnConfig::new(hpcc.line_rate, Some(hpcc.base_rtt)));
        let substitute = substitute.unwrap_or_else(dcqcn);
        Self::Used(Watch { preferred, substitute, base_rtt: hpcc.base_rtt, asked_at: None, asked: 0 })
    }
}

impl Watch {
    const fn restart(&mut self) {
        (self.asked_at, self.asked) = (None, 0);
    }
}

impl Policy {
    /// Returns the policy of a queue pair with these settings, on its way to RTS.
    pub(super) fn new(settings: &Congestion) -> Self {
        let state = match settings.upgrade {
            Some(_) => PolicyState::Undecided(Box::new(*settings)),
            None => PolicyState::of(settings.algorithm, None),
        };
        Self { state, is_news: false }
    }

    /// Makes `substitute` run while telemetry is missing.
    pub(super) const fn set_substitute(&mut self, substitute: CongestionAlgorithm) {
        if let Some(watch) = self.watch_mut() {
            watch.substitute = substitute;
        }
    }

    #[inline]
    const fn watch_mut(&mut self) -> Option<&mut Watch> {
        match &mut self.state {
            PolicyState::Used(watch) | PolicyState::Missing(watch) => Some(watch),
            PolicyState::Unused | PolicyState::Undecided(_) => None,
        }
    }

    /// Returns whether a better algorithm may still take over.
    pub(super) const fn is_undecided(&self) -> bool {
        matches!(self.state, PolicyState::Undecided(_))
    }

    /// Returns whether the algorithm, or the one that may take over, computes with telemetry.
    pub(super) fn may_compute(&self) -> bool {
        match &self.state {
            PolicyState::Unused => false,
            PolicyState::Undecided(settings) => {
                let better = settings.upgrade.map(|upgrade| upgrade.to);
                let algorithms = [Some(settings.algorithm), better];
                algorithms
                    .into_iter()
                    .flatten()
                    .any(|one| !matches!(PolicyState::of(one, None), PolicyState::Unused))
            }
            PolicyState::Used(_) | PolicyState::Missing(_) => true,
        }
    }

    /// Returns the base round trip of the windows that the pace of unacknowledged data keeps to; `None` if the algorithm that runs has
    /// none. PowerTCP's rate follows the queue's growth already, and swings if the pace does so, too.
    #[inline]
    pub(super) const fn windows(&self) -> Option<Duration> {
        match &self.state {
            PolicyState::Used(watch) if !matches!(watch.preferred, CongestionAlgorithm::PowerTcp(_)) => {
                Some(watch.base_rtt)
            }
            PolicyState::Unused
            | PolicyState::Undecided(_)
            | PolicyState::Used(_)
            | PolicyState::Missing(_) => None,
        }
    }

    // Events.

    /// A packet was sent that requests telemetry.
    #[inline]
    pub(super) fn on_asked(&mut self, now: Instant) {
        if let Some(watch) = self.watch_mut() {
            watch.asked_at.get_or_insert(now);
            watch.asked = watch.asked.saturating_add(1);
        }
    }

    /// The peer has confirmed the setup: only from now on is telemetry requested.
    pub(super) const fn on_ready(&mut self) {
        if let Some(watch) = self.watch_mut() {
            watch.restart();
        }
    }

    /// The base round trip has changed.
    pub(super) const fn on_base_rtt(&mut self, base_rtt: Duration) {
        if let Some(watch) = self.watch_mut() {
            watch.base_rtt = base_rtt;
        }
    }

    /// A round trip was measured. Returns the settings whose better algorithm takes over ([`Self::take_over`]), if that waits for a short
    /// one.
    #[inline]
    pub(super) fn on_round_trip(&mut self, rtt: Duration) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &self.state else { return None };
        let Some(Upgrade { when: When::RttBelow(limit), .. }) = settings.upgrade else { return None };
        self.decide().filter(|_| rtt < limit)
    }

    /// A probe was answered with the telemetry of `hops` switches, of which the fastest link has this rate. Returns the settings whose
    /// better algorithm takes over ([`Self::take_over`]), if that waits for telemetry.
    pub(super) fn on_probe_answered(&mut self, hops: u8, rate: Option<Rate>) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &mut self.state else { return None };
        let Some(Upgrade { when: When::TelemetryAnswered, .. }) = settings.upgrade else { return None };
        if hops == 0 || !learn_line_rate(settings, rate) {
            return None;
        }
        self.decide()
    }

    /// Probes have found no telemetry.
    pub(super) fn give_up(&mut self) {
        self.decide();
    }

    /// Ends [`PolicyState::Undecided`]. Returns its settings.
    fn decide(&mut self) -> Option<Box<Congestion>> {
        let PolicyState::Undecided(settings) = &self.state else { return None };
        let next = PolicyState::of(settings.algorithm, None);
        let PolicyState::Undecided(settings) = core::mem::replace(&mut self.state, next) else { return None };
        Some(settings)
    }

    /// The better algorithm runs from now on, and `before` while telemetry is missing.
    pub(super) fn take_over(&mut self, better: CongestionAlgorithm, before: CongestionAlgorithm) {
        self.state = PolicyState::of(better, Some(before));
    }

    /// Data, or a probe, that was sent at `sent` was acknowledged. Returns whether it should have brought telemetry long ago.
    pub(super) fn misses(&self, sent: Instant) -> bool {
        let PolicyState::Used(watch) = &self.state else { return false };
        watch.asked >= MISSING_REQUESTS
            && watch.asked_at.is_some_and(|asked| sent > asked + watch.base_rtt * MISSING_AFTER)
    }

    /// Telemetry is missing. Returns the substitute if it must run from now on.
    pub(super) fn on_missing(&mut self) -> Option<CongestionAlgorithm> {
        let PolicyState::Used(watch) = self.state else { return None };
        (self.state, self.is_news) = (PolicyState::Missing(watch), true);
        Some(watch.substitute)
    }

    /// Telemetry has arrived. Returns the algorithm that computes with it if that must run again.
    pub(super) fn on_telemetry(&mut self) -> Option<CongestionAlgorithm> {
        self.on_ready();
        let PolicyState::Missing(watch) = self.state else { return None };
        (self.state, self.is_news) = (PolicyState::Used(watch), true);
        Some(watch.preferred)
    }

    /// Returns whether the state has changed without a report.
    #[inline]
    pub(super) const fn has_news(&self) -> bool {
        self.is_news
    }

    /// Returns the change that was not reported yet.
    pub(super) fn take_news(&mut self) -> Option<CongestionNews> {
        if !core::mem::replace(&mut self.is_news, false) {
            return None;
        }
        match &self.state {
            PolicyState::Used(watch) => Some(CongestionNews::Back(watch.preferred.name())),
            PolicyState::Missing(watch) => Some(CongestionNews::Missed(watch.substitute.name())),
            PolicyState::Unused | PolicyState::Undecided(_) => None,
        }
    }
}

/// Uses the rate of a path's link as this host's if that is unknown, or not configured and faster. Ignores a rate that no algorithm can
/// use. Returns whether the line rate is known now.
fn learn_line_rate(settings: &mut Congestion, rate: Option<Rate>) -> bool {
    let is_usable = |rate: &Rate| {
        *rate >= LEAST_LINE_RATE
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
    fn an_algorithm_without_telemetry_misses_none() {
        let mut policy = policy(FIXED, None);
        (0..9).for_each(|round| policy.on_asked(at(round)));
        assert!(!policy.may_compute() && !policy.misses(at(1000)));
        assert_eq!((policy.on_missing(), policy.on_telemetry(), policy.take_news()), (None, None, None));
    }

    #[test]
    fn telemetry_is_missing_after_three_requests_and_twelve_round_trips() {
        let mut policy = policy(hpcc(), None);
        policy.on_asked(at(0));
        policy.on_asked(at(1));
        assert!(!policy.misses(at(1000)), "two requests");
        policy.on_asked(at(2));
        assert!(!policy.misses(at(12)) && policy.misses(at(13)));
        policy.on_telemetry();
        assert!(!policy.misses(at(1000)), "it arrived");
        (20..23).for_each(|round| policy.on_asked(at(round)));
        policy.on_ready();
        assert!(!policy.misses(at(1000)), "what was requested before the setup was confirmed does not count");
    }

    #[test]
    fn the_substitute_runs_until_telemetry_returns_and_each_change_is_reported_once() {
        let mut policy = policy(hpcc(), None);
        assert_eq!(policy.on_missing().map(|substitute| substitute.name()), Some("dcqcn"));
        assert_eq!((policy.on_missing(), policy.windows()), (None, None));
        assert_eq!(policy.take_news(), Some(CongestionNews::Missed("dcqcn")));
        assert_eq!(policy.on_telemetry(), Some(hpcc()));
        assert_eq!((policy.on_telemetry(), policy.windows()), (None, Some(RTT)));
        assert_eq!(policy.take_news(), Some(CongestionNews::Back("hpcc")));
        assert_eq!(policy.take_news(), None);
    }

    #[test]
    fn telemetry_in_the_answer_to_a_probe_decides_for_the_better_algorithm() {
        let mut policy = policy(FIXED, Some(When::TelemetryAnswered));
        assert!(policy.may_compute() && policy.is_undecided());
        assert_eq!(policy.on_round_trip(Duration::ZERO), None, "a round trip decides nothing");
        assert_eq!(policy.on_probe_answered(0, None), None, "no switch has written");
        let settings = policy.on_probe_answered(1, None).unwrap();
        policy.take_over(hpcc(), settings.algorithm);
        assert_eq!((policy.windows(), policy.on_probe_answered(1, None)), (Some(RTT), None));
        assert_eq!(policy.on_missing(), Some(FIXED), "what ran before is the substitute");
    }

    #[test]
    fn a_path_without_telemetry_keeps_its_algorithm() {
        let mut policy = policy(FIXED, Some(When::TelemetryAnswered));
        policy.give_up();
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
