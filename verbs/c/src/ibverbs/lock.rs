//! The locks of the library, and the order in which a thread acquires them.
//!
//! A thread that holds a lock acquires only locks of a later [`Rank`]. A debug build checks this at every call. Any test that acquires
//! locks in another order therefore fails, even if no thread blocks.
//!
//! Three more locks are innermost, and no code acquires another lock while it holds one of them: the table of live objects
//! (`live_objects.rs`), the owners of asynchronous events (`event.rs`; the core acquires it in its event filter), and the count of
//! unacknowledged events (`channel.rs`). The core's own locks are between these and the ranks below: a verb may call the core with its
//! locks held, and the core calls back only the event filter.

use std::ops::{Deref, DerefMut};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The order of locks, outermost first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Rank {
    /// The port of a device, while it is opened or closed.
    Device,
    /// XRC domains and targets that contexts share.
    Xrc,
    /// The requests of an extended queue pair that `ibv_wr_complete` posts.
    Batch,
    QueuePair,
    /// A completion channel's list of queues.
    Channel,
    CompletionQueue,
    SharedReceives,
    /// A memory region, while it is changed.
    Region,
    /// A protection domain's list of regions on demand.
    OnDemand,
}

/// A mutex with a rank. A panic while it is held does not poison it.
pub(crate) struct Lock<T> {
    rank: Rank,
    inner: Mutex<T>,
}

impl<T> Lock<T> {
    pub(crate) const fn new(rank: Rank, value: T) -> Self {
        Self { rank, inner: Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        let held = HeldRank::new(self.rank);
        Guard { value: self.inner.lock().unwrap_or_else(PoisonError::into_inner), _held: held }
    }

    /// Locks the value once `is_busy` returns false, which it checks again after each notification of `changed`.
    pub(crate) fn lock_when_free(
        &self,
        changed: &Condvar,
        is_busy: impl FnMut(&mut T) -> bool,
    ) -> Guard<'_, T> {
        let held = HeldRank::new(self.rank);
        let value = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        Guard {
            value: changed.wait_while(value, is_busy).unwrap_or_else(PoisonError::into_inner),
            _held: held,
        }
    }
}

pub(crate) struct Guard<'a, T> {
    value: MutexGuard<'a, T>,
    _held: HeldRank,
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Marks a rank as held by this thread, in debug builds.
struct HeldRank {
    #[cfg(debug_assertions)]
    rank: Rank,
}

#[cfg(debug_assertions)]
thread_local! {
    /// One bit for each rank that this thread holds. The variable has no destructor, so it is usable while the thread ends.
    static RANKS: std::cell::Cell<u16> = const { std::cell::Cell::new(0) };
}

#[cfg(debug_assertions)]
impl HeldRank {
    fn new(rank: Rank) -> Self {
        let held = RANKS.get();
        assert!(held >> rank as u8 == 0, "{rank:?}: this thread holds a lock of that rank or a later one");
        RANKS.set(held | 1 << rank as u8);
        Self { rank }
    }
}

#[cfg(debug_assertions)]
impl Drop for HeldRank {
    fn drop(&mut self) {
        RANKS.set(RANKS.get() & !(1 << self.rank as u8));
    }
}

#[cfg(not(debug_assertions))]
impl HeldRank {
    fn new(_rank: Rank) -> Self {
        Self {}
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    fn locks_nest_in_their_order_only() {
        let [first, second] = [Rank::Channel, Rank::CompletionQueue].map(|rank| Lock::new(rank, ()));
        let other = Lock::new(Rank::CompletionQueue, ());
        let outer = first.lock();
        let inner = second.lock();
        assert!(std::panic::catch_unwind(|| drop(other.lock())).is_err(), "two of a rank");
        drop(inner);
        drop(other.lock());
        drop(outer);
        let inner = second.lock();
        assert!(std::panic::catch_unwind(|| drop(first.lock())).is_err(), "the outer lock comes first");
        drop(inner);
        drop(first.lock());
    }
}
