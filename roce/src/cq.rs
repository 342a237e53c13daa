use crate::qp::Completion;
use crate::{ControlError, CqId};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Deepest completion queue.
pub(crate) const MAX_CQ_DEPTH: u32 = 1 << 22;

/// One completion queue. It holds exactly `depth` completions; one more and it is in error for good (IBA 10.2.6).
struct CompletionQueue {
    entries: VecDeque<Completion>,
    depth: usize,
    overflowed: bool,
    /// Uses by queue pairs: one that sends and receives to it counts twice.
    users: u32,
}

/// All completion queues of one endpoint.
pub(crate) struct CompletionQueues {
    queues: Vec<Option<CompletionQueue>>,
    limit: u32,
    /// Completions in all of them.
    waiting: usize,
    /// Queues that overflowed and whose queue pairs don't know yet, each once.
    news: Vec<CqId>,
}

impl CompletionQueues {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { queues: Vec::new(), limit, waiting: 0, news: Vec::new() }
    }

    pub(crate) fn create(&mut self, depth: u32) -> Result<CqId, ControlError> {
        let depth = checked(depth)?;
        let queue =
            CompletionQueue { entries: VecDeque::with_capacity(depth), depth, overflowed: false, users: 0 };
        let free = self.queues.iter().position(Option::is_none);
        let index = match free {
            Some(index) => {
                self.queues[index] = Some(queue);
                index
            }
            None if self.queues.len() < self.limit as usize => {
                self.queues.push(Some(queue));
                self.queues.len() - 1
            }
            None => return Err(ControlError::Limit { what: "completion queues", limit: self.limit }),
        };
        Ok(CqId(index as u32))
    }

    pub(crate) fn destroy(&mut self, cq: CqId) -> Result<(), ControlError> {
        match self.get(cq) {
            None => Err(ControlError::NoCq(cq)),
            Some(CompletionQueue { users: 0, entries, .. }) => {
                self.waiting -= entries.len();
                self.queues[cq.0 as usize] = None;
                Ok(())
            }
            Some(queue) => Err(ControlError::CqBusy { cq, qps: queue.users }),
        }
    }

    /// Gives `cq` another depth, at least what it holds now.
    pub(crate) fn resize(&mut self, cq: CqId, depth: u32) -> Result<(), ControlError> {
        let depth = checked(depth)?;
        let queue = self.get_mut(cq).ok_or(ControlError::NoCq(cq))?;
        let waiting = queue.entries.len();
        if waiting > depth {
            return Err(ControlError::CqFull { cq, waiting, depth });
        }
        queue.entries.reserve_exact(depth - waiting);
        queue.depth = depth;
        Ok(())
    }

    /// Counts a queue pair's use of `cq`.
    pub(crate) fn join(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.get_mut(cq).ok_or(ControlError::NoCq(cq))?.users += 1;
        Ok(())
    }

    /// Ends a use that [`Self::join`] began.
    pub(crate) fn leave(&mut self, cq: CqId) {
        if let Some(queue) = self.get_mut(cq) {
            queue.users -= 1;
        }
    }

    pub(crate) fn push(&mut self, cq: CqId, completion: Completion) {
        let Some(queue) = self.get_mut(cq) else { return };
        // Nothing comes behind a completion that was lost: what is polled has no hole.
        if queue.overflowed {
            return;
        }
        if queue.entries.len() < queue.depth {
            queue.entries.push_back(completion);
            self.waiting += 1;
        } else {
            self.overflow(cq);
        }
    }

    pub(crate) fn overflow(&mut self, cq: CqId) {
        if let Some(queue) = self.get_mut(cq)
            && !queue.overflowed
        {
            queue.overflowed = true;
            self.news.push(cq);
        }
    }

    pub(crate) fn poll(&mut self, cq: CqId, into: &mut dyn FnMut(&Completion) -> bool) -> usize {
        let Some(queue) = self.get_mut(cq) else { return 0 };
        let mut taken = 0;
        while let Some(completion) = queue.entries.pop_front() {
            taken += 1;
            if !into(&completion) {
                break;
            }
        }
        self.waiting -= taken;
        taken
    }

    /// Whether any queue holds a completion.
    #[inline]
    pub(crate) const fn has_any(&self) -> bool {
        self.waiting > 0
    }

    pub(crate) fn overflowed(&self, cq: CqId) -> bool {
        self.get(cq).is_some_and(|queue| queue.overflowed)
    }

    /// Whether a queue overflowed since [`Self::take_news`].
    #[inline]
    pub(crate) const fn has_news(&self) -> bool {
        !self.news.is_empty()
    }

    /// A queue that overflowed since this was last asked.
    pub(crate) fn take_news(&mut self) -> Option<CqId> {
        self.news.pop()
    }

    fn get(&self, cq: CqId) -> Option<&CompletionQueue> {
        self.queues.get(cq.0 as usize)?.as_ref()
    }

    fn get_mut(&mut self, cq: CqId) -> Option<&mut CompletionQueue> {
        self.queues.get_mut(cq.0 as usize)?.as_mut()
    }
}

fn checked(depth: u32) -> Result<usize, ControlError> {
    if (1..=MAX_CQ_DEPTH).contains(&depth) {
        return Ok(depth as usize);
    }
    let (value, limit) = (u64::from(depth), u64::from(MAX_CQ_DEPTH));
    Err(ControlError::Value { what: "a completion queue's depth", value, limit })
}
