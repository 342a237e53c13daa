//! Selective repeat at the receiver: packets that came early are held until what was lost before them has come again.
//!
//! They are executed in their order, each as if it had come just then, so nothing that a request does can be seen early.

use super::{Answer, Arrival, Refusal, Responder};
use crate::qp::wqe;
use crate::wire::{Bth, Operation, Reth};
use crate::{Discard, Memory, Psn, SrqNumber};
use alloc::boxed::Box;
use alloc::vec;

/// How far ahead a packet may be to be held: as far as a bitmap of 128 bits tells.
const SPAN: u32 = u128::BITS;

/// A packet that came early, but for its payload.
#[derive(Clone, Copy, Debug)]
struct Early {
    bth: Bth,
    srq: Option<SrqNumber>,
    operation: Operation,
    is_marked: bool,
    length: usize,
}

/// Whether a packet was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    Now,
    Before,
    /// It is too far ahead, or too long.
    Not,
}

/// The packets held, and room for as many as there may be.
#[derive(Debug)]
pub(super) struct Reorder {
    /// The packet that is missing.
    base: Psn,
    /// Bit `i`: packet `base + i` is here.
    held: u128,
    /// By PSN modulo [`SPAN`].
    packets: Box<[Option<Early>]>,
    payloads: Box<[u8]>,
    mtu: usize,
}

impl Reorder {
    pub(super) fn new(base: Psn, mtu: u32) -> Self {
        Self {
            base,
            held: 0,
            packets: vec![None; SPAN as usize].into_boxed_slice(),
            payloads: vec![0; (SPAN * mtu) as usize].into_boxed_slice(),
            mtu: mtu as usize,
        }
    }

    /// Bit `i`: the packet `i` after the one that is missing is here.
    pub(super) const fn held(&self) -> u128 {
        self.held
    }

    fn slot(psn: Psn) -> usize {
        (psn.get() % SPAN) as usize
    }

    /// All before `expected` was executed.
    fn advance_to(&mut self, expected: Psn) {
        let by = u32::try_from(expected.distance(self.base)).unwrap_or(0);
        self.held = self.held.checked_shr(by).unwrap_or(0);
        self.base = expected;
    }

    fn hold(&mut self, early: Early, payload: &[u8]) -> Held {
        let ahead = u32::try_from(early.bth.psn.distance(self.base)).unwrap_or(SPAN);
        if ahead >= SPAN || payload.len() > self.mtu {
            return Held::Not;
        }
        if self.held & 1 << ahead != 0 {
            return Held::Before;
        }
        self.held |= 1 << ahead;
        let slot = Self::slot(early.bth.psn);
        self.packets[slot] = Some(early);
        self.payloads[slot * self.mtu..][..payload.len()].copy_from_slice(payload);
        Held::Now
    }

    /// The packet at `base`, if it is here; then it is not any more.
    fn take(&mut self) -> Option<(Early, &[u8])> {
        if self.held & 1 == 0 {
            return None;
        }
        self.held &= !1;
        let slot = Self::slot(self.base);
        let early = self.packets[slot].take()?;
        Some((early, &self.payloads[slot * self.mtu..][..early.length]))
    }
}

impl Responder {
    /// Packets before this one are missing.
    pub(super) fn on_early<M>(
        &mut self,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        let Some(reorder) = &mut self.reorder else { return Err(self.on_gap(arrival.context)) };
        let Arrival { bth, srq, is_marked, payload, .. } = *arrival;
        let held = reorder.hold(Early { bth, srq, operation, is_marked, length: payload.len() }, payload);
        if held == Held::Not {
            return Err(self.on_gap(arrival.context));
        }
        // The acknowledgement says what is held. An RNR NAK that waits to be sent says more.
        self.answer = self.answer.or(Some(Answer::Acknowledge));
        if held == Held::Before {
            return Err(Refusal::Drop(Discard::Duplicate));
        }
        arrival.context.counters.held_early += 1;
        Ok(())
    }

    /// A READ that was executed before, of which `asked`, a stretch of whole packets of the `rest` from `psn` on, is missing.
    pub(super) fn answer_stretch(&mut self, psn: Psn, asked: Reth, rest: Reth, mtu: u32) {
        let begins = (asked.address, asked.rkey) == (rest.address, rest.rkey);
        let ends = asked.length == rest.length
            || asked.length < rest.length && asked.length > 0 && asked.length.is_multiple_of(mtu);
        if begins && ends {
            self.resources.repeat(psn, wqe::packets(asked.length, mtu));
        }
    }

    /// What was missing has come: executes what waited for it.
    pub(super) fn catch_up<M: Memory>(&mut self, arrival: &mut Arrival<'_, '_, M>) -> Result<(), Refusal> {
        let Some(mut reorder) = self.reorder.take() else { return Ok(()) };
        let outcome = self.execute_held(&mut reorder, arrival);
        self.reorder = Some(reorder);
        match outcome {
            // That packet comes again; the one that is here was executed.
            Err(Refusal::Drop(_)) => Ok(()),
            outcome => outcome,
        }
    }

    fn execute_held<M: Memory>(
        &mut self,
        reorder: &mut Reorder,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        loop {
            reorder.advance_to(self.expected);
            let Some((early, payload)) = reorder.take() else { return Ok(()) };
            let mut next = Arrival {
                memory: &mut *arrival.memory,
                context: &mut *arrival.context,
                identity: arrival.identity,
                rights: arrival.rights,
                bth: early.bth,
                srq: early.srq,
                is_marked: early.is_marked,
                payload,
            };
            self.execute(early.operation, &mut next)?;
        }
    }
}
