//! SIGINT, SIGTERM and SIGHUP end a tool in order: ports close, and nothing stays behind.

use crate::failure::Failure;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Listens from now on; the flag that goes up when the tool shall end. A second signal ends the process at once,
/// should the first not get through.
///
/// # Errors
/// Where the system refuses a handler.
pub fn listen() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::flag;
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 130, Arc::clone(&stop))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::run(format!("signal {signal} can't be listened to: {error}")))?;
    }
    Ok(stop)
}

/// For loops that wait.
///
/// # Errors
/// Once a signal came.
pub fn check() -> Result<(), Failure> {
    match STOP.get() {
        Some(stop) if stop.load(Ordering::Relaxed) => Err(Failure::interrupted()),
        _ => Ok(()),
    }
}
