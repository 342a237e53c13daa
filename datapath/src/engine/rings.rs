//! The rings between an application and its core.

use super::doorbell::Doorbells;
use roce::Qpn;
use roce::qp::{Completion, PostError, RecvRequest, SendRequest};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// How many requests of a queue are done, counted round 2³².
///
/// The poster counts what it posted; the difference is outstanding, wherever a request lies.
#[derive(Debug, Default)]
struct Done(AtomicU32);

/// The application's end of one work queue.
#[derive(Debug)]
struct Poster<T> {
    ring: Producer<T>,
    done: Arc<Done>,
    posted: u32,
    depth: u32,
}

impl<T> Poster<T> {
    fn push(&mut self, request: T) -> Result<(), PostError> {
        let full = PostError::QueueFull { limit: self.depth };
        if self.posted.wrapping_sub(self.done.0.load(Ordering::Acquire)) >= self.depth {
            return Err(full);
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

fn work_queue<T>(depth: u32) -> (Poster<T>, WorkQueue<T>) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let done = Arc::new(Done::default());
    (
        Poster { ring: producer, done: done.clone(), posted: 0, depth },
        WorkQueue { ring: consumer, done, handled: 0, depth },
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
) -> (QpRings, QpQueues) {
    let (send, send_queue) = work_queue(init.capabilities.max_send);
    let (recv, recv_queue) = work_queue(init.capabilities.max_recv);
    (
        QpRings { send, recv, doorbells, slot, qpn },
        QpQueues { qpn, send: send_queue, recv: recv_queue, send_cq: init.send_cq, recv_cq: init.recv_cq },
    )
}

/// The application's end of a completion queue.
#[derive(Debug)]
pub struct CqRing {
    ring: Consumer<Completion>,
    overflow: Arc<AtomicBool>,
    depth: u32,
}

impl CqRing {
    /// The oldest completion.
    pub fn pop(&mut self) -> Option<Completion> {
        self.ring.pop().ok()
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
}

/// The core's end of a completion queue.
#[derive(Debug)]
pub(super) struct CqProducer {
    pub(super) cq: roce::CqId,
    ring: Producer<Completion>,
    overflow: Arc<AtomicBool>,
}

impl CqProducer {
    /// Puts a completion in. `false` when this is the first one that found no room; later ones are lost quietly, as are
    /// all once nobody can poll them.
    pub(super) fn push(&mut self, completion: Completion) -> bool {
        if self.overflow.load(Ordering::Relaxed) || self.ring.is_abandoned() {
            return true;
        }
        let pushed = self.ring.push(completion).is_ok();
        if !pushed {
            self.overflow();
        }
        pushed
    }

    /// Completions are lost. `true` the first time.
    pub(super) fn overflow(&mut self) -> bool {
        !self.overflow.swap(true, Ordering::Release)
    }
}

pub(super) fn completion_queue(cq: roce::CqId, depth: u32) -> (CqRing, CqProducer) {
    let (producer, consumer) = RingBuffer::new(depth as usize);
    let overflow = Arc::new(AtomicBool::new(false));
    (
        CqRing { ring: consumer, overflow: overflow.clone(), depth },
        CqProducer { cq, ring: producer, overflow },
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use roce::CqId;
    use roce::qp::{CompletionOpcode, CompletionStatus};

    #[test]
    fn a_queue_is_full_until_requests_are_done_not_until_they_are_taken() {
        let (mut poster, mut queue) = work_queue::<u64>(2);
        let full = Err(PostError::QueueFull { limit: 2 });
        assert_eq!((poster.push(1), poster.push(2), poster.push(3)), (Ok(()), Ok(()), full));
        assert_eq!((queue.pop(), queue.pop(), queue.pop()), (Some(1), Some(2), None));
        queue.publish(0);
        assert_eq!(poster.push(3), full);
        queue.publish(1);
        assert_eq!((poster.push(3), poster.push(4)), (Ok(()), full));
    }

    #[test]
    fn counts_go_round() {
        let (mut poster, mut queue) = work_queue::<u64>(1);
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
        let (mut ring, mut producer) = completion_queue(CqId(0), 2);
        let completion = |id| Completion {
            id,
            status: CompletionStatus::Success,
            opcode: CompletionOpcode::Send,
            qpn: Qpn::new(1),
            length: 0,
            immediate: None,
            solicited: false,
        };
        assert!(producer.push(completion(1)) && producer.push(completion(2)));
        assert!(!ring.overflowed());
        assert!(!producer.push(completion(3)), "the first loss is reported");
        assert!(producer.push(completion(4)), "once");
        assert!(ring.overflowed());
        assert_eq!([ring.pop(), ring.pop(), ring.pop()].map(|c| c.map(|c| c.id)), [Some(1), Some(2), None]);
    }
}
