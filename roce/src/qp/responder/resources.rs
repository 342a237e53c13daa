use crate::Psn;
use crate::wire::Reth;
use alloc::collections::VecDeque;

/// What a READ or an atomic needs to be answered again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// A duplicate is executed anew: it reads whatever stands there then (IBA 9.7.5.1).
    Read(Reth),
    /// An atomic must not run twice: what it found.
    Atomic(u64),
}

/// One READ or atomic in the responder's list of those it answers again (IBA 9.7.5.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) first: Psn,
    /// PSNs of the answer.
    pub(super) packets: u32,
    /// MSN after the request.
    pub(super) msn: u32,
    /// Packets of the answer still to send: `next..packets`, of a round that began at `from`.
    pub(super) from: u32,
    pub(super) next: u32,
    /// The answer left completely at least once.
    answered: bool,
}

impl Resource {
    pub(super) const fn new(kind: Kind, first: Psn, packets: u32, msn: u32) -> Self {
        Self { kind, first, packets, msn, from: 0, next: 0, answered: false }
    }

    const fn is_due(&self) -> bool {
        self.next < self.packets
    }

    /// Index of the packet with this PSN in the answer.
    fn index(&self, psn: Psn) -> Option<u32> {
        let index = u32::try_from(psn.distance(self.first)).ok()?;
        (index < self.packets).then_some(index)
    }

    /// Answers again from packet `index` on.
    pub(super) fn answer_from(&mut self, index: u32) {
        self.from = index;
        self.next = index;
    }

    /// One packet of the answer left.
    pub(super) fn advance(&mut self) {
        self.next += 1;
        self.answered |= !self.is_due();
    }
}

/// The newest READs and atomics, oldest first: as many as the peer may have outstanding, so any of them that is
/// asked for again is still here.
#[derive(Debug)]
pub(super) struct Resources {
    list: VecDeque<Resource>,
    limit: usize,
    /// No resource before this one has an answer due.
    due: usize,
}

impl Resources {
    pub(super) fn new(limit: u8) -> Self {
        let limit = usize::from(limit);
        Self { list: VecDeque::with_capacity(limit), limit, due: 0 }
    }

    /// Whether one more may be taken. A full list gives up its oldest, whose answer the peer must have before it
    /// asks for more; if that never left, the peer asks for more than was agreed.
    pub(super) fn has_room(&self) -> bool {
        self.list.len() < self.limit || self.list.front().is_some_and(|oldest| oldest.answered)
    }

    pub(super) fn push(&mut self, resource: Resource) {
        debug_assert!(self.has_room());
        if self.list.len() == self.limit {
            self.list.pop_front();
            self.due = self.due.saturating_sub(1);
        }
        self.list.push_back(resource);
    }

    /// The oldest whose answer is due.
    pub(super) fn due(&self) -> Option<&Resource> {
        self.list.iter().skip(self.due).find(|resource| resource.is_due())
    }

    pub(super) fn due_mut(&mut self) -> Option<&mut Resource> {
        while self.list.get(self.due).is_some_and(|resource| !resource.is_due()) {
            self.due += 1;
        }
        self.list.get_mut(self.due)
    }

    /// The one that `psn` belongs to, and the packet's index in its answer, to be answered again.
    pub(super) fn find(&mut self, psn: Psn) -> Option<(&mut Resource, u32)> {
        let found = self.list.iter().position(|resource| resource.index(psn).is_some())?;
        self.due = self.due.min(found);
        let resource = &mut self.list[found];
        let index = resource.index(psn)?;
        Some((resource, index))
    }

    pub(super) fn silence(&mut self) {
        self.list.clear();
        self.due = 0;
    }
}
