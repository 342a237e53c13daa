//! The application's and the core's ends of the rings of a queue pair and of a shared receive queue.

use super::doorbell::Doorbells;
use super::work_queue::{Poster, Unpolled, WorkQueue, work_queue};
use crate::probes;
use roce::qp::{CheckedRecv, CheckedSend, PostError, PostRules, QpInit, RecvRequest, RecvRules, SendRequest};
use roce::{CqId, Qpn, SrqId};
use std::sync::Arc;

pub(super) struct Slot<'a> {
    pub(super) index: usize,
    /// Number of queues that have been assigned a slot so far.
    pub(super) generation: u32,
    pub(super) doorbells: &'a Arc<Doorbells>,
    pub(super) unpolled: &'a Arc<Unpolled>,
}

/// The application's end of a queue pair. The core takes its requests in the next turn.
#[derive(Debug)]
pub struct QpRings {
    send: Poster<CheckedSend>,
    recv: Poster<CheckedRecv>,
    rules: PostRules,
    doorbells: Arc<Doorbells>,
    slot: usize,
    qpn: Qpn,
}

impl QpRings {
    /// Returns the queue pair number.
    #[must_use]
    pub fn qpn(&self) -> Qpn {
        self.qpn
    }

    /// Checks a send request and puts it into the ring. The core takes it after [`ring_doorbell`](Self::ring_doorbell). The caller must
    /// check the state of the queue pair.
    ///
    /// # Errors
    /// Returns the rule that the request breaks, or `QueueFull` if the number of outstanding requests equals the depth of the queue.
    #[inline(always)]
    pub fn push_send(&mut self, request: SendRequest) -> Result<(), PostError> {
        if probes::are_posts_traced() {
            return self.push_traced(request);
        }
        match self.rules.send.check_single(&request) {
            Some(checked) => self.send.push(checked),
            None => self.push_other(request),
        }
    }

    /// Returns an error unless [`push_send`](Self::push_send) would accept all of these requests, one after the other.
    ///
    /// # Errors
    /// As `push_send`, for the first request that it would refuse.
    pub fn check_sends(&mut self, requests: &[SendRequest]) -> Result<(), PostError> {
        requests.iter().try_for_each(|request| self.rules.send.verify(request))?;
        self.send.check_room(requests.len())
    }

    /// A separate function that takes the request by value, so that the request of an untraced post stays in registers.
    #[cold]
    #[inline(never)]
    fn push_traced(&mut self, request: SendRequest) -> Result<(), PostError> {
        probes::posted(self.qpn, &request);
        self.push_other(request)
    }

    #[inline(never)]
    fn push_other(&mut self, request: SendRequest) -> Result<(), PostError> {
        self.send.push(self.rules.send.check(request)?)
    }

    /// Checks a receive request and puts it into the ring.
    ///
    /// # Errors
    /// As [`push_send`](Self::push_send).
    #[inline]
    pub fn push_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        self.recv.push(self.rules.recv.check(request)?)
    }

    /// Sets the rules for further requests: those of [`roce::Endpoint::post_rules`] after a change of state.
    pub fn set_rules(&mut self, rules: PostRules) {
        self.rules = rules;
    }

    /// Signals to the core that the rings have new requests, or that the poster needs room.
    pub fn ring_doorbell(&self) {
        self.doorbells.ring(self.slot);
    }
}

/// The application's end of a shared receive queue.
#[derive(Debug)]
pub struct SrqRings {
    recv: Poster<CheckedRecv>,
    rules: RecvRules,
    doorbells: Arc<Doorbells>,
    slot: usize,
    srq: SrqId,
}

impl SrqRings {
    /// Returns the number of the shared receive queue.
    #[must_use]
    pub fn srq(&self) -> SrqId {
        self.srq
    }

    /// Checks a receive request and puts it into the ring. The core takes it after [`ring_doorbell`](Self::ring_doorbell).
    ///
    /// # Errors
    /// Returns the rule that the request breaks, or `QueueFull` if the number of outstanding requests equals the depth of the queue.
    pub fn push_recv(&mut self, request: RecvRequest) -> Result<(), PostError> {
        self.recv.push(self.rules.check(request)?)
    }

    /// Signals to the core that the ring has new requests, or that the poster needs room.
    pub fn ring_doorbell(&self) {
        self.doorbells.ring(self.slot);
    }
}

#[derive(Debug)]
pub(super) struct QpQueues {
    pub(super) qpn: Qpn,
    pub(super) send_cq: CqId,
    pub(super) send: WorkQueue<CheckedSend>,
    pub(super) recv: WorkQueue<CheckedRecv>,
}

#[derive(Debug)]
pub(super) struct SrqQueues {
    pub(super) srq: SrqId,
    pub(super) recv: WorkQueue<CheckedRecv>,
}

pub(super) fn queue_pair(qpn: Qpn, init: &QpInit, rules: PostRules, slot: &Slot<'_>) -> (QpRings, QpQueues) {
    let Slot { index, generation, doorbells, unpolled } = *slot;
    let [send_index, recv_index] = unpolled.begin(index, generation);
    let (send, send_queue) = work_queue(init.capabilities.max_send, unpolled.clone(), send_index);
    let (recv, recv_queue) = work_queue(init.capabilities.max_recv, unpolled.clone(), recv_index);
    (
        QpRings { send, recv, rules, doorbells: doorbells.clone(), slot: index, qpn },
        QpQueues { qpn, send_cq: init.send_cq, send: send_queue, recv: recv_queue },
    )
}

pub(super) fn shared_receive_queue(
    srq: SrqId,
    depth: u32,
    rules: RecvRules,
    slot: &Slot<'_>,
) -> (SrqRings, SrqQueues) {
    let Slot { index, generation, doorbells, unpolled } = *slot;
    let [_, queue_index] = unpolled.begin(index, generation);
    let (recv, queue) = work_queue(depth, unpolled.clone(), queue_index);
    (SrqRings { recv, rules, doorbells: doorbells.clone(), slot: index, srq }, SrqQueues { srq, recv: queue })
}
