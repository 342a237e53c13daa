//! HPCC++ (draft-miao-rtgwg-hpccplus-00).

mod config;
mod receiver;
mod records;

pub use config::HpccConfig;
pub use receiver::{ActiveFlows, FlowMark, HpccReceiver, RxHpcc};
pub use records::{HeardHop, Inflight, PathRecords};

use crate::{Ack, ConfigError, CongestionController, Hop, HopIndex, Instant, PathTelemetry, Rate, limits};
use core::num::NonZeroU32;
pub(crate) use records::{Heard, Signal};

/// HPCC++ computed at the sender (rtgwg-00 4.2).
///
/// The state is kept as rates in whole bits per second; the window follows from the rate. The crate's README goes
/// through the algorithm line by line.
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
    variant: Variant,
}

/// The draft, or what the variant `hpcc-fair` adds to it: a target that falls with the flow's own rate, and while the busiest hop is the
/// receiver's own link, a flow does not go below (nearly) its share of it.
#[derive(Clone, Copy, Debug)]
enum Variant {
    Draft,
    /// With what the receiver said last.
    Fair(Option<ReceiverLink>),
}

/// A receiver's report about its own link: the last hop of the path, which all its flows share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiverLink {
    /// Its place on the path.
    pub hop: HopIndex,
    /// The number of flows that it counts ([`ActiveFlows`]).
    pub flows: NonZeroU32,
}

impl Hpcc {
    /// A flow at line rate that has received no telemetry yet.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of its limits.
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
            variant: Variant::Draft,
        })
    }

    /// Returns the parameters that the controller was created with.
    #[must_use]
    pub const fn config(&self) -> &HpccConfig {
        &self.config
    }

    pub(crate) const fn config_mut(&mut self) -> &mut HpccConfig {
        &mut self.config
    }

    /// `U`: smoothed in-flight bytes of the busiest link, as a share of the capacity of link and base round trip.
    #[must_use]
    pub const fn utilisation(&self) -> f64 {
        self.utilisation
    }

    /// Returns what telemetry said of the hops.
    pub(crate) const fn records(&self) -> &PathRecords {
        &self.records
    }

    /// `W` as a rate: the pacing rate.
    #[must_use]
    pub const fn rate(&self) -> Rate {
        self.rate
    }

    /// `Wc` as a rate: what the next rate is computed from.
    #[must_use]
    pub const fn reference_rate(&self) -> Rate {
        self.reference_rate
    }

    /// `incStage`: additive increases of the reference since the last multiplicative change.
    #[must_use]
    pub const fn inc_stage(&self) -> u32 {
        self.inc_stage
    }

    /// `lastUpdateSeq`, in the unit of [`Ack::seq`]; 0 before the first telemetry.
    #[must_use]
    pub const fn last_update_seq(&self) -> u64 {
        self.last_update_seq
    }

    /// A flow of the variant `hpcc-fair`.
    ///
    /// # Errors
    /// Returns an error if a parameter is out of its limits.
    pub fn fair(config: HpccConfig) -> Result<Self, ConfigError> {
        Ok(Self { variant: Variant::Fair(None), ..Self::new(config)? })
    }

    /// Returns the same flow, starting at `rate` instead of the line rate: for hosts that know of their other flows.
    #[must_use]
    pub fn starting_at(self, rate: Rate) -> Self {
        let rate = rate.clamp(self.config.min_rate, self.config.line_rate);
        Self { rate, reference_rate: rate, ..self }
    }

    /// Returns whether it is the variant `hpcc-fair`.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        matches!(self.variant, Variant::Fair(_))
    }

    /// The rate below which `hop`'s in-flight bytes do not bring a flow: the lowest rate; of the variant `hpcc-fair` at the receiver's
    /// own link, [`share`](Self::share).
    fn least(&self, hop: HopIndex, path: &PathTelemetry) -> Rate {
        let min_rate = self.config.min_rate;
        let Variant::Fair(Some(link)) = self.variant else { return min_rate };
        let bandwidth = path.hops().find(|(index, _)| *index == hop && link.hop == hop);
        let Some((_, &Hop { bandwidth, .. })) = bandwidth else { return min_rate };
        self.share(bandwidth, link.flows).max(min_rate)
    }

    /// The rate below which a flow does not go at a link of `bandwidth` that it shares with others: `eta` of its share of it, less the longer
    /// the link's queue is, and nothing if the flow is alone.
    fn share(&self, bandwidth: Rate, flows: NonZeroU32) -> Rate {
        if flows.get() < 2 {
            return Rate::from_bps(0);
        }
        let drains = ((4.0 - self.utilisation) / 2.0).clamp(0.0, 1.0);
        let HpccConfig { line_rate, target_utilisation, .. } = self.config;
        let share = bandwidth.min(line_rate).as_bps() as f64 * target_utilisation * drains;
        // A float's cast to an integer stops at the integer's ends.
        Rate::from_bps((share / f64::from(flows.get())) as u64)
    }

    /// `eta`. Of the variant `hpcc-fair` it falls with the flow's own rate, by `SPAN` over a thousandth of the line rate: of two flows on
    /// one link the faster aims lower, until both are as fast.
    #[inline]
    fn target(&self) -> f64 {
        let eta = self.config.target_utilisation;
        if !self.is_fair() {
            return eta;
        }
        let below = self.config.line_rate.as_bps() as f64 / self.reference_rate.as_bps().max(1) as f64;
        (eta + SPAN * ((log2(below) / DOUBLINGS).clamp(0.0, 1.0) - 0.5)).min(1.0)
    }

    /// Lines 22 to 26, with what was measured. Not below `floor`.
    fn react(&mut self, ack: &Ack, busiest: Inflight, floor: Rate) {
        self.smooth(busiest);
        let update_reference = ack.seq > self.last_update_seq;
        self.compute_rate(update_reference, floor);
        if update_reference {
            self.last_update_seq = ack.next;
        }
    }

    /// Lines 8 and 9.
    fn smooth(&mut self, busiest: Inflight) {
        let weight = (busiest.interval as f64 / limits::nanos(self.config.base_rtt)).min(1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * busiest.utilisation;
    }

    /// Lines 11 to 20, `ComputeWind`, on rates.
    fn compute_rate(&mut self, update_reference: bool, floor: Rate) {
        let HpccConfig { max_stage, additive_increase, .. } = self.config;
        let eta = self.target();
        let (base, inc_stage) = if self.utilisation >= eta || self.inc_stage >= max_stage {
            // A float's cast to an integer stops at the integer's ends: U = 0 results in the line rate below.
            ((self.reference_rate.as_bps() as f64 / (self.utilisation / eta)) as u64, 0)
        } else {
            (self.reference_rate.as_bps(), self.inc_stage.saturating_add(1))
        };
        let rate = Rate::from_bps(base.saturating_add(additive_increase.as_bps()));
        self.rate = rate.clamp(floor.min(self.config.line_rate), self.config.line_rate);
        if update_reference {
            self.reference_rate = self.rate;
            self.inc_stage = inc_stage;
        }
    }
}

/// By how much the target of a flow of `hpcc-fair` at line rate is below that of one at 2^-[`DOUBLINGS`] of it.
const SPAN: f64 = 0.08;
const DOUBLINGS: f64 = 10.0;

/// The logarithm of a normal number above 0, straight between powers of two: as good as the exact one to distinguish faster from slower.
fn log2(number: f64) -> f64 {
    const MANTISSA: f64 = (1_u64 << 52) as f64;
    const BIAS: f64 = 1023.0;
    number.to_bits() as f64 / MANTISSA - BIAS
}

impl CongestionController for Hpcc {
    #[inline]
    fn on_send(&mut self, _now: Instant, _pn: u64, _bytes: u32) {}

    /// Lines 21 to 27, `NewAck`.
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        match self.records.hear(ack.now, path, self.config.base_rtt) {
            // The flow's first telemetry belongs to packets sent before any reference was set, so the whole first
            // window reacts relative to the initial one.
            Heard::FirstPath => self.last_update_seq = ack.next,
            Heard::NewPath | Heard::Nothing => {}
            Heard::Measured(hop, busiest) => {
                let least = self.least(hop, path);
                self.react(ack, busiest, least);
            }
        }
    }

    /// The same, if the receiver measured.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        if self.last_update_seq == 0 {
            self.last_update_seq = ack.next;
            return;
        }
        self.react(ack, *busiest, self.config.min_rate);
    }

    fn on_receiver_link(&mut self, link: ReceiverLink) {
        if self.is_fair() {
            self.variant = Variant::Fair(Some(link));
        }
    }

    /// As with another `pathID`, which two paths through the same switches do not have: rate, reference and `U` stay, and the
    /// next telemetry only records.
    fn on_path_change(&mut self) {
        self.records = PathRecords::new();
    }

    /// An acknowledgement without telemetry says nothing to HPCC++.
    fn on_ack(&mut self, _ack: &Ack) {}

    fn on_congestion_notification(&mut self, _now: Instant) {}

    /// The draft has no reaction to loss: the state stays.
    fn on_loss(&mut self, _now: Instant) {}

    fn poll_timeout(&self) -> Option<Instant> {
        None
    }

    fn on_timeout(&mut self, _now: Instant) {}

    /// `W = W_init * R / R_max`; at least 1, so that one packet may always leave.
    #[inline]
    fn window(&self) -> u64 {
        limits::window(self.config.initial_window(), self.rate, self.config.line_rate)
    }

    #[inline]
    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests;
