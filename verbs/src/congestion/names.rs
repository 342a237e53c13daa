//! The words that congestion settings accept: algorithms, numbers of flows, telemetry modes and kinds of feedback.

use super::setting::Setting;
use cc::{BUILT_IN, Feedback, Registration};
use roce::qp::Reverse;
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

/// An algorithm of congestion control.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CcName {
    /// A constant window.
    Fixed,
    /// HPCC++ at the sender.
    Hpcc,
    /// The variant of HPCC++ in which the receiver reports the number of flows on its link.
    HpccFair,
    /// HPCC++ at the receiver.
    HpccRx,
    /// DCTCP.
    Dctcp,
    /// DCQCN.
    Dcqcn,
    /// HPCC++ if probes return telemetry; otherwise a fixed window, or DCQCN once the peer answers ECN marks.
    Auto,
    /// A registered algorithm, such as [`cc::POWERTCP`] and [`cc::SWIFT`].
    Registered(&'static Registration),
}

/// Settings of every registered algorithm.
const REGISTERED: [&str; 8] =
    ["cc", "line_rate", "base_rtt", "min_rate", "probe_interval", "paths", "spray", "ratio_only"];
/// Further settings of a registered algorithm that computes with telemetry.
const WITH_TELEMETRY: [&str; 5] = ["eta", "flows", "telemetry", "format", "feedback"];

impl CcName {
    const NAMED: [(&'static str, Self); 7] = [
        ("fixed", Self::Fixed),
        ("hpcc", Self::Hpcc),
        ("hpcc-fair", Self::HpccFair),
        ("hpcc-rx", Self::HpccRx),
        ("dctcp", Self::Dctcp),
        ("dcqcn", Self::Dcqcn),
        ("auto", Self::Auto),
    ];

    /// Returns every algorithm, of the registered ones those of Ferroce.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::NAMED.into_iter().map(|(_, name)| name).chain(BUILT_IN.map(Self::Registered))
    }

    /// Returns the name in settings and reports.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Registered(registration) => registration.name,
            _ => Self::NAMED.into_iter().find(|(_, name)| *name == self).map_or("", |(text, _)| text),
        }
    }

    /// Returns names as a list: `hpcc, dctcp`.
    pub(super) fn list(names: impl Iterator<Item = Self>) -> String {
        names.map(Self::as_str).collect::<Vec<_>>().join(", ")
    }

    /// Returns whether the algorithm uses a setting.
    #[must_use]
    pub fn uses(self, setting: &Setting) -> bool {
        let Self::Registered(registration) = self else { return setting.algorithms.contains(&self) };
        let is_read = registration.feedback == Feedback::Telemetry && WITH_TELEMETRY.contains(&setting.key);
        is_read || REGISTERED.contains(&setting.key) || setting.default_in(registration).is_some()
    }
}

impl fmt::Display for CcName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for CcName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::all().find(|name| name.as_str() == text);
        found.ok_or_else(|| format!("`{text}`: not one of {}; write hpcc", Self::list(Self::all())))
    }
}

/// The number of flows that share a link: N of rtgwg-00 5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlowCount {
    /// The number that the receiver reports, while its own link is the busiest; 1 elsewhere.
    Reported,
    /// A fixed number, 1 to 1,000,000.
    Number(NonZeroU32),
}

impl fmt::Display for FlowCount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reported => f.write_str("reported"),
            Self::Number(flows) => flows.fmt(f),
        }
    }
}

impl FromStr for FlowCount {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: not a number from 1 to 1000000, or reported; write reported");
        match text {
            "reported" => Ok(Self::Reported),
            _ => {
                let flows = text.parse().ok().filter(|flows: &NonZeroU32| flows.get() <= 1_000_000);
                flows.map(Self::Number).ok_or_else(wrong)
            }
        }
    }
}

/// The packets that carry telemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TelemetryMode {
    /// One of this many data packets carries telemetry.
    InBand(NonZeroU32),
    /// Probes carry telemetry.
    Probe,
}

impl fmt::Display for TelemetryMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InBand(every) => write!(f, "inband:{every}"),
            Self::Probe => f.write_str("probe"),
        }
    }
}

impl FromStr for TelemetryMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}`: not one of inband, inband:N with N from 1, probe; write inband:4");
        match text.split_once(':') {
            None if text == "inband" => Ok(Self::InBand(NonZeroU32::MIN)),
            None if text == "probe" => Ok(Self::Probe),
            Some(("inband", every)) => every.parse().map(Self::InBand).map_err(|_| wrong()),
            _ => Err(wrong()),
        }
    }
}

/// The kinds of feedback with their names.
pub const REVERSE: [(&str, Reverse); 3] =
    [("ack", Reverse::Ack), ("notification", Reverse::Notification), ("window", Reverse::Window)];
