//! Shared receive queues: receive requests for several queue pairs (IBA 10.2.9).

use crate::qp::{Capabilities, CheckedRecv, PostError, RecvRequest, RecvRules};
use crate::{ControlError, CqId, PdId, SrqId, SrqNumber, XrcdId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Settings that create a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqInit {
    /// Protection domain; queue pairs that use the queue must be of the same one.
    pub pd: PdId,
    /// Limit of the pending requests, 1 to 32,768.
    pub depth: u32,
    /// Limit of the buffers in one request, 0 to 32.
    pub max_sge: u32,
    /// Set for a queue of an XRC domain: only the domain's targets use it, for messages that name it.
    pub xrc: Option<XrcReceives>,
}

/// Additional settings of a shared receive queue of an XRC domain (IBA annex A14).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XrcReceives {
    /// XRC domain, whose targets use the queue.
    pub domain: XrcdId,
    /// Completion queue of receive requests.
    pub cq: CqId,
}

/// Shared receive queue that a message names, with its protection domain and its completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ResolvedSrq {
    pub(crate) number: SrqNumber,
    pub(crate) srq: SrqId,
    pub(crate) pd: PdId,
    pub(crate) cq: CqId,
}

/// State of a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqReport {
    /// Pending requests.
    pub waiting: u32,
    /// Requests below which an event is raised, once; 0 if none is requested.
    pub limit: u32,
    /// Queue pairs that use the queue.
    pub qps: u32,
}

#[derive(Debug)]
struct SharedQueue {
    init: SrqInit,
    number: SrqNumber,
    requests: VecDeque<RecvRequest>,
    /// Requests borrowed by messages that may be abandoned. They may be returned, so they still use room.
    borrowed: u32,
    limit: u32,
    qps: u32,
}

impl SharedQueue {
    fn room(&self) -> u32 {
        self.init.depth.saturating_sub(self.borrowed + self.requests.len() as u32)
    }
}

#[derive(Debug, Default)]
pub(crate) struct SharedQueues {
    queues: Vec<Option<SharedQueue>>,
    /// Queues created so far. The upper bits of a number contain this count, so that a number is not reused soon.
    created: u32,
    /// Queues with fewer requests than their limit, each once until its limit is armed again.
    low: VecDeque<SrqId>,
}

impl SharedQueues {
    /// Limit of the queues of one endpoint: the numbers that the lower half of an SRQ number can distinguish.
    const LIMIT: u32 = 1 << Self::PLACE_BITS;
    const PLACE_BITS: u32 = 12;

    pub(crate) fn create(&mut self, init: SrqInit) -> Result<SrqId, ControlError> {
        let most = Capabilities::MAX;
        for (what, value, least, limit) in
            [("depth", init.depth, 1, most.max_recv), ("max_sge", init.max_sge, 0, most.max_recv_sge)]
        {
            if !(least..=limit).contains(&value) {
                return Err(ControlError::Value { what, value: u64::from(value), limit: u64::from(limit) });
            }
        }
        let index = self.queues.iter().position(Option::is_none).unwrap_or(self.queues.len());
        if index as u32 >= Self::LIMIT {
            return Err(ControlError::Limit { what: "shared receive queues", limit: Self::LIMIT });
        }
        if index == self.queues.len() {
            self.queues.push(None);
        }
        let requests = VecDeque::with_capacity(init.depth as usize);
        // From 1, so that no queue has number 0.
        self.created = self.created % (Self::LIMIT - 1) + 1;
        let number = SrqNumber::new(self.created << Self::PLACE_BITS | index as u32);
        self.queues[index] = Some(SharedQueue { init, number, requests, borrowed: 0, limit: 0, qps: 0 });
        // Each queue is listed once: there is room for all.
        self.low.reserve(self.queues.len());
        Ok(SrqId(index as u32))
    }

    /// Destroys a queue. Returns the settings that created it.
    pub(crate) fn destroy(&mut self, srq: SrqId) -> Result<SrqInit, ControlError> {
        let SharedQueue { qps, init, .. } = *self.get(srq)?;
        if qps > 0 {
            return Err(ControlError::SrqBusy { srq, qps });
        }
        self.queues[srq.0 as usize] = None;
        self.low.retain(|&low| low != srq);
        Ok(init)
    }

    pub(crate) fn join(&mut self, srq: SrqId, pd: PdId) -> Result<(), ControlError> {
        let queue = self.get_mut(srq)?;
        if queue.init.xrc.is_some() {
            return Err(ControlError::SrqOfXrc { srq });
        }
        if queue.init.pd != pd {
            return Err(ControlError::SrqDomain { srq });
        }
        queue.qps += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self, srq: SrqId) {
        if let Ok(queue) = self.get_mut(srq) {
            queue.qps -= 1;
        }
    }

    pub(crate) fn rules(&self, srq: SrqId) -> Option<RecvRules> {
        self.get(srq).ok().map(|queue| RecvRules::shared(queue.init.max_sge))
    }

    pub(crate) fn check(&self, srq: SrqId, request: RecvRequest) -> Result<CheckedRecv, PostError> {
        let queue = self.get(srq).map_err(|_| PostError::NoSrq { srq })?;
        let checked = RecvRules::shared(queue.init.max_sge).check(request)?;
        if queue.room() == 0 {
            return Err(PostError::QueueFull { limit: queue.init.depth });
        }
        Ok(checked)
    }

    pub(crate) fn take(&mut self, srq: SrqId, request: CheckedRecv) {
        if let Ok(queue) = self.get_mut(srq) {
            queue.requests.push_back(request.into_request());
        }
    }

    /// Requests an event when fewer than `limit` requests are pending; 0 requests none.
    pub(crate) fn arm(&mut self, srq: SrqId, limit: u32) -> Result<(), ControlError> {
        let queue = self.get_mut(srq)?;
        let depth = queue.init.depth;
        if limit > depth {
            return Err(ControlError::Value {
                what: "limit",
                value: u64::from(limit),
                limit: u64::from(depth),
            });
        }
        queue.limit = limit;
        self.check_limit(srq);
        Ok(())
    }

    pub(crate) fn report(&self, srq: SrqId) -> Option<SrqReport> {
        let queue = self.get(srq).ok()?;
        Some(SrqReport { waiting: queue.requests.len() as u32, limit: queue.limit, qps: queue.qps })
    }

    /// Returns the queue's number in requests of peers.
    pub(crate) fn number(&self, srq: SrqId) -> Option<SrqNumber> {
        self.get(srq).ok().map(|queue| queue.number)
    }

    /// Returns the queue with this number in requests of peers, and its XRC domain.
    pub(crate) fn resolve(&self, number: SrqNumber) -> Option<(ResolvedSrq, XrcdId)> {
        let srq = SrqId(number.get() & (Self::LIMIT - 1));
        let queue = self.get(srq).ok().filter(|queue| queue.number == number)?;
        let XrcReceives { domain, cq } = queue.init.xrc?;
        Some((ResolvedSrq { number, srq, pd: queue.init.pd, cq }, domain))
    }

    pub(crate) fn room(&self, srq: SrqId) -> u32 {
        self.get(srq).map_or(0, SharedQueue::room)
    }

    pub(crate) fn poll_low(&mut self) -> Option<SrqId> {
        self.low.pop_front()
    }

    pub(crate) fn front(&self, srq: SrqId) -> Option<&RecvRequest> {
        self.get(srq).ok()?.requests.front()
    }

    pub(crate) fn pop(&mut self, srq: SrqId) -> Option<RecvRequest> {
        let request = self.get_mut(srq).ok()?.requests.pop_front();
        self.check_limit(srq);
        request
    }

    /// Pops a request for a message that may be abandoned. It uses room until [`Self::commit_borrowed`] or [`Self::return_borrowed`].
    pub(crate) fn borrow(&mut self, srq: SrqId) -> Option<RecvRequest> {
        let request = self.pop(srq)?;
        if let Ok(queue) = self.get_mut(srq) {
            queue.borrowed += 1;
        }
        Some(request)
    }

    /// Keeps a borrowed request out of the queue, because its message has arrived.
    pub(crate) fn commit_borrowed(&mut self, srq: SrqId) {
        if let Ok(queue) = self.get_mut(srq) {
            queue.borrowed = queue.borrowed.saturating_sub(1);
        }
    }

    /// Returns the request of an abandoned message, for the next one.
    pub(crate) fn return_borrowed(&mut self, srq: SrqId, request: RecvRequest) {
        if let Ok(queue) = self.get_mut(srq) {
            queue.borrowed = queue.borrowed.saturating_sub(1);
            queue.requests.push_front(request);
        }
    }

    fn check_limit(&mut self, srq: SrqId) {
        let Some(Some(queue)) = self.queues.get_mut(srq.0 as usize) else { return };
        if (queue.requests.len() as u32) < queue.limit {
            // The event disarms the limit (IBA 10.2.9.1).
            queue.limit = 0;
            self.low.push_back(srq);
        }
    }

    fn get(&self, srq: SrqId) -> Result<&SharedQueue, ControlError> {
        self.queues.get(srq.0 as usize).and_then(Option::as_ref).ok_or(ControlError::NoSrq(srq))
    }

    fn get_mut(&mut self, srq: SrqId) -> Result<&mut SharedQueue, ControlError> {
        self.queues.get_mut(srq.0 as usize).and_then(Option::as_mut).ok_or(ControlError::NoSrq(srq))
    }
}
