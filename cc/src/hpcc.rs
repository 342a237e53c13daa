use crate::Rate;
use core::time::Duration;

/// The parameters of rtgwg-00 5 and Figure 3.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HpccConfig {
    /// `T`: the round trip of an idle path.
    pub base_rtt: Duration,
    /// What the sender's own link carries; a flow starts at it and never goes above.
    pub line_rate: Rate,
    /// The rate below which a flow never falls.
    pub min_rate: Rate,
    /// `eta`: the share of a link's capacity to aim at. Above 0, at most 1.
    pub target_utilisation: f64,
    /// `maxStage`: additive increases before a multiplicative one.
    pub max_stage: u32,
    /// `W_ai` as a rate: W_ai / T.
    pub additive_increase: Rate,
}
