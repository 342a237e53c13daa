//! Recovers from faults on registered memory that the application unmapped, or whose file it truncated.
//!
//! While a core exists, this module handles SIGSEGV and SIGBUS. A fault in [`super::routines`] makes that routine return an error. All
//! other signals are passed to the program's own handler, as the kernel would call it. If the program installs a handler later,
//! [`reinstall`] detects it, and this module calls it from then on. Until then, at most [`PERIOD`], the program's handler receives all
//! faults.

use super::routines;
use libc::{
    SA_NODEFER, SA_ONSTACK, SA_RESETHAND, SA_SIGINFO, SIG_DFL, SIG_IGN, SIGBUS, SIGSEGV, c_int, c_void,
    sigaction,
};
use std::cell::Cell;
use std::mem::zeroed;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Mutex, TryLockError};
use std::time::Duration;

/// Time between two checks whether the program has installed a handler.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

const SIGNALS: [c_int; 2] = [SIGSEGV, SIGBUS];

/// The program's current handler of each signal, and the one that it had first. Null before the first check.
static PROGRAMS: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
static FIRST: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

static CORES: AtomicUsize = AtomicUsize::new(0);

/// All actions that the program ever had. None is freed, because a handler may run with any of them at any time.
static KNOWN: Mutex<Vec<&'static sigaction>> = Mutex::new(Vec::new());

thread_local! {
    /// The context with which this thread last called the program's handler, and the stack depth of that call.
    static LAST_PASSED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static UNBLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Enables the recovery from faults while any value of this type exists.
#[derive(Debug)]
pub(crate) struct Recovery(());

impl Recovery {
    pub(crate) fn begin() -> Self {
        CORES.fetch_add(1, Ordering::AcqRel);
        reinstall();
        Self(())
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        if CORES.fetch_sub(1, Ordering::AcqRel) > 1 {
            return;
        }
        for (signal, programs) in SIGNALS.into_iter().zip(&PROGRAMS) {
            let action = programs.load(Ordering::Acquire);
            if is_ours(&current(signal)) && !action.is_null() {
                // SAFETY: the action was the program's, and is never freed.
                unsafe { sigaction(signal, action, null_mut()) };
            }
        }
    }
}

/// Installs our handler if the program has installed its own, which ours calls from then on. Costs two system calls.
pub(crate) fn reinstall() {
    // If the lock is held, another thread does the same now. If it was held during the fork that created this process, it stays held, and
    // the handlers stay as they were inherited.
    let mut known = match KNOWN.try_lock() {
        _ if CORES.load(Ordering::Acquire) == 0 => return,
        Ok(known) => known,
        Err(TryLockError::Poisoned(known)) => known.into_inner(),
        Err(TryLockError::WouldBlock) => return,
    };
    for (index, signal) in SIGNALS.into_iter().enumerate() {
        let found = current(signal);
        if is_ours(&found) {
            continue;
        }
        let same = |known: &&&'static sigaction| {
            known.sa_sigaction == found.sa_sigaction && known.sa_flags == found.sa_flags
        };
        let action = known.iter().find(same).copied().unwrap_or_else(|| {
            let action: &'static sigaction = Box::leak(Box::new(found));
            known.push(action);
            action
        });
        let action = std::ptr::from_ref(action).cast_mut();
        PROGRAMS[index].store(action, Ordering::Release);
        let _ = FIRST[index].compare_exchange(null_mut(), action, Ordering::AcqRel, Ordering::Relaxed);
        // SAFETY: all-zero bytes are a valid action, and our handler calls only async-signal-safe functions.
        unsafe {
            let mut ours: sigaction = zeroed();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
            sigaction(signal, &ours, null_mut());
        }
    }
}

/// Unblocks the signals on the calling thread, which runs a core. With a blocked signal, a fault would kill the process.
#[inline]
pub(crate) fn unblock_signals() {
    if !UNBLOCKED.get() {
        UNBLOCKED.set(true);
        // SAFETY: the set is initialised before its use, and only this thread's mask changes.
        unsafe {
            let mut faults = zeroed();
            libc::sigemptyset(&mut faults);
            SIGNALS.iter().for_each(|&signal| _ = libc::sigaddset(&mut faults, signal));
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &faults, null_mut());
        }
    }
}

fn current(signal: c_int) -> sigaction {
    // SAFETY: all-zero bytes are a valid action, and the call only writes to it.
    unsafe {
        let mut action = zeroed();
        sigaction(signal, null(), &mut action);
        action
    }
}

fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// The signal handler. Calls only async-signal-safe functions: no allocation, no lock.
///
/// # Safety
/// The caller must be the kernel, or a handler that passes on what the kernel passed to it.
unsafe extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// `BUS_MCEERR_AO` (sigaction(2)): reports a memory error that this instruction did not cause.
    const BUS_MCEERR_AO: c_int = 5;
    // SAFETY: the caller vouches for the pointers.
    let (code, next) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        ((*info).si_code, next_of(context))
    };
    let is_fault = code > 0 && !(signal == SIGBUS && code == BUS_MCEERR_AO);
    match routines::after(*next as usize).filter(|_| is_fault) {
        Some(after) => *next = after as _,
        // SAFETY: as above.
        None => unsafe { pass_on(signal, info, context) },
    }
}

/// Returns the instruction pointer of the interrupted code.
#[cfg(target_arch = "x86_64")]
fn next_of(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// Returns the instruction pointer of the interrupted code.
#[cfg(target_arch = "aarch64")]
fn next_of(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}

/// Calls the program's handler. If that handler was installed over ours and calls ours in turn, calls the earlier one.
///
/// # Safety
/// The caller must pass the `info` and `context` that the kernel passed for `signal`.
#[cold]
unsafe fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = usize::from(signal == SIGBUS);
    let here = (context as usize, std::ptr::from_ref(&index) as usize);
    let before = LAST_PASSED.get();
    let again = before.0 == here.0 && here.1 < before.1;
    if again {
        // SAFETY: the caller vouches for the pointers.
        unsafe { call(&FIRST[index], signal, info, context) };
        return;
    }
    LAST_PASSED.set(here);
    // SAFETY: as above.
    unsafe { call(&PROGRAMS[index], signal, info, context) };
    LAST_PASSED.set((0, 0));
}

/// Acts as the kernel would for `action`.
///
/// # Safety
/// The caller must pass the `info` and `context` that the kernel passed for `signal`.
unsafe fn call(
    action: &AtomicPtr<sigaction>,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let found = action.load(Ordering::Acquire);
    // SAFETY: the pointer is null or never freed; all-zero bytes are the default action.
    let mut program = unsafe { if found.is_null() { zeroed() } else { *found } };
    // SAFETY: the caller vouches for `info`.
    let is_sent = unsafe { (*info).si_code } <= 0;
    if program.sa_sigaction == SIG_IGN && is_sent {
        return;
    }
    // SAFETY: each action is initialised, and the program's handler is called as its flags require. The kernel restores the mask on return.
    unsafe {
        if matches!(program.sa_sigaction, SIG_DFL | SIG_IGN) || program.sa_flags & SA_RESETHAND != 0 {
            let default: sigaction = zeroed();
            sigaction(signal, &default, null_mut());
        }
        if matches!(program.sa_sigaction, SIG_DFL | SIG_IGN) {
            // A fault occurs again on return and then kills the process. A signal that was sent is raised again.
            if is_sent {
                libc::raise(signal);
            }
            return;
        }
        if program.sa_flags & SA_NODEFER == 0 {
            libc::sigaddset(&mut program.sa_mask, signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, &program.sa_mask, null_mut());
        if program.sa_flags & SA_NODEFER != 0 {
            let mut this = zeroed();
            libc::sigemptyset(&mut this);
            libc::sigaddset(&mut this, signal);
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &this, null_mut());
        }
        if program.sa_flags & SA_SIGINFO == 0 {
            let handler: extern "C" fn(c_int) = std::mem::transmute(program.sa_sigaction);
            handler(signal);
        } else {
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) =
                std::mem::transmute(program.sa_sigaction);
            handler(signal, info, context);
        }
    }
}
