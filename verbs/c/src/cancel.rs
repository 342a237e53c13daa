//! Threads that the program cancels (pthread_cancel(3)). Inside the library no thread is cancelled: a thread that unwinds from a system
//! call would leave locks, and a core, half way. Calls that wait do so without a stack frame of the library.

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

/// While this lives the thread is not cancelled.
pub(crate) struct Deferred(c_int);

impl Deferred {
    pub(crate) fn new() -> Self {
        let mut before = ENABLE;
        // SAFETY: the place lives through the call, and the state is this thread's own.
        unsafe { pthread_setcancelstate(DISABLE, &mut before) };
        Self(before)
    }
}

impl Drop for Deferred {
    fn drop(&mut self) {
        if self.0 == ENABLE {
            // SAFETY: as above; the caller has no use for the state before.
            unsafe { pthread_setcancelstate(ENABLE, std::ptr::null_mut()) };
        }
    }
}

/// Waits until the thread is cancelled, or the process ends. As in [`take_event`].
pub(crate) extern "C-unwind" fn stay() -> ! {
    loop {
        // SAFETY: no arguments.
        unsafe { pause() };
    }
}

/// Takes one event from an eventfd, and waits for it if the descriptor blocks; `false` with `errno` set if there is none. A thread may be
/// cancelled here, so the frames above must have nothing to drop.
pub(crate) extern "C-unwind" fn take_event(descriptor: c_int) -> bool {
    let mut count = [0_u8; 8];
    // SAFETY: the array has the eight bytes that an eventfd returns.
    unsafe { read(descriptor, count.as_mut_ptr().cast(), count.len()) >= 0 }
}
