//! Selective repeat at the responder: holds early packets until the missing ones arrive.
//!
//! They are executed in order, as if each had just arrived, so that no effect of a request is visible early.

use super::super::ring::{Ring, SPAN};
use super::{Arrival, PendingAcknowledge, Refusal, Responder};
use crate::qp::early::{EarlyMemory, Reservation};
use crate::qp::{Context, wqe};
use crate::wire::{Bth, Operation, Reth};
use crate::{Discard, Memory, Psn, SrqNumber};
use alloc::vec;
use alloc::vec::Vec;
use cc::Instant;
use core::time::Duration;

/// Limit of the payload bytes that a queue pair holds, each payload rounded up to a power of two.
const MAX_HELD: usize = 2 << 20;

/// Time since the last use after which memory without packets is freed.
const UNUSED_AFTER: Duration = Duration::from_millis(10);
/// Time since the last use after which memory with packets is freed: the peer has stopped, or retransmits them.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// Early packet without its payload.
#[derive(Clone, Copy, Debug)]
struct EarlyPacket {
    bth: Bth,
    srq: Option<SrqNumber>,
    operation: Operation,
    is_marked: bool,
    length: usize,
    /// Slot of its payload among those of its size class.
    payload_slot: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HoldResult {
    Held,
    Duplicate,
    /// The packet is too far ahead, or there is no room.
    NoRoom,
}

/// Payloads of one size class, each in its own slot.
#[derive(Debug, Default)]
struct Payloads {
    bytes: Vec<u8>,
    free: Vec<u32>,
    /// Slots that memory is allocated for.
    room: usize,
}

impl Payloads {
    /// Returns the bytes of `room` slots of `size` bytes.
    const fn cost(room: usize, size: usize) -> usize {
        room.saturating_mul(size.saturating_add(size_of::<u32>()))
    }
}

/// Early packets that are held. The memory grows with them, within the endpoint's budget, and is freed when it was not used for a while.
#[derive(Debug)]
pub(super) struct Reorder {
    /// Missing packet, while packets are held.
    base: Psn,
    held: Ring,
    count: u32,
    /// Distance from `base` to after the farthest packet ever held.
    end: u32,
    /// Packets by PSN modulo the length, which is a power of two.
    packets: Vec<Option<EarlyPacket>>,
    /// Size classes: payloads of up to 64 B, 128 B, 256 B and so on to 4 KiB.
    payloads: [Payloads; 7],
    /// Bytes of all slots.
    allocated: usize,
    /// Bytes of all memory in the endpoint's budget; `None` without memory.
    reservation: Option<Reservation>,
    /// When a packet was last held or executed.
    used: Instant,
    /// Bit for each group of 64 PSNs, by its position in the ring, with arrivals that were not reported to the peer.
    unreported: u64,
    /// First PSN that the due acceptance repeats.
    pub(super) acceptance: Option<Psn>,
}

fn number(psn: Psn) -> u64 {
    psn.get().into()
}

/// Returns the size class of a payload, and the bytes of its slots.
#[expect(clippy::arithmetic_side_effects, reason = "the number is a power of two, at least 64")]
fn class(length: usize) -> (usize, usize) {
    let size = length.next_power_of_two().max(64);
    (size.trailing_zeros() as usize - 6, size)
}

impl Reorder {
    pub(super) fn new(base: Psn) -> Self {
        Self {
            base,
            held: Ring::new(),
            count: 0,
            end: 0,
            packets: Vec::new(),
            payloads: Default::default(),
            allocated: 0,
            reservation: None,
            used: Instant::ZERO,
            unreported: 0,
            acceptance: None,
        }
    }

    /// Returns the content of a Selective Acknowledge: the distance from the missing packet in units of 64 PSNs, and a bitmap of 128
    /// packets. Returns `None` if nothing is held.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the sum of 24 bits and 64 times 63 fits into 32 bits"
    )]
    pub(super) fn report(&self) -> Option<(u8, u128)> {
        if self.count == 0 {
            return None;
        }
        let ahead = self.ahead();
        Some((ahead, self.held.window(number(self.base) + 64 * u64::from(ahead))))
    }

    /// Returns the distance of the first group with unreported arrivals, in units of 64 PSNs.
    fn ahead(&self) -> u8 {
        let rotated = self.unreported.rotate_right((number(self.base) / 64 % 64) as u32);
        // Groups are aligned in the ring. A report begins at the missing packet, up to 63 PSNs before the group.
        if rotated == 0 { 0 } else { (rotated.trailing_zeros().saturating_sub(1)) as u8 }
    }

    /// Records that [`Self::report`] was sent. Returns whether everything is reported.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the sum of 24 bits and 64 times 63 fits into 32 bits"
    )]
    pub(super) fn on_report_sent(&mut self) -> bool {
        // A report covers 128 packets. If they begin within a group, it covers that group and the next to their ends, but not the third.
        let first = (number(self.base) + 64 * u64::from(self.ahead())) / 64;
        for group in [first, first + 1] {
            self.unreported &= !(1 << (group % 64));
        }
        self.unreported == 0 || self.count == 0
    }

    /// Records that everything before `expected` was executed.
    #[expect(clippy::arithmetic_side_effects, reason = "sums of 24 bits fit into 32 bits")]
    fn advance_to(&mut self, expected: Psn) {
        if self.count == 0 {
            (self.base, self.end, self.unreported) = (expected, 0, 0);
            return;
        }
        // A READ may use half the PSN space, for which `Psn::distance` would be negative.
        let by = expected.get().wrapping_sub(self.base.get()) & (Psn::CIRCLE - 1);
        if by == 0 {
            return;
        }
        let (from, to) = (number(self.base), number(self.base) + u64::from(by));
        // Only the first PSN of a READ's answer is a request's. Held packets with the other PSNs are never executed.
        (0..by.min(self.end)).for_each(|ahead| self.forget(self.base.plus(ahead)));
        for group in (from / 64)..(to / 64).min(from / 64 + 64) {
            self.unreported &= !(1 << (group % 64));
        }
        self.end = self.end.saturating_sub(by);
        self.base = expected;
    }

    #[expect(clippy::arithmetic_side_effects, reason = "something is held, so there are packets")]
    fn slot(&self, psn: Psn) -> usize {
        psn.get() as usize & (self.packets.len() - 1)
    }

    /// Makes room for `count` packets from `base` on. Returns false if the budget is exhausted.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the size is at most SPAN, and above the number of packets; the slot is below the size"
    )]
    fn grow(&mut self, count: usize) -> bool {
        if count <= self.packets.len() {
            return true;
        }
        let size = count.next_power_of_two().max(64);
        let cost = (size - self.packets.len()) * size_of::<Option<EarlyPacket>>();
        let ring = if self.packets.is_empty() { Ring::BYTES } else { 0 };
        if !self.reservation.as_mut().is_some_and(|reservation| reservation.reserve(cost + ring)) {
            return false;
        }
        let packets = core::mem::replace(&mut self.packets, vec![None; size]);
        for early in packets.into_iter().flatten() {
            let slot = self.slot(early.bth.psn);
            self.packets[slot] = Some(early);
        }
        true
    }

    /// Frees the memory of size classes without packets.
    #[cold]
    #[expect(clippy::arithmetic_side_effects, reason = "`allocated` is the sum of all lengths")]
    fn free_unused_classes(&mut self) {
        for (class, payloads) in self.payloads.iter_mut().enumerate() {
            let size = 64 << class;
            if payloads.free.len() * size == payloads.bytes.len() {
                self.allocated -= payloads.room * size;
                if let Some(reservation) = &mut self.reservation {
                    reservation.release(Payloads::cost(payloads.room, size));
                }
                *payloads = Payloads::default();
            }
        }
    }

    /// Makes room for more payloads of a class: twice as many if possible, otherwise one. Returns false if there is no room.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "a payload has a class; `allocated` is at most MAX_HELD"
    )]
    fn extend(&mut self, class: usize, size: usize) -> bool {
        if self.allocated + size > MAX_HELD {
            self.free_unused_classes();
        }
        let payloads = &mut self.payloads[class];
        let Some(reservation) = &mut self.reservation else { return false };
        let most = payloads.room.max(1).min((MAX_HELD - self.allocated) / size);
        for more in [most, most.min(1)] {
            if more > 0 && reservation.reserve(Payloads::cost(more, size)) {
                payloads.room += more;
                self.allocated += more * size;
                payloads.bytes.reserve_exact(payloads.room * size - payloads.bytes.len());
                payloads.free.reserve_exact(payloads.room - payloads.free.len());
                return true;
            }
        }
        false
    }

    /// Stores a payload. Returns its slot; `None` if there is no room.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "the index is below the number of slots in the bytes"
    )]
    fn store(&mut self, payload: &[u8]) -> Option<u32> {
        let (class, size) = class(payload.len());
        let payloads = self.payloads.get(class)?;
        let is_full = payloads.free.is_empty() && payloads.bytes.len() == payloads.room * size;
        if is_full && !self.extend(class, size) {
            return None;
        }
        let payloads = &mut self.payloads[class];
        let slot = payloads.free.pop().unwrap_or_else(|| {
            let slot = (payloads.bytes.len() / size) as u32;
            payloads.bytes.resize(payloads.bytes.len() + size, 0);
            slot
        });
        payloads.bytes[slot as usize * size..][..payload.len()].copy_from_slice(payload);
        Some(slot)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`ahead` is below SPAN; the slot is below the number of packets"
    )]
    fn hold(
        &mut self,
        early: EarlyPacket,
        payload: &[u8],
        memory: &mut EarlyMemory,
        now: Instant,
    ) -> HoldResult {
        let psn = early.bth.psn;
        let ahead = u32::try_from(psn.distance(self.base)).unwrap_or(u32::MAX);
        if u64::from(ahead) >= SPAN {
            return HoldResult::NoRoom;
        }
        if self.held.has(number(psn)) {
            self.unreported |= 1 << (number(psn) / 64 % 64);
            return HoldResult::Duplicate;
        }
        let before = self.reservation.get_or_insert_with(|| memory.reservation()).bytes();
        let end = self.end.max(ahead + 1);
        let payload_slot = if self.grow(end as usize) { self.store(payload) } else { None };
        if before == 0 && self.reservation.as_ref().is_some_and(|reservation| reservation.bytes() > 0) {
            memory.add_holder(early.bth.destination, now);
        }
        let Some(payload_slot) = payload_slot else {
            memory.on_shortage(before);
            return HoldResult::NoRoom;
        };
        self.unreported |= 1 << (number(psn) / 64 % 64);
        self.held.set(number(psn));
        (self.count, self.end, self.used) = (self.count + 1, end, now);
        let slot = self.slot(psn);
        self.packets[slot] = Some(EarlyPacket { payload_slot, ..early });
        HoldResult::Held
    }

    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    fn evict(&mut self, context: &mut Context<'_>) {
        context.counters.evicted_early += u64::from(self.count);
        *self = Self { acceptance: self.acceptance, used: self.used, ..Self::new(self.base) };
    }

    /// Frees the memory if it was not used recently. Returns the bytes still in use.
    fn release(&mut self, context: &mut Context<'_>) -> usize {
        let limit = if self.count == 0 { UNUSED_AFTER } else { STALLED_AFTER };
        let is_empty = self.reservation.as_ref().is_none_or(|reservation| reservation.bytes() == 0);
        if is_empty || context.now.saturating_since(self.used) >= limit {
            self.evict(context);
        }
        self.reservation.as_ref().map_or(0, Reservation::bytes)
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`count` counts the bits that are set; the slot is below the number of packets; a payload that is held has a class"
    )]
    fn forget(&mut self, psn: Psn) {
        if self.held.clear(number(psn)) {
            self.count -= 1;
            let slot = self.slot(psn);
            if let Some(early) = self.packets[slot].take() {
                self.payloads[class(early.length).0].free.push(early.payload_slot);
            }
        }
    }

    /// Removes and returns the packet at `base`, if it is held.
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`count` counts the bits that are set; the slot is below the number of packets; a payload that is held has its slot"
    )]
    fn take(&mut self) -> Option<(EarlyPacket, &[u8])> {
        if !self.held.clear(number(self.base)) {
            return None;
        }
        self.count -= 1;
        let slot = self.slot(self.base);
        let early = self.packets[slot].take()?;
        let (class, size) = class(early.length);
        let payloads = &mut self.payloads[class];
        payloads.free.push(early.payload_slot);
        Some((early, &payloads.bytes[early.payload_slot as usize * size..][..early.length]))
    }
}

impl Responder {
    /// Handles a packet before which others are missing.
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(super) fn on_early<M>(
        &mut self,
        operation: Operation,
        arrival: &mut Arrival<'_, '_, M>,
    ) -> Result<(), Refusal> {
        let Some(reorder) = &mut self.reorder else { return Err(self.on_gap(arrival.context)) };
        let Arrival { bth, srq, is_marked, payload, .. } = *arrival;
        if payload.len() > arrival.rights.mtu as usize {
            return Err(self.on_gap(arrival.context));
        }
        let early = EarlyPacket { bth, srq, operation, is_marked, length: payload.len(), payload_slot: 0 };
        reorder.advance_to(self.expected);
        let held = reorder.hold(early, payload, arrival.context.early, arrival.context.now);
        if held == HoldResult::NoRoom {
            return Err(self.on_gap(arrival.context));
        }
        // The acknowledgement reports what is held. A pending RNR NAK takes precedence.
        self.pending_acknowledge = self.pending_acknowledge.or(Some(PendingAcknowledge::Acknowledge));
        if held == HoldResult::Duplicate {
            return Err(Refusal::Drop(Discard::Duplicate));
        }
        arrival.context.counters.held_early += 1;
        Ok(())
    }

    /// Repeats part of the answer to a READ that was executed before: `requested` must be whole packets of `rest`, the answer from `psn`
    /// on.
    pub(super) fn answer_part(&mut self, psn: Psn, requested: Reth, rest: Reth, mtu: u32) {
        let begins = (requested.address, requested.rkey) == (rest.address, rest.rkey);
        let ends = requested.length == rest.length
            || requested.length < rest.length && requested.length > 0 && requested.length.is_multiple_of(mtu);
        if begins && ends {
            self.resources.part(psn, wqe::packets(requested.length, mtu));
        }
    }

    #[inline(always)]
    pub(super) fn holds_early(&self) -> bool {
        self.reorder.as_ref().is_some_and(|reorder| reorder.count > 0)
    }

    pub(in crate::qp) fn release_early(&mut self, context: &mut Context<'_>) -> usize {
        self.reorder.as_mut().map_or(0, |reorder| reorder.release(context))
    }

    pub(in crate::qp) fn evict_early(&mut self, context: &mut Context<'_>) {
        if let Some(reorder) = &mut self.reorder {
            reorder.evict(context);
        }
    }

    /// Executes the held packets up to the next missing one.
    #[cold]
    pub(super) fn catch_up<M: Memory>(&mut self, arrival: &mut Arrival<'_, '_, M>) -> Result<(), Refusal> {
        let Some(mut reorder) = self.reorder.take() else { return Ok(()) };
        let outcome = self.execute_held(&mut reorder, arrival);
        self.reorder = Some(reorder);
        match outcome {
            // The held packet will be retransmitted; the packet that has just arrived was executed.
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
            reorder.used = arrival.context.now;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Qpn;

    /// A READ of 2 GiB in packets of 256 bytes uses half the PSN space. The peer sends a packet with one of the answer's PSNs.
    #[test]
    fn nothing_is_held_behind_the_longest_read() {
        let psn = Psn::new(5);
        let bth = Bth::new(Qpn::new(7), psn);
        let (operation, length) = (Operation::WriteMiddle, 256);
        let early = EarlyPacket { bth, srq: None, operation, is_marked: false, length, payload_slot: 0 };
        let (mut reorder, mut memory) = (Reorder::new(Psn::new(0)), EarlyMemory::new(1 << 20));
        assert_eq!(reorder.hold(early, &[1; 256], &mut memory, Instant::ZERO), HoldResult::Held);
        let behind = Psn::new(Psn::CIRCLE / 2);
        reorder.advance_to(behind);
        assert_eq!((reorder.base, reorder.count, reorder.report()), (behind, 0, None));
        // The slots of the dropped packet are free again.
        let bth = Bth { psn: behind.plus(5), ..bth };
        assert_eq!(
            reorder.hold(EarlyPacket { bth, ..early }, &[2; 256], &mut memory, Instant::ZERO),
            HoldResult::Held
        );
        reorder.advance_to(behind.plus(5));
        assert_eq!(reorder.take().map(|(early, payload)| (early.bth.psn, payload[0])), Some((bth.psn, 2)));
    }
}
