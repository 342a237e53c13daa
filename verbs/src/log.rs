//! Writes log lines to standard error, for programs without a `tracing` subscriber.

use datapath::environment;
use std::io::{IsTerminal, stderr};
use std::str::FromStr;
use tracing::dispatcher::has_been_set;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The variable that selects the lines to show: `info`, `ferroce_datapath=debug`, ...
const VARIABLE: &str = "FERROCE_LOG";

/// Starts a log on standard error. `FERROCE_LOG` selects its lines, or `default` if the variable is not set. Does nothing if the program
/// has started a log already.
///
/// ```
/// ferroce_verbs::start_log("warn");
/// ```
pub fn start_log(default: &str) {
    let (filter, wrong) = log_filter(default);
    let is_coloured =
        stderr().is_terminal() && environment::variable("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(is_coloured);
    // Fails only if the program has started a log already.
    if log.log_internal_errors(false).try_init().is_ok() {
        wrong.iter().for_each(|line| tracing::warn!("{line}"));
    }
}

/// Returns the filter that `FERROCE_LOG` selects, or `default` if the variable is not set. If the value is invalid, returns a filter for
/// warnings, and a warning that the caller logs.
#[doc(hidden)]
#[must_use]
pub fn log_filter(default: &str) -> (EnvFilter, Option<String>) {
    match environment::text(VARIABLE).filter(|text| !text.is_empty()) {
        None => (EnvFilter::new(default), None),
        Some(text) => match parse(&text) {
            Some(filter) => (filter, None),
            None => {
                let wrong = format!(
                    "{VARIABLE} {text:?}: neither a level nor a module of Ferroce; write {VARIABLE}=info"
                );
                (EnvFilter::new("warn"), Some(wrong))
            }
        },
    }
}

/// Parses `info`, `ferroce_datapath=debug` and lists of these. A word that is not a level selects all lines of a module. `tracing` accepts
/// any word, but Ferroce writes lines only in these modules.
fn parse(text: &str) -> Option<EnvFilter> {
    let is_known = |word: &str| {
        word.contains(['=', '[', ']', '{', '}'])
            || LevelFilter::from_str(word).is_ok()
            || ["ferroce", "dpdk"].iter().any(|module| word.starts_with(module))
    };
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    if words.into_iter().all(is_known) { EnvFilter::try_new(text).ok() } else { None }
}

pub(crate) fn start_if_asked_for() {
    if environment::variable(VARIABLE).is_some() && !has_been_set() {
        start_log("off");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_level_or_a_module_of_ferroce() {
        for text in [
            "off",
            "WARN",
            "info",
            "2",
            "ferroce_datapath",
            "ferroce_datapath=debug",
            "dpdk=trace,info",
            "error,ferroce_verbs::default_file=warn",
            "my_program=debug",
            "ferroce_roce[qp{qpn=0x12}]=debug",
        ] {
            assert!(parse(text).is_some(), "{text}");
        }
        for text in ["loud", "debug,loud", "ferroce=loud", "my_program", "warning"] {
            assert!(parse(text).is_none(), "{text}");
        }
    }
}
