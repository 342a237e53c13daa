//! The core's ends of the rings: programs post requests to it, and it returns completions and room to them.

use super::completion_ring::{self, CqProducer, CqRing};
use super::doorbell::Doorbells;
use super::notify::Notifier;
use super::qpn_hash::ByQpn;
use super::rings::{self, QpQueues, QpRings, Slot, SrqQueues, SrqRings};
use super::work_queue::{QueueIndex, Unpolled};
use crate::probes;
use cc::Instant;
use roce::qp::{Completion, CompletionOpcode, PostRules, QpInit, RecvRules};
use roce::{ControlError, CqId, Endpoint, Qpn, SrqId};
use std::sync::Arc;

pub(super) struct Queues {
    doorbells: Arc<Doorbells>,
    unpolled: Arc<Unpolled>,
    slots: Slots,
    /// By completion queue number.
    cqs: Vec<Option<CqProducer>>,
    /// Number of queues that have been assigned a slot; wraps at 2³².
    generation: u32,
    /// Slots whose posters may gain room in this turn.
    served: Vec<usize>,
    /// Completions to push to one ring, grouped by work queue.
    runs: Vec<Run>,
}

struct Run {
    slot: Option<usize>,
    queue_index: QueueIndex,
    length: usize,
}

impl Queues {
    pub(super) fn new(max_qps: usize) -> Self {
        Self {
            doorbells: Arc::new(Doorbells::new(max_qps)),
            unpolled: Arc::new(Unpolled::new(max_qps)),
            slots: Slots::new(max_qps),
            cqs: Vec::new(),
            generation: 0,
            served: Vec::with_capacity(max_qps),
            runs: Vec::new(),
        }
    }

    pub(super) fn create_cq(&mut self, cq: CqId, depth: u32) -> CqRing {
        let (ring, producer) = completion_ring::completion_queue(depth, self.unpolled.clone());
        let index = cq.0 as usize;
        if index >= self.cqs.len() {
            self.cqs.resize_with(index + 1, || None);
        }
        self.cqs[index] = Some(producer);
        ring
    }

    pub(super) fn watch_cq(&mut self, cq: CqId, notifier: Arc<Notifier>) -> Result<(), ControlError> {
        self.producer(cq).ok_or(ControlError::NoCq(cq))?.watch(notifier);
        Ok(())
    }

    pub(super) fn resize_cq(
        &mut self,
        endpoint: &mut Endpoint,
        cq: CqId,
        ring: &mut CqRing,
        depth: u32,
    ) -> Result<(), ControlError> {
        let waiting =
            ring.waiting() + endpoint.completions(cq).len() + self.slots.outstanding_sends(cq, endpoint);
        let producer = self.producer(cq).ok_or(ControlError::NoCq(cq))?;
        if waiting > depth as usize {
            return Err(ControlError::CqFull { cq, waiting, depth: depth as usize });
        }
        endpoint.resize_cq(cq, depth)?;
        producer.resize(ring, depth);
        Ok(())
    }

    pub(super) fn discard_completions(&mut self, cq: CqId, ring: &mut CqRing, qpn: Qpn) {
        if let Some(producer) = self.producer(cq) {
            ring.discard(producer, qpn);
        }
    }

    pub(super) fn destroy_cq(&mut self, cq: CqId) {
        if let Some(slot) = self.cqs.get_mut(cq.0 as usize) {
            *slot = None;
        }
    }

    fn producer(&mut self, cq: CqId) -> Option<&mut CqProducer> {
        self.cqs.get_mut(cq.0 as usize)?.as_mut()
    }

    /// Returns a free slot for [`Self::connect_qp`] or [`Self::connect_srq`].
    pub(super) fn free_slot(&self) -> Result<usize, ControlError> {
        self.slots.free()
    }

    pub(super) fn connect_qp(&mut self, index: usize, qpn: Qpn, init: &QpInit, rules: PostRules) -> QpRings {
        let (rings, queues) = rings::queue_pair(qpn, init, rules, &self.slot(index));
        self.slots.put(index, Queue::Pair(queues));
        rings
    }

    pub(super) fn connect_srq(&mut self, index: usize, srq: SrqId, depth: u32, rules: RecvRules) -> SrqRings {
        let (rings, queues) = rings::shared_receive_queue(srq, depth, rules, &self.slot(index));
        self.slots.put(index, Queue::Shared(queues));
        rings
    }

    fn slot(&mut self, index: usize) -> Slot<'_> {
        self.generation = self.generation.wrapping_add(1);
        let Self { generation, doorbells, unpolled, .. } = self;
        Slot { index, generation: *generation, doorbells, unpolled }
    }

    pub(super) fn queue_pairs(&self) -> Vec<Qpn> {
        let queues = self.slots.all.iter().flatten();
        queues.filter_map(|queue| if let Queue::Pair(pair) = queue { Some(pair.qpn) } else { None }).collect()
    }

    /// Returns the number of a queue pair's send completions that the program has not polled.
    pub(super) fn unpolled_sends(&self, qpn: Qpn) -> u32 {
        let slot = self.slots.of_pairs.get(&qpn.get()).and_then(|&slot| self.slots.all[slot].as_ref());
        match slot {
            Some(Queue::Pair(queues)) => self.unpolled.count(queues.send.queue_index),
            Some(Queue::Shared(_)) | None => 0,
        }
    }

    pub(super) fn disconnect_qp(&mut self, qpn: Qpn) {
        self.slots.remove_pair(qpn);
    }

    pub(super) fn disconnect_srq(&mut self, srq: SrqId) {
        self.slots.remove_shared(srq);
    }

    /// Returns false only if no doorbell has rung.
    #[inline]
    pub(super) fn are_rung(&self) -> bool {
        self.doorbells.are_rung()
    }

    pub(super) fn take_posts(&mut self, now: Instant, endpoint: &mut Endpoint) -> bool {
        let Self { doorbells, slots, served, .. } = self;
        doorbells.take(|slot| {
            // A doorbell may ring after its queue pair is destroyed.
            match &mut slots.all[slot] {
                None => return,
                Some(Queue::Pair(QpQueues { qpn, send, recv, .. })) => {
                    // Receives first: a send may cause a response that consumes one.
                    recv.take(|requests| endpoint.take_recvs(now, *qpn, requests));
                    send.take(|requests| endpoint.take_sends(now, *qpn, requests));
                }
                Some(Queue::Shared(SrqQueues { srq, recv })) => {
                    recv.take(|requests| {
                        requests
                            .into_iter()
                            .flatten()
                            .for_each(|request| endpoint.take_srq_recv(*srq, request.take()));
                    });
                }
            }
            served.push(slot);
        })
    }

    /// Moves completions to their rings and publishes new room to posters. Returns the number of completion queues that overflowed, and
    /// whether there were completions.
    pub(super) fn deliver(&mut self, now: Instant, endpoint: &mut Endpoint) -> (u64, bool) {
        let Self { cqs, slots, unpolled, runs, served, .. } = self;
        let (mut overflows, mut filled) = (0, endpoint.poll_filled_cq());
        let any = filled.is_some();
        // One move for all queues: the two work queues of a queue pair are published together, and may complete to different completion
        // queues.
        let moving = any.then(|| unpolled.begin_move());
        while let Some(cq) = filled {
            let producer = cqs.get_mut(cq.0 as usize).and_then(Option::as_mut);
            overflows += u64::from(deliver_to(now, endpoint, cq, producer, slots, unpolled, runs));
            filled = endpoint.poll_filled_cq();
        }
        drop(moving);
        for slot in served.drain(..) {
            slots.publish(slot, endpoint);
        }
        (overflows, any)
    }
}

/// Moves the completions of one completion queue, during a move of the counts. Returns true if the queue overflows now.
///
/// For each run of completions, this counts them as unpolled, then publishes the room in their work queue, then pushes them. So a program
/// that has polled a completion can post again.
fn deliver_to(
    now: Instant,
    endpoint: &mut Endpoint,
    cq: CqId,
    producer: Option<&mut CqProducer>,
    slots: &Slots,
    unpolled: &Unpolled,
    runs: &mut Vec<Run>,
) -> bool {
    let Some(producer) = producer.filter(|producer| !producer.is_lost()) else {
        endpoint.clear_cq(cq);
        return false;
    };
    let all = endpoint.completions(cq);
    let (fit, lost) = all.split_at(all.len().min(producer.room()));
    let is_lost = !lost.is_empty();
    probes::completed(fit);
    runs.clear();
    for run in fit.chunk_by(are_of_one_queue) {
        let (slot, queue_index) = slots.queue_index(&run[0]);
        unpolled.add(queue_index, run.len() as u32);
        runs.push(Run { slot, queue_index, length: run.len() });
    }
    let mut left = fit;
    for &Run { slot, queue_index, length } in &*runs {
        if let Some(slot) = slot {
            slots.publish(slot, endpoint);
        }
        let (run, behind) = left.split_at(length);
        producer.push(run, queue_index);
        left = behind;
    }
    producer.notify(fit);
    endpoint.clear_cq(cq);
    if is_lost {
        endpoint.overflow_cq(now, cq);
    }
    // The endpoint itself drops completions if one turn produces more than the queue has room for.
    endpoint.cq_overflowed(cq) && producer.overflow()
}

#[derive(Debug)]
enum Queue {
    Pair(QpQueues),
    Shared(SrqQueues),
}

/// The queues of programs. The slot of a queue is the number of its doorbell.
struct Slots {
    all: Vec<Option<Queue>>,
    /// Every slot before this one is in use.
    free_from: usize,
    of_pairs: ByQpn<usize>,
    /// By shared receive queue number.
    of_shared: Vec<Option<usize>>,
}

impl Slots {
    fn new(limit: usize) -> Self {
        Self {
            all: (0..limit).map(|_| None).collect(),
            free_from: 0,
            of_pairs: ByQpn::with_capacity_and_hasher(limit, Default::default()),
            of_shared: Vec::new(),
        }
    }

    fn free(&self) -> Result<usize, ControlError> {
        let limit = self.all.len() as u32;
        let slot = (self.free_from..self.all.len()).find(|&slot| self.all[slot].is_none());
        slot.ok_or(ControlError::Limit { what: "queue pairs and shared receive queues", limit })
    }

    fn put(&mut self, slot: usize, queue: Queue) {
        match &queue {
            Queue::Pair(queues) => {
                self.of_pairs.insert(queues.qpn.get(), slot);
            }
            Queue::Shared(queues) => {
                let index = queues.srq.0 as usize;
                self.of_shared.resize(self.of_shared.len().max(index + 1), None);
                self.of_shared[index] = Some(slot);
            }
        }
        self.all[slot] = Some(queue);
        self.free_from = slot + 1;
    }

    fn remove_pair(&mut self, qpn: Qpn) {
        let slot = self.of_pairs.remove(&qpn.get());
        self.empty(slot);
    }

    fn remove_shared(&mut self, srq: SrqId) {
        let slot = self.of_shared.get_mut(srq.0 as usize).and_then(Option::take);
        self.empty(slot);
    }

    fn empty(&mut self, slot: Option<usize>) {
        if let Some(slot) = slot {
            self.all[slot] = None;
            self.free_from = self.free_from.min(slot);
        }
    }

    /// Returns the number of outstanding send requests whose completions belong to `cq`. Includes unsignaled requests, which complete if
    /// they fail.
    fn outstanding_sends(&self, cq: CqId, endpoint: &Endpoint) -> usize {
        let outstanding = |queue: &Queue| match queue {
            Queue::Pair(queues) if queues.send_cq == cq => {
                queues.send.outstanding(endpoint.send_room(queues.qpn))
            }
            Queue::Pair(_) | Queue::Shared(_) => 0,
        };
        self.all.iter().flatten().map(outstanding).sum()
    }

    fn publish(&self, slot: usize, endpoint: &Endpoint) {
        match &self.all[slot] {
            None => {}
            Some(Queue::Pair(QpQueues { qpn, send, recv, .. })) => {
                let [send_room, recv_room] = endpoint.rooms(*qpn);
                send.publish(send_room);
                recv.publish(recv_room);
            }
            Some(Queue::Shared(SrqQueues { srq, recv })) => recv.publish(endpoint.srq_room(*srq)),
        }
    }

    fn queue_index(&self, completion: &Completion) -> (Option<usize>, QueueIndex) {
        let slot = match completion.srq {
            Some(srq) => self.of_shared.get(srq.0 as usize).copied().flatten(),
            None => self.of_pairs.get(&completion.qpn.get()).copied(),
        };
        let queue_index = match slot.and_then(|slot| self.all[slot].as_ref()) {
            None => QueueIndex::NONE,
            Some(Queue::Shared(queues)) => queues.recv.queue_index,
            Some(Queue::Pair(queues)) if is_receive(completion) => queues.recv.queue_index,
            Some(Queue::Pair(queues)) => queues.send.queue_index,
        };
        (slot, queue_index)
    }
}

fn are_of_one_queue(one: &Completion, next: &Completion) -> bool {
    one.qpn == next.qpn && one.srq == next.srq && is_receive(one) == is_receive(next)
}

const fn is_receive(completion: &Completion) -> bool {
    matches!(completion.opcode, CompletionOpcode::Recv | CompletionOpcode::RecvWithWrite)
}
