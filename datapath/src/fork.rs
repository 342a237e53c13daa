//! Releases what a forked process inherits of a device: it has the parent's memory, but neither its threads nor its network.
//!
//! The child's copies of a device's descriptors would keep the interface from the kernel, and its peers from learning that the parent
//! ended. So the child gives up those that are [`Own`] before `fork` returns there.

use std::mem::ManuallyDrop;
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

/// The owner of a descriptor that forked children give up. A program may close all descriptors of its process, and its next file gets the
/// number: what is no longer this owner's file is neither used nor closed.
#[derive(Debug)]
pub struct Own<T: AsRawFd = OwnedFd> {
    owner: ManuallyDrop<T>,
    /// Device and inode of the file; `None` if the kernel does not say.
    file: Option<(libc::dev_t, libc::ino_t)>,
}

impl<T: AsRawFd> Own<T> {
    /// Returns whether the number still names the file that it named at first.
    #[must_use]
    pub fn is_there(&self) -> bool {
        file_of(self.owner.as_raw_fd()) == self.file
    }
}

/// Returns the device and inode of an open file; `None` if `fd` is not open.
fn file_of(fd: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: all-zero bytes are a status, which the call fills.
    let (filled, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut status), status)
    };
    (filled == 0).then_some((status.st_dev, status.st_ino))
}

impl<T: AsRawFd> From<T> for Own<T> {
    fn from(owner: T) -> Self {
        give_up(owner.as_raw_fd());
        Self { file: file_of(owner.as_raw_fd()), owner: ManuallyDrop::new(owner) }
    }
}

impl<T: AsRawFd> Drop for Own<T> {
    fn drop(&mut self) {
        keep(self.owner.as_raw_fd());
        if self.is_there() {
            // SAFETY: the owner is not used any more.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

impl<T: AsRawFd> std::ops::Deref for Own<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owner
    }
}
