//! Which packet of which request is sent next.

use super::super::ring::SPAN;
use super::Requester;
use super::holes::Hole;
use super::limits::{HELD, MAX_OUTSTANDING, PACKETS_PER_ACK};
use super::plan::Plan;
use crate::qp::Context;
use crate::qp::operation::operation;
use crate::qp::wqe::{Position, Wqe};

impl Requester {
    /// The next packet that the send queue, the window and the peer's limits allow now.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is at most the length; `next` is in its request, and not before `una`; packet numbers and byte counts stay far below 2^64"
    )]
    pub(in crate::qp) fn plan(&self, window: u64) -> Option<Plan<'_>> {
        if let Some(hole) = self.first_lost() {
            return self.plan_again(hole, window);
        }
        let wqe = self.queue.get(self.cursor).filter(|wqe| !wqe.is_local())?;
        let in_flight = self.in_flight_of(wqe.stream_at(self.next, self.mtu));
        if self.rnr_until.is_some() || in_flight >= window.max(1) || !self.is_admitted(wqe, window) {
            return None;
        }
        if self.next > self.una && !self.is_holdable(in_flight, 0, 0) {
            return None;
        }
        let offset = wqe.offset(self.next, self.mtu);
        let length = if wqe.is_fetched() { 0 } else { (wqe.length - offset).min(self.mtu) };
        let until = if wqe.is_answered() { wqe.end() } else { self.next + 1 };
        let position = Position::of((self.next - wqe.first) as u32, wqe.packets);
        let ends = wqe.is_answered() || matches!(position, Position::Last | Position::Only);
        let bytes = u64::from(length);
        let ack_request = ends
            || self.unasked.0 + 1 >= PACKETS_PER_ACK
            || u64::from(self.unasked.1 + length) >= window >> self.acks_per_window
            // The last packet that the window or the circle admits must ask, or neither side would ever send again.
            || in_flight + bytes >= window
            || self.next + 1 - self.una >= MAX_OUTSTANDING
            || !self.is_holdable(in_flight, 1, bytes);
        Some(Plan {
            operation: operation(wqe, position, offset, wqe.offset(until, self.mtu))?,
            psn: self.psn(self.next),
            srq: wqe.request.srq,
            ack_request,
            solicited: ends && wqe.request.solicited,
            data: &wqe.request.data,
            offset,
            length,
            is_oldest: self.cursor == 0,
        })
    }

    /// The first hole that waits to be sent again.
    #[inline]
    fn first_lost(&self) -> Option<Hole> {
        self.selective.as_ref()?.first_lost()
    }

    /// With selective repeat, whether a peer can hold what is sent and not acknowledged, if `more` packets of `bytes` join it.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`next` is not before `una`; packet numbers and byte counts stay far below 2^64"
    )]
    fn is_holdable(&self, in_flight: u64, more: u64, bytes: u64) -> bool {
        self.selective.as_ref().is_none_or(|selective| {
            self.next - self.una + more < SPAN && in_flight + selective.away_bytes() + bytes < HELD
        })
    }

    /// Packets before `end` that are neither acknowledged nor came early as answers.
    #[expect(clippy::arithmetic_side_effects, reason = "`end` is not before `una`")]
    fn awaited(&self, end: u64) -> u64 {
        let in_place = self.selective.as_ref().map_or(0, |selective| selective.arrived_count());
        (end - self.una).saturating_sub(in_place)
    }

    /// Returns true if the limits beside the window let `wqe` continue: outstanding READs and the bytes that they bring back, the fence,
    /// half the circle. Whatever the window, one READ may be outstanding, unless `max_rd_atomic` is 0: then READs wait, as in Linux's rxe
    /// (`check_init_depth`).
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`end` is behind `una`; packet numbers stay far below 2^64"
    )]
    fn is_admitted(&self, wqe: &Wqe, window: u64) -> bool {
        let end = if wqe.is_answered() { wqe.end() } else { self.next + 1 };
        let reads = !wqe.is_answered()
            || self.outstanding_reads < self.reads_at_once
                && (self.outstanding_reads == 0
                    || self.awaited(end).saturating_mul(u64::from(self.mtu)) <= window);
        let fence = wqe.request.fence && self.next == wqe.first && self.outstanding_reads > 0;
        reads && !fence && end - self.una <= MAX_OUTSTANDING
    }

    /// The packet of [`Self::plan`] was sent. Gives its number.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        clippy::indexing_slicing,
        reason = "`plan` found a request at the cursor; each 64th packet asks; packet numbers and counters stay far below 2^64; adding to an `Instant` saturates"
    )]
    pub(in crate::qp) fn commit(&mut self, length: u32, ack_request: bool, context: &mut Context<'_>) -> u64 {
        if let Some(hole) = self.first_lost() {
            return self.commit_again(hole, context);
        }
        let wqe = &self.queue[self.cursor];
        let number = self.next;
        let again = number < self.sent;
        let (end, is_answered) = (wqe.end(), wqe.is_answered());
        self.next = if is_answered { end } else { number + 1 };
        if self.next == end {
            self.cursor += 1;
            self.outstanding_reads += u32::from(is_answered);
        }
        self.sent = self.sent.max(self.next);
        if ack_request {
            self.asked = self.asked.max(self.next);
            self.asked_at = context.now;
            self.unasked = (0, 0);
            self.deadline = self.deadline.or_else(|| self.wait().map(|wait| context.now + wait));
            self.probe_at = self.probe_at.or_else(|| self.probe_wait().map(|wait| context.now + wait));
            if self.sample.is_none() && !again {
                self.sample = Some((number, context.now));
            }
        } else {
            self.unasked = (self.unasked.0 + 1, self.unasked.1 + length);
        }
        if again {
            context.counters.retransmitted += 1;
        }
        number
    }
}
