//! The memory budget of an endpoint for packets that arrive early. All queue pairs share it, because peers decide how much a queue pair
//! needs.

use crate::Qpn;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use cc::Instant;
use core::sync::atomic::{AtomicUsize, Ordering};
use core::time::Duration;

/// Time between two searches for memory to free.
const INTERVAL: Duration = Duration::from_millis(10);
/// Queue pairs that a search visits at most.
const VISITS: usize = 256;
/// Queue pairs that a search visits at most if it was caused by a packet without room.
const VISITS_FOR_SPACE: usize = 16;

/// Limit and use of the memory, bytes.
#[derive(Debug)]
struct Budget {
    limit: AtomicUsize,
    used: AtomicUsize,
}

/// Bytes of a budget that one queue pair uses. Dropping it returns them.
#[derive(Debug)]
pub(in crate::qp) struct Reservation {
    budget: Arc<Budget>,
    bytes: usize,
}

impl Reservation {
    pub(in crate::qp) const fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reserves `bytes` more. Returns false if the budget has fewer left.
    pub(in crate::qp) fn reserve(&mut self, bytes: usize) -> bool {
        let used = self.budget.used.load(Ordering::Relaxed).saturating_add(bytes);
        if used > self.budget.limit.load(Ordering::Relaxed) {
            return false;
        }
        // Only one thread at a time uses the endpoint.
        self.budget.used.store(used, Ordering::Relaxed);
        self.bytes = self.bytes.saturating_add(bytes);
        true
    }

    pub(in crate::qp) fn release(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let used = self.budget.used.load(Ordering::Relaxed);
        self.budget.used.store(used.saturating_sub(bytes), Ordering::Relaxed);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.release(self.bytes);
    }
}

/// Budget of an endpoint, and the queue pairs that use it.
#[derive(Debug)]
pub(crate) struct EarlyMemory {
    budget: Arc<Budget>,
    /// In the order of their next visits. Some may be destroyed, or use no memory any more.
    holders: VecDeque<Qpn>,
    next_scan: Instant,
    /// Bytes in use by the last queue pair that was refused more; `None` if none was refused since the last search.
    shortage: Option<usize>,
}

impl EarlyMemory {
    pub(crate) fn new(limit: usize) -> Self {
        let budget = Budget { limit: AtomicUsize::new(limit), used: AtomicUsize::new(0) };
        Self { budget: Arc::new(budget), holders: VecDeque::new(), next_scan: Instant::ZERO, shortage: None }
    }

    pub(crate) fn set_limit(&self, limit: usize) {
        self.budget.limit.store(limit, Ordering::Relaxed);
    }

    pub(crate) fn used(&self) -> usize {
        self.budget.used.load(Ordering::Relaxed)
    }

    pub(in crate::qp) fn reservation(&self) -> Reservation {
        Reservation { budget: self.budget.clone(), bytes: 0 }
    }

    /// Adds `qpn`, whose share is no longer empty, to the queue pairs to visit.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(in crate::qp) fn add_holder(&mut self, qpn: Qpn, now: Instant) {
        if self.holders.is_empty() {
            self.next_scan = now + INTERVAL;
        }
        self.holders.push_back(qpn);
    }

    /// Makes a search due, because a queue pair that has `bytes` was refused more.
    pub(in crate::qp) fn on_shortage(&mut self, bytes: usize) {
        self.shortage = Some(bytes);
        self.next_scan = Instant::ZERO;
    }

    /// Returns the time of the next search; `None` if no queue pair uses memory.
    #[inline]
    pub(crate) fn next_scan(&self) -> Option<Instant> {
        (!self.holders.is_empty()).then_some(self.next_scan)
    }

    /// Begins a search. Returns how many queue pairs to visit; after a refusal, also the bytes from which a queue pair is evicted.
    #[expect(clippy::arithmetic_side_effects, reason = "adding to an `Instant` saturates")]
    pub(crate) fn begin_scan(&mut self, now: Instant) -> (usize, Option<usize>) {
        self.next_scan = now + INTERVAL;
        let shortage = self.shortage.take();
        let visits = if shortage.is_some() { VISITS_FOR_SPACE } else { VISITS };
        // With half of that, two queue pairs of equal shares would evict each other in turn.
        (visits.min(self.holders.len()), shortage.map(|bytes| bytes.saturating_mul(2).saturating_add(1)))
    }

    pub(crate) fn next_holder(&mut self) -> Option<Qpn> {
        self.holders.pop_front()
    }

    pub(crate) fn visit_again(&mut self, qpn: Qpn) {
        self.holders.push_back(qpn);
    }
}
