//! HPCC++ computed at the receiver (rtgwg-00 6.3.2, lines 28 to 34).

use super::records::Heard;
use super::{Hpcc, HpccConfig, Inflight};
use crate::{Ack, ConfigError, CongestionController, HopIndex, Instant, PathTelemetry, Rate, limits};
use core::num::NonZeroU32;
use core::time::Duration;

/// The receiver's side: it computes a flow's window from the telemetry that its packets bring.
///
/// The flow's parameters are the sender's: the sender must send `T`, line rate and the rest.
#[derive(Clone, Copy, Debug)]
pub struct RxHpcc {
    hpcc: Hpcc,
    /// `lastUpdateTime`; none before the first telemetry.
    last_update: Option<Instant>,
    /// When packets come that were sent by the last window: after `T`, and behind what waited when they came to the queues.
    answered_at: Option<Instant>,
    /// The time in which the path's queues drain, by the last telemetry.
    queueing: Duration,
    /// The last switch on the path, as far as telemetry has shown.
    last_hop: HopIndex,
    /// The rate of its link.
    last_capacity: Rate,
}

impl RxHpcc {
    /// A flow without telemetry yet.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of its limits.
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

    /// The algorithm's state.
    #[must_use]
    pub const fn hpcc(&self) -> &Hpcc {
        &self.hpcc
    }

    /// `NewINT`: a packet brought telemetry. Gives the window, in payload bytes, when it is time to send it: once
    /// per round trip: `T` and the time in which the path's queues drain.
    ///
    /// `flows` is how many flows this receiver takes in at the moment ([`ActiveFlows`]). If the last switch is the
    /// busiest they share its link, and `W_ai` is half of that link's headroom divided by them; elsewhere it is the
    /// configured one.
    pub fn on_telemetry(&mut self, now: Instant, path: &PathTelemetry, flows: NonZeroU32) -> Option<u64> {
        let base_rtt = self.hpcc.config.base_rtt;
        let heard = self.hpcc.records.hear(now, path, base_rtt);
        let mut queueing = Duration::ZERO;
        for (index, hop) in path.hops() {
            (self.last_hop, self.last_capacity) = (index, hop.bandwidth);
            queueing = queueing.saturating_add(hop.bandwidth.time_for(hop.queue));
        }
        let (busiest, inflight) = match heard {
            Heard::Measured(busiest, inflight) => (busiest, inflight),
            Heard::FirstPath => {
                self.last_update = Some(now);
                return None;
            }
            Heard::NewPath | Heard::Nothing => return None,
        };
        self.react(now, (busiest, inflight), queueing, flows)
    }

    /// As [`on_telemetry`](Self::on_telemetry), if the switches computed the busiest link's in-flight share; it counts as the last link's.
    pub fn on_inflight(&mut self, now: Instant, inflight: Inflight, flows: NonZeroU32) -> Option<u64> {
        if self.last_update.is_none() {
            self.last_update = Some(now);
            return None;
        }
        // In-flight bytes beyond the capacity of the link and T wait in a queue; a link that is just full is taken to have no queue.
        let excess = (inflight.utilisation - 1.0).clamp(0.0, Inflight::MOST);
        let queueing = self.hpcc.config.base_rtt.mul_f64(excess);
        self.react(now, (self.last_hop, inflight), queueing, flows)
    }

    fn react(
        &mut self,
        now: Instant,
        (busiest, inflight): (HopIndex, Inflight),
        queueing: Duration,
        flows: NonZeroU32,
    ) -> Option<u64> {
        let base_rtt = self.hpcc.config.base_rtt;
        // The shorter of two, as in line 5: one forged record must not stop the window.
        let shorter = core::mem::replace(&mut self.queueing, queueing).min(queueing);
        let drained_at = now.after(shorter.min(base_rtt.saturating_mul(LONGEST_QUEUE)));
        let has_passed = self.last_update.is_none_or(|last| now.saturating_since(last) > base_rtt);
        if !has_passed {
            self.answered_at = self.answered_at.map(|at| at.max(drained_at));
        }
        let due = has_passed && self.answered_at.is_none_or(|at| now > at);
        self.update(busiest, inflight, flows, due);
        due.then(|| {
            self.last_update = Some(now);
            self.answered_at = Some(drained_at.after(base_rtt));
            self.hpcc.window()
        })
    }

    fn update(&mut self, busiest: HopIndex, inflight: Inflight, flows: NonZeroU32, due: bool) {
        self.hpcc.smooth(inflight);
        if busiest != self.last_hop {
            return self.hpcc.compute_rate(due, self.hpcc.config.min_rate);
        }
        let at_last_hop = self.at_last_hop(flows);
        // A float's cast to an integer stops at the integer's ends.
        let part = (1.0 - ROOM / f64::from(flows.get())).max(FLOOR);
        let floor = (self.hpcc.share(self.last_capacity, flows).as_bps() as f64 * part) as u64;
        let least = Rate::from_bps(floor).max(at_last_hop.min_rate);
        let configured = core::mem::replace(&mut self.hpcc.config, at_last_hop);
        self.hpcc.compute_rate(due, least);
        self.hpcc.config = configured;
    }

    /// The parameters while the last link is the busiest, of which the receiver knows how many flows share it: `W_ai` is theirs, and a
    /// flow with more than its share does not grow faster than a sender that knows no N, and yields.
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

/// Round trips that a queue takes to drain at most: what so many first windows leave. More is not believed, or one forged record would
/// freeze the window.
const LONGEST_QUEUE: u32 = 256;

/// The part of the headroom that all flows' increases together take in a round trip. With N as it is and all of the headroom
/// the link settles at U = eta / (1 - (1 - eta) / eta) = 1, with a queue for ever.
const SHARE: u64 = 2;

/// The part of one flow's share that the floors of all flows leave open, so that few flows can cut; and the least that a floor is.
/// Many flows that see the same queue cut together, and their floors keep the link busy.
const ROOM: f64 = 1.2;
const FLOOR: f64 = 0.85;

/// By how much of eta a flow with twice its share aims lower. Without it a flow that the receiver paces takes two and a half times
/// what a sender-based flow beside it does, if both have a small `W_ai`.
const YIELD: f64 = 0.05;

/// The sender's side: it keeps to the window that the receiver computes, within its own bounds.
#[derive(Clone, Copy, Debug)]
pub struct HpccReceiver {
    config: HpccConfig,
    rate: Rate,
}

impl HpccReceiver {
    /// A flow at line rate that received no window yet.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of its limits.
    pub fn new(config: HpccConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self { config, rate: config.line_rate })
    }

    /// Returns the parameters that the controller was created with.
    #[must_use]
    pub const fn config(&self) -> &HpccConfig {
        &self.config
    }

    /// `W` as a rate: the pacing rate.
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

    /// `R = W / T`, from the lowest rate to the line rate whatever the receiver says.
    fn on_window(&mut self, window: u64) {
        let HpccConfig { line_rate, min_rate, .. } = self.config;
        // `W_init` is at least 1, and the product of two 64-bit numbers fits 128 bits.
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
        limits::window(self.config.initial_window(), self.rate, self.config.line_rate)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

/// A flow's place in [`ActiveFlows`]: when it was counted last.
#[derive(Clone, Copy, Debug, Default)]
pub struct FlowMark(u64);

/// Counts the flows that a receiver takes in: those that sent in the present period or, if more, in the one before.
#[derive(Clone, Copy, Debug)]
pub struct ActiveFlows {
    /// Counts periods from 1.
    period: u64,
    since: Instant,
    now: u32,
    before: u32,
}

impl Default for ActiveFlows {
    fn default() -> Self {
        Self::new()
    }
}

impl ActiveFlows {
    /// No flow yet.
    #[must_use]
    pub const fn new() -> Self {
        Self { period: 1, since: Instant::ZERO, now: 0, before: 0 }
    }

    /// A packet of the flow that `mark` belongs to came. A period ends with the first packet after `length`; it should
    /// be some round trips, so that a slow flow is seen in each.
    pub fn on_packet(&mut self, now: Instant, length: Duration, mark: &mut FlowMark) {
        if now.saturating_since(self.since) >= length {
            self.before =
                if now.saturating_since(self.since) >= length.saturating_mul(2) { 0 } else { self.now };
            (self.now, self.since) = (0, now);
            self.period = self.period.wrapping_add(1);
        }
        if mark.0 != self.period {
            mark.0 = self.period;
            self.now = self.now.saturating_add(1);
        }
    }

    /// Returns the number of flows; at least 1.
    #[must_use]
    pub fn count(&self) -> NonZeroU32 {
        NonZeroU32::new(self.now.max(self.before)).unwrap_or(NonZeroU32::MIN)
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

    /// A path of two switches; the one at `busy` sends `tx` units of 128 bytes by `time`, the other nothing.
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

    /// Lines 29 to 34: the window is sent, and the reference moves, when more than T has passed.
    #[test]
    fn the_window_leaves_once_per_round_trip() {
        let mut rx = RxHpcc::new(config()).unwrap();
        assert_eq!(rx.on_telemetry(at(1000), &path(0, 0, 0, 0), ONE), None, "nothing to compare with");
        assert_eq!(rx.on_telemetry(at(3080), &path(0, 2080, 203, 0), ONE), None);
        assert_eq!(rx.hpcc().reference_rate(), Rate::from_gbps(100));
        assert_eq!(rx.on_telemetry(at(5160), &path(0, 4160, 406, 0), ONE), None, "T has not passed");
        let window = rx.on_telemetry(at(5161), &path(0, 4161, 407, 0), ONE).unwrap();
        assert_eq!(window, rx.hpcc().window());
        assert_eq!(rx.on_telemetry(at(7000), &path(0, 6000, 600, 90_000), ONE), None);
        // 90,000 bytes take 7.2 us: packets sent by the window come behind them.
        assert_eq!(rx.on_telemetry(at(9321), &path(0, 8321, 813, 90_000), ONE), None);
        assert_eq!(rx.on_telemetry(at(16_521), &path(0, 15_521, 1516, 90_000), ONE), None);
        assert!(rx.on_telemetry(at(16_522), &path(0, 15_522, 1516, 90_000), ONE).unwrap() < window);
    }

    /// rtgwg-00 6.3.2: N is measured, and counts if the last hop is the congestion point.
    #[test]
    fn the_increase_is_shared_by_the_flows_at_the_last_hop() {
        let grown = |busy, flows| {
            let mut rx = RxHpcc::new(config()).unwrap();
            let flows = NonZeroU32::new(flows).unwrap();
            rx.on_telemetry(at(0), &path(busy, 0, 0, 60_000), flows);
            // 60,000 bytes drain in 4.8 us.
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
    fn the_sender_stays_in_its_bounds_whatever_it_is_told() {
        let mut sender = HpccReceiver::new(config()).unwrap();
        assert_eq!((sender.window(), sender.pacing_rate()), (52_000, Some(Rate::from_gbps(100))));
        sender.on_window(26_000);
        assert_eq!((sender.window(), sender.pacing_rate()), (26_000, Some(Rate::from_gbps(50))));
        sender.on_window(u64::MAX);
        assert_eq!((sender.window(), sender.pacing_rate()), (52_000, Some(Rate::from_gbps(100))));
        sender.on_window(0);
        assert_eq!((sender.window(), sender.pacing_rate()), (52, Some(Rate::from_mbps(100))));
    }

    #[test]
    fn flows_are_counted_while_they_send() {
        let mut active = ActiveFlows::default();
        let mut marks = [FlowMark::default(); 3];
        let mut arrive = |micros: u64, flow: usize| {
            active.on_packet(at(micros * 1000), Duration::from_micros(10), &mut marks[flow]);
            active.count().get()
        };
        assert_eq!([arrive(0, 0), arrive(1, 1), arrive(2, 0), arrive(3, 2)], [1, 2, 2, 3]);
        assert_eq!(arrive(12, 0), 3, "the period before counts until this one has more");
        assert_eq!(arrive(13, 1), 3);
        assert_eq!(arrive(24, 0), 2, "the third did not send in a whole period");
        assert_eq!(arrive(100, 1), 1, "nobody sent in the period before");
    }
}
