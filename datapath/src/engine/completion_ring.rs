//! The ring of a completion queue, from the core to the application.

use super::notify::Notifier;
use super::work_queue::{QueueIndex, Unpolled};
use roce::Qpn;
use roce::qp::{Completion, CompletionStatus};
use rtrb::{Consumer, Producer, RingBuffer};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A completion, and the work queue that gains room when the application polls it.
#[derive(Clone, Copy, Debug)]
struct QueuedCompletion {
    completion: Completion,
    queue_index: QueueIndex,
}

/// The application's end of a completion queue.
#[derive(Debug)]
pub struct CqRing {
    ring: Consumer<QueuedCompletion>,
    unpolled: Arc<Unpolled>,
    overflow: Arc<AtomicBool>,
    depth: u32,
}

impl CqRing {
    /// Passes up to `most` completions to `take`, oldest first, and returns their number. When this returns, their work queues have room
    /// for that many further requests.
    #[inline(always)]
    pub fn pop_each(&mut self, most: usize, take: &mut impl FnMut(&Completion)) -> usize {
        let most = most.min(self.ring.slots());
        // Consecutive completions are often of one work queue. Their count is then changed once.
        let (mut last, mut run) = (QueueIndex::NONE, 0);
        for _ in 0..most {
            let Ok(QueuedCompletion { completion, queue_index }) = self.ring.peek() else { break };
            take(completion);
            if *queue_index != last && run > 0 {
                self.unpolled.remove(last, run);
                run = 0;
            }
            last = *queue_index;
            run += 1;
            // Cannot fail: `peek` has just returned an entry.
            let _ = self.ring.pop();
        }
        if run > 0 {
            self.unpolled.remove(last, run);
        }
        most
    }

    /// Removes the completions of one queue pair. `producer` is the other end of this ring.
    pub(super) fn discard(&mut self, producer: &mut CqProducer, qpn: Qpn) {
        for _ in 0..self.ring.slots() {
            let Ok(entry) = self.ring.pop() else { return };
            if entry.completion.qpn == qpn {
                self.unpolled.remove(entry.queue_index, 1);
            } else {
                // Cannot fail: the pop above made room.
                let _ = producer.ring.push(entry);
            }
        }
    }

    /// Returns true if completions were lost because the ring was full.
    #[must_use]
    pub fn overflowed(&self) -> bool {
        self.overflow.load(Ordering::Acquire)
    }

    /// Returns the number of completions that the ring can hold.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.depth
    }

    /// Returns the number of completions in the ring.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.ring.slots()
    }

    /// Moves the ring out, so that the caller can change its depth. Until it is moved back, this one is empty.
    #[must_use]
    pub fn take(&mut self) -> Self {
        let (_, none) = RingBuffer::new(0);
        let ring = std::mem::replace(&mut self.ring, none);
        let (unpolled, overflow) = (self.unpolled.clone(), self.overflow.clone());
        Self { ring, unpolled, overflow, depth: self.depth }
    }
}

#[derive(Debug)]
pub(super) struct CqProducer {
    ring: Producer<QueuedCompletion>,
    overflow: Arc<AtomicBool>,
    /// Wakes the thread or task that waits for a completion. Dropped after the ring.
    notifier: Option<ClosingNotifier>,
}

/// A notifier that signals once more when the core drops it, because no completion will follow.
#[derive(Debug)]
struct ClosingNotifier(Arc<Notifier>);

impl Drop for ClosingNotifier {
    fn drop(&mut self) {
        self.0.on_completions(true);
    }
}

impl CqProducer {
    pub(super) fn watch(&mut self, notifier: Arc<Notifier>) {
        self.notifier = Some(ClosingNotifier(notifier));
    }

    #[inline]
    pub(super) fn notify(&self, completions: &[Completion]) {
        if let Some(ClosingNotifier(notifier)) = &self.notifier {
            let counts = |one: &Completion| one.solicited || one.status != CompletionStatus::Success;
            notifier.on_completions(completions.iter().any(counts));
        }
    }

    /// Pushes completions of the work queue at `queue_index`. If the ring has no room for them, they are lost and the queue overflows.
    #[inline]
    pub(super) fn push(&mut self, completions: &[Completion], queue_index: QueueIndex) {
        match self.ring.write_chunk_uninit(completions.len()) {
            Ok(chunk) => {
                chunk.fill_from_iter(
                    completions.iter().map(|&completion| QueuedCompletion { completion, queue_index }),
                );
            }
            Err(_) => _ = self.overflow(),
        }
    }

    /// Returns true if completions are lost: the ring has overflowed, or the application has dropped its end.
    pub(super) fn is_lost(&self) -> bool {
        self.overflow.load(Ordering::Relaxed) || self.ring.is_abandoned()
    }

    /// Replaces the ring by one of the given depth, which must be at least the number of completions in `ring`, this ring's other end.
    pub(super) fn resize(&mut self, ring: &mut CqRing, depth: u32) {
        let (mut producer, consumer) = RingBuffer::new(depth as usize);
        while let Ok(completion) = ring.ring.pop() {
            // Cannot fail: the caller has checked the depth.
            let _ = producer.push(completion);
        }
        self.ring = producer;
        ring.ring = consumer;
        ring.depth = depth;
    }

    pub(super) fn room(&self) -> usize {
        self.ring.slots()
    }

    /// Records an overflow and notifies the application a last time. Returns true for the first overflow only.
    pub(super) fn overflow(&mut self) -> bool {
        let first = !self.overflow.swap(true, Ordering::Release);
        if let (true, Some(ClosingNotifier(notifier))) = (first, &self.notifier) {
            notifier.on_completions(true);
        }
        first
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
    use crate::event_fd::EventFd;
    use roce::Qpn;
    use roce::qp::CompletionOpcode;

    fn completion(id: u64) -> Completion {
        Completion::new(id, CompletionStatus::Success, CompletionOpcode::Send, Qpn::new(1))
    }

    #[test]
    fn a_sleeping_thread_is_woken_when_no_completion_can_follow() {
        let (ring, mut producer) = completion_queue(1, Arc::new(Unpolled::new(1)));
        let notifier = Arc::new(Notifier::new(Arc::new(EventFd::new(libc::EFD_NONBLOCK).unwrap())));
        producer.watch(notifier.clone());
        notifier.arm(true);
        producer.overflow();
        assert!(notifier.take() && !notifier.take());
        notifier.arm(true);
        drop(producer);
        assert!(notifier.take() && ring.ring.is_abandoned());
    }

    #[test]
    fn a_completion_queue_holds_its_depth_and_reports_an_overflow() {
        let (mut ring, mut producer) = completion_queue(2, Arc::new(Unpolled::new(1)));
        producer.push(&[completion(1)], QueueIndex::NONE);
        assert_eq!(producer.room(), 1);
        producer.push(&[completion(2)], QueueIndex::NONE);
        assert!(!ring.overflowed());
        producer.push(&[completion(3)], QueueIndex::NONE);
        assert!(ring.overflowed() && producer.is_lost());
        assert!(!producer.overflow(), "it is reported once");
        let mut ids = Vec::new();
        assert_eq!(ring.pop_each(8, &mut |completion| ids.push(completion.id)), 2);
        assert_eq!(ids, [1, 2]);
    }

    #[test]
    fn completions_of_several_queues_stay_in_order_and_free_their_own_room() {
        let unpolled = Arc::new(Unpolled::new(1));
        let (mut ring, mut producer) = completion_queue(8, unpolled.clone());
        let [send, recv] = unpolled.begin(0, 1);
        for round in 0..20 {
            let mut ids = Vec::new();
            let mut take = |completion: &Completion| ids.push(completion.id - round);
            for (id, queue_index) in [send, send, recv, QueueIndex::NONE, send, recv].into_iter().enumerate()
            {
                unpolled.add(queue_index, 1);
                producer.push(&[completion(round + id as u64)], queue_index);
            }
            assert_eq!(ring.pop_each(4, &mut take), 4);
            assert_eq!([send, recv].map(|queue_index| unpolled.count(queue_index)), [1, 1], "what is left");
            assert_eq!(ring.pop_each(4, &mut take), 2);
            assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
            assert_eq!([send, recv].map(|queue_index| unpolled.count(queue_index)), [0, 0]);
        }
        assert_eq!(ring.pop_each(4, &mut |_| panic!("there is none")), 0);
    }
}
