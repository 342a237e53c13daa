//! The queue from which a queue pair takes its receive requests: its own or a shared one.

use super::{Identity, Receives, RecvRequest};
use crate::srq::{Reached, SharedQueues};
use crate::{CqId, SrqId};
use alloc::collections::VecDeque;

#[derive(Debug)]
pub(super) enum ReceiveQueue {
    Own(VecDeque<RecvRequest>),
    Shared(SrqId),
    /// XRC target: the queue that the newest message named.
    Named(Option<Reached>),
}

impl ReceiveQueue {
    pub(super) fn new(identity: &Identity) -> Self {
        match identity.receives {
            Receives::Own => Self::Own(VecDeque::with_capacity(identity.capabilities.max_recv as usize)),
            Receives::Shared(srq) => Self::Shared(srq),
            Receives::Never | Receives::Named(_) => Self::Named(None),
        }
    }

    pub(super) const fn is_shared(&self) -> bool {
        match self {
            Self::Own(_) => false,
            Self::Shared(_) | Self::Named(_) => true,
        }
    }

    /// Returns the shared queue that is in use now.
    pub(super) fn shared(&self) -> Option<SrqId> {
        match self {
            Self::Own(_) | Self::Named(None) => None,
            Self::Shared(srq) | Self::Named(Some(Reached { srq, .. })) => Some(*srq),
        }
    }

    pub(super) const fn reached(&self) -> Option<&Reached> {
        match self {
            Self::Own(_) | Self::Shared(_) => None,
            Self::Named(reached) => reached.as_ref(),
        }
    }

    /// Returns the completion queue of a request that was taken; `None` if the shared queue that the message named is destroyed: the number
    /// of its completion queue may be reused.
    pub(super) fn completes_to(&self, identity: &Identity, shared: &SharedQueues) -> Option<CqId> {
        match self {
            Self::Own(_) | Self::Shared(_) | Self::Named(None) => Some(identity.recv_cq),
            Self::Named(Some(reached)) => shared.reach(reached.number).map(|(reached, _)| reached.cq),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Own(queue) => queue.len(),
            Self::Shared(_) | Self::Named(_) => 0,
        }
    }

    pub(super) fn front<'a>(&'a self, shared: &'a SharedQueues) -> Option<&'a RecvRequest> {
        match self {
            Self::Own(queue) => queue.front(),
            Self::Shared(_) | Self::Named(_) => shared.front(self.shared()?),
        }
    }

    pub(super) fn is_empty(&self, shared: &SharedQueues) -> bool {
        self.front(shared).is_none()
    }

    pub(super) fn pop(&mut self, shared: &mut SharedQueues) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(_) | Self::Named(_) => shared.pop(self.shared()?),
        }
    }

    /// Pops a request for a message that may be abandoned. [`Self::keep`] or [`Self::give_back`] must follow.
    pub(super) fn borrow(&mut self, shared: &mut SharedQueues) -> Option<RecvRequest> {
        match self {
            Self::Shared(srq) => shared.lend(*srq),
            Self::Own(_) | Self::Named(_) => self.pop(shared),
        }
    }

    /// Keeps a borrowed request, because its message has arrived.
    pub(super) fn keep(&self, shared: &mut SharedQueues) {
        if let Self::Shared(srq) = self {
            shared.keep(*srq);
        }
    }

    /// Pops a request of its own queue. Shared requests outlive the queue pair.
    pub(super) fn pop_own(&mut self) -> Option<RecvRequest> {
        match self {
            Self::Own(queue) => queue.pop_front(),
            Self::Shared(_) | Self::Named(_) => None,
        }
    }

    /// Appends a request to its own queue. Programs post to a shared one directly.
    pub(super) fn push(&mut self, request: RecvRequest) {
        if let Self::Own(queue) = self {
            queue.push_back(request);
        }
    }

    /// Returns the request of an abandoned message; the next message uses it.
    pub(super) fn give_back(&mut self, request: RecvRequest, shared: &mut SharedQueues) {
        match self {
            Self::Own(queue) => queue.push_front(request),
            Self::Shared(srq) => shared.give_back(*srq, request),
            // A reliable service abandons no message.
            Self::Named(_) => {}
        }
    }

    /// Clears its own queue, and the named one; the capacity stays.
    pub(super) fn clear(&mut self) {
        match self {
            Self::Own(queue) => queue.clear(),
            Self::Shared(_) => {}
            Self::Named(reached) => *reached = None,
        }
    }
}
