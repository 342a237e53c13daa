//! Objects that each process creates once, and that a forked child creates anew: the devices, the manager, and the default domains.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

/// Number of generations of forks with their own objects. Later generations share those of the last one.
const DEEPEST: usize = 16;

/// The number of forks between this process and the one that loaded the library.
static GENERATION: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// An identity that distinguishes a process from its forked children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Process(usize);

impl Process {
    pub(crate) fn this() -> Self {
        static WATCH: Once = Once::new();
        // SAFETY: the function exists as long as the library does. If there is no memory to register it, children share their parent's
        // objects.
        WATCH.call_once(|| _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) });
        Self(GENERATION.load(Ordering::Relaxed))
    }

    /// Returns a process that is not the calling one.
    #[cfg(test)]
    pub(crate) fn other() -> Self {
        Self(usize::MAX)
    }
}

/// A value that each process creates for itself. A child does not wait for a thread of its parent that was creating one.
pub(crate) struct PerProcess<T>([OnceLock<T>; DEEPEST]);

impl<T> PerProcess<T> {
    pub(crate) const fn new() -> Self {
        Self([const { OnceLock::new() }; DEEPEST])
    }

    pub(crate) fn cell(&self) -> &OnceLock<T> {
        &self.0[Process::this().0.min(DEEPEST - 1)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::c_int;

    #[test]
    fn a_forked_child_has_its_own_value() {
        static VALUE: PerProcess<u32> = PerProcess::new();
        assert_eq!(*VALUE.cell().get_or_init(|| 1), 1);
        // SAFETY: the child only accesses the cell, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let own = VALUE.cell().get().is_none() && *VALUE.cell().get_or_init(|| 2) == 2;
            // SAFETY: ends only this process.
            unsafe { libc::_exit(c_int::from(!own)) };
        }
        let mut status = -1;
        // SAFETY: there is room for the status of a child of this process.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, *VALUE.cell().get().unwrap()), (0, 1));
    }
}
