//! Replaces an algorithm whose telemetry ends while data is still acknowledged, as behind a switch that was restarted without it: the
//! algorithm would keep its last rate for ever. DCQCN takes over, or the algorithm that ran before an upgrade, until telemetry returns.
//! Acknowledgements show that telemetry is missing, and so do answers to probes in which no switch has written. A sender of only READ
//! responses or unreliable packets, whose peer answers no probe at all, keeps the substitute.

use super::settings::CongestionAlgorithm;
use crate::CongestionNews;
use cc::{DcqcnConfig, Instant};
use core::time::Duration;

/// Telemetry is missing once data was acknowledged that left so many base round trips after a vain request for telemetry.
const PATIENCE: u32 = 12;
/// The number of vain requests that are necessary too: a single lost answer and a pause are no proof.
const ASKED: u32 = 3;

/// A watch on whether an algorithm receives the telemetry that it computes with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fallback {
    /// The algorithm that computes with telemetry.
    preferred: CongestionAlgorithm,
    /// The algorithm that replaces it.
    substitute: CongestionAlgorithm,
    base_rtt: Duration,
    /// The time of the first request for telemetry since the last arrived, and the number of requests.
    asked_at: Option<Instant>,
    asked: u32,
    is_in_place: bool,
    /// The algorithm differs from the one reported last.
    is_news: bool,
}

impl Fallback {
    /// Returns the fallback of an algorithm; `None` if it does not compute with telemetry of the path. The substitute is DCQCN if none is
    /// named. A receiver that computes is silent while the queue drains that it has seen, so its answers are not missing.
    pub(super) fn new(
        preferred: CongestionAlgorithm,
        substitute: Option<CongestionAlgorithm>,
    ) -> Option<Self> {
        let (CongestionAlgorithm::Hpcc(hpcc)
        | CongestionAlgorithm::HpccFair(hpcc)
        | CongestionAlgorithm::PowerTcp(hpcc)) = preferred
        else {
            return None;
        };
        let dcqcn = || CongestionAlgorithm::Dcqcn(DcqcnConfig::new(hpcc.line_rate, Some(hpcc.base_rtt)));
        let (substitute, base_rtt) = (substitute.unwrap_or_else(dcqcn), hpcc.base_rtt);
        let (asked_at, asked, is_in_place, is_news) = (None, 0, false, false);
        Some(Self { preferred, substitute, base_rtt, asked_at, asked, is_in_place, is_news })
    }

    /// Notes that a packet left that requests telemetry.
    #[inline]
    pub(super) fn on_asked(&mut self, now: Instant) {
        self.asked_at.get_or_insert(now);
        self.asked = self.asked.saturating_add(1);
    }

    /// Sets the new base round trip.
    pub(super) const fn on_base_rtt(&mut self, base_rtt: Duration) {
        self.base_rtt = base_rtt;
    }

    /// Notes that the peer has confirmed the setup: only from now on is telemetry requested.
    pub(super) const fn on_ready(&mut self) {
        (self.asked_at, self.asked) = (None, 0);
    }

    /// Returns whether the pace of unacknowledged data keeps to the windows of the algorithm that runs. PowerTCP's rate follows the queue's
    /// growth already, and swings if the pace does so, too.
    #[inline]
    pub(super) const fn has_windows(&self) -> bool {
        !self.is_in_place && !matches!(self.preferred, CongestionAlgorithm::PowerTcp(_))
    }

    /// Returns the base round trip that the windows are for.
    pub(super) const fn base_rtt(&self) -> Duration {
        self.base_rtt
    }

    /// Returns whether the algorithm has changed without a report.
    pub(super) const fn is_news(&self) -> bool {
        self.is_news
    }

    /// Returns whether data that left at `sent` should have brought telemetry long ago.
    pub(super) fn misses(&self, sent: Instant) -> bool {
        !self.is_in_place
            && self.asked >= ASKED
            && self.asked_at.is_some_and(|asked| sent > asked + self.base_rtt * PATIENCE)
    }

    /// Notes that telemetry is missing. Returns the substitute if it must take over, and does not run already.
    pub(super) const fn on_missing(&mut self) -> Option<CongestionAlgorithm> {
        if self.is_in_place {
            return None;
        }
        (self.is_in_place, self.is_news) = (true, true);
        Some(self.substitute)
    }

    /// Notes that telemetry arrived. Returns the algorithm that computes with it if that must run again.
    pub(super) fn on_telemetry(&mut self) -> Option<CongestionAlgorithm> {
        (self.asked_at, self.asked) = (None, 0);
        if !core::mem::take(&mut self.is_in_place) {
            return None;
        }
        self.is_news = true;
        Some(self.preferred)
    }

    /// Returns the change that was not reported yet.
    pub(super) const fn take_news(&mut self) -> Option<CongestionNews> {
        if !core::mem::replace(&mut self.is_news, false) {
            return None;
        }
        Some(if self.is_in_place {
            CongestionNews::Missed(self.substitute.name())
        } else {
            CongestionNews::Back(self.preferred.name())
        })
    }
}
