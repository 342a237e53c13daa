//! The parameters that a trace lacks, with the source of each.

use super::Args;
use cc::{HpccConfig, Rate};
use std::fmt;
use std::path::Path;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    Flag,
    FileName,
    Default,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Flag => "flag",
            Self::FileName => "file name",
            Self::Default => "default",
        })
    }
}

/// A parameter and its source.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Parameter<T> {
    pub value: T,
    pub source: Source,
}

fn choose<T>(flag: Option<T>, name: Option<T>, default: T) -> Parameter<T> {
    match (flag, name) {
        (Some(value), _) => Parameter { value, source: Source::Flag },
        (None, Some(value)) => Parameter { value, source: Source::FileName },
        (None, None) => Parameter { value: default, source: Source::Default },
    }
}

/// The parameters of HPCC++ and of the telemetry in a trace.
#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize)]
pub struct Assumed {
    pub max_stage: Parameter<u32>,
    pub base_rtt_ns: Parameter<u64>,
    pub line_rate_bps: Parameter<u64>,
    pub additive_increase_bps: Parameter<u64>,
    pub min_rate_bps: Parameter<u64>,
    pub eta: Parameter<f64>,
    pub unit: Parameter<u32>,
}

impl Assumed {
    /// Chooses each parameter: a flag overrides the name of the file, which overrides the settings of the reference runs.
    pub fn new(args: &Args, file: &Path) -> Self {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        // The name refers to the HPCC authors' own script, for 100 Gb/s.
        let script = name.contains("hpcc_runpy");
        let bps = |flag: Option<Rate>| flag.map(Rate::as_bps);
        let base_rtt = args.base_rtt.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        Self {
            max_stage: choose(
                args.max_stage,
                stage_in(&name).or(script.then_some(0)),
                HpccConfig::DEFAULT_MAX_STAGE,
            ),
            base_rtt_ns: choose(base_rtt, name.starts_with("p_parkinglot").then_some(8320), 4160),
            line_rate_bps: choose(bps(args.line_rate), None, 100_000_000_000),
            additive_increase_bps: choose(bps(args.ai), script.then_some(40_000_000), 50_000_000),
            min_rate_bps: choose(bps(args.min_rate), script.then_some(1_000_000_000), 100_000_000),
            eta: choose(args.eta, None, HpccConfig::DEFAULT_TARGET_UTILISATION),
            unit: choose(args.unit, script.then_some(4), 1),
        }
    }

    pub fn config(&self) -> HpccConfig {
        HpccConfig {
            base_rtt: Duration::from_nanos(self.base_rtt_ns.value),
            line_rate: Rate::from_bps(self.line_rate_bps.value),
            min_rate: Rate::from_bps(self.min_rate_bps.value),
            target_utilisation: self.eta.value,
            max_stage: self.max_stage.value,
            additive_increase: Rate::from_bps(self.additive_increase_bps.value),
        }
    }

    pub fn unit(&self) -> u32 {
        self.unit.value
    }
}

impl fmt::Display for Assumed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = self.config();
        writeln!(f, "  maxStage           {} ({})", config.max_stage, self.max_stage.source)?;
        writeln!(f, "  base RTT           {:?} ({})", config.base_rtt, self.base_rtt_ns.source)?;
        writeln!(f, "  line rate          {} ({})", config.line_rate, self.line_rate_bps.source)?;
        writeln!(
            f,
            "  additive increase  {} ({})",
            config.additive_increase, self.additive_increase_bps.source
        )?;
        writeln!(f, "  lowest rate        {} ({})", config.min_rate, self.min_rate_bps.source)?;
        writeln!(f, "  eta                {} ({})", config.target_utilisation, self.eta.source)?;
        writeln!(f, "  telemetry unit     x{} ({})", self.unit.value, self.unit.source)
    }
}

fn stage_in(name: &str) -> Option<u32> {
    let (_, after) = name.split_once("_ms")?;
    let digits = after.find(|c: char| !c.is_ascii_digit()).unwrap_or(after.len());
    after[..digits].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stage_is_read_from_the_name() {
        assert_eq!(stage_in("a_single__hpcc_ms0.csv.gz"), Some(0));
        assert_eq!(stage_in("f14__hpcc_wai5_ms12_x.csv"), Some(12));
        assert_eq!(stage_in("trace_msx.csv"), None);
        assert_eq!(stage_in("trace.csv"), None);
    }
}
