//! What cores do when the process exits: acknowledgements that wait for a reply leave.

use crate::fork;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Weak};

/// Part of a core that does something when the process exits.
pub(super) trait AtExit: Send + Sync {
    /// Called by the thread that exits. Its thread-local storage may be destroyed.
    fn at_exit(&self);
}

/// The parts, each with the process that registered it: a child of a fork has copies.
static PARTS: Mutex<Vec<(u32, Weak<dyn AtExit>)>> = Mutex::new(Vec::new());

pub(super) fn register(part: Weak<dyn AtExit>) {
    static IS_REGISTERED: AtomicBool = AtomicBool::new(false);
    let Some(mut parts) = fork::lock(&PARTS) else { return };
    if !IS_REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: the function exists as long as the library does.
        unsafe { libc::atexit(at_exit) };
    }
    parts.retain(|(_, part)| part.strong_count() > 0);
    parts.push((std::process::id(), part));
}

extern "C" fn at_exit() {
    let Ok(parts) = PARTS.try_lock() else { return };
    let own = parts.iter().filter(|(process, _)| *process == std::process::id());
    for part in own.filter_map(|(_, part)| part.upgrade()) {
        part.at_exit();
    }
}
