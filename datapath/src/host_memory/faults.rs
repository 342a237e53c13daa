//! Faults of the routines that touch registered memory: the application unmapped it, or shortened the file behind it.
//!
//! While a core exists, SIGSEGV and SIGBUS come here first. A fault of [`super::routines`] ends that routine with an error; every other
//! signal goes on to the program's own handler, as the kernel would have called it. The program may set its handlers whenever it
//! likes: they are then called from here, once [`renew`] has seen them. Until then, up to [`PERIOD`], a fault is the program's.

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

/// The interval at which cores check whether the program has set its own handlers.
pub(crate) const PERIOD: Duration = Duration::from_millis(100);

const SIGNALS: [c_int; 2] = [SIGSEGV, SIGBUS];

/// The program's handler of each signal, and the one it had before it first met ours. Null: not looked at yet.
static PROGRAMS: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];
static FIRST: [AtomicPtr<sigaction>; 2] = [const { AtomicPtr::new(null_mut()) }; 2];

static CORES: AtomicUsize = AtomicUsize::new(0);

/// Every action that the program ever had: a handler may run with one at any time, so none is freed.
static KNOWN: Mutex<Vec<&'static sigaction>> = Mutex::new(Vec::new());

thread_local! {
    /// The context with which the program's handler was called here, and how deep the stack was.
    static PASSED: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
    static HEARS: Cell<bool> = const { Cell::new(false) };
}

/// Faults are recovered while one of these lives.
#[derive(Debug)]
pub(crate) struct Recovery(());

impl Recovery {
    pub(crate) fn begin() -> Self {
        CORES.fetch_add(1, Ordering::AcqRel);
        renew();
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

/// Puts our handler back if the program has set its own, which is called from ours from then on. Two system calls.
pub(crate) fn renew() {
    // Another thread does so now. Or one did so in the process that this one was forked from; then the next core of this process does it.
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
        // SAFETY: all-zero bytes are an action, and ours calls nothing that a signal's handler may not call.
        unsafe {
            let mut ours: sigaction = zeroed();
            ours.sa_sigaction = on_fault as *const () as usize;
            ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
            sigaction(signal, &ours, null_mut());
        }
    }
}

/// The calling thread runs a core: it may not block the signals, or a fault would end the process.
#[inline]
pub(crate) fn hear() {
    if !HEARS.get() {
        HEARS.set(true);
        // SAFETY: the set is filled before it is used, and only this thread's mask changes.
        unsafe {
            let mut faults = zeroed();
            libc::sigemptyset(&mut faults);
            SIGNALS.iter().for_each(|&signal| _ = libc::sigaddset(&mut faults, signal));
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &faults, null_mut());
        }
    }
}

fn current(signal: c_int) -> sigaction {
    // SAFETY: all-zero bytes are an action, which is only written to.
    unsafe {
        let mut action = zeroed();
        sigaction(signal, null(), &mut action);
        action
    }
}

fn is_ours(action: &sigaction) -> bool {
    action.sa_sigaction == on_fault as *const () as usize
}

/// The handler. What it calls may be called in one: no allocation, no lock.
extern "C" fn on_fault(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    /// `BUS_MCEERR_AO` of sigaction(2): reports memory that this instruction did not touch.
    const ELSEWHERE: c_int = 5;
    // SAFETY: the kernel, or the program's handler in its name, passes both.
    let (code, next) = unsafe {
        let context = &mut *context.cast::<libc::ucontext_t>();
        ((*info).si_code, next_of(context))
    };
    let is_fault = code > 0 && !(signal == SIGBUS && code == ELSEWHERE);
    match routines::after(*next as usize).filter(|_| is_fault) {
        Some(after) => *next = after as _,
        None => pass_on(signal, info, context),
    }
}

/// The address of the instruction that is executed next.
#[cfg(target_arch = "x86_64")]
fn next_of(context: &mut libc::ucontext_t) -> &mut libc::greg_t {
    &mut context.uc_mcontext.gregs[libc::REG_RIP as usize]
}

/// The address of the instruction that is executed next.
#[cfg(target_arch = "aarch64")]
fn next_of(context: &mut libc::ucontext_t) -> &mut libc::c_ulonglong {
    &mut context.uc_mcontext.pc
}

/// To the program's handler. One that was set over ours may call ours in turn: that is meant for the one before.
#[cold]
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let index = usize::from(signal == SIGBUS);
    let here = (context as usize, std::ptr::from_ref(&index) as usize);
    let before = PASSED.get();
    let again = before.0 == here.0 && here.1 < before.1;
    if again {
        // SAFETY: the kernel's, as above.
        unsafe { call(&FIRST[index], signal, info, context) };
        return;
    }
    PASSED.set(here);
    // SAFETY: as above.
    unsafe { call(&PROGRAMS[index], signal, info, context) };
    PASSED.set((0, 0));
}

/// Does what the kernel would do for `action`.
///
/// # Safety
/// `info` and `context` are what the kernel gave for `signal`.
unsafe fn call(
    action: &AtomicPtr<sigaction>,
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut c_void,
) {
    let found = action.load(Ordering::Acquire);
    // SAFETY: null or never freed; all-zero bytes are the default action.
    let mut program = unsafe { if found.is_null() { zeroed() } else { *found } };
    // SAFETY: the caller's promise.
    let is_sent = unsafe { (*info).si_code } <= 0;
    if program.sa_sigaction == SIG_IGN && is_sent {
        return;
    }
    // SAFETY: each action is whole, and the program's handler is called as it asked to be; the kernel sets the mask back on return.
    unsafe {
        if matches!(program.sa_sigaction, SIG_DFL | SIG_IGN) || program.sa_flags & SA_RESETHAND != 0 {
            let default: sigaction = zeroed();
            sigaction(signal, &default, null_mut());
        }
        if matches!(program.sa_sigaction, SIG_DFL | SIG_IGN) {
            // A fault comes again by itself, and now ends the process as it would have; what was sent is sent again.
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
