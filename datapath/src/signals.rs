//! Reserves signals for the application: the library's threads block them.

use std::io;
use std::thread::{Builder, JoinHandle};

/// Signals that report a fault of the running instruction. If they were blocked, a fault would kill the process without calling a handler.
pub const FAULTS: [libc::c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// Runs `f` with all signals except [`FAULTS`] blocked. Threads that it starts inherit the mask from their first instruction on.
pub fn blocked<T>(f: impl FnOnce() -> T) -> T {
    /// Restores the calling thread's mask, even if `f` panics.
    struct Restore(libc::sigset_t);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the set is the thread's previous mask.
            unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, std::ptr::null_mut()) };
        }
    }
    // SAFETY: both sets are initialised before their use, and only this thread's mask changes.
    let _restore = unsafe {
        let (mut all, mut before) = (std::mem::zeroed(), std::mem::zeroed());
        libc::sigfillset(&mut all);
        FAULTS.iter().for_each(|&fault| _ = libc::sigdelset(&mut all, fault));
        libc::pthread_sigmask(libc::SIG_BLOCK, &all, &mut before);
        Restore(before)
    };
    f()
}

/// Starts a thread that blocks all signals except [`FAULTS`].
///
/// # Errors
/// Returns the system's error if it cannot create a thread.
pub fn spawn<T: Send + 'static>(
    name: &str,
    body: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    blocked(|| Builder::new().name(name.into()).spawn(body))
}
