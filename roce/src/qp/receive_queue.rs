//! The queue of a queue pair's receive requests: its own or a shared one.

use super::{Identity, Receives, RecvRequest};
use crate::srq::{ResolvedSrq, SharedQueues};
use crate::{CqId, SrqId};
use alloc::collections::VecDeque;

#[derive(Debug)]
pub(super) enum ReceiveQueue {
    Own(VecDeque<RecvRequest>),
    Shared(SrqId),
    /// XRC target: the queue that the newest message named.
    XrcTarget(Option<ResolvedSrq>),
}

impl ReceiveQueue {
    pub(super) fn new(identity: &Identity) -> Self {
        match identity.receives {
            Receives::Own => Self::Own(VecDeque::with_capacity(identity.capabilities.max_recv as usize)),
            Receives::Shared(srq) => Self::Shared(srq),
            Receives::Never | Receives::XrcTarget(_) => Self::XrcTarget(None),
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Shared(_) | Self::XrcTarget(_) => true,
        }
    }

    /// Returns the shared queue that is in use now.
    pub(super) fn shared(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) | Self::XrcTarget(None) => None,
            Self::Shared(srq) | Self::XrcTarget(Some(ResolvedSrq { srq, .. })) => Some(*srq),
        }
    }

    pub(super) const fn resolved(&self) -> Option<&ResolvedSrq> {
        match self {
            Self::Own(_) | Self::Shared(_) => None,
            Self::XrcTarget(resolved) => resolved.as_ref(),
        }
    }

    /// Returns the completion queue of a request that was taken. Returns `None` if the shared queue that the message named is destroyed,
    /// because the number of its completion queue may be reused.
    pub(super) fn completes_to(&self, identity: &Identity, srqs: &SharedQueues) -> Option<CqId> {
        match self {
            Self::Own(_) | Self::Shared(_) | Self::XrcTarget(None) => Some(identity.recv_cq),
            Self::XrcTarget(Some(resolved)) => srqs.resolve(resolved.number).map(|(resolved, _)| resolved.cq),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) | Self::XrcTarget(_) => 0,
        }
    }

    pub(super) fn front<'a>(&'a self, srqs: &'a SharedQueues) -> Option<&'a RecvRequest> {
        match self {
            Self::Own(queue) => queue.front(),
            Self::Shared(_) | Self::XrcTarget(_) => srqs.front(self.shared()?),
        }
    }

    pub(super) fn is_empty(&self, srqs: &SharedQueues) -> bool {
        self.front(srqs).is_none()
    }

    pub(super) fn pop(&mut self, srqs: &mut SharedQueues) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(_) | Self::XrcTarget(_) => srqs.pop(self.shared()?),
        }
    }

    /// Pops a request for a message that may be abandoned. [`Self::commit_borrowed`] or [`Self::return_borrowed`] must follow.
    pub(super) fn borrow(&mut self, srqs: &mut SharedQueues) -> Option<RecvRequest> {
        match self {
            Self::Shared(srq) => srqs.borrow(*srq),
            Self::Own(_) | Self::XrcTarget(_) => self.pop(srqs),
        }
    }

    /// Keeps a borrowed request, because its message has arrived.
    pub(super) fn commit_borrowed(&self, srqs: &mut SharedQueues) {
        if let Self::Shared(srq) = self {
            srqs.commit_borrowed(*srq);
        }
    }

    /// Pops a request of its own queue. Shared requests outlive the queue pair.
    pub(super) fn pop_own(&mut self) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(_) | Self::XrcTarget(_) => None,
        }
    }

    /// Appends a request to its own queue. Programs post to a shared one directly.
    pub(super) fn push(&mut self, request: RecvRequest) {
        if let Self::Own(queue) = self {
            queue.push_back(request);
        }
    }

    /// Returns the request of an abandoned message; the next message uses it.
    pub(super) fn return_borrowed(&mut self, request: RecvRequest, srqs: &mut SharedQueues) {
        match self {
            Self::Own(queue) => queue.push_front(request),
            Self::Shared(srq) => srqs.return_borrowed(*srq, request),
            // A reliable service abandons no message.
            Self::XrcTarget(_) => {}
        }
    }

    /// Clears its own queue, and the named one; the capacity stays.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared(_) => {}
            Self::XrcTarget(resolved) => *resolved = None,
        }
    }
}
