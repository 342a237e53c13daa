//! Forwards DPDK's log to `tracing`, and collects its errors for our error messages. It writes nothing to the terminal.

use std::ffi::c_char;
use std::sync::Mutex;

/// Most lines of an error message.
const MAX_LINES: usize = 4;

static ERRORS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Redirects DPDK's log. Called before the EAL starts, whose first messages would otherwise be written to the terminal.
pub(super) fn redirect() {
    // SAFETY: `on_log` has the type of the callback, lives for the whole process, and may be called from any thread.
    unsafe { dpdk_sys::ferroce_log_to(Some(on_log)) };
}

/// Runs `f`. Returns its result and the errors that DPDK logged meanwhile, joined into one line.
pub(super) fn errors_of<T>(f: impl FnOnce() -> T) -> (T, String) {
    lock().clear();
    let result = f();
    let messages = std::mem::take(&mut *lock());
    (result, messages.join("; "))
}

fn lock() -> std::sync::MutexGuard<'static, Vec<String>> {
    ERRORS.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

unsafe extern "C" fn on_log(level: u32, text: *const c_char, len: usize) {
    // SAFETY: the shim passes `len` readable bytes, which stdio passed to the stream's write function.
    let bytes = unsafe { std::slice::from_raw_parts(text.cast::<u8>(), len) };
    let text = String::from_utf8_lossy(bytes);
    let text = text.trim();
    if text.is_empty() {
        return;
    }
    // DPDK also logs harmless conditions as errors, such as a missing driver. So errors are logged below `info`.
    if level > dpdk_sys::RTE_LOG_ERR {
        tracing::trace!(target: "dpdk", "{text}");
        return;
    }
    tracing::debug!(target: "dpdk", "{text}");
    let mut messages = lock();
    if messages.len() < MAX_LINES {
        messages.push(text.to_owned());
    }
}
