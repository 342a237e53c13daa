//! Selects the packet to send next.

use super::super::ring::SPAN;
use super::Requester;
use super::limits::{HELD, MAX_OUTSTANDING, UNKNOWN};
use super::plan::{Kind, Plan, Token};
use super::rack::MissingPacket;
use crate::qp::Context;
use crate::qp::operation::operation;
use crate::qp::wqe::{Position, Wqe};
use cc::Instant;

impl Requester {
    /// Returns the next packet that the send queue, the window and the peer's limits allow, with its path.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is at most the length; `next` is in its request, and not before `una`; packet numbers and byte counts stay far below 2^64"
    )]
    pub(in crate::qp) fn plan(&self, window: u64, now: Instant) -> Option<Plan<'_>> {
        if let Some(lost) = self.recovery.selective().and_then(|selective| selective.rack.first_lost()) {
            return self.plan_again(lost, window);
        }
        let wqe = self.queue.next().filter(|wqe| !wqe.is_local())?;
        let (number, mtu) = (self.sequence.next, self.queue.mtu());
        let in_flight = self.in_flight_of(wqe.stream_at(number, mtu));
        // RFC 9002 7.5, probes "MUST NOT be blocked by the congestion controller": a full window admits the packet that requests an answer.
        let is_open = in_flight < window.max(1) || self.needs_ack_request();
        let is_open = is_open && self.is_admitted(wqe, window);
        if self.timers.is_receiver_not_ready() || !is_open {
            return None;
        }
        if number > self.sequence.una && !self.is_holdable(in_flight, 0, 0) {
            return None;
        }
        let offset = wqe.offset(number, mtu);
        let length = if wqe.is_fetched() { 0 } else { (wqe.length - offset).min(mtu) };
        let is_answered = wqe.is_answered();
        let until = if is_answered { wqe.end() } else { number + 1 };
        let position = Position::of((number - wqe.first) as u32, wqe.packets);
        let ends = is_answered || matches!(position, Position::Last | Position::Only);
        let bytes = u64::from(length);
        let ack_request = ends
            || self.ack_requests.is_due(length, window)
            // The last packet that the window or the PSN space admits must set AckReq. Otherwise the connection would stop.
            || in_flight + bytes >= window
            || number + 1 - self.sequence.una >= MAX_OUTSTANDING
            || !self.is_holdable(in_flight, 1, bytes);
        let spray = self.recovery.selective().and_then(|selective| selective.spray.as_ref());
        let path = spray.map(|spray| spray.select(now));
        let kind = Kind::Next { ends, is_answered };
        Some(Plan {
            operation: operation(wqe, position, offset, wqe.offset(until, mtu))?,
            psn: self.sequence.psn(number),
            srq: wqe.request.srq,
            solicited: ends && wqe.request.solicited,
            data: &wqe.request.data,
            offset,
            is_oldest: self.queue.next_index() == 0,
            token: Token { number, until, kind, length, ack_request, path },
        })
    }

    /// Returns the next retransmission, if the window allows it.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "the offset is at most the length; a lost packet is in its request"
    )]
    fn plan_again(&self, lost: MissingPacket, window: u64) -> Option<Plan<'_>> {
        let (number, mtu) = (lost.number(), self.queue.mtu());
        if self.timers.is_receiver_not_ready() || self.in_flight() >= window.max(1) {
            return None;
        }
        let selective = self.recovery.selective()?;
        let index = self.queue.index(number);
        let wqe = self.queue.get(index)?;
        let offset = wqe.offset(number, mtu);
        let length = if wqe.is_fetched() { 0 } else { (wqe.length - offset).min(mtu) };
        let position = Position::of((number - wqe.first) as u32, wqe.packets);
        let ends = wqe.is_answered() || matches!(position, Position::Last | Position::Only);
        // A READ request covers its whole response; responses that are lost are requested together.
        let (until, answer_end) = match (lost.missing.is_answer, wqe.is_answered()) {
            (true, _) => {
                let end = selective.rack.lost_answers_end(number, wqe.end());
                (end, end)
            }
            (false, true) => (number + 1, wqe.end()),
            (false, false) => (number + 1, number + 1),
        };
        let path = selective.spray.as_ref().map(|spray| spray.select_again(number));
        // The peer then reports at once whether the packet arrived.
        let ack_request = true;
        Some(Plan {
            operation: operation(wqe, position, offset, wqe.offset(answer_end, mtu))?,
            psn: self.sequence.psn(number),
            srq: wqe.request.srq,
            solicited: ends && wqe.request.solicited,
            data: &wqe.request.data,
            offset,
            is_oldest: index == 0,
            token: Token { number, until, kind: Kind::Repeated, length, ack_request, path },
        })
    }

    /// Returns whether a peer with selective repeat can hold all unacknowledged packets and `more` packets of `bytes` bytes in total.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`next` is not before `una`; packet numbers and byte counts stay far below 2^64"
    )]
    fn is_holdable(&self, in_flight: u64, more: u64, bytes: u64) -> bool {
        self.recovery.selective().is_none_or(|selective| {
            self.sequence.next - self.sequence.una + more < SPAN
                && in_flight + selective.scoreboard.bytes_not_in_flight() + bytes < HELD
        })
    }

    /// Returns the number of packets before `end` that are neither acknowledged nor early answers.
    #[expect(clippy::arithmetic_side_effects, reason = "`end` is not before `una`")]
    fn awaited(&self, end: u64) -> u64 {
        let in_place = self.recovery.selective().map_or(0, |selective| selective.scoreboard.answer_count());
        (end - self.sequence.una).saturating_sub(in_place)
    }

    /// Returns whether the limits other than the window admit the next packet of `wqe`: outstanding READs and the bytes that they return,
    /// the fence, half the PSN space. One READ may be outstanding whatever the window, unless `max_rd_atomic` is 0. READs are then blocked,
    /// as in Linux's rxe (`check_init_depth`).
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`end` is behind `una`; packet numbers stay far below 2^64"
    )]
    fn is_admitted(&self, wqe: &Wqe, window: u64) -> bool {
        let next = self.sequence.next;
        let end = if wqe.is_answered() { wqe.end() } else { next + 1 };
        let reads = !wqe.is_answered()
            || !self.reads.is_full()
                && (self.reads.is_empty()
                    || self.awaited(end).saturating_mul(u64::from(self.queue.mtu())) <= window);
        let fence = wqe.request.fence && next == wqe.first && !self.reads.is_empty();
        reads && !fence && end - self.sequence.una <= MAX_OUTSTANDING
    }

    /// Records that the packet of [`Self::plan`] was sent. Returns its number.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; adding to an `Instant` saturates"
    )]
    pub(in crate::qp) fn sent(&mut self, token: Token, context: &mut Context<'_>) -> u64 {
        let Token { number, until, kind, length, ack_request, path } = token;
        let Kind::Next { ends, is_answered } = kind else {
            self.sent_again(number, until, context);
            self.on_sent_over(number, path, context.now);
            return number;
        };
        let again = number < self.sequence.sent;
        self.sequence.send_until(until);
        if ends {
            self.queue.step();
            self.reads.begin(u16::from(is_answered));
        }
        if ack_request {
            self.ack_requests.on_request(until, context.now);
            self.timers.retransmission.start(context.now);
            if !self.timers.probe.is_set() {
                self.timers.probe.set(self.probe_wait().map(|wait| context.now + wait));
            }
            if !again {
                self.rtt.on_sent(number, context.now);
            }
        } else {
            self.ack_requests.on_packet_without_request(length);
        }
        if again {
            context.counters.retransmitted += 1;
        }
        self.on_sent_over(number, path, context.now);
        number
    }

    /// Records that the packet of [`Self::plan_again`] was sent.
    #[cold]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; waits are minutes; adding to an `Instant` saturates"
    )]
    fn sent_again(&mut self, number: u64, until: u64, context: &mut Context<'_>) {
        let now = context.now;
        let longest = self.timers.retransmission.wait();
        let wait = match self.rtt.estimate() {
            Some(estimate) => estimate.smoothed().max(self.slowest_answer()) + self.reordering_window(),
            // Without a measured round trip, the timeout applies.
            None => longest.unwrap_or(UNKNOWN),
        };
        // The packet requests an answer, which reports on all packets sent before.
        self.ack_requests.on_request(self.sequence.next, now);
        if let Some(selective) = self.recovery.selective_mut() {
            selective.on_resent((number, until), now, wait, longest);
        }
        self.timers.retransmission.start(now);
        self.timers.probe.set(self.probe_wait().map(|wait| now + wait));
        context.counters.retransmitted += 1;
    }

    #[inline]
    fn on_sent_over(&mut self, number: u64, path: Option<u8>, now: Instant) {
        if let (Some(path), Some(selective)) = (path, self.recovery.selective_mut()) {
            selective.on_sent_over(number, self.sequence.next, path, now);
        }
    }
}
