//! A better algorithm takes over once its condition is seen to hold.

use super::fallback::Fallback;
use super::pacing::Flow;
use super::prober::Prober;
use super::sampler::Sampler;
use super::{CongestionControl, Sequence, Upgrade, When};
use cc::{CongestionController, Rate};
use core::time::Duration;

/// Probes without an answer after which a path has no telemetry.
const UNANSWERED: u64 = 20;

/// What was seen of the path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// A round trip was measured.
    RoundTrip(Duration),
    /// A probe was answered with the telemetry of so many hops, and the fastest rate of those it names.
    Telemetry(u8, Option<Rate>),
    /// So many probes were sent.
    Probes(u64),
}

impl CongestionControl {
    /// Changes to the better algorithm, or gives it up, if what was seen decides it. Returns whether packets are to be marked from now
    /// on.
    pub(super) fn consider(&mut self, seen: Seen, sequence: &Sequence) -> bool {
        let Some(telemetry) = &mut self.telemetry else { return false };
        let Some(Upgrade { when, .. }) = telemetry.upgrade.as_ref().and_then(|asked| asked.upgrade) else {
            return false;
        };
        let is_better = match (when, seen) {
            (When::RttBelow(limit), Seen::RoundTrip(rtt)) => rtt < limit,
            (When::TelemetryAnswered, Seen::Telemetry(hops, rate))
                if hops > 0 && telemetry.learn_line_rate(rate) =>
            {
                true
            }
            (When::TelemetryAnswered, Seen::Probes(sent)) if sent >= UNANSWERED => false,
            _ => return false,
        };
        let Some(settings) = telemetry.upgrade.take() else { return false };
        let Some(Upgrade { to, .. }) = settings.upgrade else { return false };
        if !is_better {
            // The path does not answer: no more probes.
            let goes_on = !matches!(when, When::TelemetryAnswered);
            telemetry.prober = Prober::new(settings.probe_interval.filter(|_| goes_on), None);
            return false;
        }
        if settings.in_band.is_some() {
            telemetry.prober.only_blind();
        }
        let to = self.as_measured(&to);
        let Some(telemetry) = &mut self.telemetry else { return false };
        // Its parameters were checked on the way to RTS, and a rate from telemetry when it came.
        let Ok(algorithm) = to.build() else { return false };
        telemetry.sampler = Sampler::new(&to, &settings);
        telemetry.prober.on_algorithm(to.as_hpcc().map(|hpcc| hpcc.base_rtt));
        telemetry.fallback = Fallback::new(to, Some(settings.algorithm));
        if let Some(flow) = &mut self.flow {
            let mut better = Flow::new(algorithm);
            // So that it knows what is on the way.
            if let Some(newest) = sequence.next.checked_sub(1) {
                better.algorithm_mut().on_send(cc::Instant::ZERO, newest, 0);
            }
            *flow = better;
        }
        to.wants_ecn()
    }
}
