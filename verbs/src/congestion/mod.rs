//! Congestion control as people choose it: by names and units, in flags and in `ferroce.toml`.

mod choice;
mod key;
mod rules;
mod text;
mod units;

pub use choice::{CcName, ChoiceError, CongestionChoice, TelemetryMode};
pub use key::{KeyError, feedback_key_from_env, feedback_key_from_file};
pub use rules::{CongestionRule, Prefix};
pub use text::parse_congestion;
pub use units::{parse_duration, parse_rate};

pub(crate) use rules::{RuleText, choose};
pub(crate) use text::rule_from_text;
