//! Congestion control as users choose it: by names and units, in flags and in `ferroce.toml`.
//!
//! ```
//! # use ferroce_verbs::congestion::{CongestionRule, parse_congestion};
//! # fn main() -> Result<(), String> {
//! // Of one queue pair, for ConnectOptions::congestion.
//! let choice = parse_congestion("hpcc,line_rate=10G,base_rtt=50us")?;
//! // Of a device's queue pairs, for DeviceConfig::congestion_rules; the first that matches decides.
//! let rule: CongestionRule = "dcqcn,peer=10.0.0.0/8".parse()?;
//! assert!(parse_congestion("hpcc,line_rate=fast").unwrap_err().contains("line_rate"));
//! # Ok(())
//! # }
//! ```

mod build;
mod choice;
mod default;
mod feedback_key;
mod names;
#[cfg(test)]
mod reference;
mod rules;
mod setting;
mod text;
mod units;

pub use crate::config::{parse_ethertype, parse_option_type};
pub use cc::{BUILT_IN, POWERTCP, Registration, SWIFT};
pub use choice::CongestionChoice;
pub use default::DEFAULT_CONGESTION;
pub(crate) use feedback_key::DeviceKey;
pub use feedback_key::{KeyError, KeySource, feedback_key_from_file};
pub use names::{CcName, FlowCount, TelemetryMode};
pub use roce::qp::{
    Congestion, CongestionAlgorithm, FeedbackKey, PathChoice, Reverse, Unknown, Upgrade, When,
};
pub use roce::wire::format::{Format, Numbers, NumbersError};
pub use rules::{CongestionRule, Prefix};
pub use setting::{ChoiceError, Setting};
pub use text::{parse_congestion, split_congestion};
pub(crate) use units::bytes_text;
pub use units::{parse_bytes, parse_duration, parse_rate, rate_text};

pub(crate) use rules::{RuleError, RuleText, choose};
