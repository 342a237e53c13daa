mod config;
mod receiver;
mod records;

pub use config::HpccConfig;
pub use receiver::{ActiveFlows, FlowMark, HpccReceiver, RxHpcc};
pub use records::{Inflight, PathRecords};

use crate::{Ack, ConfigError, CongestionController, HopIndex, Instant, PathTelemetry, Rate, limits};
use records::Heard;

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
    /// Of the variant `hpcc-fair`.
    floor: Option<FairFloor>,
}

/// What the variant `hpcc-fair` adds to the draft: while the busiest hop is the receiver's own link, a flow does not go below
/// (nearly) its share of it, since the receiver, which counts its flows, says how large that is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FairFloor {
    /// The receiver's link on the path: the last hop.
    pub hop: HopIndex,
    /// Not below this rate, whatever that hop says.
    pub rate: Rate,
}

impl Hpcc {
    /// A flow at line rate that has heard nothing yet.
    ///
    /// # Errors
    /// A parameter out of its limits.
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
            floor: None,
        })
    }

    /// What it was made with.
    #[must_use]
    pub const fn config(&self) -> &HpccConfig {
        &self.config
    }

    /// `U`: smoothed in-flight bytes of the busiest link, as a share of what link and base round trip hold.
    #[must_use]
    pub const fn utilisation(&self) -> f64 {
        self.utilisation
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

    /// The variant `hpcc-fair`: what the receiver says of its own link, until it says something else. `None`: the draft.
    pub const fn set_floor(&mut self, floor: Option<FairFloor>) {
        self.floor = floor;
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
        let weight = (busiest.interval as f64 / self.config.base_rtt.as_nanos() as f64).min(1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * busiest.utilisation;
    }

    /// Lines 11 to 20, `ComputeWind`, on rates.
    fn compute_rate(&mut self, update_reference: bool, floor: Rate) {
        let HpccConfig { target_utilisation: eta, max_stage, additive_increase, .. } = self.config;
        let (base, inc_stage) = if self.utilisation >= eta || self.inc_stage >= max_stage {
            // A float's cast to an integer stops at the integer's ends: U = 0 gives the line rate below.
            ((self.reference_rate.as_bps() as f64 / (self.utilisation / eta)) as u64, 0)
        } else {
            (self.reference_rate.as_bps(), self.inc_stage + 1)
        };
        let rate = Rate::from_bps(base.saturating_add(additive_increase.as_bps()));
        self.rate = rate.clamp(floor.min(self.config.line_rate), self.config.line_rate);
        if update_reference {
            self.reference_rate = self.rate;
            self.inc_stage = inc_stage;
        }
    }
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
                let floor = self.floor.filter(|floor| floor.hop == hop);
                let least = self.config.min_rate;
                self.react(ack, busiest, floor.map_or(least, |floor| floor.rate.max(least)));
            }
        }
    }

    /// The same, where the receiver measured.
    fn on_inflight(&mut self, ack: &Ack, busiest: &Inflight) {
        if self.last_update_seq == 0 {
            self.last_update_seq = ack.next;
            return;
        }
        self.react(ack, *busiest, self.config.min_rate);
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
