//! Where a queue pair takes its receive requests from.

use super::{Identity, RecvRequest};
use crate::SrqId;
use crate::srq::SharedQueues;
use alloc::collections::VecDeque;

/// Its own queue, or one that it shares.
#[derive(Debug)]
pub(super) enum ReceiveQueue {
    Own(VecDeque<RecvRequest>),
    Shared(SrqId),
}

impl ReceiveQueue {
    pub(super) fn new(identity: &Identity) -> Self {
        match identity.srq {
            Some(srq) => Self::Shared(srq),
            None => Self::Own(VecDeque::with_capacity(identity.capabilities.max_recv as usize)),
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        matches!(self, Self::Shared(_))
    }

    /// Requests that wait in its own queue.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) => 0,
        }
    }

    pub(super) fn front<'a>(&'a self, shared: &'a SharedQueues) -> Option<&'a RecvRequest> {
        match self {
            Self::Own(queue) => queue.front(),
            Self::Shared(srq) => shared.front(*srq),
        }
    }

    pub(super) fn is_empty(&self, shared: &SharedQueues) -> bool {
        self.front(shared).is_none()
    }

    pub(super) fn pop(&mut self, shared: &mut SharedQueues) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(srq) => shared.pop(*srq),
        }
    }

    /// The next of its own queue. Shared requests outlive the queue pair.
    pub(super) fn pop_own(&mut self) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(_) => None,
        }
    }

    /// Behind all others of its own queue; a shared one is posted to by its own name.
    pub(super) fn push(&mut self, request: RecvRequest) {
        if let Self::Own(queue) = self {
            queue.push_back(request);
        }
    }

    pub(super) fn push_front(&mut self, request: RecvRequest, shared: &mut SharedQueues) {
        match self {
            Self::Own(queue) => queue.push_front(request),
            Self::Shared(srq) => shared.push_front(*srq, request),
        }
    }

    /// Forgets what waits in its own queue; the room stays.
    pub(super) fn clear(&mut self) {
        if let Self::Own(queue) = self {
            queue.clear();
        }
    }
}
