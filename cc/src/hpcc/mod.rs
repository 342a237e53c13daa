mod config;

pub use config::HpccConfig;

use crate::{Ack, ConfigError, CongestionController, Hop, Instant, MAX_HOPS, PathTelemetry, Rate};
use core::time::Duration;

/// What a hop said last, and when we heard it.
#[derive(Clone, Copy, Debug)]
struct Record {
    hop: Hop,
    heard: Instant,
}

/// What two readings of one hop say of the time between them.
#[derive(Clone, Copy, Debug)]
struct Inflight {
    /// `u'`: in-flight bytes as a share of what the link and the base round trip hold.
    utilisation: f64,
    /// `ack.L[i].ts - L[i].ts` in ns; above 0.
    interval: u64,
}

/// HPCC++ computed at the sender (rtgwg-00 4.2).
///
/// The state is kept as rates in whole bits per second; the window follows from the rate. The crate's README goes
/// through the algorithm line by line.
#[derive(Clone, Copy, Debug)]
pub struct Hpcc {
    config: HpccConfig,
    /// The path of `records`; none before the first telemetry.
    path_id: Option<u16>,
    /// `L`: by hop index, since a response may carry the busiest hop only.
    records: [Option<Record>; MAX_HOPS],
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
            path_id: None,
            records: [None; MAX_HOPS],
            utilisation: 1.0,
            rate: config.line_rate,
            reference_rate: config.line_rate,
            inc_stage: 0,
            last_update_seq: 0,
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

    /// Line 27's `L = ack.L` where there is nothing to compare with.
    fn start_path(&mut self, ack: &Ack, path: &PathTelemetry) {
        // The flow's first telemetry belongs to packets sent before any reference was set, so the whole first
        // window reacts relative to the initial one. A changed path leaves the references as they are.
        if self.path_id.replace(path.path_id()).is_none() {
            self.last_update_seq = ack.next;
        }
        self.records = [None; MAX_HOPS];
        for (index, hop) in path.hops() {
            self.records[usize::from(index)] = Some(Record { hop: *hop, heard: ack.now });
        }
    }

    /// Lines 1 to 10, `MeasureInflight`; `false` where no hop could be measured, and `U` stays.
    fn measure_inflight(&mut self, now: Instant, path: &PathTelemetry) -> bool {
        let mut busiest: Option<Inflight> = None;
        for (index, hop) in path.hops() {
            let record = &mut self.records[usize::from(index)];
            let seen = match record {
                Some(last) => compare(last, hop, now, self.config.base_rtt),
                None => Comparison::Unknown,
            };
            match seen {
                Comparison::Late => continue,
                Comparison::Unknown => {}
                // Lines 6 and 7.
                Comparison::Measured(inflight) => {
                    if busiest.is_none_or(|most| inflight.utilisation > most.utilisation) {
                        busiest = Some(inflight);
                    }
                }
            }
            *record = Some(Record { hop: *hop, heard: now });
        }
        let Some(Inflight { utilisation, interval }) = busiest else { return false };
        // Lines 8 and 9.
        let base_rtt = self.config.base_rtt.as_nanos() as f64;
        let weight = (interval as f64 / base_rtt).min(1.0);
        self.utilisation = (1.0 - weight) * self.utilisation + weight * utilisation;
        true
    }

    /// Lines 11 to 20, `ComputeWind`, on rates.
    fn compute_rate(&mut self, update_reference: bool) {
        let HpccConfig { target_utilisation: eta, max_stage, additive_increase, .. } = self.config;
        let (base, inc_stage) = if self.utilisation >= eta || self.inc_stage >= max_stage {
            // A float's cast to an integer stops at the integer's ends: U = 0 gives the line rate below.
            ((self.reference_rate.as_bps() as f64 / (self.utilisation / eta)) as u64, 0)
        } else {
            (self.reference_rate.as_bps(), self.inc_stage + 1)
        };
        let rate = Rate::from_bps(base.saturating_add(additive_increase.as_bps()));
        self.rate = rate.clamp(self.config.min_rate, self.config.line_rate);
        if update_reference {
            self.reference_rate = self.rate;
            self.inc_stage = inc_stage;
        }
    }
}

/// What a new reading of a hop is worth beside its record.
enum Comparison {
    /// It was stamped before the record, and overtaken on its way.
    Late,
    /// They can't be told apart: too much time lies between, or none, or the link has no capacity.
    Unknown,
    Measured(Inflight),
}

/// Lines 4 and 5 for one hop.
fn compare(last: &Record, hop: &Hop, now: Instant, base_rtt: Duration) -> Comparison {
    let elapsed = now.saturating_since(last.heard);
    let elapsed_nanos = elapsed.as_nanos();
    let half_time = u128::from(hop.time.period() / 2);
    // The counters show distances modulo their period: our own clock says whether that is the true one.
    if elapsed_nanos > half_time || hop.bandwidth.bytes_in(elapsed) > hop.tx_bytes.period() / 2 {
        return Comparison::Unknown;
    }
    let interval = hop.time.since(last.hop.time);
    if u128::from(interval) > half_time {
        return Comparison::Late;
    }
    if interval == 0 || hop.bandwidth.as_bps() == 0 {
        return Comparison::Unknown;
    }
    let bytes_per_nano = hop.bandwidth.as_bps() as f64 / 8e9;
    let tx_rate = hop.tx_bytes.since(last.hop.tx_bytes) as f64 / interval as f64;
    let queue = hop.queue.min(last.hop.queue) as f64;
    let utilisation = queue / (bytes_per_nano * base_rtt.as_nanos() as f64) + tx_rate / bytes_per_nano;
    Comparison::Measured(Inflight { utilisation, interval })
}

impl CongestionController for Hpcc {
    fn on_send(&mut self, _now: Instant, _pn: u64, _bytes: u32) {}

    /// Lines 21 to 27, `NewAck`.
    fn on_telemetry(&mut self, ack: &Ack, path: &PathTelemetry) {
        if self.path_id != Some(path.path_id()) {
            self.start_path(ack, path);
            return;
        }
        if !self.measure_inflight(ack.now, path) {
            return;
        }
        let update_reference = ack.seq > self.last_update_seq;
        self.compute_rate(update_reference);
        if update_reference {
            self.last_update_seq = ack.next;
        }
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
    fn window(&self) -> u64 {
        let share = u128::from(self.config.initial_window()) * u128::from(self.rate.as_bps());
        // Not above W_init, since the rate is not above the line rate.
        ((share / u128::from(self.config.line_rate.as_bps())) as u64).max(1)
    }

    fn pacing_rate(&self) -> Option<Rate> {
        Some(self.rate)
    }
}

#[cfg(test)]
mod tests;
