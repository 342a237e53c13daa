//! Closes the descriptors of a device in a forked process, which has the parent's memory but neither its threads nor its network.
//!
//! The child's copies would keep the interface in use, and the parent's peers would not detect that the parent has ended. So the child
//! closes each [`CloseOnFork`] descriptor before `fork` returns there.

use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError, TryLockError};
use std::time::Duration;

/// Attempts of a child to lock a mutex that one of its own threads may hold. Together they take longer than opening a port.
const TRIES: u32 = 500;
const PAUSE: Duration = Duration::from_millis(10);

/// Number of forks between the process that loaded the library and this one.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Descriptors that a child closes, each plus one. 0 is a free entry. If there are more, the child keeps the rest.
static CLOSED_ON_FORK: [AtomicI32; 1024] = [const { AtomicI32::new(0) }; 1024];

/// A process, as distinct from its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Process(u32);

impl Process {
    /// Returns the calling process.
    #[must_use]
    pub fn this() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the handler stays loaded, because the library's threads keep it loaded. If there is no memory to register it, children do
        // not notice the fork.
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

/// Locks a mutex that another thread of the parent may have held during the fork. Returns `None` in a child if the mutex is never unlocked
/// there.
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

/// Runs in the child. May call only async-signal-safe functions, because other threads may have held any lock.
unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
    // SAFETY: eventfd takes integers.
    let nothing = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC) };
    for place in &CLOSED_ON_FORK {
        let fd = place.swap(0, Ordering::Relaxed) - 1;
        if fd >= 0 {
            // Replaces the descriptor instead of closing it: code that closes the number later must not close another file of the child. If
            // the eventfd could not be created, the child keeps its copy.
            // SAFETY: dup3 takes integers and refuses -1. It replaces the child's copy only.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
    // SAFETY: the descriptor belongs to this function, or is -1, which the kernel refuses.
    unsafe { libc::close(nothing) };
}

/// Makes forked children close `fd`, until [`keep_on_fork`] is called.
pub fn close_on_fork(fd: RawFd) {
    let _ = Process::this();
    let free =
        |place: &&AtomicI32| place.compare_exchange(0, fd + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    if CLOSED_ON_FORK.iter().find(free).is_none() {
        tracing::debug!("descriptor {fd}: forked processes inherit it");
    }
}

/// Undoes [`close_on_fork`]. Must be called before `fd` is closed, because its number may be reused for another file.
pub fn keep_on_fork(fd: RawFd) {
    let is_it =
        |place: &&AtomicI32| place.compare_exchange(fd + 1, 0, Ordering::Relaxed, Ordering::Relaxed).is_ok();
    let _ = CLOSED_ON_FORK.iter().find(is_it);
}

/// An owned descriptor that forked children close. If the program closes all descriptors of its process, another file may get the number.
/// [`CloseOnFork`] then neither uses nor closes it.
#[derive(Debug)]
pub struct CloseOnFork<T: AsRawFd = OwnedFd> {
    owner: ManuallyDrop<T>,
    /// Device and inode of the file, or `None` if the kernel does not report them.
    file: Option<(libc::dev_t, libc::ino_t)>,
}

impl<T: AsRawFd> CloseOnFork<T> {
    /// Returns true if the descriptor still refers to the same file.
    #[must_use]
    pub fn is_same_file(&self) -> bool {
        file_of(self.owner.as_raw_fd()) == self.file
    }
}

fn file_of(fd: RawFd) -> Option<(libc::dev_t, libc::ino_t)> {
    // SAFETY: all-zero bytes are a valid stat, and fstat writes one.
    let (filled, status) = unsafe {
        let mut status: libc::stat = std::mem::zeroed();
        (libc::fstat(fd, &mut status), status)
    };
    (filled == 0).then_some((status.st_dev, status.st_ino))
}

impl<T: AsRawFd> From<T> for CloseOnFork<T> {
    fn from(owner: T) -> Self {
        close_on_fork(owner.as_raw_fd());
        Self { file: file_of(owner.as_raw_fd()), owner: ManuallyDrop::new(owner) }
    }
}

impl<T: AsRawFd> Drop for CloseOnFork<T> {
    fn drop(&mut self) {
        keep_on_fork(self.owner.as_raw_fd());
        if self.is_same_file() {
            // SAFETY: the owner is dropped once and not used afterwards.
            unsafe { ManuallyDrop::drop(&mut self.owner) };
        }
    }
}

impl<T: AsRawFd> std::ops::Deref for CloseOnFork<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.owner
    }
}
