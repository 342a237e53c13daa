//! Log lines on standard error, for programs without a `tracing` subscriber.

use datapath::environment;
use std::io::{IsTerminal, stderr};
use tracing::dispatcher::has_been_set;
use tracing_subscriber::EnvFilter;

/// The variable that selects the lines to show: `info`, `ferroce_datapath=debug`, ...
const VARIABLE: &str = "FERROCE_LOG";

/// Starts a log on standard error. `FERROCE_LOG` selects its lines, or `default` if it is not set. Does nothing if the program has started
/// a log already.
///
/// ```
/// ferroce_verbs::start_log("warn");
/// ```
pub fn start_log(default: &str) {
    let filter = environment::text(VARIABLE).and_then(|text| EnvFilter::try_new(text).ok());
    let filter = filter.unwrap_or_else(|| EnvFilter::new(default));
    let is_coloured =
        stderr().is_terminal() && environment::variable("NO_COLOR").is_none_or(|value| value.is_empty());
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(stderr).with_ansi(is_coloured);
    // It fails only if a log is there already.
    let _ = log.log_internal_errors(false).try_init();
}

/// Starts the log if `FERROCE_LOG` is set and the program has none.
pub(crate) fn start_if_asked_for() {
    if environment::variable(VARIABLE).is_some() && !has_been_set() {
        start_log("off");
    }
}
