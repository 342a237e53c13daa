//! Completion queues, and the list of those with new completions.

use crate::qp::Completion;
use crate::{ControlError, CqId, Qpn};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

pub(crate) const MAX_CQ_DEPTH: u32 = 1 << 22;

/// Completion queue. It has room for exactly `depth` completions; one more puts it into error permanently (IBA 10.2.6).
struct CompletionQueue {
    entries: Vec<Completion>,
    depth: usize,
    overflowed: bool,
    /// References by queue pairs; a queue pair that sends and receives with the queue counts twice.
    users: u32,
    is_filled: bool,
}

pub(crate) struct CompletionQueues {
    queues: Vec<Option<CompletionQueue>>,
    free: Vec<u32>,
    limit: u32,
    /// Queues that received completions since [`Self::take_filled`] returned them, each once and in that order. A program that uses events
    /// of several queues then gets the event of an acknowledgement before that of the following message.
    filled: VecDeque<CqId>,
    /// Overflowed queues whose queue pairs were not failed yet, each once.
    overflowed: Vec<CqId>,
}

impl CompletionQueues {
    pub(crate) const fn new(limit: u32) -> Self {
        Self { queues: Vec::new(), free: Vec::new(), limit, filled: VecDeque::new(), overflowed: Vec::new() }
    }

    pub(crate) fn create(&mut self, depth: u32) -> Result<CqId, ControlError> {
        let depth = checked(depth)?;
        let entries = Vec::with_capacity(depth);
        let queue = CompletionQueue { entries, depth, overflowed: false, users: 0, is_filled: false };
        if let Some(index) = self.free.pop() {
            self.queues[index as usize] = Some(queue);
            return Ok(CqId(index));
        }
        let index = self.queues.len() as u32;
        if index >= self.limit {
            return Err(ControlError::Limit { what: "completion queues", limit: self.limit });
        }
        self.queues.push(Some(queue));
        // Each queue is listed once, so the list never grows when a completion arrives.
        self.filled.reserve(self.queues.len() - self.filled.len());
        Ok(CqId(index))
    }

    pub(crate) fn destroy(&mut self, cq: CqId) -> Result<(), ControlError> {
        match self.get(cq) {
            None => Err(ControlError::NoCq(cq)),
            Some(&CompletionQueue { users: 0, is_filled, .. }) => {
                if is_filled {
                    self.filled.retain(|&filled| filled != cq);
                }
                self.queues[cq.0 as usize] = None;
                self.free.push(cq.0);
                Ok(())
            }
            Some(queue) => Err(ControlError::CqBusy { cq, qps: queue.users }),
        }
    }

    /// Changes the depth of `cq`, which must not be below the number of its completions.
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

    pub(crate) fn join(&mut self, cq: CqId) -> Result<(), ControlError> {
        self.get_mut(cq).ok_or(ControlError::NoCq(cq))?.users += 1;
        Ok(())
    }

    pub(crate) fn leave(&mut self, cq: CqId) {
        if let Some(queue) = self.get_mut(cq) {
            queue.users -= 1;
        }
    }

    pub(crate) fn push(&mut self, cq: CqId, completion: Completion) {
        self.push_all(cq, core::iter::once(completion));
    }

    #[inline]
    pub(crate) fn push_all(&mut self, cq: CqId, completions: impl Iterator<Item = Completion>) {
        let Some(Some(queue)) = self.queues.get_mut(cq.0 as usize) else { return };
        // No completion follows a lost one, so that the polled completions have no gap.
        if queue.overflowed {
            return;
        }
        for completion in completions {
            if queue.entries.len() == queue.depth {
                self.overflow(cq);
                return;
            }
            queue.entries.push(completion);
            if !queue.is_filled {
                queue.is_filled = true;
                self.filled.push_back(cq);
            }
        }
    }

    pub(crate) fn overflow(&mut self, cq: CqId) {
        if let Some(queue) = self.get_mut(cq)
            && !queue.overflowed
        {
            queue.overflowed = true;
            self.overflowed.push(cq);
        }
    }

    pub(crate) fn poll(&mut self, cq: CqId, into: &mut dyn FnMut(&Completion) -> bool) -> usize {
        let Some(queue) = self.get_mut(cq) else { return 0 };
        let last = queue.entries.iter().position(|completion| !into(completion));
        queue.entries.drain(..last.map_or(queue.entries.len(), |last| last + 1)).len()
    }

    #[inline]
    pub(crate) fn waiting(&self, cq: CqId) -> &[Completion] {
        self.get(cq).map_or(&[], |queue| &queue.entries)
    }

    #[inline]
    pub(crate) fn clear(&mut self, cq: CqId) {
        if let Some(queue) = self.get_mut(cq) {
            queue.entries.clear();
        }
    }

    pub(crate) fn discard(&mut self, cq: CqId, qpn: Qpn) {
        if let Some(queue) = self.get_mut(cq) {
            queue.entries.retain(|completion| completion.qpn != qpn);
        }
    }

    /// Returns a queue that received completions since it was last returned.
    #[inline]
    pub(crate) fn take_filled(&mut self) -> Option<CqId> {
        let cq = self.filled.pop_front()?;
        if let Some(queue) = self.get_mut(cq) {
            queue.is_filled = false;
        }
        Some(cq)
    }

    #[inline]
    pub(crate) fn overflowed(&self, cq: CqId) -> bool {
        self.get(cq).is_some_and(|queue| queue.overflowed)
    }

    #[inline]
    pub(crate) const fn has_overflowed(&self) -> bool {
        !self.overflowed.is_empty()
    }

    pub(crate) fn take_overflowed(&mut self) -> Option<CqId> {
        self.overflowed.pop()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Qpn;
    use crate::qp::{CompletionOpcode, CompletionStatus};

    fn completion(id: u64) -> Completion {
        Completion::new(id, CompletionStatus::Success, CompletionOpcode::Send, Qpn::new(1))
    }

    #[test]
    fn only_queues_that_were_filled_are_returned() {
        let mut queues = CompletionQueues::new(1000);
        let cqs: Vec<_> = (0..1000).map(|_| queues.create(2).unwrap()).collect();
        assert_eq!(queues.take_filled(), None);
        for id in 0..3 {
            queues.push(cqs[500], completion(id));
            queues.push(cqs[7], completion(id));
        }
        let named: Vec<_> = core::iter::from_fn(|| queues.take_filled()).collect();
        assert_eq!(named, [cqs[500], cqs[7]], "in the order in which they were filled");
        assert!(queues.overflowed(cqs[7]) && queues.overflowed(cqs[500]) && !queues.overflowed(cqs[0]));
    }

    #[test]
    fn a_destroyed_queue_is_not_returned_and_its_number_is_reused() {
        let mut queues = CompletionQueues::new(2);
        let [first, second] = [queues.create(1).unwrap(), queues.create(1).unwrap()];
        assert!(queues.create(1).is_err());
        queues.push(first, completion(1));
        queues.destroy(first).unwrap();
        assert_eq!(queues.destroy(first), Err(ControlError::NoCq(first)));
        assert_eq!((queues.create(1), queues.take_filled()), (Ok(first), None));
        queues.push(second, completion(2));
        assert_eq!((queues.take_filled(), queues.poll(first, &mut |_| true)), (Some(second), 0));
    }
}
