//! HPCC++ computed at the receiver (rtgwg-00 6.3.2, lines 28 to 34).

use super::records::PathReading;
use super::{Bounds, Hpcc, HpccConfig, Inflight};
use crate::{Ack, ConfigError, CongestionController, HopIndex, Instant, PathTelemetry, Rate};
use core::num::NonZeroU32;
use core::time::Duration;

/// The receiver's side: it computes a flow's window from the telemetry in its packets, with the sender's parameters.
#[derive(Clone, Copy, Debug)]
pub struct RxHpcc {
    hpcc: Hpcc,
    /// `lastUpdateTime`; `None` before the first telemetry.
    last_update: Option<Instant>,
    /// Earliest arrival of packets that the last window affected: `T` and the queueing delay after it was sent.
    answered_at: Option<Instant>,
    /// Time in which the path's queues drain, from the last telemetry.
    queueing: Duration,
    /// Last hop of the path in any telemetry so far.
    last_hop: HopIndex,
    last_capacity: Rate,
}

impl RxHpcc {
    /// Limit of the time between two windows beyond `T`, in `T`: the queueing delay of 256 initial windows. Without a limit, one forged
    /// record would freeze the window.
    pub const MAX_QUEUE: u32 = 256;

    /// Creates a flow without telemetry.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: HpccConfig) -> Result<Self, ConfigError> {
        let (last_hop, last_capacity) = (0, config.line_rate);
        Ok(Self {
            hpcc: Hpcc::new(config)?,
            last_update: None,
            answered_at: None,
            queueing: Duration::ZERO,
            last_hop,
            last_capacity,
        })
    }

    /// Returns the state of the algorithm.
    #[must_use]
    pub const fn hpcc(&self) -> &Hpcc {
        &self.hpcc
    }

    /// `NewINT`: handles a packet's telemetry. Returns the window, in payload bytes, when it must be sent: once per `T` and drain time of
    /// the path's queues.
    ///
    /// `flows` is the number of flows that this receiver serves ([`ActiveFlows`](super::ActiveFlows)). If the last hop is the busiest, they
    /// share its link, and `W_ai` is half of the link's headroom divided by them. For a flow above its share it is at most the configured
    /// one. If another hop is the busiest, it is the configured one, but at most a fiftieth of the geometric mean of that link's rate and
    /// the flow's.
    pub fn on_telemetry(&mut self, now: Instant, path: &PathTelemetry, flows: NonZeroU32) -> Option<u64> {
        let base_rtt = self.hpcc.config.base_rtt;
        let reading = self.hpcc.records.record(now, path, base_rtt);
        let mut queueing = Duration::ZERO;
        for (index, hop) in path.hops() {
            (self.last_hop, self.last_capacity) = (index, hop.bandwidth);
            queueing = queueing.saturating_add(hop.bandwidth.time_for(hop.queue));
        }
        let measured = match reading {
            PathReading::Measured(busiest, inflight) => {
                let bandwidth =
                    path.hops().find(|(index, _)| *index == busiest).map(|(_, hop)| hop.bandwidth);
                (busiest, bandwidth.unwrap_or(self.last_capacity), inflight)
            }
            PathReading::FirstPath => {
                self.last_update = Some(now);
                return None;
            }
            PathReading::NewPath | PathReading::Nothing => return self.repeat(now, path),
        };
        self.react(now, measured, queueing, flows)
    }

    /// Returns the window again if none was sent for as long as queues may drain: telemetry arrives, although it cannot be measured, and a
    /// longer silence means that none does.
    fn repeat(&mut self, now: Instant, path: &PathTelemetry) -> Option<u64> {
        let longest = self.hpcc.config.base_rtt.saturating_mul(Self::MAX_QUEUE.saturating_add(1));
        let is_due = self.last_update.is_some_and(|last| now.saturating_since(last) > longest);
        (is_due && path.hops().next().is_some()).then(|| {
            self.last_update = Some(now);
            self.hpcc.window()
        })
    }

    /// Handles the in-flight share of the busiest link that switches computed, which is attributed to the last hop. Otherwise as
    /// [`on_telemetry`](Self::on_telemetry).
    pub fn on_inflight(&mut self, now: Instant, inflight: Inflight, flows: NonZeroU32) -> Option<u64> {
        if self.last_update.is_none() {
            self.last_update = Some(now);
            return None;
        }
        // In-flight bytes beyond B * T are queued.
        let excess = (inflight.utilisation - 1.0).clamp(0.0, Inflight::MAX);
        let queueing = self.hpcc.config.base_rtt.mul_f64(excess);
        self.react(now, (self.last_hop, self.last_capacity, inflight), queueing, flows)
    }

    fn react(
        &mut self,
        now: Instant,
        measured: (HopIndex, Rate, Inflight),
        queueing: Duration,
        flows: NonZeroU32,
    ) -> Option<u64> {
        let base_rtt = self.hpcc.config.base_rtt;
        // The shorter of two, as in line 5, so that one forged record does not stop the window.
        let shorter = core::mem::replace(&mut self.queueing, queueing).min(queueing);
        let drained_at = now.after(shorter.min(base_rtt.saturating_mul(Self::MAX_QUEUE)));
        let has_passed = self.last_update.is_none_or(|last| now.saturating_since(last) > base_rtt);
        if !has_passed {
            self.answered_at = self.answered_at.map(|at| at.max(drained_at));
        }
        let due = has_passed && self.answered_at.is_none_or(|at| now > at);
        self.update(measured, flows, due);
        due.then(|| {
            self.last_update = Some(now);
            self.answered_at = Some(drained_at.after(base_rtt));
            self.hpcc.window()
        })
    }

    fn update(
        &mut self,
        (busiest, bandwidth, inflight): (HopIndex, Rate, Inflight),
        flows: NonZeroU32,
        due: bool,
    ) {
        self.hpcc.smooth(inflight);
        if busiest != self.last_hop {
            let mut bounds = self.hpcc.config.bounds();
            // Nobody counts the flows of this link, so the configured increase, for one flow by default, may be too much for all of them.
            bounds.additive_increase = bounds.additive_increase.min(self.hpcc.pull(bandwidth));
            return self.hpcc.compute_rate(due, bounds);
        }
        let at_last_hop = self.at_last_hop(flows);
        let part = (1.0 - ROOM / f64::from(flows.get())).max(FLOOR);
        let floor = (self.hpcc.share(self.last_capacity, flows).as_bps() as f64 * part) as u64;
        let least = Rate::from_bps(floor).max(at_last_hop.min_rate);
        let configured = core::mem::replace(&mut self.hpcc.config, at_last_hop);
        self.hpcc.compute_rate(due, Bounds { least, ..at_last_hop.bounds() });
        self.hpcc.config = configured;
    }

    /// Returns the parameters while the last hop is the busiest. `W_ai` is computed for the `flows` flows that share its link. A flow above
    /// its share increases no faster than a sender-based one, and its target is lower.
    fn at_last_hop(&self, flows: NonZeroU32) -> HpccConfig {
        let mut config = self.hpcc.config;
        let capacity = self.last_capacity.min(config.line_rate);
        let measured = HpccConfig::additive_increase(capacity, config.target_utilisation, flows).as_bps();
        let measured = Rate::from_bps(measured / SHARE);
        let shares =
            self.hpcc.rate.as_bps() as f64 * f64::from(flows.get()) / capacity.as_bps().max(1) as f64;
        if flows.get() > 1 && shares > 1.0 {
            config.additive_increase = measured.min(config.additive_increase);
            config.target_utilisation *= 1.0 - YIELD * (shares - 1.0).min(1.0);
        } else {
            config.additive_increase = measured;
        }
        config
    }
}

/// Divisor of the headroom that all increases together use per round trip. With all of the headroom the link would settle at U = eta / (1 -
/// (1 - eta) / eta) = 1 and keep a queue permanently.
const SHARE: u64 = 2;

/// A flow's floor is `max(1 - ROOM / flows, FLOOR)` of its share, so that all floors together leave up to `ROOM` shares for cuts. Many
/// flows cut together if they share a queue; their floors keep the link busy.
const ROOM: f64 = 1.2;
const FLOOR: f64 = 0.85;

/// Fraction of eta by which a flow with twice its share lowers its target. Without it a receiver-based flow gets 2.5 times the rate of a
/// sender-based flow on the same link, if both have a small `W_ai`.
const YIELD: f64 = 0.05;

/// The sender's side: it applies the windows that the receiver computes, within its own bounds.
#[derive(Clone, Copy, Debug)]
pub struct HpccReceiver {
    config: HpccConfig,
    rate: Rate,
}

impl HpccReceiver {
    /// Creates a flow at line rate.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: HpccConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, rate: config.line_rate })
    }

    /// Returns the parameters of the controller.
    #[must_use]
    pub const fn config(&self) -> &HpccConfig {
        &self.config
    }

    /// Returns `W` as a rate: the pacing rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }
}

impl CongestionController for HpccReceiver {
    fn on_send(&mut self, _now: Instant, _pn: u64, _bytes: u32) {}
    fn on_telemetry(&mut self, _ack: &Ack, _path: &PathTelemetry) {}
    fn on_ack(&mut self, _ack: &Ack) {}
    fn on_congestion_notification(&mut self, _now: Instant) {}
    fn on_loss(&mut self, _now: Instant) {}

    /// Sets `R = W / T`, clamped to the configured lowest rate and line rate.
    fn on_window(&mut self, window: u64) {
        let HpccConfig { line_rate, min_rate, .. } = self.config;
        // `W_init` is at least 1; the product of two 64-bit numbers fits into 128 bits.
        let bits = u128::from(window).saturating_mul(line_rate.as_bps().into());
        let rate = bits.checked_div(self.config.initial_window().into());
        let rate = rate.and_then(|rate| u64::try_from(rate).ok()).map_or(line_rate, Rate::from_bps);
        self.rate = rate.clamp(min_rate, line_rate);
    }

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _now: Instant) {}

    fn window(&self) -> u64 {
        self.config.window_at(self.rate)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Counter, Hop};
    use core::time::Duration;

    const ONE: NonZeroU32 = NonZeroU32::MIN;

    fn config() -> HpccConfig {
        HpccConfig {
            base_rtt: Duration::from_nanos(4160),
            line_rate: Rate::from_gbps(100),
            min_rate: Rate::from_mbps(100),
            target_utilisation: 0.95,
            max_stage: 5,
            additive_increase: Rate::from_mbps(50),
        }
    }

    /// Returns a path of two hops; hop `busy` has sent `tx` units of 128 bytes by `time`, the other none.
    fn path(busy: u8, time: u64, tx: u64, queue: u64) -> PathTelemetry {
        let mut path = PathTelemetry::new(1);
        for index in 0..2 {
            let (tx, queue) = if index == busy { (tx, queue) } else { (0, 0) };
            path.set(
                index,
                Hop {
                    bandwidth: Rate::from_gbps(100),
                    time: Counter::of::<24, 1>(time),
                    tx_bytes: Counter::of::<20, 128>(tx),
                    queue,
                },
            );
        }
        path
    }

    fn at(nanos: u64) -> Instant {
        Instant::from_nanos(nanos)
    }

    /// Lines 29 to 34: the window is sent, and the reference is updated, once more than T has passed.
    #[test]
    fn the_receiver_sends_a_window_once_per_round_trip() {
        let mut rx = RxHpcc::new(config()).unwrap();
        assert_eq!(rx.on_telemetry(at(1000), &path(0, 0, 0, 0), ONE), None, "nothing to compare with");
        assert_eq!(rx.on_telemetry(at(3080), &path(0, 2080, 203, 0), ONE), None);
        assert_eq!(rx.hpcc().reference_rate(), Rate::from_gbps(100));
        assert_eq!(rx.on_telemetry(at(5160), &path(0, 4160, 406, 0), ONE), None, "T has not passed");
        let window = rx.on_telemetry(at(5161), &path(0, 4161, 407, 0), ONE).unwrap();
        assert_eq!(window, rx.hpcc().window());
        assert_eq!(rx.on_telemetry(at(7000), &path(0, 6000, 600, 90_000), ONE), None);
        // 90,000 bytes drain in 7.2 µs; packets sent under the new window arrive after them.
        assert_eq!(rx.on_telemetry(at(9321), &path(0, 8321, 813, 90_000), ONE), None);
        assert_eq!(rx.on_telemetry(at(16_521), &path(0, 15_521, 1516, 90_000), ONE), None);
        assert!(rx.on_telemetry(at(16_522), &path(0, 15_522, 1516, 90_000), ONE).unwrap() < window);
    }

    /// The switch's clock stands still, so no rate can be computed.
    #[test]
    fn a_window_is_repeated_while_telemetry_cannot_be_measured() {
        let mut rx = RxHpcc::new(config()).unwrap();
        let last = 257 * 4160;
        assert_eq!(rx.on_telemetry(at(0), &path(0, 0, 0, 0), ONE), None);
        assert_eq!(rx.on_telemetry(at(last), &path(0, 0, 0, 0), ONE), None);
        assert_eq!(rx.on_telemetry(at(last + 1), &path(0, 0, 0, 0), ONE), Some(52_000));
        assert_eq!(rx.on_telemetry(at(last + 2), &path(0, 0, 0, 0), ONE), None);
        assert_eq!(rx.on_telemetry(at(3 * last), &PathTelemetry::new(1), ONE), None, "no switch writes");
    }

    /// rtgwg-00 6.3.2: N is measured, and is used if the last hop is the congestion point.
    #[test]
    fn the_increase_is_shared_by_the_flows_at_the_last_hop() {
        let grown = |busy, flows| {
            let mut rx = RxHpcc::new(config()).unwrap();
            let flows = NonZeroU32::new(flows).unwrap();
            rx.on_telemetry(at(0), &path(busy, 0, 0, 60_000), flows);
            // 60,000 bytes drain in 4.8 µs.
            rx.on_telemetry(at(8961), &path(busy, 8961, 875, 60_000), flows).unwrap();
            let low = rx.hpcc().rate().as_bps();
            rx.on_telemetry(at(17_922), &path(busy, 17_922, 1100, 0), flows).unwrap();
            rx.hpcc().rate().as_bps() - low
        };
        assert!(grown(1, 1).abs_diff(2_500_000_000) <= 1, "half of the headroom");
        assert_eq!(grown(1, 10), 50_000_000, "with more than its share: no more than configured");
        assert_eq!(grown(0, 10), 50_000_000, "not the last hop: as configured");
    }

    #[test]
    fn the_sender_clamps_reported_windows_to_its_bounds() {
        let mut sender = HpccReceiver::new(config()).unwrap();
        assert_eq!((sender.window(), sender.pacing_rate()), (52_000, Some(Rate::from_gbps(100))));
        sender.on_window(26_000);
        assert_eq!((sender.window(), sender.pacing_rate()), (26_000, Some(Rate::from_gbps(50))));
        sender.on_window(u64::MAX);
        assert_eq!((sender.window(), sender.pacing_rate()), (52_000, Some(Rate::from_gbps(100))));
        sender.on_window(0);
        assert_eq!((sender.window(), sender.pacing_rate()), (52, Some(Rate::from_mbps(100))));
    }
}
