//! HPCC++ (draft-miao-rtgwg-hpccplus-00).

mod active_flows;
mod config;
mod receiver;
mod records;

pub use active_flows::{ActiveFlows, FlowMark, PublishedFlows};
use config::Bounds;
pub use config::HpccConfig;
pub use receiver::{HpccReceiver, RxHpcc};
pub use records::{Inflight, PathRecords, RecordedHop};

use crate::{Ack, ConfigError, CongestionController, HopIndex, Instant, PathTelemetry, Rate, limits};
use core::num::NonZeroU32;
pub(crate) use records::{LEAST_ARRIVALS, PathReading, Signal};

/// HPCC++ computed at the sender (rtgwg-00 4.2).
///
/// The state is stored as rates in whole bits per second; the window is computed from the rate. The crate's README maps the draft's lines
/// to this code.
#[derive(Clone, Copy, Debug)]
pub struct Hpcc {
    config: HpccConfig,
    /// `L`.
    records: PathRecords,
    /// `U`.
    utilisation: f64,
    /// `W` as a rate.
    rate: Rate,
    /// `Wc` as a rate.
    reference_rate: Rate,
    /// `incStage`.
    inc_stage: u32,
    /// `lastUpdateSeq`.
    last_update_seq: u64,
    /// The last report, from a receiver that the setup asks for the number of its flows.
    receiver_link: Option<ReceiverLink>,
    variant: Variant,
}

/// The draft's algorithm, or the variant `hpcc-fair`. In the variant, the target decreases with the flow's own rate. While the busiest hop
/// is the receiver's own link, the rate does not fall below about `eta` of the flow's share of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Variant {
    Draft,
    Fair,
}

/// A receiver's report of its own link: the last hop of the path, which all its flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverLink {
    /// Index of that hop.
    pub hop: HopIndex,
    /// Number of active flows ([`ActiveFlows`]).
    pub flows: NonZeroU32,
}

impl Hpcc {
    /// Creates a flow at line rate, without telemetry.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn new(config: HpccConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            records: PathRecords::new(),
            utilisation: 1.0,
            rate: config.line_rate,
            reference_rate: config.line_rate,
            inc_stage: 0,
            last_update_seq: 0,
            receiver_link: None,
            variant: Variant::Draft,
        })
    }

    /// Returns the parameters of the controller.
    #[must_use]
    pub const fn config(&self) -> &HpccConfig {
        &self.config
    }

    pub(crate) const fn config_mut(&mut self) -> &mut HpccConfig {
        &mut self.config
    }

    /// Returns `U`: smoothed in-flight bytes of the busiest link as a share of `B * T`.
    #[must_use]
    pub const fn utilisation(&self) -> f64 {
        self.utilisation
    }

    /// Returns `W` as a rate: the pacing rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// Returns `Wc` as a rate: the reference from which the next rate is computed.
    #[must_use]
    pub const fn reference_rate(&self) -> Rate {
        self.reference_rate
    }

    /// Returns `incStage`: additive increases of the reference since its last multiplicative change.
    #[must_use]
    pub const fn inc_stage(&self) -> u32 {
        self.inc_stage
    }

    /// Returns `lastUpdateSeq`, in the unit of [`Ack::seq`]; 0 before the first telemetry.
    #[must_use]
    pub const fn last_update_seq(&self) -> u64 {
        self.last_update_seq
    }

    /// Creates a flow of the variant `hpcc-fair`.
    ///
    /// # Errors
    /// Returns a [`ConfigError`] if a parameter is out of its limits.
    pub fn fair(config: HpccConfig) -> Result<Self, ConfigError> {
        Ok(Self { variant: Variant::Fair, ..Self::new(config)? })
    }

    /// Returns the flow with `rate` as its initial rate, for hosts that share the line rate between their flows.
    #[must_use]
    pub fn starting_at(self, rate: Rate) -> Self {
        let rate = rate.clamp(self.config.min_rate, self.config.line_rate);
        Self { rate, reference_rate: rate, ..self }
    }

    /// Returns whether the variant is `hpcc-fair`.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        matches!(self.variant, Variant::Fair)
    }

    /// Returns the limits of the rate that a measurement of `hop` sets.
    fn bounds(&self, hop: HopIndex, path: &PathTelemetry) -> Bounds {
        let bounds = self.config.bounds();
        let counted = self.receiver_link.filter(|link| link.hop == hop).map(|link| link.flows);
        if self.variant == Variant::Draft && counted.is_none() {
            return bounds;
        }
        let bandwidth = path.hops().find(|(index, _)| *index == hop).map(|(_, hop)| hop.bandwidth);
        let Some(bandwidth) = bandwidth else { return bounds };
        let HpccConfig { line_rate, target_utilisation: eta, .. } = self.config;
        match (self.variant, counted) {
            (Variant::Draft, None) => bounds,
            // rtgwg-00 5: `W_init * (1 - eta) / N` of this link.
            (Variant::Draft, Some(flows)) => {
                let link = bandwidth.min(line_rate);
                Bounds { additive_increase: HpccConfig::additive_increase(link, eta, flows), ..bounds }
            }
            (Variant::Fair, Some(flows)) => {
                Bounds { least: self.share(bandwidth, flows).max(bounds.least), ..bounds }
            }
            (Variant::Fair, None) => {
                let configured = bounds.additive_increase;
                Bounds { additive_increase: self.pull(bandwidth).max(configured), ..bounds }
            }
        }
    }

    /// Returns [`PULL`] times the geometric mean of the link's rate and the flow's own. On a link whose flows are not counted, the rate of
    /// a flow far below the others then increases by a large share. The increases of n equal flows are `PULL * sqrt(n)` of the link
    /// together.
    fn pull(&self, bandwidth: Rate) -> Rate {
        let link = bandwidth.min(self.config.line_rate);
        let rates = link.as_bps() as f64 * self.reference_rate.as_bps() as f64;
        Rate::from_bps((sqrt(rates) * PULL) as u64)
    }

    /// Returns `eta` of an equal share of a link of `bandwidth`. It decreases to 0 as `U` rises from 2 to 4, so that queues drain; it is 0
    /// for a single flow.
    fn share(&self, bandwidth: Rate, flows: NonZeroU32) -> Rate {
        if flows.get() < 2 {
            return Rate::from_bps(0);
        }
        let drains = ((4.0 - self.utilisation) / 2.0).clamp(0.0, 1.0);
        let HpccConfig { line_rate, target_utilisation, .. } = self.config;
        let share = bandwidth.min(line_rate).as_bps() as f64 * target_utilisation * drains;
        Rate::from_bps((share / f64::from(flows.get())) as u64)
    }

    /// Returns `eta`; in `hpcc-fair` from `eta - SPAN / 2` at line rate to `eta + SPAN / 2` at 2^-[`DOUBLINGS`] of it. Of two flows on a
    /// link the faster has the lower target, so that their rates converge.
    #[inline]
    fn target(&self) -> f64 {
        let eta = self.config.target_utilisation;
        if !self.is_fair() {
            return eta;
        }
        let below = self.config.line_rate.as_bps() as f64 / self.reference_rate.as_bps().max(1) as f64;
        (eta + SPAN * ((log2(below) / DOUBLINGS).clamp(0.0, 1.0) - 0.5)).min(1.0)
    }

    /// Applies lines 22 to 26 to a measurement, within `bounds`.
    fn react(&mut self, ack: &Ack, busiest: Inflight, bounds: Bounds) {
        self.smooth(busiest);
        let update_reference = ack.seq > self.last_update_seq;
        self.compute_rate(update_reference, bounds);
        if update_reference {
            self.last_update_seq = ack.next;
        }
    }

    /// Applies lines 8 and 9.
    fn smooth(&mut self, busiest: Inflight) {
        let weight = (busiest.interval as f64 / limits::nanos(self.config.base_rtt)).min(1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * busiest.utilisation;
    }

    /// Applies lines 11 to 20, `ComputeWind`, to rates.
    fn compute_rate(&mut self, update_reference: bool, Bounds { least, additive_increase }: Bounds) {
        let max_stage = self.config.max_stage;
        let eta = self.target();
        let (base, inc_stage) = if self.utilisation >= eta || self.inc_stage >= max_stage {
            // `as` saturates, so U = 0 results in the line rate below.
            ((self.reference_rate.as_bps() as f64 / (self.utilisation / eta)) as u64, 0)
        } else {
            (self.reference_rate.as_bps(), self.inc_stage.saturating_add(1))
        };
        let rate = Rate::from_bps(base.saturating_add(additive_increase.as_bps()));
        self.rate = rate.clamp(least.min(self.config.line_rate), self.config.line_rate);
        if update_reference {
            self.reference_rate = self.rate;
            self.inc_stage = inc_stage;
        }
    }
}

/// Difference between the targets of `hpcc-fair` at 2^-[`DOUBLINGS`] of the line rate and at the line rate.
const SPAN: f64 = 0.08;
const DOUBLINGS: f64 = 10.0;

/// Additive increase as a part of the geometric mean of a link's rate and a flow's rate.
const PULL: f64 = 0.02;

/// Returns an approximate square root of a normal number above 0, at most 6 % too large.
fn sqrt(number: f64) -> f64 {
    f64::from_bits(u64::midpoint(number.to_bits(), 1.0_f64.to_bits()))
}

/// Returns an approximate base-2 logarithm of a normal number above 0: linear between powers of two, which preserves the order.
fn log2(number: f64) -> f64 {
    const MANTISSA: f64 = (1_u64 << 52) as f64;
    const BIAS: f64 = 1023.0;
    number.to_bits() as f64 / MANTISSA - BIAS
}

impl CongestionController for Hpcc {
    #[inline]
    fn on_send(&mut self, _now: Instant, _pn: u64, _bytes: u32) {}

    /// Applies lines 21 to 27, `NewAck`.
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        match self.records.record(ack.now, path, self.config.base_rtt) {
            // The packets that this telemetry describes were sent before any reference was set, so the whole first window reacts relative
            // to the initial one.
            PathReading::FirstPath => self.last_update_seq = ack.next,
            PathReading::NewPath | PathReading::Nothing => {}
            PathReading::Measured(hop, busiest) => {
                let bounds = self.bounds(hop, path);
                self.react(ack, busiest, bounds);
            }
        }
    }

    /// Applies lines 22 to 26 to a share that the receiver or a switch measured. The first one sets `lastUpdateSeq`, so that the whole first
    /// window reacts relative to the initial rate. A share measured over 0 ns is ignored.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        if self.last_update_seq == 0 {
            self.last_update_seq = ack.next;
        }
        if busiest.interval > 0 {
            self.react(ack, *busiest, self.config.bounds());
        }
    }

    fn on_receiver_link(&mut self, link: ReceiverLink) {
        self.receiver_link = Some(link);
    }

    fn records(&self) -> Option<&PathRecords> {
        Some(&self.records)
    }

    /// Discards the records, as for another `pathID`: two paths through the same switches have the same `pathID`. Rate, reference and `U`
    /// stay, and the next telemetry changes no rate.
    fn on_path_change(&mut self) {
        self.records = PathRecords::new();
    }

    fn on_ack(&mut self, _ack: &Ack) {}

    fn on_congestion_notification(&mut self, _now: Instant) {}

    /// Does nothing: the draft has no reaction to loss.
    fn on_loss(&mut self, _now: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _now: Instant) {}

    #[inline]
    fn window(&self) -> u64 {
        self.config.window_at(self.rate)
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests;
