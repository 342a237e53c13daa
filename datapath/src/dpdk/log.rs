//! DPDK's log: into `tracing`, and its complaints into our errors. Nothing goes to the terminal.

use std::ffi::c_char;
use std::sync::Mutex;

/// Lines kept for an error's text.
const KEPT: usize = 4;

static COMPLAINTS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Takes DPDK's log over. Before the EAL starts, so that its first words come here too.
pub(super) fn take_over() {
    // SAFETY: `sink` matches the callback's type, lives for ever, and may be called from any thread.
    unsafe { dpdk_sys::ferroce_log_to(Some(sink)) };
}

/// Runs `f`, and returns DPDK's error messages from that time in one line.
pub(super) fn complaints_of<T>(f: impl FnOnce() -> T) -> (T, String) {
    lock().clear();
    let result = f();
    let said = std::mem::take(&mut *lock());
    (result, said.join("; "))
}

fn lock() -> std::sync::MutexGuard<'static, Vec<String>> {
    COMPLAINTS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

unsafe extern "C" fn sink(level: u32, text: *const c_char, len: usize) {
    // SAFETY: the shim passes what stdio hands to a stream's write: `len` readable bytes.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    // DPDK's errors are often no trouble at all (a driver's absence, say), so they stay below `info`.
    if level > dpdk_sys::RTE_LOG_ERR {
        tracing::trace!(target: "dpdk", "{text}");
        return;
    }
    tracing::debug!(target: "dpdk", "{text}");
    let mut kept = lock();
    if kept.len() < KEPT {
        kept.push(text.to_owned());
    }
}
