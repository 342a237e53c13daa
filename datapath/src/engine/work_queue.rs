//! A work queue between an application and its core: a ring, and the count of what is outstanding.

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

/// The number of a queue's requests that are done, counted round 2³².
///
/// The poster counts what it posted; the difference is outstanding, wherever a request lies.
#[derive(Debug, Default)]
struct Done(AtomicU32);

/// The number of each work queue's completions that are in a completion queue and were not polled.
///
/// Until its completion is polled a request occupies room in its queue (it is outstanding, IBA 10.8), so a completion queue as deep as its
/// work queues never overflows. A word has the queue pair's generation and the count: a poll of completions of an earlier user of the slot
/// changes nothing.
///
/// While the core moves requests from "not done" to "not polled" they count as both. `moves` is odd then, so that no poster sees a full
/// queue that is not full.
pub(super) struct Unpolled {
    counts: Box<[AtomicU64]>,
    moves: AtomicU32,
}

impl fmt::Debug for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpolled").field("queues", &self.counts.len()).finish_non_exhaustive()
    }
}

/// While the core moves requests. It ends when the added ones are published as done too, and when the core dies in the middle: no poster
/// waits for it then.
pub(super) struct Move<'a>(&'a Unpolled);

impl Drop for Move<'_> {
    fn drop(&mut self) {
        let moves = &self.0.moves;
        moves.store(moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }
}

/// A work queue's place there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    index: u32,
    generation: u32,
}

impl Place {
    /// The place of a queue that is gone.
    pub(super) const NONE: Self = Self { index: u32::MAX, generation: 0 };
}

impl Unpolled {
    pub(super) fn new(slots: usize) -> Self {
        Self { counts: (0..2 * slots).map(|_| AtomicU64::new(0)).collect(), moves: AtomicU32::new(0) }
    }

    /// The core alone calls this: requests that it adds count twice until the move is dropped.
    pub(super) fn begin_move(&self) -> Move<'_> {
        self.moves.store(self.moves.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        Move(self)
    }

    /// A fresh queue pair's send and receive queues.
    pub(super) fn begin(&self, slot: usize, generation: u32) -> [Place; 2] {
        [2 * slot, 2 * slot + 1].map(|index| {
            // A swap, not a store: it orders behind what a late poller still removes.
            self.counts[index].swap(u64::from(generation) << 32, Ordering::Relaxed);
            Place { index: index as u32, generation }
        })
    }

    pub(super) fn count(&self, place: Place) -> u32 {
        self.counts[place.index as usize].load(Ordering::Acquire) as u32
    }

    /// The core alone adds, and only if the slot's user is the present one.
    pub(super) fn add(&self, place: Place, completions: u32) {
        if let Some(word) = self.counts.get(place.index as usize) {
            word.fetch_add(completions.into(), Ordering::Release);
        }
    }

    /// So many completions were polled.
    #[inline]
    pub(super) fn remove(&self, place: Place, completions: u32) {
        let Some(word) = self.counts.get(place.index as usize) else { return };
        let mut seen = word.load(Ordering::Relaxed);
        // Completions of a destroyed queue pair do not count.
        while (seen >> 32) as u32 == place.generation && seen as u32 >= completions {
            let left = seen - u64::from(completions);
            match word.compare_exchange_weak(seen, left, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(now) => seen = now,
            }
        }
    }
}

/// The application's end of one work queue.
#[derive(Debug)]
pub(super) struct Poster<T> {
    ring: Producer<T>,
    done: Arc<Done>,
    unpolled: Arc<Unpolled>,
    place: Place,
    posted: u32,
    /// The number of requests for which there is at least room. Only posting lowers it, so the core's word is read when it is used up.
    room: u32,
    depth: u32,
}

impl<T> Poster<T> {
    #[inline(always)]
    pub(super) fn push(&mut self, request: T) -> Result<(), PostError> {
        if self.room == 0 {
            self.room = self.find_room();
        }
        let full = PostError::QueueFull { limit: self.depth };
        self.room = self.room.checked_sub(1).ok_or(full)?;
        // Written in place: a request is large, and a refused one would have to be copied back. The ring is as deep as the queue.
        let mut chunk = self.ring.write_chunk_uninit(1).map_err(|_| full)?;
        chunk.as_mut_slices().0[0].write(request);
        // SAFETY: its one place was written.
        unsafe { chunk.commit_all() };
        self.posted = self.posted.wrapping_add(1);
        Ok(())
    }

    /// Requests that there is room for now.
    #[cold]
    fn find_room(&self) -> u32 {
        loop {
            let moves = self.unpolled.moves.load(Ordering::Acquire);
            // In this order: the core counts a completion as not polled before it counts its request as done.
            let open = self.posted.wrapping_sub(self.done.0.load(Ordering::Acquire));
            let taken = open.saturating_add(self.unpolled.count(self.place));
            fence(Ordering::Acquire);
            let is_still = moves.is_multiple_of(2) && self.unpolled.moves.load(Ordering::Relaxed) == moves;
            match self.depth.saturating_sub(taken) {
                room if is_still => return room,
                0 => {}
                // The core's counts in the meantime may be too low for more than one.
                _ => return 1,
            }
            // The core is at it, unless the kernel took its CPU: then it needs one.
            yield_now();
        }
    }
}

/// Requests that the core takes. Their places are free afterwards, and also if the core dies meanwhile: none is taken twice.
struct Taken<'a, T>(Option<ReadChunk<'a, T>>);

impl<T> Drop for Taken<'_, T> {
    #[inline]
    fn drop(&mut self) {
        self.0.take().into_iter().for_each(ReadChunk::commit_all);
    }
}

/// The core's end of one work queue.
#[derive(Debug)]
pub(super) struct WorkQueue<T> {
    ring: Consumer<T>,
    done: Arc<Done>,
    handled: u32,
    depth: u32,
    pub(super) place: Place,
}

impl<T> WorkQueue<T> {
    /// Lends `take` the requests that the core has not taken, oldest first and in two parts: those that are there when it is called.
    #[inline]
    pub(super) fn take(&mut self, take: impl FnOnce([&mut [T]; 2])) {
        let Self { ring, handled, .. } = self;
        let waiting = ring.slots();
        // There are so many: a chunk of them is never refused.
        if waiting > 0
            && let Ok(chunk) = ring.read_chunk(waiting)
        {
            *handled = handled.wrapping_add(waiting as u32);
            let mut taken = Taken(Some(chunk));
            if let Some(chunk) = &mut taken.0 {
                take(chunk.as_mut_slices().into());
            }
        }
    }

    /// Returns how many requests are not done, given how many more the endpoint would take: those that the core has and those on their
    /// way.
    pub(super) fn outstanding(&self, room: u32) -> usize {
        self.ring.slots() + self.depth.saturating_sub(room) as usize
    }

    /// Publishes to the poster what is done, given how many more the endpoint would take.
    pub(super) fn publish(&self, room: u32) {
        let outstanding = self.depth.saturating_sub(room);
        self.done.0.store(self.handled.wrapping_sub(outstanding), Ordering::Release);
    }
}

pub(super) fn work_queue<T>(depth: u32, unpolled: Arc<Unpolled>, place: Place) -> (Poster<T>, WorkQueue<T>) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let done = Arc::new(Done::default());
    (
        Poster { ring: producer, done: done.clone(), unpolled, place, posted: 0, room: 0, depth },
        WorkQueue { ring: consumer, done, handled: 0, depth, place },
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pop<T>(queue: &mut WorkQueue<T>) -> Option<T> {
        queue.handled = queue.handled.wrapping_add(u32::from(queue.ring.slots() > 0));
        queue.ring.pop().ok()
    }

    fn fresh() -> (Arc<Unpolled>, Place) {
        let unpolled = Arc::new(Unpolled::new(1));
        let [place, _] = unpolled.begin(0, 1);
        (unpolled, place)
    }

    /// IBA 10.8: a request is outstanding until its completion is polled.
    #[test]
    fn a_queue_is_full_until_requests_are_done_not_until_they_are_taken() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), place);
        let full = Err(PostError::QueueFull { limit: 2 });
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), full));
        assert_eq!((pop(&mut queue), pop(&mut queue), pop(&mut queue)), (Some(1), Some(2), None));
        queue.publish(0);
        assert_eq!(poster.push(3), full);
        queue.publish(1);
        assert_eq!((poster.push(3), poster.push(4)), (Ok(()), full));
        unpolled.add(place, 1);
        pop(&mut queue);
        queue.publish(1);
        assert_eq!(poster.push(4), full, "done, and not polled");
        unpolled.remove(place, 1);
        assert_eq!(poster.push(4), Ok(()));
    }

    #[test]
    fn a_request_that_is_becoming_done_is_not_counted_twice() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), place);
        assert_eq!((poster.push(1), poster.push(2)), (Ok(()), Ok(())));
        // The first is polled; while the second becomes done, a third is posted.
        assert_eq!((pop(&mut queue), pop(&mut queue)), (Some(1), Some(2)));
        queue.publish(1);
        let half_way = unpolled.begin_move();
        unpolled.add(place, 1);
        let third = std::thread::spawn(move || poster.push(3));
        std::thread::yield_now();
        queue.publish(2);
        drop(half_way);
        assert_eq!(third.join().unwrap(), Ok(()));
    }

    #[test]
    fn a_core_that_dies_while_it_moves_requests_keeps_no_poster_waiting() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(1, unpolled.clone(), place);
        assert_eq!((poster.push(1), pop(&mut queue)), (Ok(()), Some(1)));
        let dies = std::panic::AssertUnwindSafe(|| {
            let _half_way = unpolled.begin_move();
            unpolled.add(place, 1);
            std::panic::resume_unwind(Box::new("a defect"));
        });
        assert!(std::panic::catch_unwind(dies).is_err());
        assert_eq!(poster.push(2), Err(PostError::QueueFull { limit: 1 }));
    }

    #[test]
    fn a_core_that_dies_while_it_takes_requests_takes_none_twice() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(4, unpolled, place);
        assert_eq!((poster.push(1), poster.push(2)), (Ok(()), Ok(())));
        let dies = std::panic::AssertUnwindSafe(|| {
            queue.take(|_| std::panic::resume_unwind(Box::new("a defect")));
        });
        assert!(std::panic::catch_unwind(dies).is_err());
        assert_eq!(poster.push(3), Ok(()));
        let mut taken = Vec::new();
        queue.take(|parts| taken.extend(parts.into_iter().flatten().map(|request| *request)));
        assert_eq!(taken, [3]);
    }

    #[test]
    fn what_an_earlier_queue_pair_left_behind_counts_for_nobody() {
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
    fn counts_go_round() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(1, unpolled, place);
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

/// `ci/loom` runs it. The rings themselves are rtrb's; what is tried is the count of what is outstanding.
#[cfg(all(test, loom))]
mod model {
    use super::*;
    use loom::thread;

    const FULL: Result<(), PostError> = Err(PostError::QueueFull { limit: 2 });

    /// A queue of two: the first request was polled, the second is taken by the core.
    fn half_done() -> (Arc<Unpolled>, Place, Poster<u64>, WorkQueue<u64>) {
        let unpolled = Arc::new(Unpolled::new(1));
        let [place, _] = unpolled.begin(0, 1);
        let (mut poster, mut queue) = work_queue(2, unpolled.clone(), place);
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), FULL));
        queue.take(|parts| assert_eq!(parts.iter().map(|part| part.len()).sum::<usize>(), 2));
        let half_way = unpolled.begin_move();
        unpolled.add(place, 1);
        queue.publish(1);
        drop(half_way);
        unpolled.remove(place, 1);
        (unpolled, place, poster, queue)
    }

    /// As the station delivers a completion: `tell` puts it into the ring, from which it can be polled.
    fn completes(unpolled: &Unpolled, place: Place, queue: &WorkQueue<u64>, tell: impl FnOnce()) {
        let half_way = unpolled.begin_move();
        unpolled.add(place, 1);
        queue.publish(2);
        drop(half_way);
        tell();
    }

    /// While the second becomes done there is room for one more, and never for two.
    #[test]
    fn a_request_that_becomes_done_counts_once() {
        loom::model(|| {
            let (unpolled, place, mut poster, queue) = half_done();
            let core = thread::spawn(move || completes(&unpolled, place, &queue, || {}));
            assert_eq!((poster.push(3), poster.push(4)), (Ok(()), FULL));
            core.join().unwrap();
        });
    }

    /// A thread that has polled a completion finds its room free, however far the core is.
    #[test]
    fn what_was_polled_is_free() {
        loom::model(|| {
            let (unpolled, place, mut poster, queue) = half_done();
            let told = Arc::new(AtomicU32::new(0));
            let core = {
                let (unpolled, told) = (unpolled.clone(), told.clone());
                thread::spawn(move || {
                    completes(&unpolled, place, &queue, || told.store(1, Ordering::Release));
                })
            };
            while told.load(Ordering::Acquire) == 0 {
                yield_now();
            }
            unpolled.remove(place, 1);
            assert_eq!((poster.push(3), poster.push(4), poster.push(5)), (Ok(()), Ok(()), FULL));
            core.join().unwrap();
        });
    }

    /// An earlier queue pair's completions are polled while the slot has a new one.
    #[test]
    fn an_earlier_queue_pair_counts_for_nobody() {
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
