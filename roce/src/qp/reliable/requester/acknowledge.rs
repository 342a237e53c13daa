//! Applies acknowledgements, READ responses and NAKs to the send queue (IBA 9.7.5).

use super::error::{BAD_RESPONSE, RequesterError, STALE};
use super::go_back_n::ImpliedNak;
use super::recovery::Recovery;
use super::{Requester, success};
use crate::congestion::Progress;
use crate::qp::wqe::{Position, Wqe};
use crate::qp::{CompletionStatus, Context, Data, Identity, SendOperation, Sge, buffers};
use crate::wire::{Aeth, NakCode, Operation, RnrTimer, Syndrome};
use crate::{Memory, Psn};
use cc::Instant;
use core::time::Duration;

impl Requester {
    /// Handles an Acknowledge packet (IBA 9.7.5.2).
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and counters stay far below 2^64")]
    pub(in crate::qp) fn on_acknowledge(
        &mut self,
        psn: Psn,
        aeth: Aeth,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, RequesterError> {
        let number = self.sequence.answered(psn).ok_or(STALE)?;
        // A NAK acknowledges all packets before its own (IBA 9.7.5.2).
        let up_to = match aeth.syndrome {
            Syndrome::Ack { .. } => number + 1,
            Syndrome::RnrNak(_) | Syndrome::Nak(_) => number,
        };
        let mut progress = self.acknowledge(up_to, context, identity);
        if let Some(selective) = self.recovery.selective_mut() {
            selective.on_cumulative(up_to, &self.queue, self.sequence.una, context.now);
        }
        if self.sequence.una < up_to {
            // The measured packet has arrived, although an earlier answer is missing.
            progress.rtt = self.take_sample(context.now).or(progress.rtt);
            // An acknowledgement of a keep-alive shows no loss: the peer has received the READ.
            if !self.diagnosis.record_duplicate(self.sequence.una) {
                progress.lost = self.implied_nak(up_to, context.now)?;
            }
            return Ok(progress);
        }
        match aeth.syndrome {
            Syndrome::Ack { .. } => {}
            Syndrome::RnrNak(timer) => self.on_rnr_nak(timer, context)?,
            Syndrome::Nak(NakCode::PsnSequenceError) => {
                context.counters.naks_received += 1;
                self.diagnosis.record_nak(self.sequence.una);
                // After an RNR NAK the peer may also report the later packets as a gap. The RNR timer determines the retransmission.
                if !self.timers.is_receiver_not_ready() {
                    self.retry(context.now)?;
                    // The peer dropped all later packets, whatever their paths.
                    if let Some(selective) = self.recovery.selective_mut() {
                        selective.rack.clear_path_blame();
                    }
                    progress.lost = true;
                }
            }
            Syndrome::Nak(NakCode::InvalidRequest | NakCode::InvalidRdRequest) => {
                return Err(RequesterError::Fail(CompletionStatus::RemoteInvalidRequest));
            }
            Syndrome::Nak(NakCode::RemoteAccessError) => {
                return Err(RequesterError::Fail(CompletionStatus::RemoteAccess));
            }
            Syndrome::Nak(NakCode::RemoteOperationalError) => {
                return Err(RequesterError::Fail(CompletionStatus::RemoteOperation));
            }
        }
        Ok(progress)
    }

    /// Handles a READ response, or the answer to an ATOMIC WRITE or a FLUSH, which has the form of a response to a READ of 0 bytes
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
    ) -> Result<Progress, RequesterError> {
        let Some(number) = self.sequence.answered(psn) else {
            if self.sequence.distance(psn) < 0 {
                self.on_stale_answer(context.now);
            }
            return Err(STALE);
        };
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_answers(number, context.now);
        let Some(wqe) = self.request_awaiting(number) else {
            progress.lost = self.implied_nak(number, context.now)?;
            return Ok(progress);
        };
        match (wqe.request.operation, &wqe.request.data) {
            (SendOperation::Read { .. }, Data::Buffers(sges)) => {
                // A peer that accepts an offer may answer parts of a READ before its acceptance arrives.
                let is_whole = !self.recovery.is_selective() && !self.control.is_offered();
                let offset = match is_whole {
                    true => check_read_response(wqe, number, self.queue.mtu(), operation, payload)?,
                    false => check_length(wqe, number, self.queue.mtu(), payload)?,
                };
                place(sges, offset, payload, memory, context, identity)?;
            }
            // This answer carries no data.
            (SendOperation::AtomicWrite { .. } | SendOperation::Flush { .. }, _)
                if matches!(operation, Operation::ReadResponseOnly(_)) && payload.is_empty() => {}
            _ => return Err(BAD_RESPONSE),
        }
        context.counters.rx_payload_bytes += payload.len() as u64;
        Ok(self.on_placed(number, progress, context, identity))
    }

    pub(in crate::qp) fn on_atomic_acknowledge<M: Memory>(
        &mut self,
        psn: Psn,
        original: u64,
        memory: &mut M,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Result<Progress, RequesterError> {
        let number = self.sequence.answered(psn).ok_or(STALE)?;
        let mut progress = self.acknowledge(number, context, identity);
        self.peer_answers(number, context.now);
        let Some(wqe) = self.request_awaiting(number) else {
            progress.lost = self.implied_nak(number, context.now)?;
            return Ok(progress);
        };
        let (SendOperation::FetchAdd { .. } | SendOperation::CompareSwap { .. }, Data::Buffers(sges)) =
            (wqe.request.operation, &wqe.request.data)
        else {
            return Err(BAD_RESPONSE);
        };
        place(sges, 0, &original.to_ne_bytes(), memory, context, identity)?;
        Ok(self.on_placed(number, progress, context, identity))
    }

    /// Acknowledges all packets before `up_to`, but stops at a READ or atomic, which only its answer completes.
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
        let before = self.sequence.una;
        let bytes_before = self.queue.bytes_before(before);
        let mut done = 0;
        if before < up_to
            && let Some(plain) = self.queue.plain_before(up_to)
        {
            let all = identity.signal_all;
            for part in &plain {
                let signalled = part.iter().filter(|wqe| all || wqe.request.signalled);
                context.cqs.push_all(identity.send_cq, signalled.map(|wqe| success(wqe, identity)));
                done += part.len();
            }
            self.sequence.una = up_to;
        } else if before < up_to {
            let mut una = before;
            let is_done = |wqe: &&Wqe| {
                if !wqe.is_answered() {
                    una = una.max(wqe.end().min(up_to));
                }
                wqe.end() <= una && !wqe.is_pending()
            };
            let retired = self.queue.iter().take_while(is_done);
            done = retired.inspect(|wqe| complete(wqe, context, identity)).count();
            self.sequence.una = una;
        }
        let has_moved = self.sequence.una > before;
        if has_moved && let Some(selective) = self.recovery.selective_mut() {
            selective.acknowledge(before, self.sequence.una, &self.queue);
        }
        self.queue.forget(done);
        let bytes = self.queue.bytes_before(self.sequence.una) - bytes_before;
        let (rtt, lost) = if has_moved { self.on_progress(before, context) } else { (None, false) };
        Progress { bytes, rtt, lost }
    }

    /// Returns the request that awaits answer `number`; `None` if the answer is too early to be kept, or a duplicate.
    fn request_awaiting(&self, number: u64) -> Option<&Wqe> {
        if self.sequence.una < number { self.request_with_early_answer(number) } else { self.queue.front() }
    }

    /// Records that answer `number` was placed. Adds the acknowledged packets to the progress that its packet made before.
    #[expect(clippy::arithmetic_side_effects, reason = "packet numbers and byte counts stay far below 2^64")]
    fn on_placed(
        &mut self,
        number: u64,
        mut progress: Progress,
        context: &mut Context<'_>,
        identity: &Identity,
    ) -> Progress {
        let before = self.sequence.una;
        let (rtt, lost) = if before < number {
            (self.take_sample(context.now), self.on_early_answer(number, context.now))
        } else {
            self.sequence.una = number + 1;
            self.retire_front(context, identity);
            progress.bytes += self.advance_una(context, identity);
            self.on_progress(before, context)
        };
        progress.rtt = rtt.or(progress.rtt);
        progress.lost |= lost;
        progress
    }

    /// Completes the requests at the front that are acknowledged, and the local ones that have run.
    #[expect(clippy::arithmetic_side_effects, reason = "the held requests are few")]
    pub(super) fn retire_front(&mut self, context: &mut Context<'_>, identity: &Identity) {
        let mut done = 0;
        for wqe in self.queue.iter() {
            if wqe.end() > self.sequence.una || wqe.is_pending() {
                break;
            }
            complete(wqe, context, identity);
            if wqe.is_answered() {
                self.reads.end(self.sequence.next >= wqe.end());
            }
            done += 1;
        }
        self.queue.forget(done);
    }

    /// Restarts counters and timers after `una` advanced from `before`. Returns the round trip if the measured packet has arrived, and
    /// whether there is a loss that was not reported to congestion control.
    #[expect(clippy::arithmetic_side_effects, reason = "`una` has advanced")]
    fn on_progress(&mut self, before: u64, context: &Context<'_>) -> (Option<Duration>, bool) {
        let (now, una) = (context.now, self.sequence.una);
        self.sequence.skip_acknowledged();
        self.retries.restore();
        self.timers.on_receiver_ready();
        self.timers.retransmission.on_progress();
        if let Recovery::GoBackN(go_back_n) = &mut self.recovery {
            go_back_n.on_progress(una - before, self.queue.mtu());
        }
        let rtt = self.take_sample(now);
        let has_ack_request = self.ack_requests.end() > una;
        self.timers.retransmission.restart(has_ack_request, now);
        let probe_due = if has_ack_request { self.probe_due(now) } else { None };
        self.timers.probe.set(probe_due);
        let lost = self.recovery.is_selective() && self.after_progress(now);
        (rtt, lost)
    }

    /// Handles an answer after a READ or atomic whose own answer is missing and was therefore lost (IBA 9.7.5.1: an implied NAK). Returns
    /// whether the loss is new.
    fn implied_nak(&mut self, number: u64, now: Instant) -> Result<bool, RequesterError> {
        let implied = match &mut self.recovery {
            Recovery::Selective(selective) => {
                selective.mark_answers_missing(
                    number,
                    &self.queue,
                    self.sequence.una,
                    self.rtt.estimate(),
                    now,
                );
                return Ok(self.detect(now));
            }
            Recovery::GoBackN(go_back_n) => go_back_n.on_early_answer(number),
        };
        match implied {
            ImpliedNak::NextRound => {
                // This uses no retry. Without any progress, the retransmission timer ends it.
                let deadline = self.timers.retransmission.deadline();
                self.recover(now);
                self.timers.retransmission.resume(deadline);
                Ok(true)
            }
            ImpliedNak::Known => {
                self.on_stale_answer(now);
                Ok(false)
            }
            ImpliedNak::New => {
                self.retry(now)?;
                if let Recovery::GoBackN(go_back_n) = &mut self.recovery {
                    go_back_n.on_implied_nak(number);
                }
                Ok(true)
            }
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        reason = "64-bit counters never wrap; adding to an `Instant` saturates"
    )]
    fn on_rnr_nak(&mut self, timer: RnrTimer, context: &mut Context<'_>) -> Result<(), RequesterError> {
        context.counters.rnr_naks_received += 1;
        if self.timers.is_receiver_not_ready() {
            return Ok(());
        }
        if !self.retries.spend_rnr() {
            return Err(RequesterError::Fail(CompletionStatus::RnrRetryExceeded));
        }
        if self.recovery.is_selective() {
            self.mark_rnr_refused(context.now);
            self.timers.stop();
        } else {
            self.rewind();
        }
        self.timers.wait_for_receive(context.now + timer.duration());
        Ok(())
    }
}

#[inline]
fn complete(wqe: &Wqe, context: &mut Context<'_>, identity: &Identity) {
    if wqe.request.signalled || identity.signal_all {
        context.cqs.push(identity.send_cq, success(wqe, identity));
    }
}

/// Checks the position and length of a READ response. Returns the offset of its bytes in the message (IBA 9.7.5.1).
#[expect(clippy::arithmetic_side_effects, reason = "`number` is one of the packets of `wqe`")]
fn check_read_response(
    wqe: &Wqe,
    number: u64,
    mtu: u32,
    operation: Operation,
    payload: &[u8],
) -> Result<u32, RequesterError> {
    let position = Position::of((number - wqe.first) as u32, wqe.packets);
    // A READ that resumes after a loss begins in the middle, so only its end is certain.
    let ends = matches!(position, Position::Last | Position::Only);
    let fits = match operation {
        Operation::ReadResponseFirst(_) | Operation::ReadResponseMiddle => !ends,
        Operation::ReadResponseLast(_) | Operation::ReadResponseOnly(_) => ends,
        _ => false,
    };
    if fits { check_length(wqe, number, mtu, payload) } else { Err(BAD_RESPONSE) }
}

/// Checks only the length of a READ response, because any part of the READ may have been requested again.
#[expect(clippy::arithmetic_side_effects, reason = "the offset is at most the length")]
fn check_length(wqe: &Wqe, number: u64, mtu: u32, payload: &[u8]) -> Result<u32, RequesterError> {
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
) -> Result<(), RequesterError> {
    buffers::place(memory, context.regions, identity.pd, sges, offset, payload)
        .map_err(|_| RequesterError::Fail(CompletionStatus::LocalProtection))
}
