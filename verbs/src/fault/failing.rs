//! The calls that fail on demand: one table of the process, and one check.

use super::{Errno, FailingCall, FaultError, Verb};
use crate::Error;
use datapath::fork;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The limit on calls that are armed to fail at the same time.
pub const MAX_FAILING: usize = 64;

/// A call that is armed to fail.
struct Armed {
    verb: Verb,
    errno: Errno,
    /// The number of calls before it.
    left: u32,
}

static TABLE: Mutex<Vec<Armed>> = Mutex::new(Vec::new());

/// A bit for each verb in [`TABLE`], so that a call costs one load while none is armed. Written while the table is locked.
static VERBS: AtomicU32 = AtomicU32::new(0);

/// Whether the C interface counts the calls, so that the Rust functions that it uses do not.
static COUNTS_AT_C: AtomicBool = AtomicBool::new(false);

/// Arms a call to fail.
///
/// # Errors
/// Returns [`FaultError::TooMany`] if [`MAX_FAILING`] calls are armed.
pub(crate) fn arm(call: FailingCall) -> Result<(), FaultError> {
    let FailingCall { verb, errno, after: left } = call;
    // Only a forked child has no table, if another thread of its parent held the lock.
    let Some(mut table) = fork::lock(&TABLE) else { return Err(FaultError::TooMany) };
    if table.len() >= MAX_FAILING {
        return Err(FaultError::TooMany);
    }
    table.push(Armed { verb, errno, left });
    VERBS.fetch_or(verb.bit(), Ordering::Relaxed);
    drop(table);
    tracing::warn!("fault injected: {call}");
    Ok(())
}

/// Makes only calls of [`check`] count. The C library calls this function before any verb.
pub fn count_at_c_entry_points() {
    COUNTS_AT_C.store(true, Ordering::Relaxed);
}

/// Counts a call of a verb at its C entry point. Returns the error number with which the call must fail, if it is armed to.
///
/// # Errors
/// Returns the error number of a call that must fail.
#[inline]
pub fn check(verb: Verb) -> Result<(), Errno> {
    if VERBS.load(Ordering::Relaxed) & verb.bit() == 0 { Ok(()) } else { count(verb) }
}

/// Counts a call of a verb by a Rust program, as [`check`] does for one of C.
#[inline]
pub(crate) fn check_call<E: From<Injected>>(verb: Verb) -> Result<(), E> {
    if VERBS.load(Ordering::Relaxed) & verb.bit() == 0 || COUNTS_AT_C.load(Ordering::Relaxed) {
        return Ok(());
    }
    count(verb).map_err(|errno| Injected { verb, errno }.into())
}

#[cold]
fn count(verb: Verb) -> Result<(), Errno> {
    let Some(mut table) = fork::lock(&TABLE) else { return Ok(()) };
    let mut due = None;
    for (at, armed) in table.iter_mut().enumerate().filter(|(_, armed)| armed.verb == verb) {
        match armed.left.checked_sub(1) {
            Some(left) => armed.left = left,
            None => due = due.or(Some(at)),
        }
    }
    let Some(at) = due else { return Ok(()) };
    let Armed { errno, .. } = table.remove(at);
    if !table.iter().any(|armed| armed.verb == verb) {
        VERBS.fetch_and(!verb.bit(), Ordering::Relaxed);
    }
    drop(table);
    tracing::warn!("{verb} fails with {errno}, because of an injected fault");
    Err(errno)
}

/// The failure of a call that was armed to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Injected {
    verb: Verb,
    errno: Errno,
}

impl From<Injected> for Error {
    fn from(Injected { verb, errno }: Injected) -> Self {
        Self::Injected { verb, errno }
    }
}

impl From<Injected> for roce::qp::PostError {
    fn from(injected: Injected) -> Self {
        Self::Injected { errno: injected.errno.number() }
    }
}

impl From<Injected> for crate::error::PollError {
    fn from(injected: Injected) -> Self {
        Self::Injected(injected.errno)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fault;
    use super::*;

    /// One test, because the table belongs to the process. No other unit test calls these verbs.
    #[test]
    fn each_armed_call_fails_once_after_its_number_of_calls() {
        let arm = |text: &str| match text.parse() {
            Ok(Fault::Fail(call)) => super::arm(call),
            other => panic!("{other:?}"),
        };
        let calls = |verb: Verb, count: usize| -> Vec<i32> {
            (0..count).map(|_| check(verb).map_or_else(Errno::number, |()| 0)).collect()
        };
        assert_eq!(calls(Verb::RdmaListen, 2), [0, 0]);
        arm("fail rdma_listen EIO after 2").unwrap();
        arm("fail rdma_listen ENODEV after 2").unwrap();
        arm("fail rdma_listen EBUSY").unwrap();
        assert_eq!(calls(Verb::RdmaAccept, 1), [0]);
        assert_eq!(calls(Verb::RdmaListen, 5), [libc::EBUSY, 0, libc::EIO, libc::ENODEV, 0]);
        assert_eq!(VERBS.load(Ordering::Relaxed) & Verb::RdmaListen.bit(), 0);

        let armed = (0..=MAX_FAILING).take_while(|_| arm("fail rdma_listen EIO").is_ok()).count();
        assert_eq!((armed, arm("fail rdma_listen EIO")), (MAX_FAILING, Err(FaultError::TooMany)));
        assert_eq!(calls(Verb::RdmaListen, MAX_FAILING), [libc::EIO; MAX_FAILING]);
        assert_eq!(calls(Verb::RdmaListen, 1), [0]);
    }
}
