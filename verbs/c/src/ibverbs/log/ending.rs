//! Drops the log lines of a thread that is ending.

use std::cell::Cell;
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Layer};

thread_local! {
    /// Whether [`END`] has been dropped. The flag has no destructor, so it is always readable.
    static ENDED: Cell<bool> = const { Cell::new(false) };
    static END: ThreadEnd = const { ThreadEnd };
}

/// Dropped when the thread ends.
struct ThreadEnd;

impl Drop for ThreadEnd {
    fn drop(&mut self) {
        ENDED.set(true);
    }
}

/// Drops the lines that a thread logs while its thread-local storage is being destroyed. The layer that writes lines would panic.
///
/// Thread-local storage is destroyed in the reverse order of its first use. The writer's storage is used before [`END`], so `END` is
/// destroyed first.
pub(super) struct WhileItCan;

impl<S: Subscriber> Layer<S> for WhileItCan {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>, _: Context<'_, S>) -> bool {
        !ENDED.get()
    }

    fn on_event(&self, _: &Event<'_>, _: Context<'_, S>) {
        // Fails if the thread is ending.
        let _ = END.try_with(|_| ());
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::sync::atomic::{AtomicUsize, Ordering};

    static LOGGED: AtomicUsize = AtomicUsize::new(0);

    unsafe extern "C" fn logs(_: *mut c_void) {
        tracing::error!("a line of a test");
        LOGGED.fetch_add(1, Ordering::Relaxed);
    }

    #[test]
    fn a_thread_that_ends_may_still_log() {
        crate::ibverbs::log::start();
        let mut key = 0;
        // SAFETY: `key` has room, and the destructor does not access its argument.
        assert_eq!(unsafe { libc::pthread_key_create(&mut key, Some(logs)) }, 0);
        for logged_before in [true, false] {
            let body = move || {
                if logged_before {
                    tracing::error!("a line of a test");
                }
                // SAFETY: the key exists, and its destructor does not follow the pointer.
                assert_eq!(unsafe { libc::pthread_setspecific(key, std::ptr::dangling::<u8>().cast()) }, 0);
            };
            std::thread::spawn(body).join().unwrap();
        }
        assert_eq!(LOGGED.load(Ordering::Relaxed), 2);
    }
}
