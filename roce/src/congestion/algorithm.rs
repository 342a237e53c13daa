//! Which algorithm a queue pair runs: it changes to one that computes with telemetry once a probe brings some, to a substitute while
//! telemetry is missing, and to DCQCN once the peer answers marks. Each runs with the base round trip that was measured.

use super::base_rtt::BaseRtt;
use super::fallback::Fallback;
use super::pacing::Flow;
use super::prober::Prober;
use super::sampler::Sampler;
use super::{CongestionAlgorithm, CongestionControl, Sequence, Upgrade, When};
use crate::CongestionNews;
use cc::{Algorithm, CongestionController, Instant, Rate};
use core::time::Duration;

/// An observation of the path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// A round trip was measured.
    RoundTrip(Duration),
    /// A probe was answered with the telemetry of so many hops, and the fastest rate of those it names.
    Telemetry(u8, Option<Rate>),
}

impl CongestionControl {
    /// Changes to the better algorithm, or abandons it, if the observation decides it. Returns true if packets must ask for marks from now
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
            _ => return false,
        };
        let Some(settings) = telemetry.upgrade.take().filter(|_| is_better) else { return false };
        let Some(Upgrade { to, .. }) = settings.upgrade else { return false };
        telemetry.prober.end_trial();
        if settings.in_band.is_some() {
            telemetry.prober.only_blind();
        }
        let to = self.as_measured(&to);
        let Some(telemetry) = &mut self.telemetry else { return false };
        // Its parameters were checked on the way to RTS, and a rate from telemetry when it came.
        let Ok(algorithm) = to.build() else { return false };
        // A receiver of datagrams learns nothing of their sender.
        if telemetry.queue_key.is_none() {
            telemetry.sampler = Sampler::new(&to, &settings);
        }
        telemetry.prober.on_algorithm(to.as_hpcc().map(|hpcc| hpcc.base_rtt));
        telemetry.fallback = Fallback::new(to, Some(settings.algorithm));
        if let Some(flow) = &mut self.flow {
            let mut better = Flow::new(algorithm);
            // The new algorithm must know which packets are in flight.
            if let Some(newest) = sequence.next.checked_sub(1) {
                better.algorithm_mut().on_send(cc::Instant::ZERO, newest, 0);
            }
            *flow = better;
        }
        to.wants_ecn()
    }

    /// Stops probing, because no probe brought telemetry. A queue pair with a fixed window then has no state that its packets pay for.
    #[cold]
    pub(super) fn give_up(&mut self) {
        let is_fixed = matches!(self.algorithm(), Some(Algorithm::Fixed(_)));
        let Some(telemetry) = &mut self.telemetry else { return };
        telemetry.upgrade = None;
        telemetry.prober = Prober::default();
        telemetry.base_rtt = telemetry.base_rtt.filter(|_| !is_fixed);
        if !telemetry.is_used() {
            self.telemetry = None;
        }
    }

    /// Replaces a fixed window that was only the beginning by DCQCN, because the peer answers marks. DCQCN starts at the rate that the
    /// window amounted to, and its own window is never larger.
    pub(super) fn go_by_marks(&mut self) {
        let (Some(flow), Some(dcqcn)) = (&self.flow, &self.by_marks) else { return };
        let (Algorithm::Fixed(fixed), Some((last, least))) = (flow.algorithm(), flow.round_trip()) else {
            return;
        };
        let [rate, highest] = [last, least].map(|rtt| Rate::of(fixed.window(), rtt));
        let algorithm = CongestionAlgorithm::Dcqcn(**dcqcn).at_line_rate(highest.min(dcqcn.line_rate));
        self.run(&algorithm.at_base_rtt(least));
        if let Some(Algorithm::Dcqcn(dcqcn)) = self.flow.as_mut().map(Flow::algorithm_mut) {
            dcqcn.go_on_at(rate);
        }
    }

    /// Notes that data, or a probe, that left at `sent` was acknowledged. If telemetry is missing, the substitute takes over. Returns whether
    /// packets must ask for marks from now on.
    #[inline]
    pub(super) fn miss_telemetry(&mut self, sent: Instant) -> bool {
        let Some(telemetry) = &mut self.telemetry else { return false };
        let is_missed = telemetry.fallback.as_ref().is_some_and(|fallback| fallback.misses(sent));
        is_missed && self.substitute()
    }

    /// Changes to the substitute, if it does not run already. Returns whether packets must ask for marks from now on.
    pub(super) fn substitute(&mut self) -> bool {
        let fallback = self.telemetry.as_mut().and_then(|telemetry| telemetry.fallback.as_mut());
        let Some(substitute) = fallback.and_then(Fallback::on_missing) else { return false };
        self.run(&substitute);
        substitute.wants_ecn()
    }

    /// Notes that telemetry arrived. If it was missing, the algorithm that computes with it runs again, as new.
    pub(super) fn hear_telemetry(&mut self) {
        let fallback = self.telemetry.as_mut().and_then(|telemetry| telemetry.fallback.as_mut());
        if let Some(preferred) = fallback.and_then(Fallback::on_telemetry) {
            self.run(&preferred);
        }
    }

    /// Returns the change that was not reported yet.
    pub(crate) fn take_news(&mut self) -> Option<CongestionNews> {
        let telemetry = self.telemetry.as_mut()?;
        let wrong = telemetry.base_rtt.as_mut().and_then(BaseRtt::take_news);
        wrong.or_else(|| telemetry.fallback.as_mut().and_then(Fallback::take_news))
    }

    /// Begins anew with this algorithm, whose parameters were checked on the way to RTS.
    fn run(&mut self, algorithm: &CongestionAlgorithm) {
        if let Ok(algorithm) = self.as_measured(algorithm).build() {
            self.flow = Some(Flow::new(algorithm));
        }
    }

    /// A round trip was measured, by a probe or by an acknowledgement.
    pub(super) fn measure_rtt(&mut self, now: Instant, rtt: Duration) {
        let Some(telemetry) = &mut self.telemetry else { return };
        let Some(base) = &mut telemetry.base_rtt else { return };
        let before = base.used(false);
        let Some(base_rtt) = base.measure(now, rtt) else { return };
        telemetry.prober.follow(before, base_rtt);
        telemetry.sampler.on_base_rtt(base_rtt);
        if let Some(fallback) = &mut telemetry.fallback {
            fallback.on_base_rtt(base_rtt);
        }
        if let Some(flow) = &mut self.flow {
            let algorithm = flow.algorithm_mut();
            algorithm.set_base_rtt(base.used(matches!(algorithm, Algorithm::Swift(_))));
        }
    }

    /// Returns the algorithm's settings with what was measured in place of what is not configured.
    fn as_measured(&self, algorithm: &CongestionAlgorithm) -> CongestionAlgorithm {
        let base_rtt = self.telemetry.as_ref().and_then(|telemetry| telemetry.base_rtt);
        match base_rtt.filter(BaseRtt::is_learned) {
            None => *algorithm,
            Some(base_rtt) => {
                let by_delay = matches!(algorithm, CongestionAlgorithm::Swift(_));
                algorithm.at_base_rtt(base_rtt.used(by_delay))
            }
        }
    }
}
