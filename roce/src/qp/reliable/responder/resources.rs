//! READs and atomics whose answers may be requested again (IBA 9.7.5.1.5).

use crate::wire::Reth;
use crate::{PdId, Psn};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// State that is necessary to answer a READ or an atomic again.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// READ. A duplicate is executed again, and reads the bytes at that time (IBA 9.7.5.1). The domain is that of the memory.
    Read(PdId, Reth),
    /// Atomic, with the original value, because it must not execute twice.
    Atomic(u64),
    /// ATOMIC WRITE or FLUSH, which has no result.
    Done,
}

/// READ or atomic that the responder answers again (IBA 9.7.5.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct Resource {
    pub(super) kind: Kind,
    pub(super) first: Psn,
    /// PSNs of the answer.
    pub(super) packets: u32,
    /// MSN after the request.
    pub(super) msn: u32,
    /// Last SEND or WRITE packet before the request.
    pub(super) acknowledgeable: Psn,
    /// The BTH's congestion byte of the answer's first packet, which acknowledges all requests before this one.
    congestion: u8,
    /// Packets of the answer to send: `next..packets`, of a round that began at `from`.
    pub(super) from: u32,
    pub(super) next: u32,
    /// The answer was sent completely at least once.
    answered: bool,
}

impl Resource {
    /// `first` and `packets` are the PSNs of the answer.
    pub(super) const fn new(
        kind: Kind,
        (first, packets): (Psn, u32),
        msn: u32,
        acknowledgeable: Psn,
        congestion: u8,
    ) -> Self {
        Self { kind, first, packets, msn, acknowledgeable, congestion, from: 0, next: 0, answered: false }
    }

    #[expect(clippy::arithmetic_side_effects, reason = "the sum of two numbers of 24 bits fits into 32 bits")]
    pub(super) const fn msn_before(&self) -> u32 {
        (self.msn + 0xff_ffff) & 0xff_ffff
    }

    const fn is_due(&self) -> bool {
        self.next < self.packets
    }

    /// Returns the index in the answer of the packet with this PSN.
    fn index(&self, psn: Psn) -> Option<u32> {
        let index = u32::try_from(psn.distance(self.first)).ok()?;
        (index < self.packets).then_some(index)
    }

    pub(super) fn answer_from(&mut self, index: u32) {
        self.from = index;
        self.next = index;
    }

    /// Records that one packet of the answer was sent. Returns its PSN.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the number is below that of packets, or of resources"
    )]
    pub(super) fn advance(&mut self) -> Psn {
        let psn = self.first.plus(self.next);
        self.next += 1;
        self.answered |= !self.is_due();
        psn
    }
}

/// Part of a READ's answer that is requested again, with selective repeat.
#[derive(Clone, Copy, Debug)]
struct PartialResponse {
    first: Psn,
    from: u32,
    next: u32,
    end: u32,
}

/// Limit of the pending parts. A peer that requests more at once must request the rest again.
const MAX_PARTIAL_RESPONSES: usize = 64;

/// Next packet of an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct DueResponse {
    pub(super) kind: Kind,
    pub(super) first: Psn,
    pub(super) msn: u32,
    /// The packet is `next` of a round from `from` to before `end`.
    pub(super) from: u32,
    pub(super) next: u32,
    pub(super) end: u32,
    pub(super) congestion: u8,
}

/// Newest READs and atomics, oldest first: as many as the peer may have outstanding, so that each of them can be answered again.
#[derive(Debug)]
pub(super) struct Resources {
    list: VecDeque<Resource>,
    limit: usize,
    /// No resource before this one has an answer due.
    due: usize,
    /// Allocated from the start only if selective repeat was agreed at connect.
    partial_responses: Vec<PartialResponse>,
}

impl Resources {
    pub(super) fn new(limit: u8, selective_repeat: bool) -> Self {
        let limit = usize::from(limit);
        let partial_responses = Vec::with_capacity(if selective_repeat { MAX_PARTIAL_RESPONSES } else { 0 });
        Self { list: VecDeque::with_capacity(limit), limit, due: 0, partial_responses }
    }

    /// Changes the limit. The oldest above it are removed now if they were answered, otherwise as others arrive.
    pub(super) fn resize(&mut self, limit: u8) {
        self.limit = usize::from(limit);
        self.list.reserve(self.limit.saturating_sub(self.list.len()));
        while self.list.len() > self.limit && self.list.front().is_some_and(|oldest| oldest.answered) {
            self.forget_oldest();
        }
    }

    /// Returns whether one more request may be accepted. A full list drops its oldest, whose answer the peer must receive before it
    /// requests more. If that answer was never sent completely, the peer exceeds the agreed limit.
    #[expect(clippy::arithmetic_side_effects, reason = "the length of a list in memory is far below 2^64")]
    pub(super) fn has_room(&self) -> bool {
        let above = (self.list.len() + 1).saturating_sub(self.limit);
        self.limit > 0 && self.list.iter().take(above).all(|oldest| oldest.answered)
    }

    pub(super) fn push(&mut self, resource: Resource) {
        debug_assert!(self.has_room());
        // The list is longer than the limit if the limit was lowered.
        while self.list.len() >= self.limit.max(1) {
            self.forget_oldest();
        }
        self.list.push_back(resource);
    }

    fn forget_oldest(&mut self) {
        let forgotten = self.list.pop_front().map(|resource| resource.first);
        self.partial_responses.retain(|part| Some(part.first) != forgotten);
        self.due = self.due.saturating_sub(1);
    }

    #[inline]
    pub(super) fn has_due(&self) -> bool {
        !self.partial_responses.is_empty() || self.due < self.list.len() && self.due().is_some()
    }

    /// Returns the part that is requested again; without one, the oldest due answer.
    pub(super) fn due(&self) -> Option<DueResponse> {
        if let Some(&PartialResponse { first, from, next, end }) = self.partial_responses.first()
            && let Some(&Resource { kind, msn, .. }) =
                self.list.iter().find(|resource| resource.first == first)
        {
            return Some(DueResponse { kind, first, msn, from, next, end, congestion: 0 });
        }
        let resource = self.list.iter().skip(self.due).find(|resource| resource.is_due());
        resource.map(|&Resource { kind, first, packets, msn, congestion, from, next, .. }| DueResponse {
            kind,
            first,
            msn,
            from,
            next,
            end: packets,
            congestion: if next == from { congestion } else { 0 },
        })
    }

    /// Records that the packet of [`Self::due`] was sent. Returns its PSN; `None` if none was due.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the number is below that of packets, or of resources"
    )]
    pub(super) fn advance(&mut self) -> Option<Psn> {
        if let Some(part) = self.partial_responses.first_mut() {
            let psn = part.first.plus(part.next);
            part.next += 1;
            if part.next == part.end {
                self.partial_responses.remove(0);
            }
            return Some(psn);
        }
        while self.list.get(self.due).is_some_and(|resource| !resource.is_due()) {
            self.due += 1;
        }
        self.list.get_mut(self.due).map(Resource::advance)
    }

    /// Returns the first READ or atomic that does not end before `psn`; `psn` is before `expected`.
    pub(super) fn next_after(&self, psn: Psn, expected: Psn) -> Option<&Resource> {
        self.after(psn, expected).last()
    }

    /// Returns whether a READ with an answer of several packets does not end before `psn`.
    pub(super) fn has_long_read_after(&self, psn: Psn, expected: Psn) -> bool {
        self.after(psn, expected).any(|resource| resource.packets > 1)
    }

    /// Returns the resources that do not end before `psn`, newest first.
    fn after(&self, psn: Psn, expected: Psn) -> impl Iterator<Item = &Resource> {
        // Distances are backwards from `expected`, because the list may reach farther back than `Psn::distance`.
        let behind = move |psn: Psn| expected.get().wrapping_sub(psn.get()) & (Psn::CIRCLE - 1);
        let is_after =
            move |resource: &&Resource| behind(resource.first.plus(resource.packets)) < behind(psn);
        self.list.iter().rev().take_while(is_after)
    }

    /// Repeats `packets` packets of an answer from `psn` on. Packets that were never sent stay due. Otherwise the peer could have the whole
    /// answer, and request more, before the answer counts as complete. Packets that were already requested again stay due, too.
    #[expect(clippy::arithmetic_side_effects, reason = "two messages have at most 2^31 bytes each")]
    pub(super) fn part(&mut self, psn: Psn, packets: u32) {
        let found = self.list.iter().find_map(|resource| resource.index(psn).map(|at| (resource, at)));
        let Some((&Resource { first, next, .. }, from)) = found else { return };
        let part = PartialResponse { first, from, next: from, end: next.min(from + packets) };
        let is_due =
            |due: &PartialResponse| due.first == first && due.next <= part.from && part.end <= due.end;
        if part.from < part.end
            && self.partial_responses.len() < MAX_PARTIAL_RESPONSES
            && !self.partial_responses.iter().any(is_due)
        {
            self.partial_responses.push(part);
        }
    }

    /// Returns the resource that `psn` belongs to, to be answered again, and the packet's index in its answer.
    #[expect(clippy::indexing_slicing, reason = "the entry was found there")]
    pub(super) fn find(&mut self, psn: Psn) -> Option<(&mut Resource, u32)> {
        let found = self.list.iter().position(|resource| resource.index(psn).is_some())?;
        self.due = self.due.min(found);
        let resource = &mut self.list[found];
        let index = resource.index(psn)?;
        Some((resource, index))
    }

    pub(super) fn drop_responses(&mut self) {
        self.list.clear();
        self.partial_responses.clear();
        self.due = 0;
    }
}
