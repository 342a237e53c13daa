//! Applies acknowledgements, READ responses and NAKs to the send queue (IBA 9.7.5).

use super::limits::WAITS;
use super::trouble::{BAD_RESPONSE, STALE, Trouble};
use super::{Progress, Requester, success};
use crate::qp::wqe::{Position, Wqe};
use crate::qp::{CompletionStatus, Context, Data, Identity, SendOperation, Sge, buffers};
use crate::wire::{Aeth, NakCode, Operation, RnrTimer, Syndrome};
use crate::{Memory, Psn};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// An Acknowledge packet (IBA 9.7.5.2).
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and counters stay far below 2^64")]
    pub(in crate::qp) fn on_acknowledge(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let number = self.answered(psn).ok_or(STALE)?;
        // A NAK acknowledges all before its own packet (IBA 9.7.5.2).
        let up_to = match aeth.syndrome {
            Syndrome::Ack { .. } => number + 1,
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => number,
        };
        let mut progress = self.acknowledge(up_to, context, identity);
        self.peer_has(up_to, context.now);
        if self.una < up_to {
            // It measures a request that the peer has, although an answer before it is missing.
            progress.rtt = self.take_sample(context.now).or(progress.rtt);
            // The peer has a READ, and acknowledged it because it was asked a question.
            if !self.note_small() {
                progress.lost = self.implied_nak(up_to, context.now)?;
            }
            return Ok(progress);
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak(timer) => self.on_rnr_nak(timer, context)?,
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                context.counters.naks_received += 1;
                self.note_nak();
                // A peer that answered RNR NAK may also report the packets behind as a gap. The timer is what counts.
                if self.rnr_until.is_none() {
                    self.retry(context.now)?;
                    // The peer took none of it, whatever path it came by.
                    if let Some(selective) = &mut self.selective {
                        selective.excuse_paths();
                    }
                    progress.lost = true;
                }
            }
            Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => {
                return Err(Trouble::Fail(CompletionStatus::RemoteInvalidRequest));
            }
            Syndrome::Nak(NakCode::RemoteAccessError) => {
                return Err(Trouble::Fail(CompletionStatus::RemoteAccess));
            }
            Syndrome::Nak(NakCode::RemoteOperationalError) => {
                return Err(Trouble::Fail(CompletionStatus::RemoteOperation));
            }
        }
        Ok(progress)
    }

    /// A packet of a READ's response, or the answer of an ATOMIC WRITE or a FLUSH, which looks like that to a READ of nothing
    /// (IBA annex A19).
    #[expect(clippy::arithmetic_side_effects, reason = "64-bit counters never wrap")]
    pub(in crate::qp) fn on_read_response<M: Memory>(
        &mut self,
        psn: Psn,
        operation: Operation,
        payload: &[u8],
        memory: &mut M,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let Some(number) = self.answered(psn) else {
            if psn.distance(self.psn(self.una)) < 0 {
                self.wait_on(context.now);
            }
            return Err(STALE);
        };
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_answers(number, context.now);
        let is_early = self.una < number;
        let wqe = if is_early { self.early(number) } else { self.queue.front() };
        let Some(wqe) = wqe else {
            progress.lost = self.implied_nak(number, context.now)?;
            return Ok(progress);
        };
        match (wqe.request.operation, &wqe.request.data) {
            (SendOperation::Read { .. }, Data::Buffers(sges)) => {
                // A peer that has accepted an offer answers stretches, also before its acceptance comes.
                let is_whole = self.selective.is_none() && !self.offer.is_made();
                let offset = match is_whole {
                    true => check_read_response(wqe, number, self.mtu, operation, payload)?,
                    false => check_length(wqe, number, self.mtu, payload)?,
                };
                place(sges, offset, payload, memory, context, identity)?;
            }
            // That it is done is all that there is to say.
            (SendOperation::AtomicWrite { .. } | SendOperation::Flush { .. }, _)
                if matches!(operation, Operation::ReadResponseOnly(_)) && payload.is_empty() => {}
            _ => return Err(BAD_RESPONSE),
        }
        context.counters.rx_payload_bytes += payload.len() as u64;
        if is_early {
            progress.rtt = self.take_sample(context.now).or(progress.rtt);
            progress.lost |= self.on_early_answer(number, context.now);
        } else {
            self.on_answer(number, context, identity, &mut progress);
        }
        Ok(progress)
    }

    /// An atomic's answer.
    pub(in crate::qp) fn on_atomic_acknowledge<M: Memory>(
        &mut self,
        psn: Psn,
        original: u64,
        memory: &mut M,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, Trouble> {
        let number = self.answered(psn).ok_or(STALE)?;
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_answers(number, context.now);
        let is_early = self.una < number;
        let wqe = if is_early { self.early(number) } else { self.queue.front() };
        let Some(wqe) = wqe else {
            progress.lost = self.implied_nak(number, context.now)?;
            return Ok(progress);
        };
        let (SendOperation::FetchAdd { .. } | SendOperation::CompareSwap { .. }, Data::Buffers(sges)) =
            (wqe.request.operation, &wqe.request.data)
        else {
            return Err(BAD_RESPONSE);
        };
        place(sges, 0, &original.to_ne_bytes(), memory, context, identity)?;
        if is_early {
            progress.rtt = self.take_sample(context.now).or(progress.rtt);
            progress.lost |= self.on_early_answer(number, context.now);
        } else {
            self.on_answer(number, context, identity, &mut progress);
        }
        Ok(progress)
    }

    /// Takes all before `up_to` as arrived, except that it stops at a READ or atomic: only their answers show that.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "neither `una` nor the count of bytes sent before it goes back"
    )]
    pub(super) fn acknowledge(
        &mut self,
        up_to: u64,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Progress {
        let (before, stream_before) = (self.una, self.stream_at(0, self.una));
        let mut done = 0;
        if self.una < up_to {
            let mut una = self.una;
            let is_done = |wqe: &&Wqe| {
                if !wqe.is_answered() {
                    una = una.max(wqe.end().min(up_to));
                }
                wqe.end() <= una && !wqe.is_pending()
            };
            let retired = self.queue.iter().take_while(is_done);
            done = retired.inspect(|wqe| complete(wqe, context, identity)).count();
            self.una = una;
        }
        if self.una > before && self.selective.is_some() {
            self.settle(before);
        }
        self.forget(done);
        let bytes = self.stream_at(0, self.una) - stream_before;
        let (rtt, lost) = if self.una > before { self.on_progress(before, context) } else { (None, false) };
        Progress { bytes, rtt, lost }
    }

    /// The answer for packet `number`, the oldest, is in its place.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    fn on_answer(
        &mut self,
        number: u64,
        context: &mut Context<'_>,
        identity: &Identity,
        progress: &mut Progress,
    ) {
        let before = self.una;
        self.una = number + 1;
        self.retire_front(context, identity);
        progress.bytes += self.absorb(context, identity);
        let (rtt, lost) = self.on_progress(before, context);
        progress.rtt = rtt.or(progress.rtt);
        progress.lost |= lost;
    }

    /// Completes the front request if all of it is acknowledged, and the local ones behind it that have run.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "a READ before `next` was counted; `reads_at_once` is at most 256; the held requests are few"
    )]
    pub(super) fn retire_front(&mut self, context: &mut Context<'_>, identity: &Identity) {
        let mut done = 0;
        for wqe in self.queue.iter() {
            if wqe.end() > self.una || wqe.is_pending() {
                break;
            }
            complete(wqe, context, identity);
            if wqe.is_answered() {
                self.outstanding_reads -= u32::from(self.next >= wqe.end());
                self.reads_at_once = (self.reads_at_once + 1).min(self.max_reads.into());
            }
            done += 1;
        }
        self.forget(done);
    }

    /// Forgets the oldest `done` requests.
    #[inline]
    fn forget(&mut self, done: usize) {
        self.queue.forget(done);
        self.cursor = self.cursor.saturating_sub(done);
    }

    /// `una` moved on from `before`: counters and timers start again. Returns the round trip if the packet that measures it is in, and
    /// whether there is a loss that was not reported to congestion control.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`una` has advanced; a window's packets fit into 64 bits of bytes; adding to an `Instant` saturates"
    )]
    fn on_progress(&mut self, before: u64, context: &Context<'_>) -> (Option<Duration>, bool) {
        if self.next < self.una {
            self.next = self.una;
        }
        self.retries_left = self.retry_count;
        self.rnr_left = self.rnr_retry;
        self.rnr_until = None;
        self.recovering = false;
        self.patience = 0;
        self.waits = 0;
        self.reach = self.reach.saturating_add((self.una - before) * u64::from(self.mtu));
        self.run = self.run.saturating_add(u32::try_from(self.una - before).unwrap_or(u32::MAX));
        let rtt = self.take_sample(context.now);
        let is_asked = self.asked > self.una;
        self.deadline = self.wait().filter(|_| is_asked).map(|wait| context.now + wait);
        self.probe_at = self.probe_due(context.now).filter(|_| is_asked);
        let lost = self.selective.is_some() && self.after_progress(context.now);
        (rtt, lost)
    }

    /// An answer came for a packet behind a READ or atomic whose own answer is missing: that was lost
    /// (IBA 9.7.5.1: an implied NAK). Gives whether it is news.
    fn implied_nak(&mut self, number: u64, now: Instant) -> Result<bool, Trouble> {
        if self.selective.is_some() {
            self.answers_missing(number, now);
            return Ok(self.detect(now));
        }
        // Answers of one round come in their order: one that goes back begins the next round, whose first was lost as well.
        let is_next_round = self.recovering && number < self.ahead;
        self.ahead = number;
        if is_next_round {
            // This costs no retry: only the timer ends what never moves.
            let deadline = self.deadline;
            self.go_back(now);
            (self.deadline, self.ahead) = (deadline, 0);
            return Ok(true);
        }
        if self.recovering {
            self.wait_on(now);
            return Ok(false);
        }
        self.retry(now)?;
        self.recovering = true;
        Ok(true)
    }

    /// The peer streams an answer that was requested in an earlier round: Soft-RoCE does so to the end before it looks at the request that
    /// was sent again, or is new. Another request meanwhile would only lengthen the stream, until nothing but the past is answered. The
    /// peer is alive, so the timer starts again. A peer that answers nothing else for too long is as good as silent, or another host sends
    /// in its name: then the timer fires.
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`waits` is below WAITS; the wait is at most hours; adding to an `Instant` saturates"
    )]
    fn wait_on(&mut self, now: Instant) {
        if let (Some(wait), Some(deadline)) = (self.wait(), self.deadline)
            && self.waits < WAITS
            && deadline <= now + wait * 3 / 4
        {
            self.waits += 1;
            self.deadline = Some(now + wait);
        }
        self.probe_at = self.probe_at.and(self.probe_wait()).map(|wait| now + wait);
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`left` is not 0; 64-bit counters never wrap; adding to an `Instant` saturates"
    )]
    fn on_rnr_nak(&mut self, timer: RnrTimer, context: &mut Context<'_>) -> Result<(), Trouble> {
        context.counters.rnr_naks_received += 1;
        if self.rnr_until.is_some() {
            return Ok(());
        }
        self.rnr_left = match self.rnr_left {
            0 => return Err(Trouble::Fail(CompletionStatus::RnrRetryExceeded)),
            // For ever.
            7 => 7,
            left => left - 1,
        };
        if self.selective.is_some() {
            self.lose_refused(context.now);
            self.deadline = None;
            self.probe_at = None;
        } else {
            self.rewind();
        }
        self.rnr_until = Some(context.now + timer.duration());
        Ok(())
    }
}

/// Reports a request that is done, if it must be reported.
#[inline]
fn complete(wqe: &Wqe, context: &mut Context<'_>, identity: &Identity) {
    if wqe.request.signalled || identity.signal_all {
        context.cqs.push(identity.send_cq, success(wqe, identity));
    }
}

/// Checks that a response is the requested one at this place; returns the place of its bytes (IBA 9.7.5.1).
#[expect(clippy::arithmetic_side_effects, reason = "`number` is one of the packets of `wqe`")]
fn check_read_response(
    wqe: &Wqe,
    number: u64,
    mtu: u32,
    operation: Operation,
    payload: &[u8],
) -> Result<u32, Trouble> {
    let position = Position::of((number - wqe.first) as u32, wqe.packets);
    // A READ that goes on after a loss begins in the middle, so only the end is sure.
    let ends = matches!(position, Position::Last | Position::Only);
    let fits = match operation {
        Operation::ReadResponseFirst(_) | Operation::ReadResponseMiddle => !ends,
        Operation::ReadResponseLast(_) | Operation::ReadResponseOnly(_) => ends,
        _ => false,
    };
    if fits { check_length(wqe, number, mtu, payload) } else { Err(BAD_RESPONSE) }
}

/// The same if any stretch of a READ may have been requested again: only the length is sure.
#[expect(clippy::arithmetic_side_effects, reason = "the offset is at most the length")]
fn check_length(wqe: &Wqe, number: u64, mtu: u32, payload: &[u8]) -> Result<u32, Trouble> {
    let offset = wqe.offset(number, mtu);
    let expected = (wqe.length - offset).min(mtu);
    if payload.len() == expected as usize { Ok(offset) } else { Err(BAD_RESPONSE) }
}

fn place<M: Memory>(
    sges: &[Sge],
    offset: u32,
    payload: &[u8],
    memory: &mut M,
    context: &Context<'_>,
    identity: &Identity,
) -> Result<(), Trouble> {
    buffers::place(memory, context.regions, identity.pd, sges, offset, payload)
        .map_err(|_| Trouble::Fail(CompletionStatus::LocalProtection))
}
