//! Releases what a forked process inherits of a device: it has the parent's memory, but neither its threads nor its network.
//!
//! The child's copies of a device's descriptors would keep the interface from the kernel, and its peers from learning that the parent
//! ended. So the child gives up those that are [`Own`] before `fork` returns there.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::Duration;

/// The number of times that a child tries for a lock that one of its own threads may have: longer than a port takes to open.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// The number of forks between this process and the one that loaded the library.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a child gives up, each plus one; 0 is a free place. More than there are places are kept by the child too.
static OWN: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];

/// Distinguishes a process from its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// The calling process.
    #[must_use]
    pub fn this() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the handler lives as long as the library, which its threads keep loaded. Out of memory, children know nothing.
        WATCH.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns true if the calling process was forked from this one.
    #[inline]
    #[must_use]
    pub fn is_parent(self) -> bool {
        self.0 != GENERATION.load(Ordering::Relaxed)
    }
}

/// Locks what the parent may have had locked in another thread when it forked: `None` in a child if it is never unlocked.
pub fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    if GENERATION.load(Ordering::Relaxed) == 0 {
        return Some(mutex.lock().unwrap_or_else(PoisonError::into_inner));
    }
    for _ in 0..TRIES {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::sleep(PAUSE),
        }
    }
    None
}

/// Runs in the child, in which only async-signal-safe functions may be called: other threads may have had any lock.
unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: eventfd takes plain numbers.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    for place in &OWN {
        let fd = place.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            // The number stays taken: code that closes it later must not close another file of the child. Without a descriptor to
            // put there, the child keeps what it has.
            // SAFETY: both numbers are open; the call replaces one by the other.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
    // SAFETY: the descriptor is this function's, or -1, which the kernel refuses.
    unsafe { libc::close(nothing) };
}

/// Has forked children close `fd` until [`keep`] is called.
pub fn give_up(fd: RawFd) {
    let _ = Process::this();
    let free =
        |place: &&AtomicI32| place.compare_exchange(0, fd + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if OWN.iter().find(free).is_none() {
        tracing::debug!("descriptor {fd}: forked processes inherit it");
    }
}

/// Ends what [`give_up`] began. Called before `fd` is closed, since its number may come back for another file.
pub fn keep(fd: RawFd) {
    let is_it =
        |place: &&AtomicI32| place.compare_exchange(fd + 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let _ = OWN.iter().find(is_it);
}

/// The owner of a descriptor that forked children give up.
#[derive(Debug)]
pub struct Own<T: AsRawFd = OwnedFd>(T);

impl<T: AsRawFd> From<T> for Own<T> {
    fn from(owner: T) -> Self {
        give_up(owner.as_raw_fd());
        Self(owner)
    }
}

impl<T: AsRawFd> Drop for Own<T> {
    fn drop(&mut self) {
        keep(self.0.as_raw_fd());
    }
}

impl<T: AsRawFd> std::ops::Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
