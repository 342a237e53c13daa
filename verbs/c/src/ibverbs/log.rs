//! Writes log lines to standard error. `FERROCE_LOG` selects the lines. Nothing is ever written to standard output.

mod ending;
mod limit;

use ending::WhileItCan;
use limit::Limit;
use std::sync::Once;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{fmt, registry};

/// Starts the log, once. Without `FERROCE_LOG` it shows errors, and warnings about ignored settings.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let (filter, wrong) = verbs::log_filter("error,ferroce_verbs::default_file=warn");
        let lines = fmt::layer().with_writer(std::io::stderr).with_ansi(false);
        // Fails if the program has a log already. Lines then go to that log.
        let log = registry().with(lines).with(filter).with(Limit::default()).with(WhileItCan);
        if log.try_init().is_ok() {
            wrong.iter().for_each(|line| tracing::warn!("{line}"));
        }
    });
}
