//! Changes the algorithm of a queue pair, as [`Policy`] decides, or to DCQCN once the peer answers marks. Each algorithm uses the measured
//! base round trip.

use super::base_rtt::BaseRtt;
use super::pacing::Flow;
use super::policy::Policy;
use super::prober::Prober;
use super::sampler::Sampler;
use super::{Congestion, CongestionAlgorithm, CongestionControl, Sequence, Upgrade};
use crate::CongestionNotice;
use cc::{Algorithm, CongestionController, Instant, Rate};
use core::time::Duration;

impl CongestionControl {
    /// Handles a measured round trip. Returns whether packets must be ECN-capable from now on, because a better algorithm has taken over.
    pub(super) fn on_round_trip(&mut self, rtt: Duration, sequence: &Sequence) -> bool {
        let settings = self.telemetry.as_mut().and_then(|telemetry| telemetry.policy.on_round_trip(rtt));
        settings.is_some_and(|settings| self.take_over(&settings, sequence))
    }

    /// Handles the answer to a probe with the telemetry of `hops` switches, whose fastest link has this rate. Returns whether packets must
    /// be ECN-capable from now on, because a better algorithm has taken over.
    pub(super) fn on_probe_answered(
        &mut self,
        hops: u8,
        rate: Option<Rate>,
        rtt: Option<Duration>,
        sequence: &Sequence,
    ) -> bool {
        let policy = self.telemetry.as_mut().map(|telemetry| &mut telemetry.policy);
        let Some(settings) = policy.and_then(|policy| policy.on_probe_answered(hops, rate)) else {
            return false;
        };
        let window = self.window().unwrap_or(u64::MAX);
        let enables_ect = self.take_over(&settings, sequence);
        // The flow continues at the rate at which its window was sent, because many flows that start together would overload their link
        // again.
        if let (Some(rtt), Some(flow)) = (rtt, &mut self.flow) {
            flow.algorithm_mut().continue_at(Rate::of(window, rtt));
            flow.read();
        }
        enables_ect
    }

    /// Changes to the better algorithm of these settings. Returns whether packets must be ECN-capable from now on.
    #[cold]
    fn take_over(&mut self, settings: &Congestion, sequence: &Sequence) -> bool {
        let Some(Upgrade { to, .. }) = settings.upgrade else { return false };
        let to = self.as_measured(&to);
        let Some(telemetry) = &mut self.telemetry else { return false };
        telemetry.prober.end_discovery();
        if settings.in_band.is_some() {
            telemetry.prober.only_unacknowledged();
        }
        // Its parameters were checked before RTS, and a rate from telemetry on arrival.
        let Ok(algorithm) = to.build() else { return false };
        // Receivers of datagrams store no setup.
        if telemetry.queue_key.is_none() {
            telemetry.sampler = Sampler::new(&to, settings);
        }
        telemetry.prober.on_algorithm(to.as_hpcc().map(|hpcc| hpcc.base_rtt));
        telemetry.policy.take_over(to, settings.algorithm);
        if let Some(flow) = &mut self.flow {
            let mut better = Flow::new(algorithm);
            // The new algorithm needs the newest packet in flight.
            if let Some(newest) = sequence.next.checked_sub(1) {
                better.algorithm_mut().on_send(Instant::ZERO, newest, 0);
            }
            *flow = better;
        }
        to.wants_ecn()
    }

    /// Stops probing, because no probe was answered with telemetry. If the window is fixed, the telemetry state is freed, so that the
    /// packets of the queue pair do not use it.
    #[cold]
    pub(super) fn stop_probing(&mut self) {
        let is_fixed = matches!(self.algorithm(), Some(Algorithm::Fixed(_)));
        let Some(telemetry) = &mut self.telemetry else { return };
        telemetry.policy.keep_algorithm();
        telemetry.prober = Prober::default();
        telemetry.base_rtt = telemetry.base_rtt.filter(|_| !is_fixed);
        if !telemetry.is_used() {
            self.telemetry = None;
        }
    }

    /// Replaces an initial fixed window by DCQCN, because the peer answers marks. DCQCN starts at the rate of that window, and its own
    /// window is never larger.
    pub(super) fn switch_to_dcqcn(&mut self) {
        let (Some(flow), Some(dcqcn)) = (&self.flow, &self.by_marks) else { return };
        let (Algorithm::Fixed(fixed), Some((last, least))) = (flow.algorithm(), flow.round_trip()) else {
            return;
        };
        // At first, fewer bytes than the window may be in flight.
        let [rate, highest] = [Rate::of(flow.window(), last), Rate::of(fixed.window(), least)];
        let algorithm = CongestionAlgorithm::Dcqcn(**dcqcn).at_line_rate(highest.min(dcqcn.line_rate));
        self.run(&algorithm.at_base_rtt(least));
        if let Some(flow) = &mut self.flow {
            flow.algorithm_mut().continue_at(rate);
        }
    }

    /// Changes to the substitute if telemetry is missing; data or a probe sent at `sent` was acknowledged. Returns whether packets must be
    /// ECN-capable from now on.
    #[inline]
    pub(super) fn check_telemetry(&mut self, sent: Instant) -> bool {
        let Some(telemetry) = &self.telemetry else { return false };
        telemetry.policy.is_missing(sent) && self.substitute()
    }

    /// Changes to the substitute, unless it is in use. Returns whether packets must be ECN-capable from now on.
    pub(super) fn substitute(&mut self) -> bool {
        let policy = self.telemetry.as_mut().map(|telemetry| &mut telemetry.policy);
        let Some(substitute) = policy.and_then(Policy::on_missing) else { return false };
        self.run(&substitute);
        substitute.wants_ecn()
    }

    /// Restarts the algorithm that computes with telemetry, if the substitute is in use, because telemetry has arrived.
    pub(super) fn on_telemetry_received(&mut self) {
        let policy = self.telemetry.as_mut().map(|telemetry| &mut telemetry.policy);
        if let Some(preferred) = policy.and_then(Policy::on_telemetry) {
            self.run(&preferred);
        }
    }

    /// Returns the oldest change that was not reported.
    pub(crate) fn take_notice(&mut self) -> Option<CongestionNotice> {
        let telemetry = self.telemetry.as_mut()?;
        let wrong = telemetry.base_rtt.as_mut().and_then(BaseRtt::take_notice);
        wrong.or_else(|| telemetry.policy.take_notice())
    }

    /// Starts this algorithm, whose parameters were checked before RTS.
    fn run(&mut self, algorithm: &CongestionAlgorithm) {
        if let Ok(algorithm) = self.as_measured(algorithm).build() {
            self.flow = Some(Flow::new(algorithm));
        }
    }

    pub(super) fn measure_rtt(&mut self, now: Instant, rtt: Duration) {
        let Some(telemetry) = &mut self.telemetry else { return };
        let Some(base) = &mut telemetry.base_rtt else { return };
        let before = base.effective(false);
        let Some(base_rtt) = base.measure(now, rtt) else { return };
        telemetry.prober.on_base_rtt(before, base_rtt);
        telemetry.sampler.on_base_rtt(base_rtt);
        telemetry.policy.on_base_rtt(base_rtt);
        if let Some(flow) = &mut self.flow {
            let algorithm = flow.algorithm_mut();
            algorithm.set_base_rtt(base.effective(algorithm.is_by_delay()));
        }
    }

    /// Returns the algorithm's settings, with the measured base round trip if none is configured.
    fn as_measured(&self, algorithm: &CongestionAlgorithm) -> CongestionAlgorithm {
        let base_rtt = self.telemetry.as_ref().and_then(|telemetry| telemetry.base_rtt);
        match base_rtt.filter(BaseRtt::is_learned) {
            None => *algorithm,
            Some(base_rtt) => algorithm.at_base_rtt(base_rtt.effective(algorithm.is_by_delay())),
        }
    }
}
