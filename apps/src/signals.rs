//! Ends a tool in order, so that ports close and nothing stays behind: after SIGINT, SIGTERM or SIGHUP, and if its interface is lost.

use crate::failure::Failure;
use datapath::linux;
use datapath::port_spec::PortSpec;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Between two looks at an interface.
const LOOK: Duration = Duration::from_millis(250);

static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();
/// The number of the signal that came; 0 before.
static SIGNAL: OnceLock<Arc<AtomicUsize>> = OnceLock::new();
/// The reason that ended the tool, if it was no signal.
static REASON: OnceLock<String> = OnceLock::new();

/// Listens for signals from now on. Returns the flag that is set when the tool must end. A second signal ends the process at once,
/// should the first not get through.
///
/// # Errors
/// Returns a failure if the system refuses a handler.
pub fn listen() -> Result<Arc<AtomicBool>, Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    use signal_hook::flag;
    let stop = Arc::clone(STOP.get_or_init(Arc::default));
    let which = SIGNAL.get_or_init(Arc::default);
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        flag::register_conditional_shutdown(signal, 128 + signal, Arc::clone(&stop))
            .and_then(|_| flag::register_usize(signal, Arc::clone(which), signal as usize))
            .and_then(|_| flag::register(signal, Arc::clone(&stop)))
            .map_err(|error| Failure::run(format!("cannot handle signal {signal}: {error}")))?;
    }
    Ok(stop)
}

/// Ends the process as soon as its terminal is gone. The reader of keys would read the end of the file for ever and check no flag.
///
/// # Errors
/// Returns a failure if the system refuses a handler.
pub fn end_at_hangup() -> Result<(), Failure> {
    use signal_hook::consts::SIGHUP;
    signal_hook::flag::register_conditional_shutdown(SIGHUP, 128 + SIGHUP, Arc::new(AtomicBool::new(true)))
        .map(drop)
        .map_err(|error| Failure::run(format!("cannot handle signal {SIGHUP}: {error}")))
}

/// For loops that wait.
///
/// # Errors
/// Returns a failure once a signal came, or the interface of [`watch`] is gone.
pub fn check() -> Result<(), Failure> {
    match STOP.get() {
        Some(stop) if stop.load(Ordering::Relaxed) => Err(match REASON.get() {
            Some(reason) => Failure::run(reason),
            None => Failure::interrupted(SIGNAL.get().map_or(0, |signal| signal.load(Ordering::Relaxed))),
        }),
        _ => Ok(()),
    }
}

/// A Linux interface that a port is on.
#[derive(Clone, Debug)]
pub struct Interface {
    name: String,
    index: u32,
}

impl Interface {
    /// The interface of `port`; `None` if the port is on none.
    pub fn of(port: &PortSpec) -> Option<Self> {
        let (PortSpec::Interface(name) | PortSpec::Xdp(name) | PortSpec::PcapInterface(name)) = port else {
            return None;
        };
        let index = linux::interface(name).ok()?.index;
        Some(Self { name: name.clone(), index })
    }

    /// Why the port can't work any more, once its interface was deleted or moved to another network namespace.
    pub fn loss(&self) -> Option<String> {
        let Self { name, index } = self;
        let is_there = linux::exists(*index);
        (!is_there).then(|| format!("interface {name} is gone; create it and start again"))
    }
}

/// Ends the tool when the interface that `port` names is gone. A link that is only down is waited for.
pub fn watch(port: &str) {
    let interface = port.parse().ok().and_then(|port| Interface::of(&port));
    let Some(interface) = interface else { return };
    let look = move || {
        loop {
            std::thread::sleep(LOOK);
            if let Some(loss) = interface.loss() {
                // Only the first reason counts.
                let _ = REASON.set(loss);
                STOP.get_or_init(Arc::default).store(true, Ordering::Relaxed);
                return;
            }
        }
    };
    // Without the thread the tool only waits longer.
    let _ = std::thread::Builder::new().name("ferroce-watch".into()).spawn(look);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_that_is_not_there_is_lost() {
        let here = Interface::of(&PortSpec::Interface("lo".into())).unwrap();
        assert_eq!(here.loss(), None);
        let gone = Interface { name: "eth0".into(), index: i32::MAX as u32 };
        assert!(gone.loss().unwrap().starts_with("interface eth0 is gone"));
        assert!(Interface::of(&PortSpec::Null).is_none());
    }
}
