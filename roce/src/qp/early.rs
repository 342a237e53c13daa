//! The memory of an endpoint for packets that came early, which all its queue pairs share: peers choose how much of it they use.

use crate::Qpn;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use cc::Instant;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

/// Between two searches for memory that is not needed any more.
const INTERVAL: Duration = Duration::from_millis(10);
/// Queue pairs that such a search visits at most.
const VISITS: usize = 256;
/// The same of a search that a packet without room causes.
const VISITS_FOR_ROOM: usize = 16;

/// The bytes that an endpoint's queue pairs may use and use.
#[derive(Debug)]
struct Budget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

/// The part of a budget that one queue pair uses. Dropping it returns the bytes, wherever its queue pair ends.
#[derive(Debug)]
pub(in crate::qp) struct Share {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Share {
    pub(in crate::qp) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes `bytes` more. Returns whether the budget has as many left.
    pub(in crate::qp) fn take(&mut self, bytes: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed).saturating_add(bytes);
        if used > self.budget.limit.load(Ordering::Relaxed) {
            return false;
        }
        // One thread at a time has the endpoint.
        self.budget.used.store(used, Ordering::Relaxed);
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }

    pub(in crate::qp) fn give_back(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let used = self.budget.used.load(Ordering::Relaxed);
        self.budget.used.store(used.saturating_sub(bytes), Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.give_back(self.bytes);
    }
}

/// The budget of an endpoint, and the queue pairs that use it.
#[derive(Debug)]
pub(crate) struct EarlyMemory {
    budget: Arc<Budget>,
    /// In the order of their next visits. Some may be destroyed, or have returned their share.
    holders: VecDeque<Qpn>,
    next_look: Instant,
    /// A queue pair that has this many bytes was refused more.
    short: Option<usize>,
}

impl EarlyMemory {
    pub(crate) fn new(limit: usize) -> Self {
        let budget = Budget { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) };
        Self { budget: Arc::new(budget), holders: VecDeque::new(), next_look: Instant::ZERO, short: None }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.budget.limit.store(limit, Ordering::Relaxed);
    }

    /// Returns the bytes that all queue pairs use.
    pub(crate) fn used(&self) -> usize {
        self.budget.used.load(Ordering::Relaxed)
    }

    /// Returns an empty share.
    pub(in crate::qp) fn share(&self) -> Share {
        Share { budget: self.budget.clone(), bytes: 0 }
    }

    /// The share of `qpn` is not empty any more: it is visited from now on.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(in crate::qp) fn holds(&mut self, qpn: Qpn, now: Instant) {
        if self.holders.is_empty() {
            self.next_look = now + INTERVAL;
        }
        self.holders.push_back(qpn);
    }

    /// A packet of a queue pair that has `bytes` was refused.
    pub(in crate::qp) fn is_short(&mut self, bytes: usize) {
        self.short = Some(bytes);
        self.next_look = Instant::ZERO;
    }

    /// Returns when memory may be found that is not needed any more.
    #[inline]
    pub(crate) fn next_look(&self) -> Option<Instant> {
        (!self.holders.is_empty()).then_some(self.next_look)
    }

    /// Begins a search: returns how many queue pairs to visit, and the bytes that a queue pair must have to be evicted for another.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(crate) fn begin_look(&mut self, now: Instant) -> (usize, Option<usize>) {
        self.next_look = now + INTERVAL;
        let short = self.short.take();
        let visits = if short.is_some() { VISITS_FOR_ROOM } else { VISITS };
        // Two that have as much would otherwise evict each other in turn.
        (visits.min(self.holders.len()), short.map(|bytes| bytes.saturating_mul(2).saturating_add(1)))
    }

    pub(crate) fn next_holder(&mut self) -> Option<Qpn> {
        self.holders.pop_front()
    }

    pub(crate) fn visit_again(&mut self, qpn: Qpn) {
        self.holders.push_back(qpn);
    }
}
