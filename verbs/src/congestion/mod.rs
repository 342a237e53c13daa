//! Congestion control as people choose it: by names and units, in flags and in `ferroce.toml`.

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
pub use choice::CongestionChoice;
pub use default::DEFAULT_CONGESTION;
pub use feedback_key::{KeyError, feedback_key_from_env, feedback_key_from_file};
pub use names::{CcName, TelemetryMode};
pub use roce::qp::{
    Congestion, CongestionAlgorithm, FeedbackKey, PathChoice, Reverse, Unknown, Upgrade, When,
};
pub use roce::wire::format::{Format, Numbers, NumbersError};
pub use rules::{CongestionRule, Prefix};
pub use setting::{ChoiceError, Setting};
pub use text::parse_congestion;
pub use units::{parse_bytes, parse_duration, parse_rate};

pub(crate) use rules::{RuleError, RuleText, choose};
pub(crate) use text::rule_from_text;
