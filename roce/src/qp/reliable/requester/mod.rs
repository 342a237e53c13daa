//! The sending side of a reliable connection: send queue, loss recovery, retries (IBA 9.7.5, 9.7.6).
//!
//! [`Requester`] has a field for each concern, whose file contains the type and its rules. The files with `impl Requester` handle its
//! events: a packet to send (`send`), an answer (`acknowledge`, `selective_acknowledge`), a timeout (`loss`), the acceptance of selective
//! repeat (`negotiation`).

mod ack_requests;
mod acknowledge;
mod control;
mod diagnosis;
mod error;
mod go_back_n;
mod limits;
mod local;
mod loss;
mod missing;
mod negotiation;
mod plan;
mod rack;
mod reads;
mod recovery;
mod request_queue;
mod retries;
mod rtt;
mod sack;
mod scoreboard;
mod selective;
mod selective_acknowledge;
mod send;
mod sequence;
mod spray;
mod timers;
mod waiting;
mod why;

pub(super) use error::RequesterError;
pub(super) use plan::Plan;

use super::super::wqe::Wqe;
use super::super::{
    AckTimeout, Changes, CheckedSend, Completion, CompletionStatus, Context, Identity, LossRecovery,
    RtsSettings,
};
use crate::Psn;
use ack_requests::AckRequests;
use alloc::boxed::Box;
use cc::Instant;
use control::PendingControl;
use diagnosis::Diagnosis;
use limits::{ACKS_PER_WINDOW, ANSWERS_PER_WINDOW};
use reads::OutstandingReads;
use recovery::Recovery;
use request_queue::RequestQueue;
use retries::Retries;
use rtt::RttEstimator;
use selective::Selective;
use sequence::SendSequence;
use spray::Spray;
use timers::Timers;

#[derive(Debug)]
pub(super) struct Requester {
    queue: RequestQueue,
    sequence: SendSequence,
    ack_requests: AckRequests,
    reads: OutstandingReads,
    timers: Timers,
    retries: Retries,
    rtt: RttEstimator,
    recovery: Recovery,
    control: PendingControl,
    diagnosis: Diagnosis,
}

impl Requester {
    pub(super) fn new() -> Self {
        Self {
            queue: RequestQueue::new(),
            sequence: SendSequence::new(Psn::new(0)),
            ack_requests: AckRequests::new(),
            reads: OutstandingReads::default(),
            timers: Timers::default(),
            retries: Retries::default(),
            rtt: RttEstimator::new(),
            recovery: Recovery::new(),
            control: PendingControl::NONE,
            diagnosis: Diagnosis::new(),
        }
    }

    pub(super) fn connect(&mut self, mtu: u32, recovery: LossRecovery, settings: &RtsSettings) {
        self.queue.set_mtu(mtu);
        if recovery == LossRecovery::SelectiveRepeat {
            let paths = settings.congestion.paths.filter(|paths| paths.spray);
            let spray = paths.map(|paths| Box::new(Spray::new(paths.count)));
            self.recovery = Recovery::Selective(Box::new(Selective::new(spray)));
        }
        self.control = PendingControl::new(recovery);
        self.sequence = SendSequence::new(settings.send_psn);
        self.timers.retransmission.set_timeout(AckTimeout::duration(settings.ack_timeout));
        let carried = settings.congestion.computed_by_data().is_some();
        self.ack_requests.set_per_window(if carried { ANSWERS_PER_WINDOW } else { ACKS_PER_WINDOW });
        self.retries.set_limit(settings.retry_count);
        self.retries.set_rnr_limit(settings.rnr_retry);
        self.reads.set_max(settings.max_rd_atomic);
    }

    /// Changes settings, which apply from the next message on.
    pub(super) fn change(&mut self, changes: &Changes) {
        if let Some(timeout) = changes.ack_timeout {
            self.timers.retransmission.set_timeout(AckTimeout::duration(timeout));
        }
        if let Some(count) = changes.retry_count {
            self.retries.set_limit(count);
        }
        if let Some(count) = changes.rnr_retry {
            self.retries.set_rnr_limit(count);
        }
        if let Some(max) = changes.max_rd_atomic {
            self.reads.set_max(max);
        }
    }

    /// Resets everything except the capacity of the queue.
    pub(super) fn reset(&mut self) {
        let mut queue = core::mem::replace(&mut self.queue, RequestQueue::new());
        queue.reset();
        *self = Self { queue, ..Self::new() };
    }

    /// Appends a checked request. The first call allocates room for `most` requests.
    #[inline]
    pub(super) fn post(&mut self, checked: &mut CheckedSend, most: u32) {
        self.queue.post(checked, most);
    }

    /// Completes the oldest request with `status`, all others as flushed.
    pub(super) fn flush(&mut self, status: CompletionStatus, context: &mut Context<'_>, identity: &Identity) {
        let acknowledged = self.acknowledged_bytes();
        let mut status = status;
        while let Some(wqe) = self.queue.pop() {
            let failed = Completion { status, length: 0, ..success(wqe, identity) };
            context.cqs.push(identity.send_cq, failed);
            status = CompletionStatus::Flushed;
        }
        self.queue.rewind();
        self.queue.discard_unacknowledged(acknowledged);
        self.sequence.abandon(self.queue.end());
        self.reads.rewind();
        self.timers.stop();
        self.timers.on_receiver_ready();
        self.rtt.cancel();
        if self.recovery.is_selective() {
            self.recovery = Recovery::new();
        }
        self.control = PendingControl::NONE;
    }

    /// Returns whether a message is partly sent, or a packet must be retransmitted.
    pub(super) fn has_begun(&self) -> bool {
        self.sequence.next < self.sequence.sent
            || self.recovery.has_lost()
            || self.queue.next().is_some_and(|wqe| wqe.first < self.sequence.next)
    }

    #[inline]
    pub(super) fn recovery_limit(&self, window: u64) -> u64 {
        self.recovery.limit(window)
    }

    /// Returns whether a timeout has expired since the last progress.
    pub(super) const fn is_unanswered(&self) -> bool {
        self.timers.retransmission.has_backed_off()
    }

    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Returns the payload bytes in flight: sent and not acknowledged; with selective repeat neither SACKed nor lost.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight_of(self.queue.bytes_before_next(self.sequence.next))
    }

    /// Returns the payload bytes that the peer acknowledged since the start of the connection.
    #[inline]
    pub(super) fn acknowledged_bytes(&self) -> u64 {
        self.queue.bytes_before(self.sequence.una)
    }

    /// Returns the bytes in flight if `sent` payload bytes were sent since the start of the connection.
    #[inline]
    #[expect(
        clippy::arithmetic_side_effects,
        reason = "`una` is not beyond the packets that were sent, and `min` keeps the difference from going below 0"
    )]
    fn in_flight_of(&self, sent: u64) -> u64 {
        let sent = sent - self.acknowledged_bytes();
        self.recovery
            .selective()
            .map_or(sent, |selective| sent - selective.scoreboard.bytes_not_in_flight().min(sent))
    }

    /// Returns `una`, `next` and `sent` of [`SendSequence`].
    pub(super) const fn bounds(&self) -> (u64, u64, u64) {
        (self.sequence.una, self.sequence.next, self.sequence.sent)
    }

    pub(super) const fn is_answered(&self) -> bool {
        self.sequence.is_answered()
    }

    /// Returns whether everything sent will be acknowledged without another packet, and nothing is retransmitted. New packets can then be
    /// delayed.
    pub(super) const fn will_all_be_acknowledged(&self) -> bool {
        let sent = self.sequence.sent;
        self.sequence.next == sent && self.ack_requests.end() == sent && !self.rtt.is_probing()
    }

    pub(super) const fn first(&self) -> Psn {
        self.sequence.first()
    }

    /// Returns the last acknowledged PSN; one before the first if there is none.
    pub(super) fn acknowledged_psn(&self) -> Psn {
        self.sequence.acknowledged_psn()
    }

    pub(super) fn send_psn(&self) -> Psn {
        self.sequence.psn(self.sequence.sent)
    }

    pub(in crate::qp) fn oldest_psn(&self) -> Psn {
        self.sequence.psn(self.sequence.una)
    }

    pub(in crate::qp) const fn retries(&self) -> u8 {
        self.retries.spent()
    }

    #[inline]
    pub(in crate::qp) const fn has_control_due(&self) -> bool {
        self.control.is_due()
    }

    #[inline]
    pub(in crate::qp) const fn is_offer_due(&self) -> bool {
        self.control.is_offer_due()
    }

    pub(in crate::qp) const fn on_offer_sent(&mut self) {
        self.control.on_offer_sent();
    }

    pub(super) fn poll_timeout(&self) -> Option<Instant> {
        self.timers.due(self.recovery.selective().and_then(|selective| selective.rack.due()))
    }
}

fn success(wqe: &Wqe, identity: &Identity) -> Completion {
    let length = if wqe.is_fetched() { wqe.length } else { 0 };
    let (id, ok) = (wqe.request.id, CompletionStatus::Success);
    Completion { length, ..Completion::new(id, ok, wqe.opcode(), identity.qpn) }
}
