//! A work queue between an application and its core: a ring, and the number of outstanding requests.

use roce::qp::PostError;
use rtrb::chunks::ReadChunk;
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt;
use std::sync::Arc;

#[cfg(all(test, loom))]
use loom::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};
#[cfg(not(all(test, loom)))]
use std::{
    sync::atomic::{AtomicU32, AtomicU64, Ordering, fence},
    thread::yield_now,
};

/// Number of a queue's finished requests; wraps at 2³².
///
/// The poster counts the requests that it posted. The difference is the number of outstanding requests.
#[derive(Debug, Default)]
struct Finished(AtomicU32);

/// For each work queue, the number of its completions that are in a completion queue and not yet polled.
///
/// A request is outstanding until its completion is polled (IBA 10.8), and occupies a place in its queue until then. So a completion queue
/// as deep as its work queues never overflows. Each word contains the queue pair's generation and the count: polling completions of an
/// earlier queue pair in the same slot changes nothing.
///
/// While the core moves requests from "not finished" to "not polled", they count as both. `moves` is odd during that time, so that a poster
/// does not consider its queue full.
pub(super) struct Unpolled {
    counts: Box<[AtomicU64]>,
    moves: AtomicU32,
}

impl fmt::Debug for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpolled").field("queues", &self.counts.len()).finish_non_exhaustive()
    }
}

/// A move of requests by the core. Dropping it ends the move, even when the core panics, so that no poster waits permanently.
pub(super) struct Move<'a>(&'a Unpolled);

impl Drop for Move<'_> {
    fn drop(&mut self) {
        let moves = &self.0.moves;
        moves.store(moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// The index of a work queue in [`Unpolled`], and its generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueIndex {
    index: u32,
    generation: u32,
}

impl QueueIndex {
    /// The index of a queue that was destroyed.
    pub(super) const NONE: Self = Self { index: u32::MAX, generation: 0 };
}

impl Unpolled {
    pub(super) fn new(slots: usize) -> Self {
        Self { counts: (0..2 * slots).map(|_| AtomicU64::new(0)).collect(), moves: AtomicU32::new(0) }
    }

    /// Begins a move: completions added before the end of the move count twice. Only the core calls this.
    pub(super) fn begin_move(&self) -> Move<'_> {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        Move(self)
    }

    /// Returns the indices of a new queue pair's send and receive queues.
    pub(super) fn begin(&self, slot: usize, generation: u32) -> [QueueIndex; 2] {
        [2 * slot, 2 * slot + 1].map(|index| {
            // A swap instead of a store, so that it is ordered after a late poller's removal.
            self.counts[index].swap(u64::from(generation) << 32, Ordering::Relaxed);
            QueueIndex { index: index as u32, generation }
        })
    }

    pub(super) fn count(&self, queue_index: QueueIndex) -> u32 {
        self.counts[queue_index.index as usize].load(Ordering::Acquire) as u32
    }

    /// Adds completions. Only the core calls this, and only for the current queue pair of the slot.
    pub(super) fn add(&self, queue_index: QueueIndex, completions: u32) {
        if let Some(word) = self.counts.get(queue_index.index as usize) {
            word.fetch_add(completions.into(), Ordering::Release);
        }
    }

    #[inline]
    pub(super) fn remove(&self, queue_index: QueueIndex, completions: u32) {
        let Some(word) = self.counts.get(queue_index.index as usize) else { return };
        let mut seen = word.load(Ordering::Relaxed);
        while (seen >> 32) as u32 == queue_index.generation && seen as u32 >= completions {
            let left = seen - u64::from(completions);
            match word.compare_exchange_weak(seen, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

#[derive(Debug)]
pub(super) struct Poster<T> {
    ring: Producer<T>,
    finished: Arc<Finished>,
    unpolled: Arc<Unpolled>,
    queue_index: QueueIndex,
    posted: u32,
    /// Lower bound of the room in the queue. Only posting decreases the room, so the core's count is read only when this is 0.
    room: u32,
    depth: u32,
}

impl<T> Poster<T> {
    #[inline(always)]
    pub(super) fn push(&mut self, request: T) -> Result<(), PostError> {
        if self.room == 0 {
            self.room = self.find_room(1);
        }
        let full = PostError::QueueFull { limit: self.depth };
        self.room = self.room.checked_sub(1).ok_or(full)?;
        // Written in place, because a request is large and a refused one would be copied back. The ring is as deep as the queue.
        let mut chunk = self.ring.write_chunk_uninit(1).map_err(|_| full)?;
        chunk.as_mut_slices().0[0].write(request);
        // SAFETY: the only element of the chunk was written.
        unsafe { chunk.commit_all() };
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Returns an error if the queue does not have room for this number of requests.
    pub(super) fn check_room(&mut self, requests: usize) -> Result<(), PostError> {
        let full = PostError::QueueFull { limit: self.depth };
        let requests = u32::try_from(requests).map_err(|_| full)?;
        if self.room < requests {
            self.room = self.find_room(requests);
        }
        if self.room < requests { Err(full) } else { Ok(()) }
    }

    /// Returns the room in the queue, or a lower bound of at least `needed`.
    #[cold]
    fn find_room(&self, needed: u32) -> u32 {
        loop {
            let moves = self.unpolled.moves.load(Ordering::Acquire);
            // In this order, because the core counts a completion as unpolled before it counts the request as finished.
            let open = self.posted.wrapping_sub(self.finished.0.load(Ordering::Acquire));
            let taken = open.saturating_add(self.unpolled.count(self.queue_index));
            fence(Ordering::Acquire);
            let is_still = moves.is_multiple_of(2) && self.unpolled.moves.load(Ordering::Relaxed) == moves;
            match self.depth.saturating_sub(taken) {
                room if is_still => return room,
                // The two counts may be from different moments, so only room for one is certain.
                1.. if needed == 1 => return 1,
                _ => {}
            }
            // The core ends the move within a turn, unless it has no CPU to run on.
            yield_now();
        }
    }
}

/// Requests that the core takes. Dropping it removes them from the ring, even when the core panics, so that none is taken twice.
struct TakenRequests<'a, T>(Option<ReadChunk<'a, T>>);

impl<T> Drop for TakenRequests<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(ReadChunk::commit_all);
    }
}

#[derive(Debug)]
pub(super) struct WorkQueue<T> {
    ring: Consumer<T>,
    finished: Arc<Finished>,
    handled: u32,
    depth: u32,
    pub(super) queue_index: QueueIndex,
}

impl<T> WorkQueue<T> {
    /// Passes the waiting requests to `take`, oldest first, in two slices.
    #[inline]
    pub(super) fn take(&mut self, take: impl FnOnce([&mut [T]; 2])) {
        let Self { ring, handled, .. } = self;
        let waiting = ring.slots();
        // Cannot fail: `waiting` requests are in the ring.
        if waiting > 0
            && let Ok(chunk) = ring.read_chunk(waiting)
        {
            *handled = handled.wrapping_add(waiting as u32);
            let mut taken = TakenRequests(Some(chunk));
            if let Some(chunk) = &mut taken.0 {
                take(chunk.as_mut_slices().into());
            }
        }
    }

    /// Returns the number of unfinished requests, in the ring or in the endpoint, which has room for `room` more.
    pub(super) fn outstanding(&self, room: u32) -> usize {
        self.ring.slots() + self.depth.saturating_sub(room) as usize
    }

    /// Publishes the number of finished requests to the poster. The endpoint has room for `room` more.
    pub(super) fn publish(&self, room: u32) {
        let outstanding = self.depth.saturating_sub(room);
        self.finished.0.store(self.handled.wrapping_sub(outstanding), Ordering::Release);
    }
}

pub(super) fn work_queue<T>(
    depth: u32,
    unpolled: Arc<Unpolled>,
    queue_index: QueueIndex,
) -> (Poster<T>, WorkQueue<T>) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let finished = Arc::new(Finished::default());
    (
        Poster {
            ring: producer,
            finished: finished.clone(),
            unpolled,
            queue_index,
            posted: 0,
            room: 0,
            depth,
        },
        WorkQueue { ring: consumer, finished, handled: 0, depth, queue_index },
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pop<T>(queue: &mut WorkQueue<T>) -> Option<T> {
        queue.handled = queue.handled.wrapping_add(u32::from(queue.ring.slots() > 0));
        queue.ring.pop().ok()
    }

    fn fresh() -> (Arc<Unpolled>, QueueIndex) {
        let unpolled = Arc::new(Unpolled::new(1));
        let [queue_index, _] = unpolled.begin(0, 1);
        (unpolled, queue_index)
    }

    /// IBA 10.8: a request is outstanding until its completion is polled.
    #[test]
    fn a_queue_is_full_until_completions_are_polled() {
        let (unpolled, queue_index) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), queue_index);
        let full = Err(PostError::QueueFull { limit: 2 });
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), full));
        assert_eq!((pop(&mut queue), pop(&mut queue), pop(&mut queue)), (Some(1), Some(2), None));
        queue.publish(0);
        assert_eq!(poster.push(3), full);
        queue.publish(1);
        assert_eq!((poster.push(3), poster.push(4)), (Ok(()), full));
        unpolled.add(queue_index, 1);
        pop(&mut queue);
        queue.publish(1);
        assert_eq!(poster.push(4), full, "done, and not polled");
        unpolled.remove(queue_index, 1);
        assert_eq!(poster.push(4), Ok(()));
    }

    #[test]
    fn a_request_that_finishes_while_another_is_posted_is_counted_once() {
        let (unpolled, queue_index) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), queue_index);
        assert_eq!((poster.push(1), poster.push(2)), (Ok(()), Ok(())));
        // The first completion is polled. While the second request is being finished, a third is posted.
        assert_eq!((pop(&mut queue), pop(&mut queue)), (Some(1), Some(2)));
        queue.publish(1);
        let moving = unpolled.begin_move();
        unpolled.add(queue_index, 1);
        let third = std::thread::spawn(move || poster.push(3));
        std::thread::yield_now();
        queue.publish(2);
        drop(moving);
        assert_eq!(third.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_poster_goes_on_after_the_core_panics_while_it_moves_requests() {
        let (unpolled, queue_index) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(1, unpolled.clone(), queue_index);
        assert_eq!((poster.push(1), pop(&mut queue)), (Ok(()), Some(1)));
        let panics = std::panic::AssertUnwindSafe(|| {
            let _half_way = unpolled.begin_move();
            unpolled.add(queue_index, 1);
            std::panic::resume_unwind(Box::new("a defect"));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(poster.push(2), Err(PostError::QueueFull { limit: 1 }));
    }

    #[test]
    fn requests_are_taken_once_if_the_core_panics_while_it_takes_them() {
        let (unpolled, queue_index) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(4, unpolled, queue_index);
        assert_eq!((poster.push(1), poster.push(2)), (Ok(()), Ok(())));
        let panics = std::panic::AssertUnwindSafe(|| {
            queue.take(|_| std::panic::resume_unwind(Box::new("a defect")));
        });
        assert!(std::panic::catch_unwind(panics).is_err());
        assert_eq!(poster.push(3), Ok(()));
        let mut taken = Vec::new();
        queue.take(|parts| taken.extend(parts.into_iter().flatten().map(|request| *request)));
        assert_eq!(taken, [3]);
    }

    #[test]
    fn completions_left_by_an_earlier_queue_pair_are_not_counted() {
        let (unpolled, old) = fresh();
        unpolled.add(old, 1);
        let [new, _] = unpolled.begin(0, 2);
        unpolled.remove(old, 1);
        assert_eq!(unpolled.count(new), 0);
        unpolled.add(new, 1);
        unpolled.remove(old, 1);
        assert_eq!(unpolled.count(new), 1);
    }

    #[test]
    fn counts_wrap() {
        let (unpolled, queue_index) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(1, unpolled, queue_index);
        poster.posted = u32::MAX;
        queue.handled = u32::MAX;
        queue.publish(1);
        for n in 0..3 {
            assert_eq!(poster.push(n), Ok(()));
            assert_eq!(poster.push(n), Err(PostError::QueueFull { limit: 1 }));
            assert_eq!(pop(&mut queue), Some(n));
            queue.publish(1);
        }
    }
}

/// Run by `ci/loom`. It tests the count of outstanding requests; the rings are rtrb's.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    const FULL: Result<(), PostError> = Err(PostError::QueueFull { limit: 2 });

    /// Returns a queue of depth 2 whose first request was polled, and whose second one the core has taken.
    fn half_done() -> (Arc<Unpolled>, QueueIndex, Poster<u64>, WorkQueue<u64>) {
        let unpolled = Arc::new(Unpolled::new(1));
        let [queue_index, _] = unpolled.begin(0, 1);
        let (mut poster, mut queue) = work_queue(2, unpolled.clone(), queue_index);
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), FULL));
        queue.take(|parts| assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 2));
        let moving = unpolled.begin_move();
        unpolled.add(queue_index, 1);
        queue.publish(1);
        drop(moving);
        unpolled.remove(queue_index, 1);
        (unpolled, queue_index, poster, queue)
    }

    /// Finishes the second request as the core does. `push_completion` replaces the push of its completion.
    fn complete(
        unpolled: &Unpolled,
        queue_index: QueueIndex,
        queue: &WorkQueue<u64>,
        push_completion: impl FnOnce(),
    ) {
        let moving = unpolled.begin_move();
        unpolled.add(queue_index, 1);
        queue.publish(2);
        drop(moving);
        push_completion();
    }

    /// While the second request is being finished, there is room for one more, never for two.
    #[test]
    fn a_request_that_finishes_is_counted_once() {
        loom::model(|| {
            let (unpolled, queue_index, mut poster, queue) = half_done();
            let core = thread::spawn(move || complete(&unpolled, queue_index, &queue, || {}));
            assert_eq!((poster.push(3), poster.push(4)), (Ok(()), FULL));
            core.join().unwrap();
        });
    }

    /// A thread that has polled a completion always has room for one request.
    #[test]
    fn a_polled_request_frees_its_slot() {
        loom::model(|| {
            let (unpolled, queue_index, mut poster, queue) = half_done();
            let pushed = Arc::new(AtomicU32::new(0));
            let core = {
                let (unpolled, pushed) = (unpolled.clone(), pushed.clone());
                thread::spawn(move || {
                    complete(&unpolled, queue_index, &queue, || pushed.store(1, Ordering::Release));
                })
            };
            while pushed.load(Ordering::Acquire) == 0 {
                yield_now();
            }
            unpolled.remove(queue_index, 1);
            assert_eq!((poster.push(3), poster.push(4), poster.push(5)), (Ok(()), Ok(()), FULL));
            core.join().unwrap();
        });
    }

    /// Completions of an earlier queue pair are polled while the slot has a new one.
    #[test]
    fn completions_polled_late_of_an_earlier_queue_pair_are_not_counted() {
        loom::model(|| {
            let unpolled = Arc::new(Unpolled::new(1));
            let [old, _] = unpolled.begin(0, 1);
            unpolled.add(old, 1);
            let late = {
                let unpolled = unpolled.clone();
                thread::spawn(move || unpolled.remove(old, 1))
            };
            let [new, _] = unpolled.begin(0, 2);
            unpolled.add(new, 1);
            late.join().unwrap();
            assert_eq!(unpolled.count(new), 1);
        });
    }
}
