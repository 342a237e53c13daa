//! A better algorithm, once its condition is seen to hold.

use super::flow::Flow;
use super::queue_pair::QueuePair;
use super::telemetry::{Prober, Sampler};
use super::{Upgrade, When};
use cc::CongestionController;
use core::time::Duration;

/// Probes without an answer after which a path has no telemetry.
const UNANSWERED: u64 = 20;

/// What was seen of the path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Seen {
    /// A round trip was measured.
    RoundTrip(Duration),
    /// A probe was answered with the telemetry of so many hops.
    Telemetry(u8),
    /// So many probes were sent.
    Probes(u64),
}

impl QueuePair {
    /// Goes over to the better algorithm, or gives it up, where what was seen decides it.
    pub(super) fn consider(&mut self, seen: Seen) {
        let Some(congestion) = &self.upgrade else { return };
        let Some(Upgrade { when, to }) = congestion.upgrade else { return };
        let is_better = match (when, seen) {
            (When::RttBelow(limit), Seen::RoundTrip(rtt)) => rtt < limit,
            (When::TelemetryAnswered, Seen::Telemetry(hops)) if hops > 0 => true,
            (When::TelemetryAnswered, Seen::Probes(sent)) if sent >= UNANSWERED => false,
            _ => return,
        };
        let Some(congestion) = self.upgrade.take() else { return };
        if !is_better {
            // Nobody answers: no more probes.
            let goes_on = !matches!(when, When::TelemetryAnswered);
            self.prober = Prober::new(congestion.probe_interval.filter(|_| goes_on));
            return;
        }
        // Its parameters were checked on the way to RTS.
        let Ok(algorithm) = to.build() else { return };
        self.sampler = Sampler::new(&to, &congestion);
        if to.wants_ecn()
            && let Some(connection) = &mut self.connection
        {
            connection.mark_capable();
            if let Some(paths) = &mut self.paths {
                paths.mark(&connection.path);
            }
        }
        if let Some(flow) = &mut self.flow {
            let next = self.requester.bounds().1;
            let mut better = Flow::new(algorithm);
            // So that it knows what is on the way.
            if let Some(newest) = next.checked_sub(1) {
                better.algorithm_mut().on_send(cc::Instant::ZERO, newest, 0);
            }
            *flow = better;
        }
    }
}
