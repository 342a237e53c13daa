//! Signals are the application's: no thread of ours takes one.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Signals that report a fault in the instruction that the thread runs. Blocked, they would end the process before its handlers run.
pub const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Runs `f` with all signals blocked but [`FAULTS`]. Threads that it starts keep them blocked, from their first instruction on.
pub fn blocked<T>(f: impl FnOnce() -> T) -> T {
    /// Restores the calling thread's mask, also if `f` panics.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set is the one that the thread had.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: both sets are filled before they are used, and only this thread's mask changes.
    let _restore = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        FAULTS.iter().for_each(|&fault| _ = libc::sigdelset(&mut all, fault));
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        Restore(before)
    };
    f()
}

/// Starts a thread that takes no signals.
///
/// # Errors
/// Returns the system's error if it cannot create a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    blocked(|| Builder::new().name(name.into()).spawn(body))
}
