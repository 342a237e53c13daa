//! Cancellation of the program's threads (pthread_cancel(3)). It is disabled inside the library: a thread that unwinds from a system call
//! would leave locks held and a core in the middle of a turn. Only calls that block can be cancelled, at a point where no frame of the
//! library has anything to drop.

use std::ffi::{c_int, c_void};

const ENABLE: c_int = 0;
const DISABLE: c_int = 1;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, old: *mut c_int) -> c_int;
}

unsafe extern "C-unwind" {
    fn read(descriptor: c_int, into: *mut c_void, size: usize) -> isize;
    fn pause() -> c_int;
}

/// Disables the cancellation of this thread until dropped.
pub(crate) struct Deferred(c_int);

impl Deferred {
    pub(crate) fn new() -> Self {
        let mut before = ENABLE;
        // SAFETY: `before` outlives the call, and the state is this thread's own.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self(before)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if self.0 == ENABLE {
            // SAFETY: the state is this thread's own, and null means that the previous state is not stored.
            unsafe { pthread_setcancelstate(ENABLE, std::ptr::null_mut()) };
        }
    }
}

/// Waits until the thread is cancelled or the process ends. The callers' frames must have nothing to drop, as for [`take_event`].
pub(crate) extern "C-unwind" fn stay() -> ! {
    loop {
        // SAFETY: no arguments.
        unsafe { pause() };
    }
}

/// Reads one event from an eventfd, and waits for it if the descriptor blocks. Returns `false` with `errno` set on failure. The thread may
/// be cancelled here, so the callers' frames must have nothing to drop.
pub(crate) extern "C-unwind" fn take_event(descriptor: c_int) -> bool {
    let mut count = [0_u8; 8];
    // SAFETY: the array has the eight bytes that an eventfd returns.
    unsafe { read(descriptor, count.as_mut_ptr().cast(), count.len()) >= 0 }
}
