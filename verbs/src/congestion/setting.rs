//! The type of a congestion setting, and the error of a wrong value. `choice.rs` defines the settings.

use super::choice::CongestionChoice;
use super::names::{CcName, FlowCount, REVERSE, TelemetryMode};
use super::units::{duration_text, rate_text};
use cc::{BUILT_IN, Rate, Registration};
use roce::qp::Reverse;
use roce::wire::Format;
use std::fmt;
use std::time::Duration;

/// A setting of congestion control: its names, its accepted values, and its effect.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// The key in a `[[congestion]]` table of `ferroce.toml`, and in the one-line form of `FERROCE_CC`.
    pub key: &'static str,
    /// The flag of the tools, without its dashes.
    pub flag: &'static str,
    /// The name of the value in help texts. Empty for a flag without a value.
    pub value: &'static str,
    /// The accepted values; `ALGORITHMS` stands for the names of all algorithms.
    pub(super) accepts: &'static str,
    /// An accepted value.
    pub example: &'static str,
    /// The value if the setting is not chosen, for algorithms that are not registered.
    pub(super) default: &'static str,
    /// The algorithms that use the setting, of those that are not registered.
    pub(super) algorithms: &'static [CcName],
    /// The effect, for help texts.
    pub help: &'static str,
    pub(super) set: fn(&mut CongestionChoice, &str) -> Option<()>,
    pub(super) get: fn(&CongestionChoice) -> Option<String>,
}

impl Setting {
    /// Parses `text`, and sets the value.
    ///
    /// # Errors
    /// Returns [`ChoiceError`] if the text is not an accepted value.
    pub fn set(&self, choice: &mut CongestionChoice, text: &str) -> Result<(), ChoiceError> {
        (self.set)(choice, text).ok_or_else(|| {
            let example = format!("{{{}={}}}", self.key, self.example);
            ChoiceError::of(self.key, text, format!("not {}; write {example}", self.accepts()))
        })
    }

    /// Returns the algorithms that use the setting; `None` if all do.
    #[must_use]
    pub fn users(&self) -> Option<String> {
        let is_user = |name: &CcName| name.uses(self);
        (!CcName::all().all(|name| is_user(&name))).then(|| CcName::list(CcName::all().filter(is_user)))
    }

    /// Returns the accepted values, for help texts.
    #[must_use]
    pub fn accepts(&self) -> String {
        self.accepts.replace("ALGORITHMS", &CcName::list(CcName::all()))
    }

    /// Returns the value if the setting is not chosen, for help texts.
    #[must_use]
    pub fn default(&self) -> String {
        let of = |registration: &Registration| {
            self.default_in(registration).map(|default| format!("; {} {default}", registration.name))
        };
        let all: String =
            [self.default.to_owned()].into_iter().chain(BUILT_IN.into_iter().filter_map(of)).collect();
        all.trim_start_matches("; ").to_owned()
    }

    /// Returns the default of a registered algorithm that differs from that of others.
    pub(super) fn default_in(&self, registration: &Registration) -> Option<String> {
        if self.key == "flows" && registration.flows > 1 {
            return Some(registration.flows.to_string());
        }
        let own = registration.keys.iter().find(|(key, _)| *key == self.key);
        own.map(|(_, default)| (*default).to_owned())
    }

    /// Returns the value as [`set`](Self::set) parses it, or `None` if the setting is not chosen.
    #[must_use]
    pub fn get(&self, choice: &CongestionChoice) -> Option<String> {
        (self.get)(choice)
    }
}

/// A value that can be written as [`Setting::set`] parses it.
pub(super) trait Word {
    fn word(&self) -> String;
}

macro_rules! displayed {
    ($($type:ty),*) => {
        $(impl Word for $type {
            fn word(&self) -> String {
                self.to_string()
            }
        })*
    };
}

displayed!(CcName, FlowCount, TelemetryMode, Format, u8, u32, u64, f64);

impl Word for Rate {
    fn word(&self) -> String {
        rate_text(*self)
    }
}

impl Word for Duration {
    fn word(&self) -> String {
        duration_text(*self)
    }
}

impl Word for Reverse {
    fn word(&self) -> String {
        REVERSE
            .iter()
            .find(|(_, reverse)| reverse == self)
            .map_or_else(String::new, |(name, _)| (*name).to_owned())
    }
}

/// A field of [`CongestionChoice`] that can be written as text if it is chosen.
pub(super) trait Written {
    fn written(&self) -> Option<String>;
}

impl<T: Word> Written for Option<T> {
    fn written(&self) -> Option<String> {
        self.as_ref().map(Word::word)
    }
}

impl Written for bool {
    fn written(&self) -> Option<String> {
        self.then(|| "true".to_owned())
    }
}

/// The error of a choice that cannot be built: the key, its value, the reason and the remedy. Keys are those of `ferroce.toml`;
/// [`as_flags`](Self::as_flags) replaces them by flags of the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChoiceError {
    key: String,
    value: Option<String>,
    /// The reason, with keys in braces: `{line_rate}`, or with a value `{line_rate=1G}`.
    reason: String,
}

impl ChoiceError {
    /// Creates an error about a key, without a value.
    pub(super) fn new(key: &str, reason: impl Into<String>) -> Self {
        Self { key: key.to_owned(), value: None, reason: reason.into() }
    }

    /// Creates an error about the value of a key.
    pub(super) fn of(key: &str, value: impl fmt::Display, reason: impl Into<String>) -> Self {
        Self { value: Some(value.to_string()), ..Self::new(key, reason) }
    }

    /// Returns the wrong key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Formats the error with flags of the command line instead of keys.
    #[must_use]
    pub fn as_flags(&self) -> String {
        self.render(|key, value| {
            let setting = CongestionChoice::SETTINGS.iter().find(|setting| setting.key == key);
            let (flag, takes_value) = setting.map_or((key, true), |it| (it.flag, !it.value.is_empty()));
            match value.filter(|_| takes_value) {
                Some(value) => format!("--{flag} {value}"),
                None => format!("--{flag}"),
            }
        })
    }

    /// Formats the error for a line such as `hpcc,line_rate=1G`: an algorithm as its name only, other keys as `key=value`.
    #[must_use]
    pub fn as_words(&self) -> String {
        self.render(|key, value| match value.map(str::escape_debug) {
            Some(value) if key == "cc" && value.clone().next().is_some() => value.to_string(),
            Some(value) => format!("{key}={value}"),
            None => key.to_owned(),
        })
    }

    /// Returns the reason only, for a program that writes the flag and the value itself.
    #[must_use]
    pub fn reason_as_values(&self) -> String {
        fill(&self.reason, |key, value| value.unwrap_or(key).to_owned())
    }

    fn render(&self, name: impl Fn(&str, Option<&str>) -> String) -> String {
        let about = name(&self.key, self.value.as_deref());
        format!("{about}: {}", fill(&self.reason, name))
    }
}

/// Replaces each key in braces by the text that `name` returns for it.
fn fill(template: &str, name: impl Fn(&str, Option<&str>) -> String) -> String {
    let mut said = String::new();
    let mut rest = template;
    while let Some((before, after)) = rest.split_once('{') {
        let (key, after) = after.split_once('}').unwrap_or((after, ""));
        said.push_str(before);
        said.push_str(&match key.split_once('=') {
            Some((key, value)) => name(key, Some(value)),
            None => name(key, None),
        });
        rest = after;
    }
    said + rest
}

impl fmt::Display for ChoiceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(|key, value| match value {
            Some(value) if value.parse::<f64>().is_ok() || value == "true" => format!("{key} = {value}"),
            Some(value) => format!("{key} = {value:?}"),
            None => key.to_owned(),
        }))
    }
}

impl std::error::Error for ChoiceError {}
