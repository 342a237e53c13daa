//! Log lines on standard error, which `FERROCE_LOG` asks for. Nothing is ever printed to standard output.

use std::sync::Once;
use tracing_subscriber::EnvFilter;

/// Starts the log, once. Without `FERROCE_LOG` only errors are told.
pub(crate) fn start() {
    static START: Once = Once::new();
    START.call_once(|| {
        let filter = EnvFilter::try_from_env("FERROCE_LOG").unwrap_or_else(|_| EnvFilter::new("error"));
        let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
        // A log that is there already serves.
        let _ = log.with_ansi(false).try_init();
    });
}
