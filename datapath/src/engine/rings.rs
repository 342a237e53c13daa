//! The rings between an application and its core.

use super::doorbell::Doorbells;
use super::notify::Notifier;
use roce::Qpn;
use roce::qp::{Completion, PostError, RecvRequest, SendRequest};
use rtrb::{Consumer, Producer, RingBuffer};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

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

/// How many requests of a queue are done, counted round 2³².
///
/// The poster counts what it posted; the difference is outstanding, wherever a request lies.
#[derive(Debug, Default)]
struct Done(AtomicU32);

/// How many completions of each work queue lie in a completion queue and were not polled.
///
/// Until its completion is polled a request takes room in its queue (it is outstanding, IBA 10.8), so a completion
/// queue as deep as its work queues never overflows. A word holds the queue pair's generation and the count: who polls
/// what an earlier user of the slot left behind changes nothing.
///
/// While the core moves requests from "not done" to "not polled" they count as both. `moves` is odd then, so that nobody is told
/// of a full queue that isn't.
pub(super) struct Unpolled {
    counts: Box<[AtomicU64]>,
    moves: AtomicU32,
}

impl fmt::Debug for Unpolled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Unpolled").field("queues", &self.counts.len()).finish_non_exhaustive()
    }
}

/// While the core moves requests. It ends when what was added is told to be done too, and when the core dies in the middle: no
/// poster waits for it then.
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
            // No plain store: what a late poller still takes away comes before it.
            self.counts[index].swap(u64::from(generation) << 32, Ordering::Relaxed);
            Place { index: index as u32, generation }
        })
    }

    fn count(&self, place: Place) -> u32 {
        self.counts[place.index as usize].load(Ordering::Acquire) as u32
    }

    /// The core alone adds, and only where the slot's user is the present one.
    pub(super) fn add(&self, place: Place) {
        self.counts[place.index as usize].fetch_add(1, Ordering::Release);
    }

    fn remove(&self, place: Place) {
        let word = &self.counts[place.index as usize];
        // A failed update is a completion of a queue pair that is gone.
        let _ = word.fetch_update(Ordering::Release, Ordering::Relaxed, |word| {
            let present = (word >> 32) as u32 == place.generation && word as u32 > 0;
            present.then(|| word - 1)
        });
    }
}

/// The application's end of one work queue.
#[derive(Debug)]
struct Poster<T> {
    ring: Producer<T>,
    done: Arc<Done>,
    unpolled: Arc<Unpolled>,
    place: Place,
    posted: u32,
    depth: u32,
}

impl<T> Poster<T> {
    fn push(&mut self, request: T) -> Result<(), PostError> {
        let full = PostError::QueueFull { limit: self.depth };
        loop {
            let moves = self.unpolled.moves.load(Ordering::Acquire);
            // In this order: the core counts a completion as not polled before it counts its request as done.
            let open = self.posted.wrapping_sub(self.done.0.load(Ordering::Acquire));
            if open.saturating_add(self.unpolled.count(self.place)) < self.depth {
                break;
            }
            fence(Ordering::Acquire);
            if moves.is_multiple_of(2) && self.unpolled.moves.load(Ordering::Relaxed) == moves {
                return Err(full);
            }
            // The core is at it, unless the kernel took its CPU: then it needs one.
            yield_now();
        }
        self.ring.push(request).map_err(|_| full)?;
        self.posted = self.posted.wrapping_add(1);
        Ok(())
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
    pub(super) fn pop(&mut self) -> Option<T> {
        let request = self.ring.pop().ok()?;
        self.handled = self.handled.wrapping_add(1);
        Some(request)
    }

    /// Tells the poster what is done, given how many more the endpoint would take.
    pub(super) fn publish(&self, room: u32) {
        let outstanding = self.depth.saturating_sub(room);
        self.done.0.store(self.handled.wrapping_sub(outstanding), Ordering::Release);
    }
}

fn work_queue<T>(depth: u32, unpolled: Arc<Unpolled>, place: Place) -> (Poster<T>, WorkQueue<T>) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let done = Arc::new(Done::default());
    (
        Poster { ring: producer, done: done.clone(), unpolled, place, posted: 0, depth },
        WorkQueue { ring: consumer, done, handled: 0, depth, place },
    )
}

/// The application's end of a queue pair: requests go in, the core takes them at its next turn.
#[derive(Debug)]
pub struct QpRings {
    send: Poster<SendRequest>,
    recv: Poster<RecvRequest>,
    doorbells: Arc<Doorbells>,
    slot: usize,
    qpn: Qpn,
}

impl QpRings {
    /// The queue pair's number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Puts a send request into the ring. The core learns of it by [`ring_doorbell`](Self::ring_doorbell).
    ///
    /// # Errors
    /// `QueueFull` while as many requests as the queue is deep are not done.
    pub fn push_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.send.push(request)
    }

    /// Puts a receive request into the ring.
    ///
    /// # Errors
    /// As [`push_send`](Self::push_send).
    pub fn push_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        self.recv.push(request)
    }

    /// Tells the core that the rings changed, or that the poster waits for room.
    pub fn ring_doorbell(&self) {
        self.doorbells.ring(self.slot);
    }
}

/// The application's end of a shared receive queue.
#[derive(Debug)]
pub struct SrqRings {
    recv: Poster<RecvRequest>,
    doorbells: Arc<Doorbells>,
    slot: usize,
    srq: roce::SrqId,
}

impl SrqRings {
    /// The queue.
    #[must_use]
    pub fn srq(&self) -> roce::SrqId {
        self.srq
    }

    /// Puts a receive request into the ring.
    ///
    /// # Errors
    /// `QueueFull` while as many requests as the queue is deep wait or were not polled.
    pub fn push_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        self.recv.push(request)
    }

    /// Tells the core that the ring changed, or that the poster waits for room.
    pub fn ring_doorbell(&self) {
        self.doorbells.ring(self.slot);
    }
}

/// The core's end of a shared receive queue.
#[derive(Debug)]
pub(super) struct SrqQueues {
    pub(super) srq: roce::SrqId,
    pub(super) recv: WorkQueue<RecvRequest>,
}

pub(super) fn shared_receive_queue(
    srq: roce::SrqId,
    slot: usize,
    depth: u32,
    doorbells: Arc<Doorbells>,
    unpolled: &Arc<Unpolled>,
    generation: u32,
) -> (SrqRings, SrqQueues) {
    let [_, place] = unpolled.begin(slot, generation);
    let (recv, queue) = work_queue(depth, unpolled.clone(), place);
    (SrqRings { recv, doorbells, slot, srq }, SrqQueues { srq, recv: queue })
}

/// The core's end of a queue pair.
#[derive(Debug)]
pub(super) struct QpQueues {
    pub(super) qpn: Qpn,
    pub(super) send: WorkQueue<SendRequest>,
    pub(super) recv: WorkQueue<RecvRequest>,
    pub(super) send_cq: roce::CqId,
    pub(super) recv_cq: roce::CqId,
}

pub(super) fn queue_pair(
    qpn: Qpn,
    slot: usize,
    init: &roce::qp::QpInit,
    doorbells: Arc<Doorbells>,
    unpolled: &Arc<Unpolled>,
    generation: u32,
) -> (QpRings, QpQueues) {
    let [send_place, recv_place] = unpolled.begin(slot, generation);
    let (send, send_queue) = work_queue(init.capabilities.max_send, unpolled.clone(), send_place);
    let (recv, recv_queue) = work_queue(init.capabilities.max_recv, unpolled.clone(), recv_place);
    (
        QpRings { send, recv, doorbells, slot, qpn },
        QpQueues { qpn, send: send_queue, recv: recv_queue, send_cq: init.send_cq, recv_cq: init.recv_cq },
    )
}

/// The application's end of a completion queue.
#[derive(Debug)]
pub struct CqRing {
    ring: Consumer<(Completion, Option<Place>)>,
    unpolled: Arc<Unpolled>,
    overflow: Arc<AtomicBool>,
    depth: u32,
}

impl CqRing {
    /// The oldest completion.
    pub fn pop(&mut self) -> Option<Completion> {
        let (completion, place) = self.ring.pop().ok()?;
        if let Some(place) = place {
            self.unpolled.remove(place);
        }
        Some(completion)
    }

    /// Whether completions were lost because the ring was full.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflow.load(Ordering::Acquire)
    }

    /// Completions it holds.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Completions that lie in it now.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ring.slots()
    }

    /// Takes the ring out, for who gives it another depth. Until it is put back there is nothing to poll.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let (_, none) = RingBuffer::new(0);
        let ring = std::mem::replace(&mut self.ring, none);
        let (unpolled, overflow) = (self.unpolled.clone(), self.overflow.clone());
        Self { ring, unpolled, overflow, depth: self.depth }
    }
}

/// The core's end of a completion queue.
#[derive(Debug)]
pub(super) struct CqProducer {
    ring: Producer<(Completion, Option<Place>)>,
    overflow: Arc<AtomicBool>,
    /// Who sleeps until a completion comes.
    notifier: Option<Arc<Notifier>>,
}

impl CqProducer {
    pub(super) fn watch(&mut self, notifier: Arc<Notifier>) {
        self.notifier = Some(notifier);
    }

    /// Completions were pushed, one of them solicited or an error where `solicited`.
    pub(super) fn notify(&self, solicited: bool) {
        if let Some(notifier) = &self.notifier {
            notifier.completions_came(solicited);
        }
    }

    /// Puts a completion in, of the work queue at `place`. One that finds no room is lost, and the queue overflows.
    pub(super) fn push(&mut self, completion: Completion, place: Option<Place>) {
        if !self.is_lost() && self.ring.push((completion, place)).is_err() {
            self.overflow();
        }
    }

    /// Whether what is pushed goes nowhere: it overflowed, or nobody can poll it.
    pub(super) fn is_lost(&self) -> bool {
        self.overflow.load(Ordering::Relaxed) || self.ring.is_abandoned()
    }

    /// Another depth, at least what waits in `ring`, this one's other end.
    pub(super) fn resize(&mut self, ring: &mut CqRing, depth: u32) {
        let (mut producer, consumer) = RingBuffer::new(depth as usize);
        while let Ok(completion) = ring.ring.pop() {
            // There is room: the caller looked.
            let _ = producer.push(completion);
        }
        self.ring = producer;
        ring.ring = consumer;
        ring.depth = depth;
    }

    /// Completions that fit at least.
    pub(super) fn room(&self) -> usize {
        self.ring.slots()
    }

    /// Completions are lost. `true` the first time.
    pub(super) fn overflow(&mut self) -> bool {
        !self.overflow.swap(true, Ordering::Release)
    }
}

pub(super) fn completion_queue(depth: u32, unpolled: Arc<Unpolled>) -> (CqRing, CqProducer) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let overflow = Arc::new(AtomicBool::new(false));
    (
        CqRing { ring: consumer, unpolled, overflow: overflow.clone(), depth },
        CqProducer { ring: producer, overflow, notifier: None },
    )
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use roce::qp::{CompletionOpcode, CompletionStatus};

    fn fresh() -> (Arc<Unpolled>, Place) {
        let unpolled = Arc::new(Unpolled::new(1));
        let [place, _] = unpolled.begin(0, 1);
        (unpolled, place)
    }

    #[test]
    fn a_queue_is_full_until_requests_are_done_not_until_they_are_taken() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), place);
        let full = Err(PostError::QueueFull { limit: 2 });
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), full));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), None));
        queue.publish(0);
        assert_eq!(poster.push(3), full);
        queue.publish(1);
        assert_eq!((poster.push(3), poster.push(4)), (Ok(()), full));
        unpolled.add(place);
        queue.pop();
        queue.publish(1);
        assert_eq!(poster.push(4), full, "done, and not polled");
        unpolled.remove(place);
        assert_eq!(poster.push(4), Ok(()));
    }

    #[test]
    fn a_request_that_is_becoming_done_is_not_counted_twice() {
        let (unpolled, place) = fresh();
        let (mut poster, mut queue) = work_queue::<u64>(2, unpolled.clone(), place);
        assert_eq!((poster.push(1), poster.push(2)), (Ok(()), Ok(())));
        // The first is polled; while the second becomes done, a third is posted.
        assert_eq!((queue.pop(), queue.pop()), (Some(1), Some(2)));
        queue.publish(1);
        let half_way = unpolled.begin_move();
        unpolled.add(place);
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
        assert_eq!((poster.push(1), queue.pop()), (Ok(()), Some(1)));
        let dies = std::panic::AssertUnwindSafe(|| {
            let _half_way = unpolled.begin_move();
            unpolled.add(place);
            std::panic::resume_unwind(Box::new("a defect"));
        });
        assert!(std::panic::catch_unwind(dies).is_err());
        assert_eq!(poster.push(2), Err(PostError::QueueFull { limit: 1 }));
    }

    #[test]
    fn what_an_earlier_queue_pair_left_behind_counts_for_nobody() {
        let (unpolled, old) = fresh();
        unpolled.add(old);
        let [new, _] = unpolled.begin(0, 2);
        unpolled.remove(old);
        assert_eq!(unpolled.count(new), 0);
        unpolled.add(new);
        unpolled.remove(old);
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
            assert_eq!(queue.pop(), Some(n));
            queue.publish(1);
        }
    }

    #[test]
    fn a_completion_queue_holds_its_depth_and_says_when_more_came() {
        let (mut ring, mut producer) = completion_queue(2, fresh().0);
        let completion =
            |id| Completion::new(id, CompletionStatus::Success, CompletionOpcode::Send, Qpn::new(1));
        producer.push(completion(1), None);
        assert_eq!(producer.room(), 1);
        producer.push(completion(2), None);
        assert!(!ring.overflowed());
        producer.push(completion(3), None);
        assert!(ring.overflowed() && producer.is_lost());
        assert!(!producer.overflow(), "it is said once");
        assert_eq!([ring.pop(), ring.pop(), ring.pop()].map(|c| c.map(|c| c.id)), [Some(1), Some(2), None]);
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
        queue.pop().and(queue.pop()).unwrap();
        let half_way = unpolled.begin_move();
        unpolled.add(place);
        queue.publish(1);
        drop(half_way);
        unpolled.remove(place);
        (unpolled, place, poster, queue)
    }

    /// As the station delivers a completion: `tell` puts it where it can be polled.
    fn completes(unpolled: &Unpolled, place: Place, queue: &WorkQueue<u64>, tell: impl FnOnce()) {
        let half_way = unpolled.begin_move();
        unpolled.add(place);
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

    /// Whoever has polled a completion finds its room free, however far the core is.
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
            unpolled.remove(place);
            assert_eq!((poster.push(3), poster.push(4), poster.push(5)), (Ok(()), Ok(()), FULL));
            core.join().unwrap();
        });
    }

    /// What an earlier queue pair left behind is polled while the slot has a new one.
    #[test]
    fn an_earlier_queue_pair_counts_for_nobody() {
        loom::model(|| {
            let unpolled = Arc::new(Unpolled::new(1));
            let [old, _] = unpolled.begin(0, 1);
            unpolled.add(old);
            let late = {
                let unpolled = unpolled.clone();
                thread::spawn(move || unpolled.remove(old))
            };
            let [new, _] = unpolled.begin(0, 2);
            unpolled.add(new);
            late.join().unwrap();
            assert_eq!(unpolled.count(new), 1);
        });
    }
}
