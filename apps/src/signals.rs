//! Ends a tool in order, so that it closes its ports: after SIGINT, SIGTERM or SIGHUP, or after its interface is removed.

use crate::failure::Failure;
use datapath::linux;
use datapath::port_spec::PortSpec;
use signal_hook::iterator::Signals;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The interval between checks of the interface.
const LOOK: Duration = Duration::from_millis(250);
/// The time within which further signals count as repetitions of the first: `timeout` and a closed terminal send theirs to the process and
/// to its group.
const TWICE: Duration = Duration::from_secs(1);

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The number of the first signal; 0 if there was none.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();
/// The reason of an end without a signal.
static REASON: OnceLock<String> = OnceLock::new();

/// Handles signals from now on. Returns the flag that is set when the tool must end. A further signal, 1 s or more after the first, exits
/// the process at once.
///
/// # Errors
/// Returns a failure if the system refuses a handler or a thread.
pub fn listen() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let failed = |error: io::Error| {
        Failure::run(format!("cannot handle signals: {error}; raise `ulimit -n` and `ulimit -u`"))
    };
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(failed)?;
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    let which = Arc::clone(SIGNAL.get_or_init(Arc::default));
    let flag = Arc::clone(&stop);
    let handle = move || {
        let mut first: Option<Instant> = None;
        for signal in signals.forever() {
            match first {
                None => {
                    which.store(signal as usize, Ordering::Relaxed);
                    flag.store(true, Ordering::Relaxed);
                    first = Some(Instant::now());
                }
                Some(first) if first.elapsed() < TWICE => {}
                Some(_) => signal_hook::low_level::exit(128 + signal),
            }
        }
    };
    thread::Builder::new().name("ferroce-signals".into()).spawn(handle).map_err(failed)?;
    Ok(stop)
}

/// Exits the process at once on SIGHUP. Without its terminal, a reader of keys would permanently read the end of the file and never check
/// the flag of [`listen`].
///
/// # Errors
/// Returns a failure if the system refuses the handler.
pub fn end_at_hangup() -> Result<(), Failure> {
    use signal_hook::consts::SIGHUP;
    signal_hook::flag::register_conditional_shutdown(SIGHUP, 128 + SIGHUP, Arc::new(AtomicBool::new(true)))
        .map(drop)
        .map_err(|error| Failure::run(format!("cannot handle signal {SIGHUP}: {error}")))
}

/// Checks whether the tool must end; for loops that wait.
///
/// # Errors
/// Returns a failure after a signal, or after the interface of [`watch`] was removed.
pub fn check() -> Result<(), Failure> {
    match STOP.get() {
        Some(stop) if stop.load(Ordering::Relaxed) => Err(match REASON.get() {
            Some(reason) => Failure::run(reason),
            None => Failure::interrupted(SIGNAL.get().map_or(0, |signal| signal.load(Ordering::Relaxed))),
        }),
        _ => Ok(()),
    }
}

/// The Linux interface of a port.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// Returns the interface of `port`, or `None` if the port has none or the interface does not exist.
    pub fn of(port: &PortSpec) -> Option<Self> {
        let name = match port {
            PortSpec::PcapInterface(name) => name,
            _ => port.shared_interface()?,
        };
        let index = linux::interface(name).ok()?.index;
        Some(Self { name: name.to_owned(), index })
    }

    /// Returns the reason why the port no longer works, if the interface was deleted or moved to another network namespace.
    pub fn loss(&self) -> Option<String> {
        let Self { name, index } = self;
        let is_there = linux::exists(*index);
        (!is_there).then(|| format!("interface {name} is gone; create it and start again"))
    }
}

/// Ends the tool when the interface of `port` is removed, but not when its link is down.
pub fn watch(port: &str) {
    let interface = port.parse().ok().and_then(|port| Interface::of(&port));
    let Some(interface) = interface else { return };
    let look = move || {
        loop {
            thread::sleep(LOOK);
            if let Some(loss) = interface.loss() {
                // If a reason is set already, it remains.
                let _ = REASON.set(loss);
                STOP.get_or_init(Arc::default).store(true, Ordering::Relaxed);
                return;
            }
        }
    };
    // Without this thread, the tool does not detect that the interface is removed.
    let _ = thread::Builder::new().name("ferroce-watch".into()).spawn(look);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_interface_is_reported_as_gone() {
        let here = Interface::of(&PortSpec::Interface("lo".into())).unwrap();
        assert_eq!(here.loss(), None);
        let gone = Interface { name: "eth0".into(), index: i32::MAX as u32 };
        assert!(gone.loss().unwrap().starts_with("interface eth0 is gone"));
        assert!(Interface::of(&PortSpec::Null).is_none());
    }
}
